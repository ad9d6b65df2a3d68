"""Pipeline parallelism: the layers of a stack run in stages on different devices, through which microbatches pass.

All stages are one program: in each tick a function of one stage runs on all stages, mapped over their own axis, and the
results move to the next stage. A microbatch passes the stages once (GPipe, Huang et al. 2019), or in several rounds
with fewer layers per stage and round (interleaved stages, Narayanan et al. 2021). The backward pass is the transposed
loop. In the first and last ticks some stages have no microbatch. They compute real rows again, and nothing reads the
results.

  4 microbatches in 2 stages, 1 round       2 microbatches in 2 stages, 2 rounds
  tick      0  1  2  3  4                    tick      0   1   2   3   4
  stage 0   0  1  2  3  -                    stage 0   0   1   0'  1'  -
  stage 1   -  0  1  2  3                    stage 1   -   0   1   0'  1'
"""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any, TypeVar

from flax import nnx
import jax
from jax.ad_checkpoint import checkpoint_name
import jax.numpy as jnp
import numpy as np

from t2t import UserError, sharding
from t2t.models.config import TransformerConfig

T = TypeVar("T")
_MOST_PER_STAGE = 4  # microbatches; a bubble of a fifth (Huang et al. 2019, section 2.3, call it negligible)
_WEIGHTS = "round_weights"
_STREAM = ("length", "residual")  # logical axes of the residual stream after its rows


