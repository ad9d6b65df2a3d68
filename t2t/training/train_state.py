"""The training state, made where it will lie, and the step that advances it."""

from collections.abc import Callable
import dataclasses
import functools

from flax import nnx
import jax
import jax.numpy as jnp
import optax

from t2t import metrics as metrics_lib
from t2t import sharding
from t2t.losses import Loss, Weights, gradient
from t2t.metrics import Metrics
from t2t.models.architecture import Batch, real_positions, sides
from t2t.params import Params, join_frozen, path_name, split_frozen
from t2t.training import anchors, places


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
  """All that training changes: what a checkpoint holds, apart from the position in the data.

  step: int32 [], how many updates have been made.
  params, frozen_params: nested dicts of float32 arrays, of what is frozen also bfloat16; together they are the model's.
  opt_state: optax's.
  """

  step: jax.Array
  params: Params
  frozen_params: Params
  opt_state: optax.OptState

  def model(self, graphdef: nnx.GraphDef) -> nnx.Module:
    """The model with these parameters."""
    return nnx.merge(graphdef, join_frozen(self.params, self.frozen_params))


_HOST, _DEVICE = "pinned_host", "device"  # kinds of memory


def _opt_state_shardings(opt_state, params: Params, param_shardings: Params, mesh: jax.sharding.Mesh, *, offload: bool):
  """Moments lie as their parameters do, or beside them in the host's memory; small things are on every device."""
  by_path = {
    path_name(path): (leaf.shape, placed)
    for (path, leaf), placed in zip(
      jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(param_shardings), strict=True
    )
  }

  def one(path, leaf):
    # The optimizer sees a flat dict: the last key of a moment's path is the parameter's whole path.
    shape, placed = by_path.get(str(getattr(path[-1], "key", "")), (None, None)) if path else (None, None)
    if shape != leaf.shape:
      return sharding.replicated(mesh)
    return placed.with_memory_kind(_HOST) if offload else placed

  return jax.tree_util.tree_map_with_path(one, opt_state)


def abstract_train_state(
  model_fn: Callable[[jax.Array], nnx.Module],
  tx: optax.GradientTransformation,
  mesh: jax.sharding.Mesh,
  *,
  freeze: tuple[str, ...] = (),
  halved: tuple[str, ...] = (),
  offload_optimizer: bool = False,
) -> tuple[nnx.GraphDef, TrainState, Callable[[jax.Array], TrainState]]:
  """The state's shapes, each with its sharding, without a device; and the function that makes the state itself.

  Args: see `init_train_state`, and `split_frozen` for `halved`.
  """

  def make(key: jax.Array) -> TrainState:
    params = nnx.to_pure_dict(nnx.split(model_fn(key), graph=False)[1])
    params, frozen = split_frozen(params, freeze, halved=halved)
    return TrainState(jnp.zeros((), jnp.int32), params, frozen, tx.init(params))

  key = jax.eval_shape(lambda: jax.random.key(0))
  graphdef, model_state = nnx.split(jax.eval_shape(model_fn, key), graph=False)
  shapes = jax.eval_shape(make, key)
  params, frozen = split_frozen(sharding.param_shardings(model_state, mesh), freeze)
  shardings = TrainState(
    sharding.replicated(mesh),
    params,
    frozen,
    _opt_state_shardings(shapes.opt_state, shapes.params, params, mesh, offload=offload_optimizer),
  )
  placed = lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s)
  return graphdef, jax.tree.map(placed, shapes, shardings), make


def init_train_state(
  model_fn: Callable[[jax.Array], nnx.Module],
  tx: optax.GradientTransformation,
  key: jax.Array,
  mesh: jax.sharding.Mesh,
  *,
  freeze: tuple[str, ...] = (),
  offload_optimizer: bool = False,
) -> tuple[nnx.GraphDef, TrainState, TrainState]:
  """A fresh state, each array made directly in its shards: no device ever holds the whole of a sharded one.

  Args:
    model_fn: key -> model.
    tx: optimizer over nested dicts of parameters.
    key: of the initial values; these do not depend on the mesh.
    mesh: where the state will lie.
    freeze: patterns; parameters whose path matches one are not trained.
    offload_optimizer: moments wait in the host's memory between updates.

  Returns:
    The model's structure, the state, and a tree like it of shardings.

  Raises:
    UserError: a parameter that the mesh does not divide, or `freeze` that fits nothing.
  """
  graphdef, abstract, make = abstract_train_state(
    model_fn, tx, mesh, freeze=freeze, offload_optimizer=offload_optimizer
  )
  shardings = jax.tree.map(lambda x: x.sharding, abstract)
  return graphdef, jax.jit(make, out_shardings=shardings)(key), shardings


