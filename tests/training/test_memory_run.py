"""A run with a memory on files: stopped after every step, or on other processes, it equals a run that is neither."""

import shutil

import jax
import numpy as np
import pytest
import test_array_batches
import test_hosts
from test_state_collections import Recorder
import test_train

import t2t
from t2t import UserError
from t2t import __main__ as command

pytestmark = pytest.mark.exhaustive

STEPS = 3
NAMES = {"gpt2_small": "causal_lm", "bert_base": "permuted_lm"}


def config_of(folder, name="gpt2_small", **others):
  model = {"memory_length": 12, "positions": "relative_xl", "dropout_rate": 0.1, "max_length": 0}
  model |= {"two_streams": name == "bert_base"}
  data = {"files": f"{folder}/text.txt", "vocabulary": "bytes", "continuous_rows": True, "mixture": ""}
  data |= {"inputs_length": 16, "targets_length": 16, "objective": NAMES[name]}
  changes = {"train.steps": STEPS, "checkpoint.save_interval_steps": 1, "train.batch_size": 8}
  changes |= {"optimizer.warmup_steps": 0, "optimizer.schedule": "constant", "eval.num_logged_samples": 0}
  changes |= {f"model.{key}": value for key, value in model.items()} | {f"data.{key}": x for key, x in data.items()}
  return test_array_batches.small(name, **(changes | others))


@pytest.mark.parametrize("name", NAMES)
def test_stopped_after_every_step_equals_never_stopped(name, tmp_path):
  """Parameters and memory, bit for bit; the memory is filled."""
  (tmp_path / "text.txt").write_text("\n".join(f"line {i} of a text with {i * 7} words" for i in range(200)))
  whole, stopped = Recorder(), Recorder()
  t2t.train(config_of(tmp_path, name), str(tmp_path / "whole"), callbacks=[whole]).run()
  for last in range(1, STEPS + 1):
    for row in t2t.train(config_of(tmp_path, name), str(tmp_path / "stopped"), callbacks=[stopped]):
      if row["step"] == last:
        break
  jax.tree.map(np.testing.assert_array_equal, stopped.params[-1], whole.params[-1])
  jax.tree.map(np.testing.assert_array_equal, stopped.values[-1], whole.values[-1])
  assert all(np.all(np.any(x, axis=-1)) for x in whole.values[-1]["carried"].values())


# ---- Processes -------------------------------------------------------------------------------------------------------

text = test_train.text  # fixture
_XL = (
  "--config=transformer_xl_enwik8_base",
  *test_train.SMALL,
  "--config.model.num_decoder_layers=2",
  "--config.model.memory_length=40",
  "--config.model.init_scale=0.5",
  "--config.model.dropout_rate=0.0",
  "--config.data.mixture=",
  "--config.data.num_streams=0",
  "--config.optimizer.schedule=constant",
  "--config.eval.every=2",
  "--config.eval.batches=4",
  "--config.eval.num_logged_samples=0",
  "--config.checkpoint.save_interval_steps=2",
)


def run(text, workdir, steps, *overrides):
  return test_train.arguments(text, workdir, f"--config.train.steps={steps}", *overrides, model=_XL)


def test_processes_carry_the_same_memory(text, tmp_path):
  """Two processes equal one, and each resumes the other's run: losses of training, and of evaluation with a memory."""
  one, half, two = (tmp_path / name for name in ("one", "half", "two"))
  assert command.main(run(text, one, 4)) == 0
  shutil.copytree(one, half, ignore=lambda folder, _: ["4"] if folder.endswith("checkpoints") else [])
  mesh = test_hosts.mesh(data=2, fsdp=2)
  commands = [run(text, two, 2, *mesh), run(text, half, 4, *mesh)]
  codes, logs = test_hosts.Processes(2, 2, commands, cache=tmp_path).wait()
  assert codes == [0, 0], logs
  test_hosts.assert_same_losses(two, one, steps=2)
  test_hosts.assert_same_losses(half, one, steps=4)
  assert command.main(run(text, two, 4)) == 0
  test_hosts.assert_same_losses(two, one, steps=4)


# ---- Stages of data --------------------------------------------------------------------------------------------------


def test_a_stage_with_longer_rows_begins_with_an_empty_memory(text, tmp_path):
  """Its first batch begins another window; the batch after it continues."""

  class Flags(Recorder):
    def __init__(self):
      self.flags, self.losses = [], []

    def on_step(self, run):
      self.flags.append(np.asarray(run.dispatched.batch["decoder_continues"])[:, 0].tolist())

  stages = ({"name": "short", "fraction": 0.5}, {"name": "long", "data.targets_length": 24})
  changes = {"data.files": f"{text}/train.jsonl.gz", "data.eval_files": f"{text}/validation.jsonl"}
  changes |= {"train.steps": 4, "stages": stages}
  seen = Flags()
  t2t.train(config_of(tmp_path, **changes), str(tmp_path / "run"), callbacks=[seen]).run()
  assert [sum(flags) for flags in seen.flags] == [0, 8, 0, 8]
  stages = ({"name": "small", "fraction": 0.5}, {"name": "large", "train.batch_size": 16})
  with pytest.raises(UserError, match="stages, large: config.train.batch_size=16 differs from 8 in small"):
    t2t.train(config_of(tmp_path, **(changes | {"stages": stages})), str(tmp_path / "other")).run()
