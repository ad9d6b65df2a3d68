"""Projected attention layers (Stickland & Murray 2019): a small attention of each task's own beside every layer.

One body serves many tasks.  Of task t layer l adds V_t^D MultiHead_{t,l}(V_t^E h) to its residual sum, together with
its feed-forward layer: V_t^E and V_t^D, to a small width and back, are the same in all layers, the attention between
them is each layer's own, and has no matrix behind its heads, for V_t^D follows.  h is what the layer's self-attention
reads: in BERT the layer's input, and where norms stand before the branches that input normed.  Who sees whom is as in
the self-attention, but for its window; the small attention itself knows no positions.
"""

from collections.abc import Mapping
import dataclasses
import re
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import UserError, sharding
from t2t.models import attention, layers, quantized_matmul, transformer
from t2t.models.adapters import Adapter, patterns
from t2t.models.attention import KVCache
from t2t.models.masks import AttentionMask

ADDED = "(^|/)pals/"
_TASKS = -3  # axis of every parameter

Matrices = tuple[jax.Array, jax.Array, jax.Array]  # of queries, keys and values, [tasks, size, size]


@dataclasses.dataclass(frozen=True)
class PalsConfig:
  """What they are; sizes are the paper's, which add 1.65 % to BERT base for each task.

  Raises:
    UserError: a field that is out of range, or a name that is there twice.
  """

  #: names of the tasks, in the order of their numbers: of config.data.sources, or else of the tasks of
  #: config.data.mixture.  Checkpoints keep them, and no run goes on with others
  tasks: tuple[str, ...] = ()
  size: int = 204  # their width inside
  heads: int = 12  # of the small attentions; a divisor of `size`
  #: patterns over paths of parameters that are trained as they are, for all tasks together: "norm"; or ".", everything,
  #: which is the paper's
  also_train: tuple[str, ...] = ()

  def __post_init__(self):
    for name in ("tasks", "also_train"):  # lists, in a config.json
      object.__setattr__(self, name, tuple(getattr(self, name)))
    for name in self.tasks:
      if not name or self.tasks.count(name) > 1:
        why = f"{name!r} is there twice" if name else "a name is missing beside a comma"
        raise UserError(f"config.pals.tasks={','.join(self.tasks)}: {why}; each task has a number of its own")
    for name in ("size", "heads"):
      if getattr(self, name) < 1:
        raise UserError(f"config.pals.{name}={getattr(self, name)}: must be at least 1")
    if self.size % self.heads:
      low = self.size // self.heads * self.heads
      near = " or ".join(str(size) for size in (low, low + self.heads) if size)
      raise UserError(f"config.pals.size={self.size} does not divide into config.pals.heads={self.heads}; {near} would")