def _microbatches(batch: Batch, num: int) -> Batch:
  """[batch, ...] -> [num, batch / num, ...], each microbatch spread over all devices (row i goes to i % num)."""

  def one(x):
    x = jnp.swapaxes(x.reshape(x.shape[0] // num, num, *x.shape[1:]), 0, 1)
    return sharding.shard(x, None, "batch", *[None] * (x.ndim - 2))

  return jax.tree.map(one, batch)


def _split_by_copy(copies: int, x: jax.Array) -> jax.Array:
  """[microbatches, rows, ...] -> [microbatches, copies, rows of a copy, ...]."""
  x = x.reshape(x.shape[0], copies, -1, *x.shape[2:])
  return sharding.shard(x, None, "copies", "rows", *[None] * (x.ndim - 3))


def _num_tokens(batch: Batch) -> jax.Array:
  """How many positions of inputs and targets hold a token."""
  real = (real_positions(batch, side) for side in sides(batch))
  return sum(jnp.sum(positions) for positions in real).astype(jnp.float32)


def _to_device(tree, shardings):
  """What `shardings` have in the host's memory, in the device's."""

  def one(x, placed):
    return jax.device_put(x, placed.with_memory_kind(_DEVICE)) if placed.memory_kind == _HOST else x

  return jax.tree.map(one, tree, shardings)


def _select(good: jax.Array, new, old):
  """`new` if `good`, bool [], else `old`; but the step of the schedule goes on.

  The step counts: the batch is spent, and the run ends, decays and saves where it would have. The moments stay as they
  were, and with them how many updates they are of, by which Adam corrects them and Adafactor's decay grows: a gradient
  that is no number must not enter an average of thousands of steps, and an average of one update fewer is corrected for
  one fewer. So does `optax.apply_if_finite`, where the schedule waits as well; and PaLM (Chowdhery et al. 2022, section
  5.1) passed over the batches around a spike.
  """
  is_schedule = lambda x: isinstance(x, optax.ScaleByScheduleState)
  chosen = lambda a, b: a if is_schedule(a) else jnp.where(good, a, b)
  return jax.tree.map(chosen, new, old, is_leaf=is_schedule)


def make_train_step(
  graphdef: nnx.GraphDef,
  loss: Loss,
  tx: optax.GradientTransformation,
  state_shardings: TrainState,
  *,
  num_microbatches: int = 1,
  skip_not_finite: bool = False,
) -> Callable[[TrainState, Batch, jax.Array], tuple[TrainState, Metrics]]:
  """The compiled update: (state, batch, key) -> (next state, metrics); the old state's memory is reused.

  Each term of the loss is divided by its weight in the whole batch, which is known before it is cut; gradients of
  microbatches are added up in float32: the result does not depend on the cut, however unevenly tokens lie.

  Args:
    graphdef: structure of the model.
    loss: see `Loss`.
    tx: optimizer.
    state_shardings: like the state; without it the second step would compile again.  What lies in the host's memory
      comes to the device for the update.
    num_microbatches: a divisor of the batch; memory for activations falls by as much.
    skip_not_finite: leaves the update out where the loss or the norm of the gradient is not finite; see `_select`.

  Returns:
    Metrics are those of the loss, and grad_norm, param_norm (of the next state), tokens (without padding), skipped (1
    where the update was left out), grad_squares, the sums of the gradient's squares by `places`, and where the initial
    values are kept `anchors.distances`.
  """

  def gradients(weights: Weights, state: TrainState, batch: Batch, key: jax.Array) -> tuple[Params, Metrics]:
    def terms_of(params: Params):
      module = dataclasses.replace(state, params=params).model(graphdef)
      return loss(module, batch, weights, key=key, train=True)

    return gradient(terms_of, state.params, all_terms=not jax.tree.leaves(state.frozen_params))

  def summed_gradients(weights: Weights, state: TrainState, batch: Batch, key: jax.Array):
    """Of all microbatches; where parameters are copied, each copy adds up its own, and they meet once, at the end."""
    copies, part = sharding.num_copies(), functools.partial(gradients, weights)
    batches = _microbatches(batch, num_microbatches)
    own = state_shardings.params
    if copies > 1:
      part, batches = sharding.by_copy(part), jax.tree.map(functools.partial(_split_by_copy, copies), batches)
      own = jax.tree.map(sharding.of_each_copy, own)

    def one(index: jax.Array, batch: Batch):
      own_key = jax.random.fold_in(key, index)
      grads, metrics = part(state, batch, own_key if copies == 1 else jax.random.split(own_key, copies))
      return jax.lax.with_sharding_constraint(grads, own), metrics

    def body(added, scanned):
      grads, metrics = one(*scanned)
      return (jax.tree.map(jnp.add, added[0], grads), metrics_lib.merge(added[1], metrics)), None

    first = jax.tree.map(lambda x: x[0], (jnp.arange(num_microbatches), batches))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(one, *first))
    zeros = jax.lax.with_sharding_constraint(zeros[0], own), zeros[1]
    added = jax.lax.scan(body, zeros, (jnp.arange(num_microbatches), batches))[0]
    return added if copies == 1 else jax.tree.map(lambda x: jnp.sum(x, axis=0), added)

  def train_step(state: TrainState, batch: Batch, key: jax.Array) -> tuple[TrainState, Metrics]:
    # Keys depend on (seed, step, microbatch) alone, so that a run that was resumed draws what it would have drawn.
    key = jax.random.fold_in(key, state.step)
    compute = gradients if num_microbatches == 1 else summed_gradients
    grads, metrics = compute(loss.weights(batch), state, batch, key)
    grads = jax.lax.with_sharding_constraint(grads, state_shardings.params)
    opt_state = _to_device(state.opt_state, state_shardings.opt_state)
    updates, new_opt_state = tx.update(grads, opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    one, squares = jnp.ones(()), places.squares(grads)
    norm = jnp.sqrt(jnp.sum(squares))
    if skip_not_finite:
      # One scalar, of what is added up over all hosts for the metrics anyway.
      good = jnp.isfinite(norm) & jnp.isfinite(metrics["loss"].total)
      params = _select(good, params, state.params)
      new_opt_state = _select(good, new_opt_state, opt_state)
      metrics["skipped"] = metrics_lib.WeightedSum(1.0 - good, one)
    metrics["grad_norm"] = metrics_lib.WeightedSum(norm, one)
    metrics["grad_squares"] = metrics_lib.WeightedSum(squares, one)
    metrics["tokens"] = metrics_lib.WeightedSum(_num_tokens(batch), one)
    # Of the new parameters: the old ones would have to be kept for it, though their memory is to be used again.
    metrics["param_norm"] = metrics_lib.WeightedSum(optax.tree.norm(params), one)
    for name, distance in anchors.distances(new_opt_state, params).items():
      metrics[name] = metrics_lib.WeightedSum(distance, one)
    return dataclasses.replace(state, step=state.step + 1, params=params, opt_state=new_opt_state), metrics

  return jax.jit(train_step, donate_argnums=0, out_shardings=(state_shardings, None))


def make_eval_step(graphdef: nnx.GraphDef, loss: Loss) -> Callable[[TrainState, Batch], Metrics]:
  """The compiled evaluation of one batch, without dropout; what a loss draws depends on the step alone."""

  def eval_step(state: TrainState, batch: Batch) -> Metrics:
    key = jax.random.fold_in(jax.random.key(0), state.step)
    return loss(state.model(graphdef), batch, loss.weights(batch), key=key, train=False)[1]

  return jax.jit(eval_step)
