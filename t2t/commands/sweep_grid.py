"""Points of a sweep: values of `--set`, their grid, and names of folders."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import hashlib
import itertools
import re
from typing import Any

from t2t import UserError
from t2t.configuration import renamed_keys
from t2t.reports.sweep_table import is_number, short_keys, value_text

SEPARATOR = "__"  # between the keys of a folder's name
_LONGEST_VALUE, _LONGEST_NAME = 60, 200  # characters of a value in a folder's name, and of the name
_ONCE = "every run of a process has the same value. Give --config.{key}=VALUE for the whole sweep."
# Keys that no point can set -> the reason, and what to do.
_REFUSED = {
  "train.seed": "--seeds sets this key. Give --seeds N.",
  "train.compilation_cache": _ONCE,
  "train.xla_flags": _ONCE,
  "train.deterministic": _ONCE,
  "train.num_processes": _ONCE,
}
_WORKDIR = "the folder of a run follows from its values. Give --workdir FOLDER for the folder of all runs."


@dataclasses.dataclass(frozen=True)
class SweepAxis:
  """A key of a sweep with its values.

  key: "optimizer.learning_rate".
  texts: values as they were typed.
  option: the whole option, for messages.
  """

  key: str
  texts: tuple[str, ...]
  option: str


@dataclasses.dataclass(frozen=True, eq=False)
class GridPoint:
  """Values of all keys of a sweep; the seeds of a point share them. Points with the same name are equal.

  values: (key, value) pairs, sorted by key; lists are tuples.
  texts: value of each key as it was typed; () for a point of an earlier call.
  """

  values: tuple[tuple[str, Any], ...]
  texts: tuple[str, ...] = ()

  def __eq__(self, other: object) -> bool:
    return isinstance(other, GridPoint) and self.name == other.name

  def __hash__(self) -> int:
    return hash(self.name)

  @property
  def name(self) -> str:
    """Folder of the point; the order of options and the spelling of numbers do not change it."""
    return _limited(SEPARATOR.join(f"{key}={_slug(value)}" for key, value in self.values), self.values)

  @property
  def described(self) -> str:
    """Values in a line for messages: "learning_rate=0.001, batch_size=16"."""
    short = short_keys([key for key, _ in self.values])
    return ", ".join(f"{short[key]}={value_text(value)}" for key, value in self.values)

  @property
  def overrides(self) -> list[str]:
    """Options of `t2t train` that set the values."""
    return [f"--config.{key}={text}" for (key, _), text in zip(self.values, self.texts, strict=True)]

  @property
  def order(self) -> list[tuple[bool, Any]]:
    """Sort key by the values, numbers in ascending order before others."""
    return [(False, value) if is_number(value) else (True, value_text(value)) for _, value in self.values]

  @classmethod
  def of_row(cls, values: Mapping[str, Any]) -> "GridPoint":
    """Returns the point of the values in a row of sweep.jsonl."""
    return cls(tuple((key, as_tuples(values[key])) for key in sorted(values)))


def as_tuples(value: Any) -> Any:
  """Returns a value with tuples in place of lists, at any depth."""
  if isinstance(value, Mapping):
    return {name: as_tuples(item) for name, item in value.items()}
  return tuple(map(as_tuples, value)) if isinstance(value, list | tuple) else value


def _slug(value: Any) -> str:
  """Returns a value as part of a file name; a digest distinguishes values with other characters, or many."""
  text = value_text(value)
  plain = re.sub(r"[^\w.+-]+", "-", text, flags=re.ASCII)[:_LONGEST_VALUE]
  return f"{plain}-{_digest(value)}" if plain != text or SEPARATOR in text else plain


def _limited(name: str, values: object) -> str:
  return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}-{_digest(values)}"


def _digest(value: object) -> str:
  return hashlib.sha256(repr(value).encode()).hexdigest()[:8]


def parse_axes(options: Sequence[str], typed: Sequence[str]) -> list[SweepAxis]:
  """Parses `--set KEY=VALUE,VALUE`; semicolons separate values that contain commas.

  In:  ["train.batch_size=16,32", "optimizer.no_decay=norm,bias;norm"]
  Out: batch_size 16 and 32; no_decay "norm,bias" and "norm"

  Args:
    options: values of all `--set`.
    typed: other arguments of the command, "--config.KEY=VALUE".

  Raises:
    UserError: names the option.
  """
  axes: dict[str, SweepAxis] = {}
  for option in options:
    key, equals, text = option.partition("=")
    key, where = renamed_keys.current_key(key.strip().removeprefix("config.")), f"--set {option}"
    if not equals or not re.fullmatch(r"[\w.]+", key):
      raise UserError(f"{where}: must be a key and its values, such as --set optimizer.learning_rate=1e-3,3e-4")
    if key.rpartition(".")[2] == "workdir":
      raise UserError(f"{where}: {_WORKDIR}")
    if key in _REFUSED:
      raise UserError(f"{where}: {_REFUSED[key].format(key=key)}")
    if key in axes:
      raise UserError(f"{where}: {axes[key].option} already sets this key. Give all its values in one --set.")
    if any(re.match(rf"--(no)?config\.{re.escape(key)}(=|$)", argument) for argument in typed):
      raise UserError(f"{where}: --config.{key} sets the same key. Leave out one of the two options.")
    parts = text.removesuffix(";").split(";") if ";" in text else text.split(",")
    if not all(part.strip() for part in parts):
      raise UserError(f"{where}: a value is empty. Give values with commas, such as --set {key}=1,2.")
    if any(part.count(left) != part.count(right) for part in parts for left, right in ("()", "[]", "{}")):
      raise UserError(
        f"{where}: a value contains a comma or an open bracket. Separate such values by semicolons: "
        f"--set '{key}=A,B;C'."
      )
    axes[key] = SweepAxis(key, tuple(part.strip() for part in parts), where)
  return [axes[key] for key in sorted(axes)]


def grid(axes: Sequence[SweepAxis], value_of: Callable[[str, str], Any]) -> list[GridPoint]:
  """Returns the points of all combinations, in the order of their values.

  Args:
    axes: keys in alphabetical order.
    value_of: (key, text) -> the value that the config has with this override.

  Raises:
    UserError: a value is invalid, or given twice; names the `--set`.
  """
  choices = []
  for axis in axes:
    values: dict[str, str] = {}  # value -> its text
    chosen_values = []
    for text in axis.texts:
      try:
        value = as_tuples(value_of(axis.key, text))
      except UserError as error:
        spaced = f" Commas separate values: --set {axis.key}={','.join(text.split())}." if len(text.split()) > 1 else ""
        raise UserError(f"{axis.option}: {error}{spaced}") from error
      if repr(value) in values:
        raise UserError(f"{axis.option}: {text} and {values[repr(value)]} are the same value. Leave out one of them.")
      values[repr(value)] = text
      chosen_values.append((axis.key, value, text))
    choices.append(chosen_values)
  points = [
    GridPoint(tuple((key, value) for key, value, _ in chosen), tuple(text for _, _, text in chosen))
    for chosen in itertools.product(*choices)
  ]
  return sorted(points, key=lambda point: point.order)
