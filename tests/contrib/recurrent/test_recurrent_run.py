"""Runs of recurrent models on files: resuming with carried states, classifiers, and the keys that belong together."""

import json

import jax
import numpy as np
import pytest
import test_array_batches
from test_state_collections import Recorder

import t2t
from t2t import UserError
from t2t import __main__ as command
from t2t.contrib.recurrent import presets

STEPS = 3


def config_of(folder, **others):
  fields = presets.awd_lstm("ptb") | dict(vocab_size=384, embed_dim=16, recurrent_hidden=24, dtype="float32")
  data = {"files": f"{folder}/text.txt", "vocabulary": "bytes", "continuous_rows": True, "mixture": ""}
  data |= {"targets_length": 16, "objective": "causal_lm"}
  changes = {"train.steps": STEPS, "checkpoint.save_interval_steps": 1, "train.batch_size": 8}
  changes |= {"optimizer.warmup_steps": 0, "optimizer.schedule": "constant", "eval.num_logged_samples": 0}
  changes |= {f"model.{key}": value for key, value in fields.items()} | {f"data.{key}": x for key, x in data.items()}
  return test_array_batches.small("gpt2_small", **(changes | others))


@pytest.fixture
def folder(tmp_path):
  (tmp_path / "text.txt").write_text("\n".join(f"line {i} of a text with {i * 7} words" for i in range(200)))
  return tmp_path


@pytest.mark.exhaustive
def test_stopped_after_every_step_equals_never_stopped(folder):
  """Parameters and states of AWD-LSTM with all of its dropout, bit for bit; the states are filled."""
  whole, stopped = Recorder(), Recorder()
  t2t.train(config_of(folder), str(folder / "whole"), callbacks=[whole]).run()
  for last in range(1, STEPS + 1):
    for row in t2t.train(config_of(folder), str(folder / "stopped"), callbacks=[stopped]):
      if row["step"] == last:
        break
  jax.tree.map(np.testing.assert_array_equal, stopped.params[-1], whole.params[-1])
  jax.tree.map(np.testing.assert_array_equal, stopped.values[-1], whole.values[-1])
  states = whole.values[-1]["carried"]
  assert states.keys() == {"carried/decoder/recurrent_output", "carried/decoder/recurrent_cell"}
  assert all(np.all(np.any(x, axis=-1)) for x in states.values())


@pytest.mark.slow
@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"data.continuous_rows": False}, "recurrent_carry=True: rows of shuffled text do not continue"),
    ({"model.recurrent_carry": False}, "continuous_rows=True has no effect with config.model.recurrent_carry=False"),
  ],
)
def test_carried_states_need_rows_that_continue(folder, changes, message):
  """Each key alone is an error before the run begins."""
  with pytest.raises(UserError, match=message):
    t2t.train(config_of(folder, **changes), str(folder / "run")).run()


def small(folder, name, *others):
  """Returns the command that trains a small model of this config for two steps."""
  fields = dict(vocab_size=384, embed_dim=16, embedding_dim=8, output_embedding_dim=16, dtype="float32")
  given = {f"model.{key}": x for key, x in fields.items()} | {"data.mixture": "", "data.vocabulary": "bytes"}
  given |= {"data.inputs_length": 32, "data.targets_length": 32, "data.num_streams": 1, "train.batch_size": 8}
  given |= {"train.steps": 2, "eval.batches": 1}
  keys = [f"--config.{key}={x}" for key, x in given.items()]
  return ["train", f"--config={name}", "--workdir", str(folder / name), *keys, *others]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "source"), [("tiny_sa_lstm", "text.txt"), ("tiny_cove", "pairs.tsv")])
def test_a_run_initializes_a_classifier(tmp_path, name, source):
  """It generates text, and a classifier on its frozen layers has the same vectors."""
  pairs = [f"a house {i}\tein Haus {i}" for i in range(40)]
  (tmp_path / "pairs.tsv").write_text("\n".join(pairs) + "\n")
  (tmp_path / "text.txt").write_text("\n".join(pair.partition("\t")[0] * 3 for pair in pairs) + "\n")
  rows = [f"the film {i}\t{'yes' if i % 2 else 'no'}" for i in range(40)]
  (tmp_path / "rows.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
  objective = "translation" if source == "pairs.tsv" else "sequence_autoencoder"
  data = [f"--config.data.files={tmp_path / source}", f"--config.data.objective={objective}"]
  assert command.main(small(tmp_path, name, *data)) == 0
  tune = ["train", "--config=finetune", f"--config.init.checkpoint={tmp_path / name}", "--workdir", f"{tmp_path}/tuned"]
  tune += ["--config.train.loss=heads", "--config.train.freeze=^(?!heads/)", "--config.train.steps=2"]
  tune += [f"--config.data.files={tmp_path}/rows.tsv", "--config.data.labels=auto", "--config.train.batch_size=8"]
  assert command.main(tune) == 0
  (tmp_path / "in.txt").write_text("a house 1\nthe film\n")
  vectors = []
  for folder in (tmp_path / name, tmp_path / "tuned"):
    files = ["--checkpoint", str(folder), "--input", f"{tmp_path}/in.txt", "--output"]
    assert command.main(["embed", *files, f"{folder}.npy", "--layer", "all"]) == 0
    vectors.append(np.load(f"{folder}.npy"))
    assert command.main(["infer", *files, f"{folder}.jsonl"]) == 0
  np.testing.assert_array_equal(*vectors)
  answers = [json.loads(line) for line in (tmp_path / "tuned.jsonl").read_text().splitlines()]
  assert {answer["prediction"] for answer in answers} <= {"yes", "no"}