class Pals(nnx.Module):
  """Those of one stack's layers; V^D is zero at first, so that they add nothing."""

  query: nnx.Param
  key: nnx.Param
  value: nnx.Param

  def __init__(self, embed_dim: int, config: PalsConfig, rngs: nnx.Rngs, *, num_layers: int):
    tasks, size = len(config.tasks), config.size
    self.head_dim = size // config.heads
    # The axis of tasks is none that a mesh splits.
    self.encode = layers.param(rngs, (tasks, embed_dim, size), (None, "embed", "rank"), scale=embed_dim**-0.5)
    self.decode = nnx.Param(jnp.zeros((tasks, size, embed_dim), jnp.float32), axes=(None, "rank", "embed"))
    for name in ("query", "key", "value"):
      # One more dimension than axes: that of layers.
      weight = layers.param(rngs, (num_layers, tasks, size, size), (None, "rank", "rank"), scale=size**-0.5)
      setattr(self, name, weight)

  @property
  def of_layers(self) -> Matrices:
    """What is each layer's own, with an axis of layers in front."""
    return self.query[...], self.key[...], self.value[...]

  def room(self, batch_size: int, length: int, dtype: str) -> KVCache:
    """An empty cache of all layers."""
    num_layers, _, size, _ = self.query[...].shape
    empty = jnp.zeros((num_layers, batch_size, size // self.head_dim, length, self.head_dim), dtype)
    return KVCache(empty, empty)

  def __call__(
    self,
    x: jax.Array,
    layer_matrices: Matrices,
    *,
    mask: AttentionMask,
    tasks: jax.Array | None,
    cache: KVCache | None = None,
  ) -> tuple[jax.Array, KVCache]:
    """What one layer adds to its residual sum, and its keys and values.

    Args:
      x: what its self-attention reads, [batch, length, embed].
      layer_matrices: the layer's, of `of_layers`.
      mask: of its self-attention.
      tasks: see `of_task`.
      cache: keys and values of earlier positions; those of `x` are written into it, and all are attended to.

    Returns:
      [batch, length, embed], and [batch, heads, key, kv].
    """
    hidden = _project(x, self.encode[...], tasks)
    query, key, value = (self._by_heads(_project(hidden, matrices, tasks)) for matrices in layer_matrices)
    cache = KVCache(key, value) if cache is None else cache.write(key, value, mask.key_index(cache.keys.shape[2]))
    attended = attention.attend(query * self.head_dim**-0.5, cache.keys, cache.values, mask=mask)
    merged = jnp.swapaxes(attended, 1, 2).reshape(hidden.shape)
    return _project(merged, self.decode[...], tasks), cache

  def _by_heads(self, x: jax.Array) -> jax.Array:
    """[batch, length, size] -> [batch, heads, length, kv]."""
    split = x.reshape(*x.shape[:-1], -1, self.head_dim)
    return jnp.swapaxes(sharding.shard(split, "batch", "length", None, "kv"), 1, 2)


def _project(x: jax.Array, matrices: jax.Array, tasks: jax.Array | None) -> jax.Array:
  """Each position times its task's matrix, in the dtype of `x`.

  Args:
    x: [batch, length, in].
    matrices: float32 [tasks, in, out].
    tasks: int [batch, length], or [batch, 1] where each row is of one task; of a single task not looked at.

  Returns:
    [batch, length, out].

  Raises:
    ValueError: nobody says which of several tasks it is.
  """
  number = matrices.shape[0]
  if number == 1:
    return quantized_matmul.product(x, matrices[0])
  if tasks is None:
    raise ValueError(f"{number} tasks, and no feature of the batch says which one a row is of")
  if tasks.shape[1] == 1:
    # Cast behind the copies, so that their gradients are added up in float32.
    of_rows = jnp.take(matrices, tasks[:, 0], axis=0).astype(x.dtype)
    return jnp.einsum("bli,bio->blo", x, of_rows)
  # Of packed rows the product of every task, for matrices that each position has by itself would be far larger.
  of_tasks = (
    jnp.where(tasks[..., None] == task, quantized_matmul.product(x, matrices[task]), 0) for task in range(number)
  )
  total: Any = sum(of_tasks)
  return total


def adapt(model: nnx.Module, config: PalsConfig, rngs: nnx.Rngs) -> nnx.Module:
  """The model with small attentions beside the layers of all its stacks.

  Raises:
    UserError: no tasks, or a pattern of `also_train` that matches no parameter.
  """
  if not config.tasks:
    raise UserError(
      "config.pals.tasks is empty: name the tasks, in the order of their numbers: the names of config.data.sources, or"
      " of the tasks of config.data.mixture, as --config.pals.tasks=reviews,questions"
    )
  model = patterns.copy_of(model)
  for _, submodel in patterns.modules(model, transformer.MODELS):
    for side in submodel.architecture.sides:
      stack = getattr(submodel, side)
      stack_pals = Pals(submodel.config.embed_dim, config, rngs, num_layers=stack.num_layers)
      stack.pals = nnx.data(stack_pals)  # in place of a None
  patterns.check(config.also_train, "config.pals.also_train", patterns.paths_of(model))
  return model


def base_path(path: str) -> str | None:
  """Where a parameter was before; None: it is new."""
  return None if re.search(ADDED, path) else path


def of_task(params: Mapping[str, jax.Array], number: int) -> dict[str, jax.Array]:
  """Path -> array of the model that has but the task of this number, and is told of none; the rest are the same arrays.

  In:  {"encoder/pals/encode": [tasks, embed, size], "encoder/pals/query": [layers, tasks, size, size], ...}
  Out: {"encoder/pals/encode": [1, embed, size], "encoder/pals/query": [layers, 1, size, size], ...}
  """
  select = lambda x: jax.lax.slice_in_dim(x, number, number + 1, axis=x.ndim + _TASKS)
  return {path: select(x) if re.search(ADDED, path) else x for path, x in params.items()}


ADAPTER = Adapter(PalsConfig, adapt, ADDED, base_path, merge=None, tasks=lambda config: config.tasks, of_task=of_task)
