"""Checks config sections that callbacks read, before anything is built."""

from collections.abc import Collection

from t2t import UserError, did_you_mean
from t2t.configuration import section_keys
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
  check_exits(config)
  check_logging(config.logging)


def check_nan_policy(config: NanPolicyConfig) -> None:
  """Checks config.nan_policy.

  Raises:
    UserError: with the key and valid values.
  """
  late = "; a spike is known only after its update was applied"
  section_keys.check_ranges("nan_policy", config, notes={"skip": late})


def check_early_stopping(config: EvalConfig) -> None:
  """Checks config.eval.patience.

  Raises:
    UserError: it is below 0.
  """
  section_keys.check_ranges("eval", config, only=("patience",))


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


def check_exits(config: Config) -> None:
  """Checks that the heads after inner layers are trained.

  Raises:
    UserError: with both keys.
  """
  if config.model.exits and config.train.loss != "early_exit":
    raise UserError(
      f"config.model.exits=True: config.train.loss={config.train.loss} does not train the heads after inner layers. "
      "Give --config.train.loss=early_exit, or leave config.model.exits out."
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


def check_continuous(config: Config) -> None:
  """Checks that rows continue exactly if the model has a memory; data of a Python program arranges its own rows.

  Raises:
    UserError: with both keys.
  """
  data, model = config.data, config.model
  carries = model.memory_length or model.recurrent_carry
  key, off = ("recurrent_carry", False) if model.block == "recurrent" else ("memory_length", 0)
  if carries and data.is_named and not data.continuous_rows:
    raise UserError(
      f"config.model.{key}={getattr(model, key)}: rows of shuffled text do not continue, so the memory would be of "
      f"another text. Set --config.data.continuous_rows=True, or --config.model.{key}={off}."
    )
  if not data.continuous_rows:
    return
  if not carries:
    raise UserError(
      f"config.data.continuous_rows=True has no effect with config.model.{key}={off}. Set --config.model.{key}, or "
      "--config.data.continuous_rows=False."
    )
  for key in ("pack=True" if data.pack else "", data.mixed_by):
    if key:
      raise UserError(
        f"config.data.continuous_rows=True needs rows of one text each, but config.data.{key} puts several texts in "
        "a row or mixes sources. Give one source, and --config.data.pack=False."
      )
