"""Slices of splits, such as train[:100], by the rules of TensorFlow Datasets."""

from collections.abc import Callable
import re
import types
from typing import NamedTuple

import tensorflow_datasets as tfds

from t2t import UserError


class Part(NamedTuple):
  """Records of a split from `start` to `stop`."""

  split: str
  start: int
  stop: int


def bases(split: str) -> list[str]:
  """Returns the splits that a slice, or a sum of slices, refers to.

  In:  "train[:100]+test"
  Out: ["train", "test"]
  """
  return [re.sub(r"\[[^\[\]]*\]$", "", part) for part in split.split("+")]


def parts(split: str, count: Callable[[str], int], *, where: str) -> list[Part]:
  """Returns the records of a slice of a split, or of a sum of slices.

  In:  "train[-20%:]", of 50 records
  Out: [Part("train", 40, 50)]

  Args:
    split: in the syntax of TensorFlow Datasets.
    count: split name -> number of records.
    where: config key, for messages.

  Raises:
    UserError: the slice is invalid or empty.
  """
  slice_parts = []
  for spec, base in zip(split.split("+"), bases(split), strict=True):
    info = types.SimpleNamespace(num_examples=count(base), shard_lengths=[count(base)])
    try:
      for instruction in tfds.core.ReadInstruction.from_spec(spec).to_absolute({base: info}):
        part = Part(base, instruction.from_ or 0, info.num_examples if instruction.to is None else instruction.to)
        slice_parts += [part] if part.stop > part.start else []
    except (ValueError, NotImplementedError, AssertionError) as error:
      reason = f" ({str(error).splitlines()[0]})" if str(error) else ""
      raise UserError(
        f"{where}: split {split!r} is not valid{reason}. Give a slice such as '{base}[:100]' or '{base}[10%:20%]'."
      ) from error
  if not slice_parts:
    raise UserError(f"{where}: split {split!r} has no record; give a larger slice")
  return slice_parts
