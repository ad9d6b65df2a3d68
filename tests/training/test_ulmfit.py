"""ULMFiT: the three runs of configs/ulmfit.py for any model, and gradual unfreezing that resumes exactly."""

import json

import jax
import numpy as np
import pytest
import toy
import trained

from t2t import UserError
from t2t import __main__ as command
from t2t.checkpoints import pretrained
from t2t.configuration import loading
from t2t.data import train_data
from t2t.training import optimizers, param_groups, schedules
from t2t.training.callbacks.stop_at import StopAt
from t2t.training.train import train

ROWS = 24


@pytest.fixture(scope="module")
def table(tmp_path_factory):
  """A table of reviews, which is also the text of the task."""
  path = tmp_path_factory.mktemp("reviews") / "reviews.tsv"
  rows = [f"film {i} was {('dull', 'great')[i % 2]}\t{('bad', 'good')[i % 2]}" for i in range(ROWS)]
  path.write_text("review\tlabel\n" + "\n".join(rows) + "\n")
  return path


def config_of(architecture, name, *arguments):
  """Returns the config of a run that starts from the small model of an architecture."""
  source = pretrained.read_source(str(trained.workdir(architecture)))
  arguments = [f"--config.init.checkpoint={source.name}", *arguments]
  return loading.records(loading.overridden(name, arguments, prepare=lambda c: pretrained.adopt(c, source)))


def classifier(architecture, table, *arguments):
  return config_of(
    *(architecture, "ulmfit_classifier", f"--config.data.files={table}", "--config.data.labels=auto"),
    *("--config.train.batch_size=8", "--config.eval.num_logged_samples=0", *arguments),
  )


@pytest.mark.slow
def test_an_epoch_is_its_steps_and_heads_read_all_states(table):
  """The rule has the steps of an epoch of the training rows, and the new head reads last, maximum and mean."""
  config = classifier("decoder_only", table)
  assert config.optimizer.param_groups == (".: depth=0.3846 unfreeze_every=epoch",) and config.train.epochs == 4.0
  resolved = train_data.resolved(config)
  epoch = round(resolved.train.steps / 4)
  assert 1 <= epoch <= ROWS // 8
  assert resolved.optimizer.param_groups == (f".: depth=0.3846 unfreeze_every={epoch}",)
  (head,) = resolved.model.heads
  assert (head.kind, head.reads, head.num_classes) == ("class", "concat", 2)
  (other,) = train_data.resolved(classifier("decoder_only", table, "--config.train.head_reads=mean")).model.heads
  assert other.reads == "mean"


def test_an_epoch_of_unknown_length_is_refused():
  config = toy.optimizer_config(param_groups=(".: unfreeze_every=epoch",))
  with pytest.raises(UserError, match="'unfreeze_every=epoch': the steps of an epoch are unknown"):
    param_groups.openings(config, {"layers/up": (2, 3)}, 2)


def test_the_recipe_has_the_papers_rates():
  """Every step has the rate of the paper's equation 3, and every layer that of the layer above / 2.6."""
  config = loading.records(loading.load_config("ulmfit_task")).optimizer
  steps, cut_fraction, ratio, peak = 200, 0.1, 32, config.learning_rate
  cut = int(steps * cut_fraction)
  schedule = schedules.make_schedule(config, steps)
  for step in range(steps):
    share = step / cut if step < cut else 1 - (step - cut) / (cut * (1 / cut_fraction - 1))
    assert float(schedule(step)) == pytest.approx(peak * (1 + share * (ratio - 1)) / ratio, rel=1e-5)
  rates = param_groups.rates(config, {"decoder/layers/up": (3, 2), "embed/table": (5, 2)}, 3)
  np.testing.assert_allclose(rates["decoder/layers/up"], 2.6 ** -np.array([3.0, 2.0, 1.0]), rtol=1e-3)
  np.testing.assert_allclose(rates["embed/table"], 2.6**-4.0, rtol=1e-3)


def test_moments_of_frozen_layers_are_untouched():
  """Moments, and their counts, of a layer have the initial values until the layer is trained."""
  config = toy.optimizer_config(name="adamw", learning_rate=0.1, param_groups=(".: unfreeze_every=2",))
  params = {"decoder": {"layers": {"up": np.ones((2, 3), np.float32)}}, "heads": {"up": np.ones(3, np.float32)}}
  tx, _ = optimizers.make_optimizer(config, 100, num_layers=2)
  initial = state = tx.init(params)
  for step in range(1, 6):
    _, state = tx.update(jax.tree.map(np.ones_like, params), state, params)
    flat, fresh = toy.flat(state), toy.flat(initial)
    moments = [name for name in flat if name.endswith("layers/up")]
    assert moments
    for name in moments:
      changed = np.any(np.asarray(flat[name]) != np.asarray(fresh[name]), axis=1)
      np.testing.assert_array_equal(changed, [step > 4, step > 2])  # the last layer after two steps


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", ["decoder_only", "encoder_only"])
def test_three_runs_make_a_classifier(architecture, table, tmp_path):
  """Whole commands: a language model, the task's text, and a classifier that `t2t eval` reads."""
  options = ["--config.train.batch_size=8", "--config.eval.num_logged_samples=0", "--config.eval.batches=1"]
  lm, run = tmp_path / "lm", tmp_path / "classifier"
  task = [
    f"--config.init.checkpoint={trained.workdir(architecture)}",
    f"--config.data.files={table.with_suffix('.txt')}",
  ]
  table.with_suffix(".txt").write_text(table.read_text() * 20)
  lengths = ["--config.data.inputs_length=32", "--config.data.targets_length=32", "--config.data.num_streams=1"]
  assert (
    command.main(
      ["train", "--config=ulmfit_task", *task, *options, *lengths, "--config.train.steps=3", f"--workdir={lm}"]
    )
    == 0
  )
  start = [f"--config.init.checkpoint={lm}", f"--config.data.files={table}", "--config.data.labels=auto"]
  assert command.main(["train", "--config=ulmfit_classifier", *start, *options, f"--workdir={run}"]) == 0
  saved = json.loads((run / "config.json").read_text())
  assert [head["reads"] for head in saved["model"]["heads"]] == ["concat"]
  test = tmp_path / "test.tsv"
  test.write_text(table.read_text())
  out = tmp_path / "eval"
  assert command.main(["eval", f"--checkpoint={run}", f"--config.data.eval_files={test}", f"--workdir={out}"]) == 0
  assert "accuracy" in json.loads((out / "results.json").read_text())["table.validation"]["metrics"]


@pytest.mark.exhaustive
def test_unfreezing_resumes_exactly(table, tmp_path):
  """A run that stops within each phase of unfreezing has the losses of one that does not, bit for bit."""
  config = classifier("decoder_only", table)

  def losses(workdir, *stops):
    for step in stops:
      train(config, str(workdir), callbacks=[StopAt(step, "pause")])
    train(config, str(workdir))
    rows = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return {row["step"]: row["train/loss"] for row in rows if "train/loss" in row}

  whole = losses(tmp_path / "whole")
  assert len(whole) > 4 and losses(tmp_path / "parts", 1, 3, 6) == whole
