"""The loss of an n-gram model that `t2t ngram` wrote to the workdir of a run, for its report and summary."""

from collections.abc import Sequence
import json
from typing import TYPE_CHECKING, Any

from etils import epath

from t2t.losses import Baseline
from t2t.storage import gcs

if TYPE_CHECKING:  # reads data, which reports do not
  from t2t.evaluation.ngram_baseline import NgramLoss

NAME = "ngram.json"


def write(workdir: epath.Path, measured: "Sequence[NgramLoss]") -> None:
  """Writes the losses, one for each order, in place of those of an earlier call."""
  rows = [
    {
      "order": x.order,
      "loss": x.loss,
      **x.figures,
      "tokens": x.num_tokens,
      "targets": x.num_targets,
      "ngrams": list(x.num_ngrams),
      "name": x.baseline.name,
      "knows": x.baseline.knows,
    }
    for x in measured
  ]
  gcs.write(workdir / NAME, json.dumps(rows, indent=2) + "\n")


def read(workdir: epath.Path) -> list[Baseline]:
  """Returns the losses as baselines; [] if there are none or the file is damaged."""
  try:
    rows: Any = json.loads(gcs.read(workdir / NAME))
    return [Baseline(str(row["name"]), float(row["loss"]), str(row["knows"]), is_exact=False) for row in rows]
  except (OSError, ValueError, KeyError, TypeError):
    return []
