"""LayerDrop: a training step skips each layer with some probability, so that a model works with fewer layers."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

RunLayer = Callable[..., tuple[jax.Array, object, object]]


def sometimes(run_layer: RunLayer, rate: float, key: jax.Array) -> RunLayer:
  """Returns a function that runs a layer with probability 1 - rate, and otherwise returns its input, unscaled.

  All rows of a batch skip the same layers, and calls of the function make the same choice. Other outputs of a skipped
  layer are zeros. Source: Fan et al. 2020, section 3.1.

  Args:
    run_layer: (x, further arguments by name) -> output, and a tree of arrays.
    rate: probability.
    key: of the layer's dropout.
  """

  def run_or_skip(x: jax.Array, **options: object) -> tuple[jax.Array, object, object]:
    run = lambda x: run_layer(x, **options)
    empty = jax.eval_shape(run, x)[1:]
    skip = lambda x: (x, *jax.tree.map(lambda y: jnp.zeros(y.shape, y.dtype), empty))
    return jax.lax.cond(jax.random.bernoulli(jax.random.fold_in(key, 6), rate), skip, run, x)

  return run_or_skip
