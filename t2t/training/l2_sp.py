"""The values that training began from: parameters are pulled back to them, and measured by how far they have come.

Alike (L2-SP), or each by how much an earlier task depends on it (EWC).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from t2t.param_tree import Params, flatten, stack_of


class Anchors(NamedTuple):
  """A part of the optimizer's state, so that a run that is resumed has them bit for bit.

  initial: path -> the parameter when training began.
  """

  initial: dict[str, jax.Array]


class Consolidated(NamedTuple):
  """The same of an earlier task; both are files already, and checkpoints leave them out (see `without_files`).

  initial: path -> the parameter when that task was learned.
  fisher: path -> the diagonal of its Fisher information.
  """

  initial: dict[str, jax.Array]
  fisher: dict[str, jax.Array]


def towards_initial(
  strength: Callable[[str], float], *, is_kept: Callable[[str], bool]
) -> optax.GradientTransformation:
  """L2-SP (Li et al. 2018), decoupled as AdamW's decay is: updates of a flat dict get strength * (now - at first).

  That is the gradient of strength / 2 * |now - at first|**2.

  Args:
    strength: of a path; 0: none.
    is_kept: whether a path's initial value is kept: where it has a strength, and where it is to be measured.
  """

  def init(params):
    # Another array than the parameter, which the step overwrites.
    return Anchors({path: jnp.copy(x) for path, x in params.items() if is_kept(path)})

  def update(updates: Any, state: Any, params: Any = None):
    def pulled(path: str, x: jax.Array) -> jax.Array:
      factor = strength(path)
      return x + factor * (params[path] - state.initial[path]) if factor else x

    return {path: pulled(path, x) for path, x in updates.items()}, state

  return optax.GradientTransformation(init, update)


def consolidating(strength: Callable[[str], float]) -> optax.GradientTransformation:
  """EWC (Kirkpatrick et al. 2017): the gradient of strength / 2 * sum of F * (now - then)**2 is added to the loss's.

  In front of the optimizer, unlike L2-SP above: F spans many orders of magnitude, and a decay by its largest numbers
  would overshoot at any learning rate that suits the loss.

  Args:
    strength: of a path; 0: none, and nothing is kept of it.
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
  """The state of an optimizer whose training begins from these parameters."""
  flat = flatten(params)

  def begun(x):
    return x._replace(initial={path: jnp.copy(flat[path]) for path in x.initial}) if _is_anchors(x) else x

  return jax.tree.map(begun, opt_state, is_leaf=_is_anchors)


# ---- What is a file already ------------------------------------------------------------------------------------------


def consolidated(opt_state: optax.OptState) -> Consolidated | None:
  """What a state has of an earlier task; None: nothing."""
  leaves: list[Any] = jax.tree.leaves(opt_state, is_leaf=_is_consolidated)
  return next((x for x in leaves if isinstance(x, Consolidated)), None)


def without_files(opt_state: optax.OptState) -> optax.OptState:
  """A state, or its shapes, as it is saved: without what it has of an earlier task."""
  return jax.tree.map(lambda x: optax.EmptyState() if _is_consolidated(x) else x, opt_state, is_leaf=_is_consolidated)


def with_files(
  opt_state: optax.OptState, shapes: optax.OptState, put: Callable[[Consolidated, Consolidated], Consolidated]
) -> optax.OptState:
  """A state with what it has of an earlier task.

  Args:
    opt_state: without it, as it is saved, or with something else in its place.
    shapes: of a state that has it.
    put: (the shapes, what is in the place) -> the arrays.
  """
  put_files = lambda shape, x: put(shape, x) if _is_consolidated(shape) else x
  return jax.tree.map(put_files, shapes, opt_state, is_leaf=_is_consolidated)


# ---- How far -----------------------------------------------------------------------------------------------------


def distances(opt_state: optax.OptState, params: Params) -> dict[str, jax.Array]:
  """How far parameters have come from where they began, as a norm: of each part, and in stacks of each layer.

  Returns:
    "distance/encoder/3" -> float32 [], of the fourth layer; "distance/embed"; nothing where no values are kept.
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
