import numpy as np
import pytest

from t2t import UserError
from t2t.data import vocabularies
from t2t.evaluation import few_shot

BYTES = vocabularies.load("bytes", extra_ids=0)


def example(inputs, targets="") -> dict:
  return {"inputs_pretokenized": inputs.encode(), "targets_pretokenized": targets.encode()}


TRAIN = [example(f"{letter}?", letter.upper()) for letter in "abcd"]


def shot(examples, shots, **how):
  return few_shot.with_shots(examples, TRAIN, shots, vocabulary=BYTES, **({"max_inputs": 100} | how))


def text(found) -> str:
  assert found["inputs"][-1] == BYTES.eos_id
  return BYTES.decode(found["inputs"][:-1].tolist())


def test_solved_examples_stand_in_front():
  """The prompt has input, line break, answer and empty line of each shot, then the input to solve."""
  (found,) = shot([example("x?")], 2)
  *solved, own = text(found).split("\n\n")
  assert own == "x?\n"
  assert len(set(solved)) == 2
  assert set(solved) <= {"a?\nA", "b?\nB", "c?\nC", "d?\nD"}
  assert found["num_shots"] == 2


def test_each_input_has_its_own_and_every_run_the_same():
  """The sampled shots depend only on the index of the input."""
  examples = [example("x?")] * 20
  first = [text(found) for found in shot(examples, 2)]
  assert len(set(first)) > 5
  assert first == [text(found) for found in shot(examples, 2)]


def test_what_does_not_fit_is_left_out_from_the_front():
  """Shots are dropped as a whole; an input that is too long by itself is cut, with EOS at its end."""
  all_four = text(shot([example("x?")], 4)[0])
  (fewer,) = shot([example("x?")], 4, max_inputs=len("x?\n") + 2 * len("a?\nA\n\n") + 3)
  assert fewer["num_shots"] == 2
  assert all_four.endswith(text(fewer))
  (cut,) = shot([example("0123456789")], 1, max_inputs=5)
  assert (text(cut), cut["num_shots"]) == ("0123", 0)


def test_too_few_training_examples():
  """The error gives the number of training examples."""
  with pytest.raises(UserError, match=r"config.eval.num_shots=5: the training split has only 4 example\(s\)"):
    shot([example("x?")], 5)
  with pytest.raises(UserError, match="no field 'inputs_pretokenized'"):
    few_shot.with_shots([], [{"inputs": np.arange(3)}], 1, vocabulary=BYTES, max_inputs=9)
