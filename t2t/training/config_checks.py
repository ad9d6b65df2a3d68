"""Checks config sections that callbacks read, before anything is built."""

from collections.abc import Collection

from t2t import UserError, did_you_mean
from t2t.configuration import schema
from t2t.configuration.schema import Config, EvalConfig, LoggingConfig, NanPolicyConfig

TRACKERS = ("wandb", "trackio", "mlflow")  # rows of `trackers.TRACKERS`


def check(config: Config) -> None:
  """Checks config.nan_policy, config.eval and config.logging.

  Raises:
    UserError: with the key and valid values.
  """
  check_nan_policy(config.nan_policy)
  check_early_stopping(config.eval)
  check_average(config)
  check_logging(config.logging)


def check_nan_policy(config: NanPolicyConfig) -> None:
  """Checks config.nan_policy.

  Raises:
    UserError: with the key and valid values.
  """
  late = "; a spike is known only after its update was applied"
  schema.check_ranges("nan_policy", config, notes={"skip": late})


def check_early_stopping(config: EvalConfig) -> None:
  """Checks config.eval.patience.

  Raises:
    UserError: it is below 0.
  """
  schema.check_ranges("eval", config, only=("patience",))


def check_average(config: Config) -> None:
  """Checks that config.eval.average is set only if the optimizer keeps an average.

  Raises:
    UserError: with both keys.
  """
  if config.eval.average and not config.optimizer.average:
    raise UserError(
      "config.eval.average=True: the run keeps no average. Give config.optimizer.average=ema, or leave "
      "config.eval.average out."
    )


def check_measured(config: EvalConfig, names: Collection[str]) -> None:
  """Checks that the metric of early stopping exists.

  Args:
    config: of the run.
    names: metrics of its evaluations.

  Raises:
    UserError: with the metrics and the nearest name.
  """
  name = config.early_stopping_metric
  if config.patience and name not in names:
    listed = ", ".join(names)
    raise UserError(
      f"config.eval.early_stopping_metric={name!r}: not a metric of this run. Give one of "
      f"{listed}{did_you_mean(name, names) or '.'}"
    )


def check_logging(config: LoggingConfig) -> None:
  """Checks that the tracker exists and has a project.

  Raises:
    UserError: with the known trackers.
  """
  known = ("none", *TRACKERS)
  if config.tracker not in known:
    raise UserError(
      f"config.logging.tracker={config.tracker!r}: unknown. Give one of {', '.join(known)}"
      f"{did_you_mean(config.tracker, known) or '.'}"
    )
  if config.tracker != "none" and not config.project:
    raise UserError(
      f"config.logging.project is empty, but config.logging.tracker={config.tracker}. Give "
      "--config.logging.project=NAME, under which the tracker lists the run."
    )
  if config.histograms < 0:
    raise UserError(
      f"config.logging.histograms={config.histograms} must be at least 0. Give the number of steps between "
      "histograms, or 0 for none."
    )
