"""Declares the keys of a section of the config, and checks their choices and ranges."""

from collections.abc import Iterable, Mapping
import dataclasses
import math
import re
from typing import ClassVar, Protocol, TypeVar, cast

from t2t import UserError, did_you_mean

T = TypeVar("T")
Texts = tuple[str, ...]


def key(
  default: T,
  help: str,
  *,
  choices: Texts = (),
  least: float = -math.inf,
  most: float = math.inf,
  note: str = "",
  table: str = "",
) -> T:
  """Declares a key of a section.

  Args:
    default: its value; a dict declares a mapping, empty by default, with names that the user chooses.
    help: text for `t2t train --help` and docs/config_keys.md.
    choices: the accepted values; (): any value.
    least, most: the range of a finite number.
    note: the end of the error about a number out of range.
    table: "module:attribute" of a table of accepted values, which begin the help.
  """
  metadata = {"help": help, "choices": choices, "least": least, "most": most, "note": note, "table": table}
  if isinstance(default, dict):
    return dataclasses.field(default_factory=type(default), metadata=metadata)
  return dataclasses.field(default=default, metadata=metadata)


class DataclassRecord(Protocol):
  """Any dataclass."""

  __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[object]]]


R = TypeVar("R", bound=DataclassRecord)


def check_ranges(
  section: str, record: DataclassRecord, *, only: Texts = (), notes: Mapping[str, str] | None = None
) -> None:
  """Checks choices and ranges of the keys of a section.

  Args:
    section: name of the section.
    record: values of the section.
    only: names of the keys to check; (): all keys.
    notes: value -> the end of the error about it.

  Raises:
    UserError: names the key and the accepted values.
  """
  for field in keys(type(record)):
    if only and field.name not in only:
      continue
    value, metadata = getattr(record, field.name), field.metadata
    where, (least, most) = f"config.{section}.{field.name}", (metadata["least"], metadata["most"])
    if metadata["choices"] and value not in metadata["choices"]:
      raise UserError(
        f"{where}={value!r}: unknown value; give one of {', '.join(metadata['choices'])}{(notes or {}).get(value, '')}"
      )
    if least > -math.inf and not (least <= value <= most and math.isfinite(value)):
      wanted = f"at least {least}" if most == math.inf else f"from {least} to {most}"
      raise UserError(f"{where}={value} must be {wanted}{metadata['note']}")


def keys(record: type[DataclassRecord]) -> list[dataclasses.Field[object]]:
  """Returns the fields of a record that `key` declares, in order."""
  return [field for field in dataclasses.fields(record) if "help" in field.metadata]


def named_record(mapping: str, name: str, values: R | Iterable[str], record: type[R]) -> R:
  """Builds the record of one name of a mapping, such as "data.sources", from config values."""
  if not re.fullmatch(r"\w+", name):  # a task, a metric and a key contain the name
    raise UserError(f"config.{mapping}: {name!r} is not a valid name; use only letters, digits and _")
  if isinstance(values, record):
    return values
  known = [field.name for field in dataclasses.fields(record)]
  if not isinstance(values, Iterable):  # a ConfigDict is not a Mapping
    raise UserError(f"config.{mapping}.{name}={values!r} must be a mapping with these keys: {', '.join(known)}")
  for key in values:
    if key not in known:
      near = did_you_mean(key, known)
      raise UserError(f"config.{mapping}.{name}.{key}: no such key. Accepted keys: {', '.join(known)}{near}")
  return record(**cast("Mapping[str, object]", values))
