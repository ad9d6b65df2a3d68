"""JSON-lines logs with one row per step: truncated when a run resumes, with damaged lines kept in a separate file."""

from collections.abc import Callable, Mapping, Sequence
import json
from typing import Any

from etils import epath

from t2t.runtime import console
from t2t.storage import logs

Row = dict[str, object]
Fits = Callable[[Mapping[str, object]], bool]  # whether an object with a step is a row of a file


def is_metrics(row: Mapping[str, object]) -> bool:
  """Returns True for a row of metrics.jsonl: {"step": 1, "train/loss": 2.5, ...}."""
  return all(type(value) in (int, float) for value in row.values())


def is_samples(row: Mapping[str, object]) -> bool:
  """Returns True for a row of samples.jsonl: {"step": 1, "samples": [[["input", "the [1] sat"], ...], ...]}."""
  samples = row.get("samples")
  return isinstance(samples, list) and all(
    isinstance(lines, list) and all(isinstance(line, list) and [*map(type, line)] == [str, str] for line in lines)
    for lines in samples
  )


def _row(line: bytes, fits: Fits) -> Row | None:
  """Parses a line; None if it is torn, or is not a row."""
  try:
    row = json.loads(line)
  except (ValueError, RecursionError):
    return None
  return row if isinstance(row, dict) and type(row.get("step")) is int and fits(row) else None


def rows(content: bytes, fits: Fits) -> list[tuple[bytes, Row]]:
  """Returns each valid line with its object; other lines are skipped."""
  pairs = ((line, _row(line, fits)) for line in content.splitlines())
  return [(line, row) for line, row in pairs if row is not None]


def damaged(content: bytes, fits: Fits) -> list[bytes]:
  """Returns the lines that are not rows."""
  return [line for line in content.splitlines() if line.strip() and _row(line, fits) is None]


def keep_beside(path: epath.Path, ending: str, lines: Sequence[bytes], *, end: bytes = b"\n") -> epath.Path:
  """Appends lines to a file beside `path`, without duplicates; returns its path.

  Args:
    path: the file.
    ending: suffix of the other file's name.
    lines: lines removed from the file.
    end: separator after each line.

  Raises:
    OSError: the file cannot be read or written.
  """
  beside = path.parent / f"{path.name}.{ending}"
  log = logs.Log(beside, keep=lambda content: content)
  there = logs.read(beside)  # lines of a start that was killed before it had removed them
  known = set(there.splitlines()) if end else there
  new = [line for line in lines if line not in known]
  log.add(b"".join(line + end for line in new))
  log.bring()
  log.close()
  return beside


def _key(row: Mapping[str, Any]) -> tuple[int, frozenset[str]]:
  return row["step"], frozenset(row)


class RowFile:
  """A log file to which a run appends rows.

  Attributes:
    log: the buffered file, flushed periodically to the disk or the bucket.

  Args:
    path: local or gs://; may be missing.
    fits: returns True for rows of this file.
    start: the step that training resumes from; later rows are removed.
    unwritten: rows up to that step that could not be written; rows missing in the file are added.

  Raises:
    OSError: the file cannot be read or truncated.
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
    """Moves lines that are not rows, and rows of a run without checkpoints, to files beside this one."""
    content = logs.read(path)
    if foreign := damaged(content, self._fits):
      beside = keep_beside(path, "damaged", foreign)
      console.tell(f"{path}: {len(foreign)} damaged lines were removed; they are kept in {beside.name}")
    if self._start == 0 and (lines := [line for line, _ in rows(content, self._fits)]):
      beside = keep_beside(path, "earlier", lines)
      console.tell(
        f"{path}: no checkpoint belongs to its {len(lines)} rows; they are kept in {beside.name}, and the file "
        "starts empty"
      )

  def _kept(self, content: bytes) -> bytes:
    # Earlier versions could write a row twice (same step and names); the later row is kept.
    parsed_rows: list[tuple[bytes, Any]] = rows(content, self._fits)
    kept_rows = {_key(row): line for line, row in parsed_rows if row["step"] <= self._start}
    self._there = set(kept_rows)
    return b"".join(line + b"\n" for line in kept_rows.values())

  def add(self, row: Row) -> bool:
    """Adds a row, unless the file has it already for the resumed step; returns whether it was added."""
    if row["step"] == self._start and _key(row) in self._there:
      return False  # a finished run is evaluated again
    self.log.add(json.dumps(row).encode() + b"\n")
    return True
