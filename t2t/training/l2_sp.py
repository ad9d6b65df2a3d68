"""Anchors: decay towards the parameter values at the start of training, and their distance from them.

L2-SP pulls all parameters alike; EWC weights them by the Fisher information of an earlier task.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from t2t.param_tree import Params, flatten, stack_of


class Anchors(NamedTuple):
  """Initial parameters as a part of the optimizer state, so that a resumed run has the same bits.

  Attributes:
    initial: path -> the parameter at the start of training.
  """

  initial: dict[str, jax.Array]


class Consolidated(NamedTuple):
  """Anchors of an earlier task; checkpoints leave both out, because both are in files (see `without_files`).

  Attributes:
    initial: path -> the parameter at the end of that task.
    fisher: path -> the diagonal of its Fisher information.
  """

  initial: dict[str, jax.Array]
  fisher: dict[str, jax.Array]


def towards_initial(
  strength: Callable[[str], float], *, is_kept: Callable[[str], bool]
) -> optax.GradientTransformation:
  """Adds strength * (parameter - initial) to the updates of a flat dict: L2-SP (Li et al. 2018), decoupled as in AdamW.

  That is the gradient of strength / 2 * |parameter - initial|**2.

  Args:
    strength: by path; 0 for no decay.
    is_kept: whether a path's initial value is kept, for its decay or for its distance.
  """

  def init(params):
    # A copy, because the step overwrites the parameter.
    return Anchors({path: jnp.copy(x) for path, x in params.items() if is_kept(path)})

  def update(updates: Any, state: Any, params: Any = None):
    def pulled(path: str, x: jax.Array) -> jax.Array:
      factor = strength(path)
      return x + factor * (params[path] - state.initial[path]) if factor else x

    return {path: pulled(path, x) for path, x in updates.items()}, state

  return optax.GradientTransformation(init, update)


def consolidating(strength: Callable[[str], float]) -> optax.GradientTransformation:
  """Adds the gradient of strength / 2 * sum of F * (parameter - initial)**2: EWC (Kirkpatrick et al. 2017).

  It precedes the optimizer, unlike L2-SP: F spans many orders of magnitude, and a decoupled decay by its largest values
  would overshoot at any learning rate that suits the loss.

  Args:
    strength: by path; 0 for parameters without an anchor.
  """

  def init(params):
    anchored = {path: x for path, x in params.items() if strength(path)}
    return Consolidated(jax.tree.map(jnp.copy, anchored), jax.tree.map(jnp.zeros_like, anchored))

  def update(updates, state, params=None):
    assert params is not None
    pull = lambda path: strength(path) * state.fisher[path] * (params[path] - state.initial[path])
    return updates | {path: updates[path] + pull(path) for path in state.fisher}, state

  return optax.GradientTransformation(init, update)


def _is_anchors(x: object) -> bool:
  return isinstance(x, Anchors | Consolidated)


def _is_consolidated(x: object) -> bool:
  return isinstance(x, Consolidated)


def starting_from(opt_state: optax.OptState, params: Params) -> optax.OptState:
  """Returns the optimizer state of a training that starts from these parameters."""
  flat = flatten(params)

  def begun(x):
    return x._replace(initial={path: jnp.copy(flat[path]) for path in x.initial}) if _is_anchors(x) else x

  new_state: Any = jax.tree.map(begun, opt_state, is_leaf=_is_anchors)
  if isinstance(new_state, optax.contrib.ScheduleFreeState):  # its iterate starts there, too
    new_state = new_state._replace(z=jax.tree.map(jnp.copy, flat))
  return new_state


# ---- State that files contain already --------------------------------------------------------------------------------


def consolidated(opt_state: optax.OptState) -> Consolidated | None:
  """Returns the EWC part of an optimizer state; None if it has none."""
  leaves: list[Any] = jax.tree.leaves(opt_state, is_leaf=_is_consolidated)
  return next((x for x in leaves if isinstance(x, Consolidated)), None)


def without_files(opt_state: optax.OptState) -> optax.OptState:
  """Returns the state, or its shapes, as it is saved: without the EWC part."""
  return jax.tree.map(lambda x: optax.EmptyState() if _is_consolidated(x) else x, opt_state, is_leaf=_is_consolidated)


def with_files(
  opt_state: optax.OptState, shapes: optax.OptState, put: Callable[[Consolidated, Consolidated], Consolidated]
) -> optax.OptState:
  """Returns the state with its EWC part.

  Args:
    opt_state: as saved, or with another value in that place.
    shapes: of a state with an EWC part.
    put: (shapes, value in that place) -> arrays.
  """
  put_files = lambda shape, x: put(shape, x) if _is_consolidated(shape) else x
  return jax.tree.map(put_files, shapes, opt_state, is_leaf=_is_consolidated)


# ---- Distances -------------------------------------------------------------------------------------------------------


def distances(opt_state: optax.OptState, params: Params) -> dict[str, jax.Array]:
  """Returns the norm of the difference from the initial values, per part and per layer of a stack.

  Returns:
    "distance/encoder/3" -> float32 [], of the fourth layer; "distance/embed"; {} if no initial values are kept.
  """
  flat, squares = flatten(params), {}
  anchor_states = [x for x in jax.tree.leaves(opt_state, is_leaf=_is_anchors) if _is_anchors(x)]
  for path, initial in (item for anchors in anchor_states for item in anchors.initial.items()):
    part, stack = path.split("/")[0], stack_of(path)
    by_layer = jnp.sum(jnp.square(flat[path] - initial), axis=tuple(range(1 if stack else 0, initial.ndim)))
    name = stack.removesuffix("/layers") if stack else part
    for layer in range(initial.shape[0]) if stack else (None,):
      metric = f"distance/{name}" if layer is None else f"distance/{name}/{layer}"
      squares[metric] = squares.get(metric, 0.0) + (by_layer if layer is None else by_layer[layer])
  return {metric: jnp.sqrt(square) for metric, square in squares.items()}
