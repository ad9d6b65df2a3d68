"""Callbacks of the training loop, one file each, registered in CALLBACKS."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from t2t.configuration.schema import Config
from t2t.runtime.lazy_table import LazyTable

if TYPE_CHECKING:
  from t2t.training.run import Callback

_HERE = "t2t.training.callbacks"

# Order in which hooks are called.
CALLBACKS: LazyTable[Any] = LazyTable(
  {
    "first_batches": f"{_HERE}.first_batches:FirstBatches",
    "histograms": f"{_HERE}.histograms:Histograms",
    "metrics": f"{_HERE}.metrics:Metrics",
    "uncounted": f"{_HERE}.uncounted:Uncounted",
    "nan_policy": f"{_HERE}.nan_policy:NanPolicy",
    "data_warnings": f"{_HERE}.data_warnings:DataWarnings",
    "collapse": f"{_HERE}.collapse:ChanceWarnings",
    "tracker": f"{_HERE}.tracker:Tracker",
    "watchdog": f"{_HERE}.stalls:Stalls",
    "evaluation": f"{_HERE}.evaluation:EvaluationCallback",
    "early_stopping": f"{_HERE}.early_stopping:EarlyStopping",
    "samples": f"{_HERE}.samples:Samples",
  }
)
# These run after the user's callbacks, because they save files that user hooks may still write.
LAST: LazyTable[Any] = LazyTable(
  {
    "checkpointing": f"{_HERE}.checkpointing:Checkpointing",
    "summary": f"{_HERE}.summary:SummaryCallback",
    "report": f"{_HERE}.run_report:RunReport",
  }
)

# Callbacks that few runs use: name -> whether a config uses it.
OPTIONAL: dict[str, Callable[[Config], bool]] = {
  "histograms": lambda config: bool(config.logging.histograms),
  "tracker": lambda config: config.logging.tracker != "none",
  "early_stopping": lambda config: bool(config.eval.patience),
}


def of_run(config: Config, user_callbacks: Sequence["Callback"] = ()) -> "list[Callback]":
  """Returns the callbacks of a run in order: the config's, the user's, then LAST.

  Args:
    config: of the run.
    user_callbacks: the user's, see `training.run.Callback`.
  """
  selected = [name for name in CALLBACKS if name not in OPTIONAL or OPTIONAL[name](config)]
  return [*(CALLBACKS[name]() for name in selected), *user_callbacks, *(LAST[name]() for name in LAST)]
