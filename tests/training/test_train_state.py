import dataclasses
import functools

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import losses, sharding
from t2t.metrics import WeightedSum
from t2t.models import transformer
from t2t.models.architecture import real_positions
from t2t.planning.hlo import cost as hlo_cost
from t2t.training import optimizers, train_state, train_step

ONE_DEVICE = {"data": 1}
# Well conditioned: with a small epsilon Adam's first update is the gradient's sign, which rounding can flip.
ADAMW = toy.optimizer_config(name="adamw", epsilon=0.1, scale_by_parameter=True, clip_norm=1.0)


def uneven_batch(kind="t5_1_1"):
  """Returns eight rows, with one token to all tokens."""
  inputs, targets = (8, 1, 5, 3, 8, 2, 7, 4), (1, 6, 1, 1, 6, 6, 2, 1)
  return toy.batch(inputs, targets, padded_to=(8, 6), architecture=toy.KINDS[kind].architecture)


@functools.cache
def made(
  mesh_shape, *, kind="t5_1_1", config=None, microbatches=1, freeze=(), dropout_rate=0.0, offload=False, skip=False
):
  """Returns a maker of equal fresh states, and their train step on a mesh."""
  shape = dict(mesh_shape)
  devices = jax.devices()[:1] if shape == ONE_DEVICE else None
  mesh = sharding.make_mesh(shape, devices=devices)
  config = dataclasses.replace(config or toy.KINDS[kind], dropout_rate=dropout_rate)
  tx, _ = optimizers.make_optimizer(ADAMW, 10)
  model = toy.model(config)
  loss_fn = toy.loss(logits_chunk_tokens=5)
  with jax.set_mesh(mesh):
    graphdef, state, shardings = train_state.init_train_state(
      lambda _: model, tx, toy.key(), mesh, freeze=freeze, offload_optimizer=offload
    )
    step = train_step.make_train_step(
      graphdef, loss_fn, tx, shardings, num_microbatches=microbatches, skip_not_finite=skip
    )
  # The step donates its state, so each test starts from a copy.
  copy = jax.jit(lambda state: jax.tree.map(jnp.copy, state), out_shardings=shardings)
  return mesh, graphdef, lambda: copy(state), step


def train(mesh_shape, batch, *, steps=2, key=0, first_step=None, **how):
  """Returns the state after some steps on one batch, and the metrics of each step."""
  mesh, _, fresh, step = made(tuple(mesh_shape.items()), **how)
  state, history = fresh(), []
  if first_step is not None:
    state = dataclasses.replace(state, step=jax.device_put(np.int32(first_step), state.step.sharding))
  with jax.set_mesh(mesh):
    batch = jax.device_put(batch, sharding.batch_sharding(mesh))
    for _ in range(steps):
      state, metrics = step(state, batch, jax.random.key(key))
      history.append({name: float(metric.value()) for name, metric in metrics.items() if name != "grad_squares"})
  return state, history


def assert_same_training(actual, expected):
  for one, other in zip(actual[1], expected[1], strict=True):
    assert one == pytest.approx(other, rel=1e-4)
  toy.assert_trees_close(actual[0].params, expected[0].params, rtol=1e-4, atol=2e-5)


@pytest.mark.exhaustive
def test_fresh_parameters_do_not_depend_on_the_mesh():
  """The same key gives the same parameters on all meshes, bit for bit."""
  tx, _ = optimizers.make_optimizer(toy.optimizer_config(), 10)
  config = toy.config(num_encoder_layers=1, num_decoder_layers=1)
  meshes = sharding.make_mesh(ONE_DEVICE, devices=jax.devices()[:1]), sharding.make_mesh({"fsdp": 4, "tensor": 2})
  alone, spread = (
    train_state.init_train_state(lambda key: transformer.build(config, nnx.Rngs(key)), tx, jax.random.key(0), mesh)[1]
    for mesh in meshes
  )
  toy.assert_trees_close(spread.params, alone.params, atol=0, rtol=0)
  assert int(alone.step) == 0


