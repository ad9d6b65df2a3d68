"""Files of JSON lines, each a row of one step: cut where a run goes on, and what is none of ours kept beside them."""

from collections.abc import Callable, Mapping, Sequence
import json
from typing import Any

from etils import epath

from t2t.runtime import console
from t2t.storage import logs

Row = dict[str, object]
Fits = Callable[[Mapping[str, object]], bool]  # whether an object with a step is a row of a file


def is_metrics(row: Mapping[str, object]) -> bool:
  """Whether it is a row of metrics.jsonl: {"step": 1, "train/loss": 2.5, ...}."""
  return all(type(value) in (int, float) for value in row.values())


def is_samples(row: Mapping[str, object]) -> bool:
  """Whether it is a row of samples.jsonl: {"step": 1, "samples": [[["input", "the [1] sat"], ...], ...]}."""
  samples = row.get("samples")
  return isinstance(samples, list) and all(
    isinstance(lines, list) and all(isinstance(line, list) and [*map(type, line)] == [str, str] for line in lines)
    for lines in samples
  )


def _row(line: bytes, fits: Fits) -> Row | None:
  """The object on a line; None if it is torn, or none of ours."""
  try:
    row = json.loads(line)
  except (ValueError, RecursionError):
    return None
  return row if isinstance(row, dict) and type(row.get("step")) is int and fits(row) else None


def rows(content: bytes, fits: Fits) -> list[tuple[bytes, Row]]:
  """Each good line and its object; others are passed over."""
  pairs = ((line, _row(line, fits)) for line in content.splitlines())
  return [(line, row) for line, row in pairs if row is not None]


def damaged(content: bytes, fits: Fits) -> list[bytes]:
  """Lines that are no rows."""
  return [line for line in content.splitlines() if line.strip() and _row(line, fits) is None]


def keep_beside(path: epath.Path, ending: str, lines: Sequence[bytes], *, end: bytes = b"\n") -> epath.Path:
  """Writes these lines of a file beside it, each once; returns where.

  Args:
    path: the file.
    ending: of the other's name.
    lines: what was taken out.
    end: what stands behind each.

  Raises:
    OSError: it cannot be read or written.
  """
  beside = path.parent / f"{path.name}.{ending}"
  log = logs.Log(beside, keep=lambda content: content)
  there = logs.read(beside)  # of a start that was killed before it had taken them out
  known = set(there.splitlines()) if end else there
  new = [line for line in lines if line not in known]
  log.add(b"".join(line + end for line in new))
  log.bring()
  log.close()
  return beside


def _key(row: Mapping[str, Any]) -> tuple[int, frozenset[str]]:
  return row["step"], frozenset(row)


class RowFile:
  """One of them, to which a run adds.

  Attributes:
    log: what is to be brought to the disk, or the bucket, now and then.

  Args:
    path: local or gs://; need not be there.
    fits: says which objects are rows.
    start: the step that training goes on from; rows of later ones are taken away.
    unwritten: rows up to there that could not be written; those that do not stand there are added.

  Raises:
    OSError: it cannot be read or cut.
  """

  def __init__(self, path: epath.Path, fits: Fits, *, start: int, unwritten: bytes = b""):
    self._fits, self._start = fits, start
    self._there: set[tuple[int, frozenset[str]]] = set()
    self._set_aside(path)
    self.log = logs.Log(path, keep=self._kept)
    for line, row in rows(unwritten, fits):
      if _key(row) not in self._there:
        self.log.add(line + b"\n")

  def _set_aside(self, path: epath.Path) -> None:
    """Keeps beside the file what is no row, and the rows of a run whose checkpoints are gone."""
    content = logs.read(path)
    if foreign := damaged(content, self._fits):
      beside = keep_beside(path, "damaged", foreign)
      console.tell(f"{path}: {len(foreign)} damaged lines were taken out, and are kept in {beside.name}")
    if self._start == 0 and (lines := [line for line, _ in rows(content, self._fits)]):
      beside = keep_beside(path, "earlier", lines)
      console.tell(
        f"{path}: there is no checkpoint that its {len(lines)} rows lead to; they are kept in {beside.name}, and it"
        " begins anew"
      )

  def _kept(self, content: bytes) -> bytes:
    # By step and names: of what an earlier version has written twice, the later.
    parsed_rows: list[tuple[bytes, Any]] = rows(content, self._fits)
    kept_rows = {_key(row): line for line, row in parsed_rows if row["step"] <= self._start}
    self._there = set(kept_rows)
    return b"".join(line + b"\n" for line in kept_rows.values())

  def add(self, row: Row) -> bool:
    """Adds a row, unless it is of the step that began it all and stands there; whether it was added."""
    if row["step"] == self._start and _key(row) in self._there:
      return False  # a run that had ended is evaluated again
    self.log.add(json.dumps(row).encode() + b"\n")
    return True
