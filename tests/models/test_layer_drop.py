"""LayerDrop: a training step runs a random subset of the layers."""

import itertools

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import toy

from t2t.param_tree import flatten, unflatten


def test_a_step_runs_a_subset_of_layers():
  """Each output is that of a model without the skipped layers, which get no gradient; evaluation runs all layers."""
  config = toy.encoder(layer_drop=0.5)
  batch = toy.batch(architecture=config.architecture)
  graphdef, params = toy.split(toy.model(config))
  merge = nnx.merge
  run = lambda params, key: jnp.sum(jnp.square(toy.logits(merge(graphdef, params), batch, key)))
  plain = jax.jit(lambda params: jnp.sum(jnp.square(toy.logits(merge(graphdef, params), batch))))
  flat = flatten(params)
  branches = [path for path in flat if path.endswith(("self_attention/out", "mlp/down"))]
  subsets = {}
  for kept in itertools.product((0.0, 1.0), repeat=3):
    masked = {path: x * jnp.array(kept)[:, None, None] if path in branches else x for path, x in flat.items()}
    subsets[kept] = float(plain(unflatten(masked)))
  seen = set()
  both = jax.jit(jax.value_and_grad(run))
  for seed in range(12):
    value, grads = both(params, jax.random.key(seed))
    value = float(value)
    kept = min(subsets, key=lambda kept: abs(subsets[kept] - value))
    np.testing.assert_allclose(value, subsets[kept], rtol=1e-5)
    seen.add(kept)
    runs = np.any(np.asarray(flatten(grads)["encoder/layers/mlp/down"]) != 0, axis=(1, 2))
    assert runs.tolist() == [bool(x) for x in kept]
  assert len(seen) > 3
