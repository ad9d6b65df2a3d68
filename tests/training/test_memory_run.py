"""A run with a memory on files: a run that stops after every step equals one that does not."""

import jax
import numpy as np
import pytest
import test_array_batches
from test_state_collections import Recorder

import t2t

pytestmark = pytest.mark.exhaustive

STEPS = 3
NAMES = {"gpt2_small": "causal_lm", "bert_base": "permuted_lm"}


def config(folder, name):
  model = {"memory_length": 12, "positions": "relative_xl", "dropout_rate": 0.1, "max_length": 0}
  model |= {"two_streams": name == "bert_base"}
  data = {"files": f"{folder}/text.txt", "vocabulary": "bytes", "continuous_rows": True, "mixture": ""}
  data |= {"inputs_length": 16, "targets_length": 16, "objective": NAMES[name]}
  changes = {"train.steps": STEPS, "checkpoint.save_interval_steps": 1, "train.batch_size": 8}
  changes |= {"optimizer.warmup_steps": 0, "optimizer.schedule": "constant", "eval.num_logged_samples": 0}
  changes |= {f"model.{key}": value for key, value in model.items()} | {f"data.{key}": x for key, x in data.items()}
  return test_array_batches.small(name, **changes)


@pytest.mark.parametrize("name", NAMES)
def test_stopped_after_every_step_equals_never_stopped(name, tmp_path):
  """Parameters and memory, bit for bit; the memory is filled."""
  (tmp_path / "text.txt").write_text("\n".join(f"line {i} of a text with {i * 7} words" for i in range(200)))
  whole, stopped = Recorder(), Recorder()
  t2t.train(config(tmp_path, name), str(tmp_path / "whole"), callbacks=[whole]).run()
  for last in range(1, STEPS + 1):
    for row in t2t.train(config(tmp_path, name), str(tmp_path / "stopped"), callbacks=[stopped]):
      if row["step"] == last:
        break
  jax.tree.map(np.testing.assert_array_equal, stopped.params[-1], whole.params[-1])
  jax.tree.map(np.testing.assert_array_equal, stopped.values[-1], whole.values[-1])
  assert all(np.all(np.any(x, axis=-1)) for x in whole.values[-1]["carried"].values())
