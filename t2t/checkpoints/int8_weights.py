"""Any checkpoint as a model with weights in int8: `--weights int8`."""

from collections.abc import Iterator
import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from t2t import UserError
from t2t.checkpoints import pretrained
from t2t.models import int8_matrix
from t2t.param_tree import Params, flatten, unflatten

_MOST_BYTES = 1 << 30  # of the float32 parameters that are read at a time


def load(source: pretrained.Source, params: Params) -> Params:
  """Loads the parameters of a checkpoint and rounds the matrices of `int8_matrix.weight_only`.

  Devices hold 1 GiB of float32 matrices at a time, or one matrix.

  Args:
    source: the checkpoint.
    params: nested dict of `jax.ShapeDtypeStruct` with shardings; int8 values and scales have paths of their own.

  Raises:
    UserError: the checkpoint has other parameters, or no matrix can be rounded.
  """
  wanted: Any = flatten(params)
  rounded = [path.removesuffix(f"/{int8_matrix.VALUES}") for path, x in wanted.items() if x.dtype == np.int8]
  if not any("layer" in path for path in rounded):
    raise UserError(f"--weights int8: {source.name} has no layers with int8 matrices. Leave out --weights.")
  as_float = lambda x: jax.ShapeDtypeStruct(x.shape, np.float32, sharding=x.sharding)
  parts = {path: tuple(f"{path}/{name}" for name in (int8_matrix.VALUES, int8_matrix.SCALE)) for path in rounded}
  plain = {path: x for path, x in wanted.items() if path not in set().union(*parts.values())}
  plain |= {path: as_float(wanted[values]) for path, (values, _) in parts.items()}
  pretrained.check_has(source, plain)
  loaded: dict[str, jax.Array] = {}
  for group in _groups(plain):
    arrays = pretrained.read(source, {path: (path, plain[path]) for path in group})
    if source.foreign is not None:  # its notes have been shown
      source = dataclasses.replace(source, foreign=dataclasses.replace(source.foreign, notes=()))
    for path in group:
      if path in parts:
        of_parts = tuple(wanted[part].sharding for part in parts[path])
        function = functools.partial(int8_matrix.integers, axis=int8_matrix.axis_of(parts[path][0]))
        loaded |= zip(parts[path], jax.jit(function, out_shardings=of_parts)(arrays.pop(path)), strict=True)
      else:
        loaded[path] = arrays.pop(path)
  return unflatten({path: loaded[path] for path in wanted})


def _groups(plain: dict[str, Any]) -> Iterator[list[str]]:
  """Yields groups of paths with `_MOST_BYTES`, or one larger parameter."""
  group, size = [], 0
  for path, x in plain.items():
    if group and size + x.size * 4 > _MOST_BYTES:
      yield group
      group, size = [], 0
    group.append(path)
    size += x.size * 4
  yield group
