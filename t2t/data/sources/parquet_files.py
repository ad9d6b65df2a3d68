"""Reads Parquet: the texts of one column, or whole rows, with any Arrow type for strings."""

from collections.abc import Iterator, Sequence
import contextlib
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet

from t2t import UserError
from t2t.data.sources import bad_records, fields
from t2t.storage import gcs, outage, safe_read

_LARGEST_ROW_GROUP = 4 * 2**30  # bytes of text; sizes declared in a Parquet file are not trusted


def _open(path: str, *, where: str) -> pa.parquet.ParquetFile:
  try:
    source = gcs.open_binary(path) if gcs.is_remote(path) else path
    # Checksums cost little, and nothing for files without them.
    return pa.parquet.ParquetFile(source, page_checksum_verification=True)
  except (pa.ArrowException, ValueError, MemoryError, OSError) as error:
    if getattr(error, "errno", None) is not None:
      raise  # an error of the system, not of the file
    raise outage.refusal(
      f"{where}: {path} cannot be read as a Parquet file ({_first_line(error)}). {_remedy(error)}", error
    ) from error


def _remedy(error: BaseException) -> str:
  return "Try again when the bucket answers." if outage.reason(error) else safe_read.COPY_AGAIN


# ---- Types -----------------------------------------------------------------------------------------------------------


def _plain(kind: pa.DataType) -> pa.DataType:
  """Returns the value type of a dictionary (pandas categories, polars Categorical and Enum), or the type itself."""
  return kind.value_type if pa.types.is_dictionary(kind) else kind


_STRINGS = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view", "null")


def _is_text(kind: pa.DataType) -> bool:
  # By name, because pyarrow 18 lacks a test for some types. A column of only nulls has its own type.
  return str(_plain(kind)) in _STRINGS


def _is_list(kind: pa.DataType) -> bool:
  return hasattr(kind, "value_field") and not pa.types.is_map(kind)


def _texts(schema: Sequence[pa.Field], prefix: str = "") -> Iterator[str]:
  """Yields the paths of all text columns."""
  for field in schema:
    kind = field.type
    while _is_list(kind):
      kind = kind.value_type
    if _is_text(kind):
      yield prefix + field.name
    elif pa.types.is_struct(kind):
      yield from _texts([kind.field(i) for i in range(kind.num_fields)], f"{prefix}{field.name}.")


def _located(schema: pa.Schema, field: str) -> tuple[str, pa.DataType, bool] | None:
  """Returns column, type, and whether lists are on the path of a field; None if there is no such field."""
  if field in schema.names:
    column, kind, nested_names = field, schema.field(field).type, []
  else:
    column, *nested_names = field.split(".")
    if column not in schema.names:
      return None
    kind = schema.field(column).type
  lists = False
  for name in nested_names:
    while _is_list(kind) and not re.fullmatch(r"-?\d+", name):
      kind, lists = kind.value_type, True
    if _is_list(kind):
      kind, lists = kind.value_type, True
    elif pa.types.is_struct(kind) and kind.get_field_index(name) >= 0:
      kind = kind.field(name).type
    else:
      return None
  return column, kind, lists


# ---- Texts of a column -----------------------------------------------------------------------------------------------


