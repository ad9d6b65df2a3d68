"""Callbacks of the training loop, one file each, registered in CALLBACKS."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from t2t.configuration.schema import Config
from t2t.runtime.lazy_table import LazyTable
from t2t.training import param_groups

if TYPE_CHECKING:
  from t2t.training.run import Callback

_HERE = "t2t.training.callbacks"

# Order in which hooks are called.
CALLBACKS: LazyTable[Any] = LazyTable(
  {
    "characters": "t2t.contrib.recurrent.character_table:CharacterTable",
    "goodput": f"{_HERE}.goodput:Goodput",
    "profile_requests": f"{_HERE}.profile_requests:ProfileRequests",
    "first_batches": f"{_HERE}.first_batches:FirstBatches",
    "histograms": f"{_HERE}.histograms:Histograms",
    "sparsity": f"{_HERE}.sparsity:Sparsity",
    "metrics": f"{_HERE}.metrics:Metrics",
    "uncounted": f"{_HERE}.uncounted:Uncounted",
    "nan_policy": f"{_HERE}.nan_policy:NanPolicy",
    "data_warnings": f"{_HERE}.data_warnings:DataWarnings",
    "collapse": f"{_HERE}.collapse:ChanceWarnings",
    "tracker": f"{_HERE}.tracker:Tracker",
    "watchdog": f"{_HERE}.stalls:Stalls",
    "evaluation": f"{_HERE}.evaluation:EvaluationCallback",
    "early_stopping": f"{_HERE}.early_stopping:EarlyStopping",
    "nt_asgd": "t2t.contrib.recurrent.nt_asgd:NtAsgd",
    "samples": f"{_HERE}.samples:Samples",
  }
)
# These run after the user's callbacks, because they save files that user hooks may still write.
LAST: LazyTable[Any] = LazyTable(
  {
    "checkpointing": f"{_HERE}.checkpointing:Checkpointing",
    "continuous_saves": f"{_HERE}.continuous_saves:ContinuousSaves",
    "summary": f"{_HERE}.summary:SummaryCallback",
    "report": f"{_HERE}.run_report:RunReport",
  }
)

# Callbacks that few runs use: name -> whether a config uses it.
OPTIONAL: dict[str, Callable[[Config], bool]] = {
  "characters": lambda config: "characters" in config.model.embedding,
  "histograms": lambda config: bool(config.logging.histograms),
  "sparsity": lambda config: param_groups.sets(config.optimizer, *param_groups.TRANSFORMS),
  "tracker": lambda config: config.logging.tracker != "none",
  "early_stopping": lambda config: bool(config.eval.patience),
  "nt_asgd": lambda config: config.optimizer.average == "nt_asgd",
  "continuous_saves": lambda config: config.checkpoint.continuous,
}


def of_run(config: Config, user_callbacks: Sequence["Callback"] = ()) -> "list[Callback]":
  """Returns the callbacks of a run in order: the config's, the user's (`training.run.Callback`), then LAST."""
  selected = lambda table: [table[name]() for name in table if name not in OPTIONAL or OPTIONAL[name](config)]
  return [*selected(CALLBACKS), *user_callbacks, *selected(LAST)]
