"""Checks of config sections that callbacks read, before anything is built."""

from collections.abc import Collection

from t2t import UserError, did_you_mean
from t2t.configuration import schema
from t2t.configuration.schema import Config, EvalConfig, LoggingConfig, NanPolicyConfig

TRACKERS = ("wandb", "trackio", "mlflow")  # rows of `trackers.TRACKERS`


def check(config: Config) -> None:
  """Refuses values of config.nan_policy, config.eval and config.logging that no run can have.

  Raises:
    UserError: names the key, and what would be right.
  """
  check_nan_policy(config.nan_policy)
  check_early_stopping(config.eval)
  check_average(config)
  check_logging(config.logging)


def check_nan_policy(config: NanPolicyConfig) -> None:
  """Refuses what cannot be done.

  Raises:
    UserError: names the key, and what would be right.
  """
  late = "; whether a loss is a spike is known when its update has been made"
  schema.check_ranges("nan_policy", config, notes={"skip": late})


def check_early_stopping(config: EvalConfig) -> None:
  """Refuses a patience that there cannot be.

  Raises:
    UserError: it is below 0.
  """
  schema.check_ranges("eval", config, only=("patience",))


def check_average(config: Config) -> None:
  """Refuses the evaluation of an average that no optimizer setting keeps.

  Raises:
    UserError: names both keys.
  """
  if config.eval.average and not config.optimizer.average:
    raise UserError(
      "config.eval.average=True: the run keeps no average; give config.optimizer.average=ema, or leave it out"
    )


def check_measured(config: EvalConfig, names: Collection[str]) -> None:
  """Refuses a metric that a run is not measured by.

  Args:
    config: of the run.
    names: of what it is measured by.

  Raises:
    UserError: names the nearest.
  """
  name = config.early_stopping_metric
  if config.patience and name not in names:
    listed = ", ".join(names)
    raise UserError(
      f"config.eval.early_stopping_metric={name!r}: the run is measured by {listed}{did_you_mean(name, names)}"
    )


def check_logging(config: LoggingConfig) -> None:
  """Refuses a tracker that there is not, and one without a project.

  Raises:
    UserError: says which there are.
  """
  known = ("none", *TRACKERS)
  if config.tracker not in known:
    raise UserError(
      f"config.logging.tracker={config.tracker!r}: give {', '.join(known)}{did_you_mean(config.tracker, known)}"
    )
  if config.tracker != "none" and not config.project:
    raise UserError("config.logging.project is empty: give a name, which the tracker files runs under")
  if config.histograms < 0:
    raise UserError(f"config.logging.histograms={config.histograms}: give steps between them; 0: none")
