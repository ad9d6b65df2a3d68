"""The training step: gradients of the loss, accumulated over microbatches, and the optimizer update."""

from collections.abc import Callable, Iterable, Mapping
import dataclasses
import functools
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import optax
import optax.contrib

from t2t import UserError, did_you_mean, sharding
from t2t import metrics as metrics_lib
from t2t.losses import Loss, Weights
from t2t.metrics import Metrics
from t2t.models.architecture import Batch, real_positions, sides
from t2t.models.auxiliary import CARRIED
from t2t.param_tree import Params
from t2t.training import grad_stats, l2_sp, state_collections
from t2t.training.train_state import DEVICE, HOST, TrainState

RESET_ROWS = "reset_rows"  # metric: number of rows whose carried state was not finite and is now zeros


def _microbatches(batch: Batch, num: int) -> Batch:
  """Splits [batch, ...] into [num, batch / num, ...], each microbatch over all devices (row i goes to i % num)."""

  def split(x):
    x = jnp.swapaxes(x.reshape(x.shape[0] // num, num, *x.shape[1:]), 0, 1)
    return sharding.shard(x, None, "batch", *[None] * (x.ndim - 2))

  return jax.tree.map(split, batch)


def _whole_batch(parts: jax.Array, batch: jax.Array) -> jax.Array:
  """Inverts `_microbatches`, and `_split_by_copy` after it; `batch` has the shape of the result."""
  x = jnp.swapaxes(parts.reshape(parts.shape[0], -1, *batch.shape[1:]), 0, 1).reshape(batch.shape)
  return sharding.shard(x, "batch", *[None] * (x.ndim - 1))


def _split_by_copy(copies: int, x: jax.Array) -> jax.Array:
  """Reshapes [microbatches, rows, ...] to [microbatches, copies, rows of a copy, ...]."""
  x = x.reshape(x.shape[0], copies, -1, *x.shape[2:])
  return sharding.shard(x, None, "copies", "rows", *[None] * (x.ndim - 3))


def _num_tokens(batch: Batch) -> jax.Array:
  """Returns the number of input and target positions that are not padding."""
  real = (real_positions(batch, side) for side in sides(batch))
  total: Any = sum(jnp.sum(positions) for positions in real)
  return total.astype(jnp.float32)


def _to_device(tree, shardings):
  """Moves arrays from host memory to the devices, if `shardings` have them in host memory."""

  def put(x, placed):
    return jax.device_put(x, placed.with_memory_kind(DEVICE)) if placed.memory_kind == HOST else x

  return jax.tree.map(put, tree, shardings)


def _select(good: jax.Array, new, old):
  """Returns `new` if `good`, bool [], else `old`; but the schedule's step always advances.

  The step counts because its batch is consumed, and the run must end, decay and save at the same steps. Moments and
  their update counts stay, because a gradient that is not finite must not enter an average of thousands of steps.
  Adam's bias correction and Adafactor's decay use these counts. `optax.apply_if_finite` does the same, but also holds
  the schedule; PaLM (Chowdhery et al. 2022, section 5.1) skipped the batches around a spike.
  """
  is_schedule = lambda x: isinstance(x, optax.ScaleByScheduleState)
  chosen = lambda a, b: a if is_schedule(a) else jnp.where(good, a, b)
  return jax.tree.map(chosen, new, old, is_leaf=is_schedule)


def _noticing(x: jax.Array, notice: Callable[[], None]) -> jax.Array:
  """Returns `x`; JAX calls `notice` when it differentiates the result, which it does only if there is a derivative."""

  @jax.custom_jvp
  def identity(x: jax.Array) -> jax.Array:
    return x

  @identity.defjvp
  def rule(primals, tangents):
    notice()
    return primals[0], tangents[0]

  return identity(x)


def gradient(
  terms_of: Callable[[Params], tuple[Mapping[str, jax.Array], Metrics]], params: Params, *, all_terms: bool = True
) -> tuple[Params, Metrics]:
  """Returns the gradient of the sum of all terms, and the metrics.

  Args:
    terms_of: parameters -> terms and metrics.
    params: where the gradient is taken.
    all_terms: whether every term must depend on a parameter; otherwise one term is enough, as with frozen parameters.

  Raises:
    ValueError: a term depends on no parameter; raised while tracing.
  """
  noticed: set[str] = set()
  names: list[str] = []

  def summed(params: Params) -> tuple[jax.Array, Metrics]:
    terms, metrics = terms_of(params)
    names.extend(terms)
    parts = [_noticing(term, functools.partial(noticed.add, name)) for name, term in terms.items()]
    total: Any = sum(parts)
    return total, jax.lax.stop_gradient(metrics)

  (_, metrics), grads = jax.value_and_grad(summed, has_aux=True)(params)
  for name in names:
    if name not in noticed and (all_terms or not noticed):
      raise ValueError(
        f"loss term {name!r} does not depend on any trained parameter. Compute the term from the model's outputs, not "
        "from metrics and not behind a stop_gradient."
      )
  return grads, metrics


def weighted(terms: Mapping[str, jax.Array], term_weights: Mapping[str, float]) -> dict[str, jax.Array]:
  """Returns the terms, each times its factor.

  Raises:
    UserError: a factor is of a term that the loss does not have.
  """
  for name, factor in term_weights.items():
    if name not in terms:
      raise UserError(
        f"config.train.term_weights.{name}={factor}: the loss has no such term{did_you_mean(name, terms) or '.'} "
        f"Terms: {', '.join(terms)}."
      )
  return {name: term * term_weights[name] if name in term_weights else term for name, term in terms.items()}


def make_train_step(
  graphdef: nnx.GraphDef,
  loss: Loss,
  tx: optax.GradientTransformation,
  state_shardings: TrainState,
  *,
  num_microbatches: int = 1,
  skip_not_finite: bool = False,
  term_weights: Mapping[str, float] | None = None,
  collections: state_collections.Collections = state_collections.NONE,
) -> Callable[[TrainState, Batch, jax.Array], tuple[TrainState, Metrics]]:
  """Returns the compiled update: (state, batch, key) -> (next state, metrics); the memory of the old state is reused.

  Each term of the loss is divided by its weight in the whole batch, which is known before the split. Gradients of
  microbatches are summed in float32, so the result does not depend on the split, even with uneven token counts.

  Args:
    graphdef: structure of the model.
    loss: see `Loss`.
    tx: optimizer.
    state_shardings: like the state; without it the second step would compile again. Arrays in host memory are moved
      to the device for the update.
    num_microbatches: a divisor of the batch; divides the memory for activations.
    skip_not_finite: skips the update if the loss or the gradient norm is not finite; see `_select`. States that rows
      carry advance even so. Rows whose state is not finite begin with zeros in the next step.
    term_weights: factors of terms of the loss, by name; other terms have 1.
    collections: of the state, see `state_collections`.

  Returns:
    State and metrics: the loss's own, grad_norm, param_norm (of the next state) and tokens (without padding).
    Also grad_squares (see `grad_stats.squares`), skipped (1 if the update was skipped), `RESET_ROWS` if rows carry
    states then, and `l2_sp.distances` if initial values are kept.
  """

  def gradients(weights: Weights, state: TrainState, batch: Batch, key: jax.Array) -> tuple[Params, Metrics, Batch]:
    def terms_of(params: Params):
      read = state_collections.forward(collections, state.collections, params)
      module = dataclasses.replace(state, params=read).model(graphdef)
      outputs: Any = loss(module, batch, weights, key=key, train=True)
      terms, metrics = outputs
      return weighted(terms, term_weights or {}), metrics

    grads, metrics = gradient(terms_of, state.params, all_terms=not jax.tree.leaves(state.frozen_params))
    carried: dict[str, Any] = {name: metrics.pop(name) for name in batch if name.startswith(CARRIED)}
    return grads, metrics, carried

  def summed_gradients(weights: Weights, state: TrainState, batch: Batch, key: jax.Array):
    """Sums over microbatches; copies of the parameters sum separately and are reduced once at the end."""
    copies, part = sharding.num_copies(), functools.partial(gradients, weights)
    batches = _microbatches(batch, num_microbatches)
    grad_shardings = state_shardings.params
    if copies > 1:
      part, batches = sharding.by_copy(part), jax.tree.map(functools.partial(_split_by_copy, copies), batches)
      grad_shardings = jax.tree.map(sharding.of_each_copy, grad_shardings)

    def microbatch_grads(index: jax.Array, batch: Batch):
      own_key = jax.random.fold_in(key, index)
      grads, metrics, carried = part(state, batch, own_key if copies == 1 else jax.random.split(own_key, copies))
      return (jax.lax.with_sharding_constraint(grads, grad_shardings), metrics), carried

    def body(added, scanned):
      (grads, metrics), carried = microbatch_grads(*scanned)
      return (jax.tree.map(jnp.add, added[0], grads), metrics_lib.merge(added[1], metrics)), carried

    first = jax.tree.map(lambda x: x[0], (jnp.arange(num_microbatches), batches))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(microbatch_grads, *first)[0])
    zeros = jax.lax.with_sharding_constraint(zeros[0], grad_shardings), zeros[1]
    added, carried = jax.lax.scan(body, zeros, (jnp.arange(num_microbatches), batches))
    added = added if copies == 1 else jax.tree.map(lambda x: jnp.sum(x, axis=0), added)
    return *added, jax.tree.map(_whole_batch, carried, {name: batch[name] for name in carried})

  def train_step(state: TrainState, batch: Batch, key: jax.Array) -> tuple[TrainState, Metrics]:
    # Keys depend only on (seed, step, microbatch), so a resumed run draws the same random numbers.
    key = jax.random.fold_in(key, state.step)
    # A pipeline is a loop over microbatches, too, in which gradients would be summed over the copies in each tick.
    is_pipeline = sharding.num_shards("stages") > 1 and sharding.num_copies() > 1
    compute = summed_gradients if num_microbatches > 1 or is_pipeline else gradients
    batch_and_carried = {**batch, **state_collections.features(collections, state.collections)}
    grads, metrics, carried = compute(loss.weights(batch), state, batch_and_carried, key)
    new_collections = state_collections.with_features(collections, state.collections, carried)
    grads = jax.lax.with_sharding_constraint(grads, state_shardings.params)
    new_collections, grads = state_collections.gradients(collections, new_collections, state.params, grads, state.step)
    opt_state = _to_device(state.opt_state, state_shardings.opt_state)
    updates, new_opt_state = tx.update(grads, opt_state, state.params)
    params: Any = optax.apply_updates(state.params, updates)
    unit_weight, squares = jnp.ones(()), grad_stats.squares(grads)
    norm = jnp.sqrt(jnp.sum(squares))
    good = None
    if skip_not_finite:
      # One scalar, from values that are reduced over all hosts for the metrics anyway.
      good = jnp.isfinite(norm) & jnp.isfinite(metrics["loss"].total)
      new_opt_state = _select(good, new_opt_state, opt_state)
      metrics["skipped"] = metrics_lib.WeightedSum(1.0 - good, unit_weight)
    new_collections, params = state_collections.update(collections, new_collections, params, state.step)
    if good is not None:
      params = _select(good, params, state.params)
      by_row = {name: value for name, value in new_collections.items() if collections[name].by_row}
      new_collections = _select(good, new_collections, state.collections)
      # States of rows advance with the data, whose batch is consumed.
      new_collections, num_reset = state_collections.without_nonfinite_rows(collections, {**new_collections, **by_row})
      if num_reset is not None:
        metrics[RESET_ROWS] = metrics_lib.WeightedSum(num_reset.astype(jnp.float32), unit_weight)
    metrics["grad_norm"] = metrics_lib.WeightedSum(norm, unit_weight)
    metrics["grad_squares"] = metrics_lib.WeightedSum(squares, unit_weight)
    metrics["tokens"] = metrics_lib.WeightedSum(_num_tokens(batch), unit_weight)
    # Of the new parameters, because the memory of the old ones is reused.
    metrics["param_norm"] = metrics_lib.WeightedSum(optax.tree.norm(params), unit_weight)
    for name, distance in l2_sp.distances(new_opt_state, params).items():
      metrics[name] = metrics_lib.WeightedSum(distance, unit_weight)
    return TrainState(state.step + 1, params, state.frozen_params, new_opt_state, new_collections), metrics

  return jax.jit(train_step, donate_argnums=0, out_shardings=(state_shardings, None))


def make_eval_step(
  graphdef: nnx.GraphDef, loss: Loss, collections: state_collections.Collections = state_collections.NONE
) -> Callable[[TrainState, Batch, Mapping[str, jax.Array]], tuple[Metrics, dict[str, jax.Array]]]:
  """Returns the compiled evaluation of one batch, without dropout; random choices of a loss depend only on the step.

  Returns:
    (state, batch, features of `state_collections.evaluation_features`) -> metrics, and the features of the next batch.
  """

  def eval_step(
    state: TrainState, batch: Batch, carried: Mapping[str, jax.Array]
  ) -> tuple[Metrics, dict[str, jax.Array]]:
    state = evaluated(collections, state)
    key = jax.random.fold_in(jax.random.key(0), state.step)
    outputs: Any = loss(state.model(graphdef), {**batch, **carried}, loss.weights(batch), key=key, train=False)[1]
    new_carried = {name: outputs.pop(name).astype(x.dtype) for name, x in carried.items()}
    return outputs, {name: _by_batch(x) for name, x in new_carried.items()}

  return jax.jit(eval_step, donate_argnums=2)


def evaluate(
  eval_step: Callable[[TrainState, Batch, Mapping[str, jax.Array]], tuple[Metrics, dict[str, jax.Array]]],
  state: TrainState,
  batches: Iterable[Batch],
  collections: state_collections.Collections = state_collections.NONE,
) -> Metrics:
  """Returns the metrics of all held-out batches, each with the features that the batch before passed on.

  Args:
    eval_step: see `make_eval_step`.
    state: the train state.
    batches: at least one, all with the same number of rows.
    collections: of the state.
  """
  total, carried = None, {}
  for batch in batches:
    if total is None and collections:
      num_rows = len(next(iter(batch.values())))
      features = functools.partial(state_collections.evaluation_features, collections, num_rows)
      carried = jax.jit(lambda features=features: jax.tree.map(_by_batch, features()))()
    metrics, carried = eval_step(state, batch, carried)
    total = metrics if total is None else metrics_lib.merge(total, metrics)
  assert total is not None
  return total


def _by_batch(x: jax.Array) -> jax.Array:
  return sharding.shard(x, "batch", *[None] * (x.ndim - 1))


def evaluated(collections: state_collections.Collections, state: TrainState) -> TrainState:
  """Returns the state with the parameters for evaluation."""
  params = state.params
  if isinstance(state.opt_state, optax.contrib.ScheduleFreeState):
    from t2t.training import schedule_free  # few runs have this optimizer

    params = schedule_free.evaluated(state.opt_state, params)
  return dataclasses.replace(state, params=state_collections.evaluated(collections, state.collections, params))