@pytest.mark.exhaustive
def test_microbatches_equal_the_full_batch():
  """Loss, metrics and updated parameters do not depend on the split of a batch with uneven rows."""
  whole = train(ONE_DEVICE, uneven_batch())
  assert_same_training(train(ONE_DEVICE, uneven_batch(), microbatches=8), whole)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  ("kind", "mesh_shape", "microbatches"),
  [
    ("t5_1_1", {"data": 8}, 1),
    ("t5_1_1", {"fsdp": 4, "tensor": 2}, 2),
    ("t5_1_1", {"data": 2, "fsdp": 2, "tensor": 2}, 2),
    ("t5_1_1", {"fsdp": 2, "sequence": 2, "tensor": 2}, 2),
    ("t5_1_1", {"dcn_data": 2, "sequence": 4}, 4),
    ("local_prefix_lm", {"data": 2, "fsdp": 2, "tensor": 2}, 2),
    ("local_prefix_lm", {"dcn_data": 2, "sequence": 4}, 4),
    ("t5gemma", {"data": 8}, 1),
    ("t5gemma", {"fsdp": 4, "tensor": 2}, 2),
    ("t5gemma", {"data": 2, "fsdp": 2, "tensor": 2}, 2),
    ("albert", {"fsdp": 4, "tensor": 2}, 2),
    ("albert", {"fsdp": 2, "sequence": 2, "tensor": 2}, 2),
  ],
  ids=lambda x: "-".join(f"{axis}{size}" for axis, size in x.items()) if isinstance(x, dict) else None,
)
def test_a_mesh_trains_as_one_device_does(kind, mesh_shape, microbatches):
  """Loss, metrics and updated parameters do not depend on the mesh, in all three architectures."""
  batch = uneven_batch(kind)
  alone = train(ONE_DEVICE, batch, kind=kind)
  assert_same_training(train(mesh_shape, batch, microbatches=microbatches, kind=kind), alone)


class TwoTerms(losses.CrossEntropy):
  """Loss of the targets plus half of the mean square of the decoder's output at real positions."""

  def weights(self, batch):
    real = real_positions(batch, "decoder")
    return super().weights(batch) | {"size": jnp.sum(real).astype(jnp.float32)}

  def __call__(self, module, batch, weights, *, key, train):
    terms, metrics = super().__call__(module, batch, weights, key=key, train=train)
    hidden = module(batch, dropout_key=None).astype(jnp.float32)
    real = real_positions(batch, "decoder")
    size = jnp.sum(jnp.mean(jnp.square(hidden), axis=-1) * real)
    return terms | {"size": 0.5 * size / weights["size"]}, metrics


