"""Items of suites, and the JSON lines that they are read from."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import json
from typing import Any

from etils import epath
import numpy as np

from t2t import UserError
from t2t.inference.text_scores import ScoredText
from t2t.storage import encoding, gcs, safe_read

_REMEDY = "Correct the file, or download it again."


@dataclasses.dataclass(frozen=True)
class OptionItem:
  """Options of which a model should prefer the first.

  options: texts to score, each after its prefix.
  groups: names of nested groups, the largest first: ("regular", "2 operations"). The groups of a level count equally.
  shown: the item in the file of predictions.
  human: share of people who chose the first option; None: the first option is right.
  """

  options: tuple[ScoredText, ...]
  groups: tuple[str, ...]
  shown: str
  human: float | None = None


def weights(items: Sequence[OptionItem]) -> np.ndarray:
  """Returns the weight of each item in the mean over equally weighted groups, float64 [items], 1 on average.

  In:  groups ("a",), ("a",), ("b",)
  Out: [0.75, 0.75, 1.5]
  """
  shares = np.ones(len(items))
  for level in range(max((len(item.groups) for item in items), default=0)):
    children: dict[tuple[str, ...], set[str]] = {}
    for item in items:
      children.setdefault(item.groups[:level], set()).add(item.groups[level])
    shares /= [len(children[item.groups[:level]]) for item in items]
  sizes = Counter(item.groups for item in items)
  shares /= [sizes[item.groups] for item in items]
  # Groups of one size have weights of exactly 1, so that their interval is that of a plain share.
  values = shares * len(items)
  return np.where(np.abs(values - 1) < 1e-9, 1.0, values)


# ---- Files -----------------------------------------------------------------------------------------------------------


def files(path: str, *, where: str, expected: Sequence[str] = (), suffix: str = ".jsonl") -> list[epath.Path]:
  """Returns the files of a suite, sorted.

  Args:
    path: a folder, or one file.
    where: option or argument of the path, for messages.
    expected: names of the files without ending; empty: all files of the folder.
    suffix: ending of the files.

  Raises:
    UserError: there are no files, or expected files are missing; the message names them.
  """
  gcs.check(path, where=where)
  root = gcs.absolute(path)
  if root.is_file():
    if len(expected) > 1:
      raise UserError(f"{where}{path} is a file, but the suite has {len(expected)} files. Give their folder.")
    return [root]
  if not root.is_dir():
    raise UserError(f"{where}{path}: no such file or folder. Give the path of the released files.")
  found = {child.name.removesuffix(suffix): child for child in root.iterdir() if child.name.endswith(suffix)}
  missing = [name for name in expected if name not in found]
  if missing:
    listed = ", ".join(f"{name}{suffix}" for name in missing[:10]) + (
      f" and {len(missing) - 10} more" if len(missing) > 10 else ""
    )
    raise UserError(
      f"{where}{path}: {len(missing)} of {len(expected)} files are missing: {listed}. Download the suite again, or "
      "give the folder with its files."
    )
  if not found:
    raise UserError(f"{where}{path}: the folder has no file *{suffix}. Give the folder with the files of the suite.")
  return [found[name] for name in expected] if expected else [found[name] for name in sorted(found)]


def objects(path: epath.Path, *, where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
  """Yields each JSON object of a file with its place for messages.

  Raises:
    UserError: a line is no JSON object, or there is none; names the line.
  """
  is_empty = True
  for number, line in enumerate(safe_read.read_text(path, where=f"{where}{path}").split("\n"), 1):
    if not line.strip():
      continue
    place = f"{where}{path}, line {number}"
    try:
      row = json.loads(line)
    except (ValueError, RecursionError) as error:
      raise UserError(f"{place}: {line[:60]!r} is not JSON ({error}). {_REMEDY}") from error
    if not isinstance(row, Mapping):
      raise UserError(f"{place}: expected a JSON object, not {line[:60]!r}. {_REMEDY}")
    is_empty = False
    yield place, row
  if is_empty:
    raise UserError(f"{where}{path}: the file is empty. {_REMEDY}")


def field(row: Mapping[str, Any], name: str, place: str, kind: type | tuple[type, ...] = str) -> Any:
  """Returns a field of an object; texts must not be blank.

  Raises:
    UserError: the field is missing or has another type.
  """
  if name not in row:
    raise UserError(f"{place}: no field {name!r} (fields: {', '.join(map(repr, row)) or 'none'}). {_REMEDY}")
  value = row[name]
  if not isinstance(value, kind) or isinstance(value, bool) or isinstance(value, str) and not value.strip():
    names = " or ".join(each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,)))
    raise UserError(f"{place}: field {name!r} is {value!r}, not a {names}. {_REMEDY}")
  if isinstance(value, str) and (reason := encoding.unpaired_surrogate(value)):
    raise UserError(f"{place}: field {name!r} {reason}")
  return value
