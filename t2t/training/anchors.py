"""The values that training began from: parameters decay towards them, and are measured by how far they have come."""

from collections.abc import Callable
from typing import NamedTuple

from flax import traverse_util
import jax
import jax.numpy as jnp
import optax

from t2t.params import Params, stack_of


class Anchors(NamedTuple):
  """A part of the optimizer's state, so that a run that is resumed has them bit for bit.

  initial: path -> the parameter when training began.
  """

  initial: dict[str, jax.Array]


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

  def update(updates, state, params=None):
    def one(path: str, x: jax.Array) -> jax.Array:
      factor = strength(path)
      return x + factor * (params[path] - state.initial[path]) if factor else x

    return {path: one(path, x) for path, x in updates.items()}, state

  return optax.GradientTransformation(init, update)


def _is_anchors(x: object) -> bool:
  return isinstance(x, Anchors)


def starting_from(opt_state: optax.OptState, params: Params) -> optax.OptState:
  """The state of an optimizer whose training begins from these parameters."""
  flat = traverse_util.flatten_dict(params, sep="/")
  begun = lambda x: Anchors({path: jnp.copy(flat[path]) for path in x.initial}) if _is_anchors(x) else x
  return jax.tree.map(begun, opt_state, is_leaf=_is_anchors)


def distances(opt_state: optax.OptState, params: Params) -> dict[str, jax.Array]:
  """How far parameters have come from where they began, as a norm: of each part, and in stacks of each layer.

  Returns:
    "distance/encoder/3" -> float32 [], of the fourth layer; "distance/embed"; nothing where no values are kept.
  """
  flat, squares = traverse_util.flatten_dict(params, sep="/"), {}
  kept = [x for x in jax.tree.leaves(opt_state, is_leaf=_is_anchors) if _is_anchors(x)]
  for path, initial in (each for anchors in kept for each in anchors.initial.items()):
    part, stack = path.split("/")[0], stack_of(path)
    by_layer = jnp.sum(jnp.square(flat[path] - initial), axis=tuple(range(1 if stack else 0, initial.ndim)))
    name = stack.removesuffix("/layers") if stack else part
    for layer in range(initial.shape[0]) if stack else (None,):
      place = f"distance/{name}" if layer is None else f"distance/{name}/{layer}"
      squares[place] = squares.get(place, 0.0) + (by_layer if layer is None else by_layer[layer])
  return {place: jnp.sqrt(square) for place, square in squares.items()}