class Texts:
  """Texts of a field of a file, as UTF-8 bytes, by row group.

  Args:
    path: of the file.
    field: name of a column, or a path as in `fields.text`.
    key: advice for messages.
    where: the configuration key that names the file.

  Raises:
    UserError: the file is not Parquet, or the field is missing or not text; names its type and the text columns.
  """

  def __init__(self, path: str, *, field: str, key: str, where: str):
    self._path, self._field, self._key, self._where = path, field, key, where
    self._file = _open(path, where=where)
    schema = self._file.schema_arrow
    column_info = _located(schema, field)
    location = f"{where}: {path}"
    if column_info is None:
      nested = [text for text in _texts(schema) if "." in text]
      hint = f", for example {fields.likeliest(nested)!r}" if nested else ""
      raise UserError(f"{location} has no column {field!r} (columns: {fields.listed(schema.names)}); {key}{hint}")
    self._column, kind, lists = column_info
    inner = kind
    while _is_list(inner):
      inner, lists = inner.value_type, True
    if not _is_text(inner):
      texts = [text for text in _texts(schema) if text != field]
      below = [text for text in texts if text.startswith(f"{field}.")]
      hint = f"columns of text: {fields.listed(below or texts)}" if texts else "no column of this file is text"
      raise UserError(f"{location}: column {field!r} has type {_shown(kind)}, not string; {key} ({hint})")
    self._lists = lists
    self.num_row_groups = self._file.num_row_groups

  def row_group(self, number: int) -> list[bytes]:
    """Returns the texts of a row group, with `bad_records.DamagedRecord` for a row without a text.

    Raises:
      UserError: the row group cannot be read.
    """
    try:
      return self._read(number)
    except (pa.ArrowException, ValueError, IndexError, MemoryError, OSError) as error:
      if getattr(error, "errno", None) is not None:
        raise  # an error of the system, not of the file
      raise outage.refusal(
        f"{self._where}: {self._path}: row group {number} cannot be read ({_first_line(error)}). {_remedy(error)}",
        error,
      ) from error

  def _read(self, number: int) -> list[bytes]:
    group = self._file.metadata.row_group(number)
    size = group.total_byte_size
    reads_whole_column = self._lists or self._column == self._field
    selected = self._column if reads_whole_column else self._field
    if not 0 <= size <= _LARGEST_ROW_GROUP:
      # Reading one row first raises an error for damage that would crash the process in pyarrow's column metadata.
      next(self._file.iter_batches(1, row_groups=[number], columns=[selected]), None)
      columns = [group.column(i) for i in range(group.num_columns)]
      of_text = [c for c in columns if f"{c.path_in_schema}.".startswith(f"{selected}.")]
      size = sum(column.total_uncompressed_size for column in of_text)
    if not 0 <= size <= _LARGEST_ROW_GROUP:
      raise ValueError(
        f"the row group declares {size:,} bytes of {self._field!r}, more than the limit of {_LARGEST_ROW_GROUP:,}"
      )
    column = self._file.read_row_group(number, columns=[selected]).column(0)
    if self._lists:
      return [self._of_value(value) for value in column.to_pylist()]
    if not reads_whole_column:
      column = pa.compute.struct_field(column, self._field.split(".")[1:])
    if pa.types.is_dictionary(column.type):
      column = column.cast(column.type.value_type)
    # As bytes, because some files have strings that are not UTF-8; the parser names such a record.
    texts = column.cast(pa.large_binary()).to_pylist()
    return [self._null() if text is None else text for text in texts]

  def _null(self) -> bad_records.DamagedRecord:
    return bad_records.DamagedRecord(b"", fields.is_null(self._field, self._key))

  def _of_value(self, value: Any) -> bytes:
    try:
      return fields.text({self._column: _decoded(value)}, self._field, key=self._key).encode()
    except (fields.UnreadableField, UnicodeDecodeError) as error:
      return bad_records.DamagedRecord(b"", str(error))


def _decoded(value: Any) -> Any:
  """Decodes binary values, also in lists and objects."""
  if isinstance(value, bytes):
    return value.decode()
  if isinstance(value, list):
    return [_decoded(item) for item in value]
  if isinstance(value, dict):
    return {name: _decoded(item) for name, item in value.items()}
  return value


def _shown(kind: pa.DataType) -> str:
  text = " ".join(str(kind).split())
  return text if len(text) <= 120 else f"{text[:120]}..."


def _first_line(error: Exception) -> str:
  return (str(error).splitlines() or [type(error).__name__])[0]


# ---- Whole rows ------------------------------------------------------------------------------------------------------


_NARROW = {"float": np.float32, "halffloat": np.float16}  # Arrow type -> NumPy type


def rows(path: str, *, where: str) -> Iterator[tuple[int, dict[str, Any]]]:
  """Yields the rows of a file, numbered from 1, as Python values; binary values that are UTF-8 become text.

  Raises:
    UserError: the file cannot be read.
  """
  number = 0
  try:
    file = _open(path, where=where)
    binary = [field.name for field in file.schema_arrow if "binary" in str(field.type)]
    # Shortest decimal of the file's type: 0.1 of float32 would become 0.10000000149011612.
    narrow = {field.name: _NARROW[str(field.type)] for field in file.schema_arrow if str(field.type) in _NARROW}
    for batch in file.iter_batches(1_000):
      for row in batch.to_pylist():
        number += 1
        for name in narrow:
          if row[name] is not None:
            row[name] = float(str(narrow[name](row[name])))
        for name in binary:
          with contextlib.suppress(UnicodeDecodeError):  # binary data, such as an image, stays bytes
            row[name] = _decoded(row[name])
        yield number, row
  except (pa.ArrowException, ValueError, MemoryError, OSError) as error:
    raise outage.refusal(
      f"{where}: {path} cannot be read after record {number} ({_first_line(error)}). {_remedy(error)}", error
    ) from error


def names(path: str, *, where: str) -> list[str]:
  """Returns the names of the columns.

  Raises:
    UserError: the file cannot be read, or two columns have the same name.
  """
  column_names = list(_open(path, where=where).schema_arrow.names)
  if twice := [name for name in column_names if column_names.count(name) > 1]:
    raise UserError(f"{where}: {path}: two columns are named {twice[0]!r}; give each column a different name")
  return column_names
