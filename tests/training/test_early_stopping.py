"""Early stopping by the number of evaluations without improvement, also after resumes."""

import dataclasses
import math

import pytest
import test_nan_policy
import test_train

from t2t import UserError
from t2t import __main__ as command
from t2t.configuration.loading import load_config, records
from t2t.training import config_checks
from t2t.training.callbacks import early_stopping

text = test_train.text  # fixture
CONFIG = records(load_config("tiny")).eval


def noted(values, *, patience=2, early_stopping_metric="loss", stopped=False):
  """Returns after how many evaluations the run ends; `stopped` saves and resumes after each."""
  config = dataclasses.replace(CONFIG, patience=patience, early_stopping_metric=early_stopping_metric)
  found = early_stopping.EarlyStop(config, {})
  for number, value in enumerate(values, start=1):
    found.note(10 * number, {"loss": 1.0, early_stopping_metric: value})
    if stopped:
      found = early_stopping.EarlyStop(config, found.state())
    if found.why:
      return number, found.why
  return None


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize(
  ("values", "patience", "ends"),
  [
    ([3.0, 2.0, 2.5, 2.0], 2, 4),  # an equal value is no improvement
    ([3.0, 2.0, 2.5, 1.9, 2.0, 2.0], 2, 6),
    ([3.0, math.nan], 1, 2),
    ([math.nan, 3.0, 2.0, 2.5], 2, None),
    ([math.nan, math.nan], 1, 2),
    ([3.0, 4.0, 5.0], 0, None),
    ([3.0, 2.0, 1.0], 1, None),
  ],
)
def test_it_ends_when_so_many_were_no_better(values, patience, ends, stopped):
  found = noted(values, patience=patience, stopped=stopped)
  assert (found and found[0]) == ends
  # Higher is better for metrics of tasks.
  found = noted([-value for value in values], patience=patience, early_stopping_metric="rte/accuracy", stopped=stopped)
  assert (found and found[0]) == ends


def test_it_says_what_was_best():
  _, why = noted([3.0, 2.0, 2.5, 2.5])
  assert why.startswith("loss 2.0000 of step 20 did not improve in 2 evaluations")


def test_a_stage_begins_anew():
  found = early_stopping.EarlyStop(dataclasses.replace(CONFIG, patience=1), {})
  found.note(1, {"loss": 1.0})
  found.begin_stage()
  found.note(2, {"loss": 2.0})
  assert not found.why
  found.note(3, {"loss": 3.0})
  assert "loss 2.0000 of step 2" in found.why


def test_a_metric_that_is_not_measured_is_refused():
  found = early_stopping.EarlyStop(dataclasses.replace(CONFIG, patience=1, early_stopping_metric="rte/acuracy"), {})
  with pytest.raises(UserError, match="Give one of loss, rte/accuracy; did you mean rte/accuracy"):
    found.note(1, {"loss": 1.0, "rte/accuracy": 2.0})
  with pytest.raises(
    UserError, match="early_stopping_metric='eval/loss': not a metric of this run. Give one of loss; did you mean loss"
  ):
    config_checks.check_measured(dataclasses.replace(CONFIG, patience=1, early_stopping_metric="eval/loss"), ["loss"])
  config_checks.check_measured(dataclasses.replace(CONFIG, patience=0, early_stopping_metric="eval/loss"), ["loss"])


def test_a_patience_below_0_is_refused():
  with pytest.raises(UserError, match="patience=-1 must be at least 0"):
    config_checks.check_early_stopping(dataclasses.replace(CONFIG, patience=-1))


@pytest.mark.exhaustive
def test_a_run_ends_early_and_goes_on_with_more_patience(text, tmp_path, capsys):
  """At a learning rate of 0 nothing improves: the second evaluation without improvement is the last."""
  still = ("--config.optimizer.learning_rate=0.0", "--config.eval.every=1", "--config.train.steps=6")
  arguments = lambda *options: test_nan_policy.arguments(text, tmp_path, *still, *options)
  assert command.main(arguments("--config.eval.patience=2")) == 0
  assert "of step 1 did not improve in 2 evaluations (config.eval.patience=2)" in (err := capsys.readouterr().err), err
  assert list(test_train.losses(tmp_path)) == [1, 2, 3] and (tmp_path / "checkpoints" / "3").is_dir()
  assert command.main(arguments("--config.eval.patience=2")) == 0  # the run has ended
  assert list(test_train.losses(tmp_path)) == [1, 2, 3] and "did not improve in 2" in capsys.readouterr().err
  assert command.main(arguments("--config.eval.patience=4")) == 0
  assert list(test_train.losses(tmp_path)) == [1, 2, 3, 4, 5]
