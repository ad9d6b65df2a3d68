"""Importance of attention heads and feed-forward neurons: the effect of a gate on the loss of an example.

A gate multiplies the output of a head or neuron, and its gradient at 1 is the sum, over the rows of the following
matrix that belong to the unit, of weight times gradient. Importance is the mean over examples of the absolute value
(Michel et al. 2019, equation 2; Molchanov et al. 2019 for neurons).
"""

from collections.abc import Mapping
import re
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from t2t import UserError, sharding
from t2t.checkpoints import pretrained
from t2t.configuration.schema import Config
from t2t.models.config import TransformerConfig
from t2t.param_tree import flatten, unflatten
from t2t.runtime import progress
from t2t.training import estimate_fisher

# Kind of unit -> pattern of the matrices that read the units' outputs; the group is the path of the module.
READERS = {"heads": r"^(.*/layers/\w+_attention)/out$", "neurons": r"^(.*/layers/mlp)/down$"}


def num_units(kind: str, model: TransformerConfig, path: str) -> int:
  """Returns the units of each layer of a module: neurons, or heads, where heads with common keys are one unit."""
  side = model.of_stack("encoder" if path.startswith("encoder") else "decoder")
  return side.mlp_dim if kind == "neurons" else side.kv_heads


def compute(config: Config, source: pretrained.Source, *, kind: str, examples: int) -> dict[str, np.ndarray]:
  """Computes the importance of the units of each module.

  Args:
    config: see `estimate_fisher.run_config`.
    source: the checkpoint.
    kind: a key of `READERS`.
    examples: number of examples, repeated if there are fewer.

  Returns:
    Path of the module, such as "encoder/layers/self_attention" -> float32 [layers, units].

  Raises:
    UserError: see `estimate_fisher.reading`; or there is no example.
  """
  with estimate_fisher.reading(config, source) as read:
    flat = flatten(read.model.params)
    modules = {match[1]: path for path in flat if (match := re.search(READERS[kind], path))}
    gates = {
      module: jnp.ones((flat[path].shape[0], num_units(kind, source.model, path))) for module, path in modules.items()
    }
    step = _make_step(read.model.graphdef, read.loss, modules)
    sums: Any = jax.tree.map(jnp.zeros_like, gates)
    left = range(examples, 0, -read.config.train.batch_size)
    total = 0
    for number, batch in progress.track(zip(left, read.batches), "importance", total=len(left)):  # noqa: B905
      added, count = step(gates, read.model.params, batch, number)
      sums, total = jax.tree.map(jnp.add, sums, added), total + int(count)
    if not total:
      raise UserError(
        f"{config.data.named}: no training example in {examples} rows. Check the data with `t2t tasks show`."
      )
    return {module: np.asarray(x) / total for module, x in sums.items()}


def _make_step(graphdef: nnx.GraphDef, loss: Any, modules: Mapping[str, str]):
  """Compiles (gates, parameters, batch, number of rows that count) -> sums of absolute gradients, and examples."""

  def of_row(gates, params, row):
    batch = {name: jnp.pad(x[None], ((0, sharding.num_shards("batch") - 1), (0, 0))) for name, x in row.items()}
    weights = loss.weights(batch)

    def negative_likelihood(gates):
      flat = dict(flatten(params))
      for module, path in modules.items():
        rows = flat[path].shape[1] // gates[module].shape[1]
        flat[path] = flat[path] * jnp.repeat(gates[module], rows, axis=1)[..., None]
      ones = jax.tree.map(jnp.ones_like, weights)
      terms, _ = loss(nnx.merge(graphdef, unflatten(flat)), batch, ones, key=None, train=False)
      total: Any = sum(terms.values())
      return total

    gradients = jax.tree.map(jnp.abs, jax.grad(negative_likelihood)(gates))
    return gradients, jnp.any(jnp.stack(list(weights.values())) > 0).astype(jnp.float32)

  def step(gates, params, batch, number):
    rows = next(iter(batch.values())).shape[0]
    gradients, there = jax.lax.map(lambda row: of_row(gates, params, row), batch)
    counts = there * (jnp.arange(rows) < number)
    weigh = lambda x: jnp.tensordot(counts, x, axes=1)
    return jax.tree.map(weigh, gradients), jnp.sum(counts)

  return jax.jit(step)
