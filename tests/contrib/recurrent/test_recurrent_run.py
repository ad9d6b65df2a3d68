"""Runs of recurrent models on files: resuming with carried states, and the keys that belong together."""

import jax
import numpy as np
import pytest
import test_array_batches
from test_state_collections import Recorder

import t2t
from t2t import UserError
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