@functools.cache
def gradient_of_two_terms(mesh_shape, microbatches):
  """Returns the gradient of a batch of 32 uneven rows, by one step of plain gradient descent."""
  batch = {name: np.tile(x, (4, 1)) for name, x in uneven_batch().items()}
  shape = dict(mesh_shape)
  mesh = sharding.make_mesh(shape, devices=jax.devices()[:1] if shape == ONE_DEVICE else None)
  tx, _ = optimizers.make_optimizer(toy.optimizer_config(learning_rate=1.0), 10)
  model, loss = toy.model(toy.config(num_encoder_layers=1, num_decoder_layers=1)), TwoTerms(toy.loss_config())
  with jax.set_mesh(mesh):
    graphdef, state, shardings = train_state.init_train_state(lambda _: model, tx, toy.key(), mesh)
    before = jax.device_get(state.params)
    step = train_step.make_train_step(graphdef, loss, tx, shardings, num_microbatches=microbatches)
    batch = jax.device_put(batch, sharding.batch_sharding(mesh))
    after = jax.device_get(step(state, batch, toy.key())[0].params)
  return jax.tree.map(np.subtract, before, after)


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize(
  ("shape", "microbatches"), [({"data": 8}, 1), ({"data": 4, "fsdp": 2}, 4), ({"data": 2, "fsdp": 2, "tensor": 2}, 4)]
)
def test_terms_have_denominators_of_their_own(shape, microbatches):
  """Two terms with different weights and uneven rows: the gradient equals the whole batch's on one device."""
  alone = gradient_of_two_terms(tuple(ONE_DEVICE.items()), 1)
  toy.assert_trees_close(gradient_of_two_terms(tuple(shape.items()), microbatches), alone, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_a_term_without_a_gradient_is_an_error():
  """Otherwise a loss computed from metrics would train nothing, or only one of its terms."""

  class OfMetrics(losses.CrossEntropy):
    def __call__(self, module, batch, weights, *, key, train):
      terms, metrics = super().__call__(module, batch, weights, key=key, train=train)
      return terms | {"of_metrics": metrics["loss"].value()}, metrics

  mesh = sharding.make_mesh(ONE_DEVICE, devices=jax.devices()[:1])
  tx, _ = optimizers.make_optimizer(toy.optimizer_config(), 10)
  model = toy.model(toy.config(num_encoder_layers=1, num_decoder_layers=1))
  with jax.set_mesh(mesh):
    graphdef, state, shardings = train_state.init_train_state(lambda _: model, tx, toy.key(), mesh)
    step = train_step.make_train_step(graphdef, OfMetrics(toy.loss_config()), tx, shardings)
    with pytest.raises(ValueError, match="loss term 'of_metrics' does not depend on any trained parameter"):
      step.lower(state, uneven_batch(), toy.key())


@pytest.mark.slow
def test_gradients_of_copied_parameters_meet_once():
  """With any number of microbatches, their loop contains no communication between copies."""
  mesh, _, fresh, step = made((("data", 2), ("fsdp", 2), ("tensor", 2)), microbatches=2)
  with jax.set_mesh(mesh):
    batch = jax.device_put(uneven_batch(), sharding.batch_sharding(mesh))
    text = step.lower(fresh(), batch, jax.random.key(0)).compile().as_text()
  collectives = hlo_cost.analyse(text, mesh.shape).collectives
  between = [each for each in collectives if "data" in each.axes]
  assert {each.times for each in between} == {1.0}
  # A ring of two sends each device's part once: a quarter of the parameters, or half of those split only once.
  parameters = sum(leaf.size for leaf in jax.tree.leaves(fresh().params))
  assert parameters / 4 * 4 <= sum(each.bytes for each in between) < parameters / 2 * 4
  assert max(each.times for each in collectives) > 1.0  # of the layers


@pytest.mark.slow
def test_state_is_sharded():
  """Each device has its part of a parameter and of its moments, before and after a step."""
  mesh, _, fresh, _ = made((("data", 2), ("fsdp", 2), ("tensor", 2)))
  trained, _ = train({"data": 2, "fsdp": 2, "tensor": 2}, uneven_batch())
  shard = lambda x: {piece.data.shape for piece in x.addressable_shards}
  for state in (fresh(), trained):
    leaves = toy.flat(state)
    moments = [x for path, x in leaves.items() if "opt_state" in path and path.endswith("decoder/layers/mlp/up")]
    assert len(moments) == 2
    for leaf in [leaves["params/decoder/layers/mlp/up"], *moments]:
      assert leaf.shape == (3, 16, 32)
      assert shard(leaf) == {(3, 8, 16)}
    assert shard(leaves["params/embed/table"]) == {(20, 8)}
    assert len(leaves["step"].sharding.device_set) == mesh.size


@pytest.mark.slow
def test_moments_may_wait_in_the_memory_of_the_host():
  """Only moments are moved, and training is the same."""
  shape = {"fsdp": 4, "tensor": 2}
  state, history = train(shape, uneven_batch(), offload=True)
  assert_same_training((state, history), train(shape, uneven_batch()))
  kinds = {path: x.sharding.memory_kind for path, x in toy.flat(state).items()}
  moments = [path for path in kinds if path.endswith("decoder/layers/mlp/up") and "opt_state" in path]
  assert len(moments) == 2 and {kinds[path] for path in moments} == {"pinned_host"}
  assert {kind for path, kind in kinds.items() if "opt_state" not in path} == {"device"}


@pytest.mark.exhaustive
def test_steps_compile_once_and_reuse_memory():
  """A step's result fits the next step, and its input is freed."""
  for shape in (ONE_DEVICE, {"data": 2, "fsdp": 2, "tensor": 2}):
    mesh, _, fresh, step = made(tuple(shape.items()))
    state = fresh()
    with jax.set_mesh(mesh):
      batch = jax.device_put(uneven_batch(), sharding.batch_sharding(mesh))
      for _ in range(3):
        given, (state, _) = state, step(state, batch, jax.random.key(0))
    assert step._cache_size() == 1
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(given.params))
    assert int(state.step) == 3


def test_sharding_constraints_are_in_the_program():
  """On a mesh the program contains the constraints on activations, forward and backward."""
  mesh, _, fresh, step = made((("data", 2), ("fsdp", 2), ("tensor", 2)))
  with jax.set_mesh(mesh):
    text = step.lower(fresh(), uneven_batch(), jax.random.key(0)).as_text()
  constraints = [line for line in text.splitlines() if "sharding_constraint" in line]
  hidden = [line for line in constraints if line.rstrip().endswith("tensor<8x6x32xf32>")]
  assert len(hidden) >= 2
  assert all('[{"data", "fsdp"}, {}, {"tensor"}]' in line for line in hidden)
  assert len(constraints) > 40


@pytest.mark.exhaustive
def test_frozen_parameters_do_not_change():
  """They have no moments; the others are trained."""
  _, _, fresh, _ = made(tuple(ONE_DEVICE.items()), freeze=("^encoder", "embed"))
  before, (after, _) = fresh(), train(ONE_DEVICE, uneven_batch(), freeze=("^encoder", "embed"))
  assert set(before.params) == {"decoder", "head"}
  toy.assert_trees_close(after.frozen_params, before.frozen_params, atol=0, rtol=0)
  assert np.any(np.abs(after.params["head"]["projection"] - before.params["head"]["projection"]) > 1e-4)
  assert not any("encoder/" in path.replace("decoder/", "") for path in toy.flat(after.opt_state))


