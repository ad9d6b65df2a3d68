"""Projected attention layers (Stickland & Murray 2019): a small attention per task in parallel to every layer.

One body serves many tasks. For task t, layer l adds V_t^D MultiHead_{t,l}(V_t^E h) to its residual stream, together
with its feed-forward layer. V_t^E and V_t^D, projections to a small width and back, are shared by all layers. The
attention between them is separate for each layer and has no output matrix, because V_t^D follows. h is the input of the
layer's self-attention: in BERT the layer's input, in pre-norm models its norm. The mask is the self-attention's without
its window; the small attention uses no positions.
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
_TASKS = -3  # axis of tasks in every parameter

Matrices = tuple[jax.Array, jax.Array, jax.Array]  # query, key and value matrices, [tasks, size, size]


@dataclasses.dataclass(frozen=True)
class PalsConfig:
  """Options of projected attention layers; default sizes are the paper's, which add 1.65 % to BERT base per task.

  Raises:
    UserError: a field is out of range, or a name is a duplicate.
  """

  #: names of the tasks, by task id: of config.data.sources, or else of the tasks of config.data.mixture; checkpoints
  #: store them, and resuming with other tasks is an error
  tasks: tuple[str, ...] = ()
  size: int = 204  # width of the small attentions
  heads: int = 12  # heads of the small attentions; a divisor of `size`
  #: patterns over paths of other trained parameters, shared by all tasks: "norm"; or ".", all parameters, as in the
  #: paper
  also_train: tuple[str, ...] = ()

  def __post_init__(self):
    for name in ("tasks", "also_train"):  # lists, in a config.json
      object.__setattr__(self, name, tuple(getattr(self, name)))
    for name in self.tasks:
      if not name or self.tasks.count(name) > 1:
        why = f"{name!r} occurs twice" if name else "a name is empty"
        raise UserError(f"config.pals.tasks={','.join(self.tasks)}: {why}. Give each task one unique name.")
    for name in ("size", "heads"):
      if getattr(self, name) < 1:
        raise UserError(f"config.pals.{name}={getattr(self, name)}: must be at least 1")
    if self.size % self.heads:
      low = self.size // self.heads * self.heads
      near = " or ".join(str(size) for size in (low, low + self.heads) if size)
      raise UserError(
        f"config.pals.size={self.size} is not divisible by config.pals.heads={self.heads}. Set "
        f"config.pals.size to {near}."
      )


class Pals(nnx.Module):
  """Projected attention layers of one stack; V^D starts at zero, so that they add nothing."""

  query: nnx.Param
  key: nnx.Param
  value: nnx.Param

  def __init__(self, embed_dim: int, config: PalsConfig, rngs: nnx.Rngs, *, num_layers: int):
    tasks, size = len(config.tasks), config.size
    self.head_dim = size // config.heads
    # The axis of tasks is not sharded.
    self.encode = layers.param(rngs, (tasks, embed_dim, size), (None, "embed", "rank"), scale=embed_dim**-0.5)
    self.decode = nnx.Param(jnp.zeros((tasks, size, embed_dim), jnp.float32), axes=(None, "rank", "embed"))
    for name in ("query", "key", "value"):
      # One more dimension than axes: the layers.
      weight = layers.param(rngs, (num_layers, tasks, size, size), (None, "rank", "rank"), scale=size**-0.5)
      setattr(self, name, weight)

  @property
  def of_layers(self) -> Matrices:
    """Returns the per-layer parameters, with a leading axis of layers."""
    return self.query[...], self.key[...], self.value[...]

  def room(self, batch_size: int, length: int, dtype: str) -> KVCache:
    """Returns an empty cache of all layers."""
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
    """Returns the addition to one layer's residual stream, and its keys and values.

    Args:
      x: input of the layer's self-attention, [batch, length, embed].
      layer_matrices: the layer's entries of `of_layers`.
      mask: mask of the self-attention.
      tasks: see `_project`.
      cache: keys and values of earlier positions; the keys and values of `x` are added.

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
    split = x.reshape(*x.shape[:-1], -1, self.head_dim)
    return jnp.swapaxes(sharding.shard(split, "batch", "length", None, "kv"), 1, 2)


def _project(x: jax.Array, matrices: jax.Array, tasks: jax.Array | None) -> jax.Array:
  """Multiplies each position by its task's matrix, in the dtype of `x`.

  Args:
    x: [batch, length, in].
    matrices: float32 [tasks, in, out].
    tasks: int [batch, length], or [batch, 1] for one task per row; ignored if there is a single task.

  Returns:
    [batch, length, out].

  Raises:
    ValueError: several tasks, but no task ids.
  """
  number = matrices.shape[0]
  if number == 1:
    return quantized_matmul.product(x, matrices[0])
  if tasks is None:
    raise ValueError(f"config.pals.tasks has {number} tasks, but the batch has no feature with task ids")
  if tasks.shape[1] == 1:
    # Cast after the copies, so that their gradients are summed in float32.
    of_rows = jnp.take(matrices, tasks[:, 0], axis=0).astype(x.dtype)
    return jnp.einsum("bli,bio->blo", x, of_rows)
  # For packed rows, the product of every task, because a matrix per position would be far larger.
  of_tasks = (
    jnp.where(tasks[..., None] == task, quantized_matmul.product(x, matrices[task]), 0) for task in range(number)
  )
  total: Any = sum(of_tasks)
  return total


def adapt(model: nnx.Module, config: PalsConfig, rngs: nnx.Rngs) -> nnx.Module:
  """Returns the model with small attentions in parallel to the layers of all its stacks.

  Raises:
    UserError: no tasks, or a pattern of `also_train` matches no parameter.
  """
  if not config.tasks:
    raise UserError(
      "config.pals.tasks is empty. Give the names of config.data.sources, or of the tasks of "
      "config.data.mixture, for example --config.pals.tasks=reviews,questions. The order of the names determines "
      "the task ids."
    )
  model = patterns.copy_of(model)
  for _, submodel in patterns.modules(model, transformer.MODELS):
    for side in submodel.architecture.sides:
      stack = getattr(submodel, side)
      stack_pals = Pals(stack.config.embed_dim, config, rngs, num_layers=stack.num_layers)
      stack.pals = nnx.data(stack_pals)  # replaces None
  patterns.check(config.also_train, "config.pals.also_train", patterns.paths_of(model))
  return model


def base_path(path: str) -> str | None:
  """Returns the path of a parameter in the base model; None: the adapter added it."""
  return None if re.search(ADDED, path) else path


def of_task(params: Mapping[str, jax.Array], number: int) -> dict[str, jax.Array]:
  """Returns path -> array of a model for one task, which takes no task ids; other arrays are not copied.

  In:  {"encoder/pals/encode": [tasks, embed, size], "encoder/pals/query": [layers, tasks, size, size], ...}
  Out: {"encoder/pals/encode": [1, embed, size], "encoder/pals/query": [layers, 1, size, size], ...}
  """
  select = lambda x: jax.lax.slice_in_dim(x, number, number + 1, axis=x.ndim + _TASKS)
  return {path: select(x) if re.search(ADDED, path) else x for path, x in params.items()}


ADAPTER = Adapter(PalsConfig, adapt, ADDED, base_path, merge=None, tasks=lambda config: config.tasks, of_task=of_task)
