"""Masks of vectors in states of earlier versions, whose rules "mask" also masked norms and biases."""

from collections.abc import Callable, Collection, Mapping
import dataclasses
from typing import Any

import jax

from t2t.checkpoints.restore import MASKS
from t2t.param_tree import is_prunable
from t2t.runtime import hosts
from t2t.training.train_state import TrainState

Shapes = Mapping[str, tuple[int, ...]]


def of_vectors(path: object, saved_shapes: Shapes, expected: Shapes) -> dict[str, tuple[int, ...]]:
  """Returns the name and shape of saved masks of parameters that are no matrices, and says that they are not read.

  Args:
    path: of the saved step, for the message.
    saved_shapes: of the saved state.
    expected: shapes of the run's state.
  """
  names = (name for name in saved_shapes if name.startswith(MASKS) and name not in expected)
  masks = {name: saved_shapes[name] for name in names if not is_prunable(name.removeprefix(MASKS), saved_shapes[name])}
  if masks:
    first = ", ".join(name.removeprefix(MASKS) for name in sorted(masks)[:3])
    hosts.log_once(
      f"{path}: the masks of {first}{' and others' if len(masks) > 3 else ''} are not read, because rules with 'mask' "
      "only mask matrices now. Their zeros are trained."
    )
  return masks


def added(abstract: TrainState, masks: Mapping[str, jax.ShapeDtypeStruct]) -> TrainState:
  """Returns a state with further masks, by their name in the state."""
  return _changed(abstract, lambda kept: {**kept, **{name.removeprefix(MASKS): x for name, x in masks.items()}})


def removed(state: TrainState, masks: Collection[str]) -> TrainState:
  """Returns a state without these masks."""
  return _changed(state, lambda kept: {path: x for path, x in kept.items() if f"{MASKS}{path}" not in masks})


def _changed(state: TrainState, function: Callable[[dict[str, Any]], dict[str, Any]]) -> TrainState:
  collections: dict[str, Any] = dict(state.collections)
  transforms = collections["transforms"] | {"mask": function(collections["transforms"]["mask"])}
  return dataclasses.replace(state, collections=collections | {"transforms": transforms})