@pytest.mark.slow
def test_dropout_depends_on_seed_and_step():
  """The same (seed, step) draws the same masks, as after a restart; another seed or step draws others."""
  loss = lambda **how: train(ONE_DEVICE, uneven_batch(), steps=1, dropout_rate=0.3, **how)[1][0]["loss"]
  first = loss(key=0, first_step=5)
  assert first == loss(key=0, first_step=5)
  assert abs(first - loss(key=0, first_step=6)) > 1e-3
  assert abs(first - loss(key=1, first_step=5)) > 1e-3


class OfKeys(losses.CrossEntropy):
  """A loss with almost no computation that counts which of a thousand numbers are drawn."""

  def __call__(self, module, batch, weights, *, key, train):
    drawn = jax.nn.one_hot(jax.random.randint(key, (), 0, 1_000), 1_000)
    one = WeightedSum(jnp.ones(()), jnp.ones(()))
    counted = {"loss": one, "drawn": WeightedSum(drawn, jnp.ones(()))}
    return {"loss": jnp.sum(module.embed.table[...]) / weights["loss"]}, counted


@pytest.mark.slow
def test_each_microbatch_copy_and_step_draws_for_itself():
  """Otherwise all of them would drop the same features, and the sum would average less."""
  mesh = sharding.make_mesh({"data": 2, "fsdp": 4})
  tx, _ = optimizers.make_optimizer(toy.optimizer_config(), 10)
  model, loss = toy.model(toy.config(num_encoder_layers=1, num_decoder_layers=1)), OfKeys(toy.loss_config())
  with jax.set_mesh(mesh):
    graphdef, state, shardings = train_state.init_train_state(lambda _: model, tx, toy.key(), mesh)
    step = train_step.make_train_step(graphdef, loss, tx, shardings, num_microbatches=4)
    batch = {name: np.tile(x, (4, 1)) for name, x in uneven_batch().items()}
    batch = jax.device_put(batch, sharding.batch_sharding(mesh))
    total = np.zeros(1_000)
    for _ in range(2):
      state, found = step(state, batch, jax.random.key(0))
      total += found["drawn"].total
  assert total.sum() == 2 * 2 * 4
  assert total.max() == 1


@pytest.mark.slow
def test_evaluation_has_no_dropout():
  """The loss of a batch is constant, and equals the training loss of a model without dropout."""
  mesh, graphdef, fresh, _ = made(tuple(ONE_DEVICE.items()), dropout_rate=0.3)
  evaluate = train_step.make_eval_step(graphdef, toy.loss())
  with jax.set_mesh(mesh):
    loss = train_step.evaluate(evaluate, fresh(), [uneven_batch()])["loss"].value()
  plain = train(ONE_DEVICE, uneven_batch())[1][0]["loss"]
  np.testing.assert_allclose(loss, plain, rtol=1e-5)


def test_metrics_of_a_step():
  """Tokens exclude padding and include inputs and targets; norms are over all parameters."""
  state, history = train(ONE_DEVICE, uneven_batch())
  assert history[0]["tokens"] == 8 + 1 + 5 + 3 + 8 + 2 + 7 + 4 + 1 + 6 + 1 + 1 + 6 + 6 + 2 + 1
  squares = sum(float(np.sum(np.square(leaf))) for leaf in jax.tree.leaves(state.params))
  assert history[1]["param_norm"] == pytest.approx(squares**0.5, rel=1e-5)
  assert history[1]["loss"] < history[0]["loss"]


@pytest.mark.exhaustive
def test_a_step_is_gradient_descent_on_the_mean_loss():
  """The gradient of the summed loss divided by the weight of the batch."""
  _, graphdef, fresh, _ = made(tuple(ONE_DEVICE.items()))
  state = fresh()
  loss_fn = toy.summed_loss(toy.loss_config(logits_chunk_tokens=5))

  def mean_loss(params):
    total, metrics = loss_fn(dataclasses.replace(state, params=params).model(graphdef), uneven_batch(), None)
    return total / metrics["loss"].weight

  gradient = jax.jit(jax.grad(mean_loss))(state.params)
  norm = sum(float(np.sum(np.square(leaf))) for leaf in jax.tree.leaves(gradient)) ** 0.5
  assert train(ONE_DEVICE, uneven_batch())[1][0]["grad_norm"] == pytest.approx(norm, rel=1e-4)