@dataclasses.dataclass(frozen=True)
class Schedule:
  """Order in which microbatches pass the stages.

  In tick t stage s runs step t - s: round (t - s) // period, and the microbatch that is the rest. Layer
  (round * stages + stage) * depth + i is layer i of a stage in a round.
  """

  stages: int
  rounds: int
  microbatches: int

  @property
  def period(self) -> int:
    """Returns the number of ticks between the rounds of a microbatch."""
    return self.microbatches if self.rounds == 1 else max(self.microbatches, self.stages)

  @property
  def ticks(self) -> int:
    """Returns the number of ticks of a pass, each with a stage's layers of one round and microbatch."""
    return self.period * (self.rounds - 1) + self.microbatches + self.stages - 1

  @property
  def bubble(self) -> float:
    """Returns the fraction of the ticks in which a stage has no microbatch."""
    return 1.0 - self.rounds * self.microbatches / self.ticks

  @property
  def _steps(self) -> np.ndarray:
    return np.arange(self.ticks)[:, None] - np.arange(self.stages)

  @property
  def round_at(self) -> np.ndarray:
    """Returns the round of each stage, int [ticks, stages]; any round in a bubble."""
    return np.clip(self._steps // self.period, 0, self.rounds - 1).astype(np.int32)

  @property
  def microbatch_at(self) -> np.ndarray:
    """Returns the microbatch of each stage, int [ticks, stages]; any microbatch in a bubble."""
    return (self._steps % self.period % self.microbatches).astype(np.int32)

  @property
  def tick_of(self) -> np.ndarray:
    """Returns the tick of each stage's work, int [stages, rounds, microbatches]."""
    stage, turn, microbatch = np.indices((self.stages, self.rounds, self.microbatches))
    return turn * self.period + microbatch + stage


def schedule(config: TransformerConfig, rows: int, stages: int) -> Schedule:
  """Returns the schedule of a model's stacks on a mesh.

  Args:
    config: see `pipeline_microbatches` and `pipeline_rounds`.
    rows: rows of a batch on each group of devices that is one pipeline.
    stages: size of the mesh axis.

  Returns:
    The schedule with the most microbatches that divide `rows`, up to the config's number.
  """
  most = config.pipeline_microbatches or _MOST_PER_STAGE * stages
  return Schedule(
    stages, config.pipeline_rounds, max(n for n in range(1, min(most, max(rows, 1)) + 1) if rows % n == 0)
  )


def of_batch(config: TransformerConfig, batch_size: int, *, stages: int, parts: int) -> Schedule | None:
  """Returns the schedule for a batch; None: there is one stage, or the batch does not divide.

  Args:
    config: see `schedule`.
    batch_size: rows on all devices.
    stages, parts: numbers of shards of the logical axes "stages" and "microbatch".
  """
  return None if stages == 1 or batch_size % parts else schedule(config, batch_size // parts, stages)


def run(
  layers: Callable[..., tuple[jax.Array, T]],
  x: jax.Array,
  layer_inputs: Mapping[str, object],
  rows: Mapping[str, object],
  shared: nnx.Module | None,
  plan: Schedule,
  *,
  remat_policy: Callable[..., bool] | None = None,
) -> tuple[jax.Array, T]:
  """Runs the layers of a stack as a pipeline; equal to `layers(x, layer_inputs, rows, shared)`.

  Args:
    layers: runs consecutive layers on some rows: (x, layer_inputs, rows, shared) -> (x, outputs of each layer). Outputs
      have a leading axis of layers, then rows or no axis. An output without rows is a sum over rows.
    x: [batch, length, embed].
    layer_inputs: values of all layers, with a leading axis "layers"; under "carried", a second axis of the batch; under
      "key", the random key of each layer.
    rows: values with a leading axis of the batch, and others, which all rows share.
    shared: parameters common to all layers. Each stage sums its own gradient of them.
    plan: the schedule.
    remat_policy: of `config.model.remat`; None: everything is kept but copies of parameters.

  Raises:
    UserError: the layers do not divide into stages and rounds.
  """
  stages, batch = plan.stages, x.shape[0]
  is_of_rows = lambda leaf: isinstance(leaf, jax.Array) and leaf.ndim > 0 and leaf.shape[0] == batch
  leaves, treedef = jax.tree.flatten(rows)
  of_rows = [is_of_rows(leaf) for leaf in leaves]
  row_inputs = [_by_tick(plan, leaf) for leaf, split in zip(leaves, of_rows, strict=True) if split]
  entering = _by_tick(plan, x, _STREAM)
  num_layers = len(jax.tree.leaves(layer_inputs["index"])[0])
  if num_layers % (plan.stages * plan.rounds):
    raise UserError(
      f"config.mesh.stage={plan.stages} x config.model.pipeline_rounds={plan.rounds} does not divide a stack of "
      f"{num_layers} layers. Give stages and rounds whose product divides {num_layers}."
    )
  of_layers: dict[str, Any] = dict(layer_inputs)
  carried, keys = of_layers.pop("carried", None), of_layers.pop("key", None)
  weights = jax.tree.map(lambda leaf: _by_stage(plan, leaf), of_layers)
  shared = jax.tree.map(lambda leaf: _own_copies(leaf, stages), shared)
  beside = {
    "carried": jax.tree.map(lambda leaf: _carried_by_tick(plan, leaf), carried),
    "key": None if keys is None else _keys_by_tick(plan, keys),
  }

  def stage(x, weights, turn, own_rows, beside, shared):
    # A selection, because the compiler would gather the operand of an indexing operation from all stages.
    of_round = lambda leaf: leaf[0] if plan.rounds == 1 else jax.lax.select_n(turn, *leaf)
    in_round = jax.tree.map(lambda leaf: checkpoint_name(of_round(leaf), _WEIGHTS), weights)
    own = iter(own_rows)
    joined = [next(own) if split else leaf for leaf, split in zip(leaves, of_rows, strict=True)]
    return layers(x, {**in_round, **beside}, jax.tree.unflatten(treedef, joined), shared)

  # Otherwise each tick would keep its own copy of the stage's parameters for the backward pass.
  stage = jax.checkpoint(stage, policy=remat_policy or _all_but_parameters, prevent_cse=False)
  on_stages = sharding.by_stage(stage)
  is_first = (jnp.arange(stages) == 0).reshape(-1, *[1] * x.ndim)
  num_waiting = plan.period - stages if plan.rounds > 1 else 0  # ticks between arrival and start of the next round

  def tick(state, inputs):
    sent, waiting = state
    index, entering, turn, own_rows, beside = inputs
    arriving = _next_stage(sent)
    again = arriving
    if num_waiting:
      again = jax.lax.dynamic_index_in_dim(waiting, index % num_waiting, keepdims=False)
      waiting = jax.lax.dynamic_update_index_in_dim(waiting, arriving, index % num_waiting, 0)
    first = jnp.where(index < plan.microbatches, entering, again)
    sent, outputs = on_stages(jnp.where(is_first, first, arriving), weights, turn, own_rows, beside, shared)
    sent = _split(sent, _STREAM)
    return (sent, waiting), (sent, outputs)

  waiting = jnp.zeros((num_waiting, *entering.shape[1:]), x.dtype)
  ticks = jnp.arange(plan.ticks), entering, jnp.asarray(plan.round_at), row_inputs, beside
  # The first ticks of later stages compute rows of the batch, because derivatives at zeros may not be finite.
  _, (sent, outputs) = jax.lax.scan(tick, (entering[0], waiting), ticks)
  done = plan.tick_of[-1, -1]
  outputs = jax.tree.map(lambda leaf: _of_layers(plan, leaf, batch // plan.microbatches), outputs)
  return _whole(sent[done[0] : done[-1] + 1, -1], 0, _STREAM), outputs


@jax.custom_vjp
def _next_stage(x: jax.Array) -> jax.Array:
  """Moves each stage's results, [stages, microbatch, ...], to the next stage, and those of the last to the first."""
  return jnp.roll(x, 1, axis=0)


# JAX would transpose the roll to two transfers.
_next_stage.defvjp(lambda x: (_next_stage(x), None), lambda _, cotangent: (jnp.roll(cotangent, -1, axis=0),))


def _all_but_parameters(primitive, *_, **params) -> bool:
  """Policy that keeps everything except a round's parameters and their casts; other casts and selections are cheap."""
  is_weights = primitive.name == "name" and params["name"] == _WEIGHTS
  return not is_weights and primitive.name not in ("convert_element_type", "select_n", "slice", "squeeze")


# ---- Layouts ---------------------------------------------------------------------------------------------------------
# Rows are split into microbatches like those of `train_step`: row i goes to microbatch i % number.


def _split(x: jax.Array, rest: tuple[str, ...] = (), *, leading: tuple[None, ...] = ()) -> jax.Array:
  """Constrains [..., stages, microbatch, ...] to the devices of each stage; `rest`: names of the last axes."""
  return sharding.shard(x, *leading, "stages", "microbatch", *(rest or ["any"] * (x.ndim - len(leading) - 2)))


def _microbatches(plan: Schedule, x: jax.Array, axis: int, rest: tuple[str, ...] = ()) -> jax.Array:
  """Splits the axis of rows in two, and moves the second, of microbatches, to the front."""
  rows = x.shape[axis] // plan.microbatches
  x = x.reshape(*x.shape[:axis], rows, plan.microbatches, *x.shape[axis + 1 :])
  x = jnp.moveaxis(x, axis + 1, 0)
  return sharding.shard(x, None, *[None] * axis, "microbatch", *(rest or ["any"] * (x.ndim - axis - 2)))


def _whole(x: jax.Array, axis: int, rest: tuple[str, ...] = ()) -> jax.Array:
  """Inverts `_microbatches`."""
  x = jnp.moveaxis(x, 0, axis + 1)
  x = x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
  return sharding.shard(x, *[None] * axis, "batch", *(rest or ["any"] * (x.ndim - axis - 1)))


def _by_tick(plan: Schedule, x: jax.Array, rest: tuple[str, ...] = ()) -> jax.Array:
  """Maps [batch, ...] to the rows of each stage in each tick, [ticks, stages, microbatch, ...]."""
  return _split(_microbatches(plan, x, 0, rest)[plan.microbatch_at], rest, leading=(None,))


def _by_stage(plan: Schedule, x: jax.Array) -> jax.Array:
  """Maps [layers, ...] to the layers of each stage and round, [stages, rounds, depth, ...]."""
  x = jnp.swapaxes(x.reshape(plan.rounds, plan.stages, -1, *x.shape[1:]), 0, 1)
  if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
    return x
  return sharding.shard(x, "stages", None, None, *["any"] * (x.ndim - 3))


def _own_copies(x: jax.Array, stages: int) -> jax.Array:
  copies = jnp.broadcast_to(x, (stages, *x.shape))
  return sharding.shard(copies, "stages", *["any"] * x.ndim)


def _carried_by_tick(plan: Schedule, x: jax.Array) -> jax.Array:
  """Maps [layers, batch, ...] to [ticks, stages, depth, microbatch, ...]."""
  by_stage = _by_stage(plan, x)
  parts = jnp.moveaxis(_microbatches(plan, by_stage, 3), 0, 2)  # [stages, rounds, microbatches, depth, ...]
  indexed = lambda own, turn, microbatch: own[turn, microbatch]
  return sharding.by_stage(indexed, in_axes=(0, 1, 1), out_axes=1)(
    parts, jnp.asarray(plan.round_at), jnp.asarray(plan.microbatch_at)
  )


def _keys_by_tick(plan: Schedule, keys: jax.Array) -> jax.Array:
  """Returns the keys of each stage in each tick, [ticks, stages, depth]; with one microbatch the layers' own keys."""
  by_stage = _by_stage(plan, keys)[np.arange(plan.stages), plan.round_at]
  if plan.microbatches == 1:
    return by_stage
  folded = jax.vmap(jax.vmap(jax.vmap(jax.random.fold_in, in_axes=(0, None))))
  return folded(by_stage, jnp.asarray(plan.microbatch_at))


def _of_layers(plan: Schedule, x: jax.Array, rows: int) -> jax.Array:
  """Maps outputs [ticks, stages, depth, ...] to [layers, batch, ...], or without rows to sums, [layers]."""
  if x.ndim > 3 and x.shape[3] != rows:
    raise ValueError(
      f"the output of a layer in a pipeline has the shape {x.shape[3:]}, but the layer has {rows} rows. Return an "
      "array with a leading axis of the batch, or a scalar."
    )
  of_stage = lambda own, ticks: own[ticks]  # [ticks, depth, ...] -> [rounds, microbatches, depth, ...]
  x = sharding.by_stage(of_stage, in_axes=(1, 0))(x, jnp.asarray(plan.tick_of))
  x = jnp.moveaxis(x, 2, 0)  # [microbatches, stages, rounds, depth, ...]
  x = jnp.sum(x, axis=0) if x.ndim == 4 else _whole(x, 3)
  return jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[3:])
