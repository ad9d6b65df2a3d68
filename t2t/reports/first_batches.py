"""First training rows of each stage, kept in the workdir for the report."""

from collections.abc import Mapping, Sequence
import json
from typing import Any

from etils import epath
import jax
from jax.experimental import multihost_utils
import numpy as np

from t2t.configuration.stages import Stage
from t2t.models.architecture import Batch
from t2t.runtime import console
from t2t.storage import logs

NAME = "first_rows.jsonl"  # in a workdir: a line for each stage that began
Piece = tuple[str, str, bool]  # see `preview.first_rows`


def note(workdir: epath.Path, stage: Stage, batch: Batch, vocabulary: Any) -> None:
  """Saves the first rows of a stage's first batch; every host must call it, the first writes, and errors are only
  logged.

  Args:
    workdir: of the run.
    stage: that begins.
    batch: on the devices.
    vocabulary: seqio's.
  """
  from t2t.data.preview import first_rows

  host = {name: np.asarray(multihost_utils.process_allgather(x, tiled=True)) for name, x in batch.items()}
  if jax.process_index() != 0:
    return
  try:
    row = {"stage": stage.name, "step": stage.begin, "rows": first_rows.described(host, vocabulary)}
    # A stage that begins again, after a rollback or in a restarted run, replaces its previous rows.
    keep_rows = lambda content: b"".join(
      line + b"\n"
      for line, earlier_row in _rows(content)
      if earlier_row["stage"] != stage.name and earlier_row["step"] <= stage.begin
    )
    log = logs.Log(workdir / NAME, keep=keep_rows)
    log.add(json.dumps(row).encode() + b"\n")
    log.bring()
    log.close()
  except Exception as error:  # any error: a missing report must not end the run
    console.tell(f"{workdir / NAME} could not be written ({error}); reports will lack the first batches")


def read(workdir: epath.Path) -> list[Mapping[str, Any]]:
  """Returns "stage", "step" and "rows" of each stage, see `first_rows.described`; malformed lines are skipped."""
  return [row for _, row in _rows(logs.read(workdir / NAME))]


def _rows(content: bytes) -> list[tuple[bytes, dict[str, Any]]]:
  rows = []
  for line in content.splitlines():
    try:
      row = json.loads(line)
    except (ValueError, RecursionError):
      continue
    if _is_ours(row):
      rows.append((line, row))
  return rows


def _is_ours(row: Any) -> bool:
  if not isinstance(row, dict) or not isinstance(row.get("stage"), str) or type(row.get("step")) is not int:
    return False
  rows = row.get("rows")
  return isinstance(rows, list) and all(
    isinstance(features, dict) and all(map(_is_feature, features.values())) for features in rows
  )


def _is_feature(feature: Any) -> bool:
  if not isinstance(feature, dict) or type(feature.get("more")) is not int or type(feature.get("padding")) is not int:
    return False
  pieces: Sequence[Any] = feature.get("pieces")
  return isinstance(pieces, list) and all(
    isinstance(piece, list) and [*map(type, piece)] == [str, str, bool] for piece in pieces
  )
