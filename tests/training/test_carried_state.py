"""Carried state: layers receive the state that they returned in the previous step."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_array_batches
from test_state_collections import config, train
import toy

import t2t
from t2t import UserError, sharding
from t2t.configuration import loading
from t2t.models import config as config_lib
from t2t.models import layers
from t2t.models.auxiliary import Auxiliary, Carried, Hidden
from t2t.models.feed_forward import Mlp
from t2t.training import optimizers, recipe, state_collections, train_state, train_step
from t2t.training.carried_state import CarriedState

ROWS = 16
ONE_DEVICE = {"data": 1}


class Recurrent(Mlp):
  """An MLP that adds a matrix times the previous step's output for the same rows, the mean of its input."""

  def __init__(self, config, rngs):
    super().__init__(config, rngs)
    self.recurrent = layers.param(rngs, (config.embed_dim, config.embed_dim), ("embed", None), scale=0.5)

  def __call__(self, x, dropout_key=None, *, real=None, carried=None):
    state = jnp.mean(x.astype(jnp.float32), axis=1)
    if carried is not None:
      x = x + layers.dense(carried["mean"].astype(x.dtype), self.recurrent)[:, None]
    return Hidden(super().__call__(x, dropout_key), Auxiliary({}, {"mean": state}))

  @classmethod
  def carried(cls, config):
    return {"mean": Carried((config.embed_dim,))}


@pytest.fixture(autouse=True)
def row(monkeypatch):
  """A row of the table: config.model.feed_forward=recurrent."""
  monkeypatch.setitem(config_lib.FEED_FORWARD.rows, "recurrent", f"{__name__}:Recurrent")


def batches(architecture, number):
  random = np.random.default_rng(0)
  lengths = lambda: tuple(int(x) for x in random.integers(2, 9, ROWS))
  return [toy.batch(lengths(), lengths(), seed=i, padded_to=(8, 8), architecture=architecture) for i in range(number)]


def made(model_config, mesh, **options):
  """Returns the model's structure, a fresh state, the step, and the collections."""
  model, collections = toy.model(model_config), {"carried": CarriedState(model_config, ROWS)}
  adamw = {"name": "adamw", "learning_rate": 0.01, "schedule": "constant", "warmup_steps": 0}
  tx, _ = optimizers.make_optimizer(toy.optimizer_config(**adamw, scale_by_parameter=False), 10)
  with jax.set_mesh(mesh):
    graphdef, abstract, make = train_state.abstract_train_state(lambda _: model, tx, mesh, collections=collections)
    shardings = jax.tree.map(lambda x: x.sharding, abstract)
    state = jax.jit(make, out_shardings=shardings)(toy.key())
    step = train_step.make_train_step(graphdef, toy.loss(), tx, shardings, collections=collections, **options)
  return graphdef, state, step, collections


def steps(kind, mesh_shape, number=3, *, microbatches=1):
  """Returns the state after some steps, the loss of each, and the carried state after each."""
  model_config = dataclasses.replace(toy.KINDS[kind], feed_forward="recurrent", dropout_rate=0.0, dtype="float32")
  mesh = sharding.make_mesh(mesh_shape, devices=jax.devices()[:1] if mesh_shape == ONE_DEVICE else None)
  graphdef, state, step, _ = made(model_config, mesh, num_microbatches=microbatches)
  with jax.set_mesh(mesh):
    losses, carried = [], []
    for batch in batches(model_config.architecture, number):
      state, metrics = step(state, jax.device_put(batch, sharding.batch_sharding(mesh)), toy.key())
      assert not [name for name in metrics if name.startswith("carried/")]
      losses.append(float(metrics["loss"].value()))
      carried.append(jax.device_get(state.collections["carried"]))
  return graphdef, state, losses, carried


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["t5_1_1", "gpt2", "bert"])
def test_a_step_is_given_what_the_step_before_returned(kind):
  """By row and by layer; a reference with other states has another loss."""
  graphdef, _, losses, carried = steps(kind, ONE_DEVICE, 1)
  model_config = dataclasses.replace(toy.KINDS[kind], feed_forward="recurrent", dropout_rate=0.0, dtype="float32")
  model = toy.model(model_config)
  (batch,) = batches(model_config.architecture, 1)
  zeros = {name: jnp.zeros_like(x) for name, x in carried[0].items()}
  aux = jax.jit(lambda batch: model.hidden(batch).aux)(batch | zeros)
  assert {name.removeprefix("carried/") for name in carried[0]} == aux.states.keys()
  for name, x in carried[0].items():
    layers = {"encoder": model_config.num_encoder_layers, "decoder": model_config.num_decoder_layers}
    assert x.shape[:2] == (ROWS, layers[name.split("/")[1]])
    np.testing.assert_allclose(x, np.moveaxis(aux.states[name.removeprefix("carried/")], 0, 1), atol=1e-5)
  _, _, more, _ = steps(kind, ONE_DEVICE, 2)
  assert more[0] == losses[0]
  frozen = state_collections.features
  try:
    state_collections.features = lambda collections, values: jax.tree.map(jnp.zeros_like, frozen(collections, values))
    _, _, without, _ = steps(kind, ONE_DEVICE, 2)
  finally:
    state_collections.features = frozen
  assert without[0] == more[0] and without[1] != more[1]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  ("mesh_shape", "microbatches"),
  [({"data": 8}, 1), ({"fsdp": 4, "tensor": 2}, 1), (ONE_DEVICE, 4), ({"data": 2, "fsdp": 2, "tensor": 2}, 2)],
)
def test_rows_keep_their_states_on_every_mesh(mesh_shape, microbatches):
  """Also with microbatches, and with a separate gradient sum for each copy of the parameters."""
  _, state, losses, carried = steps("llama", ONE_DEVICE)
  _, other, theirs, also = steps("llama", mesh_shape, microbatches=microbatches)
  np.testing.assert_allclose(theirs, losses, rtol=1e-4)
  for mine, its in zip(carried, also, strict=True):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), its, mine)
  toy.assert_trees_close(other.params, state.params, rtol=1e-3, atol=1e-4)


@pytest.mark.exhaustive
def test_a_run_that_carries_states_resumes_to_the_bit(tmp_path):
  """A run that stopped after two steps equals an uninterrupted run; evaluation carries nothing."""
  options = {"model.feed_forward": "recurrent", "checkpoint.save_interval_steps": 1}
  whole = train(config(**options), tmp_path / "whole")
  own = {"batches": test_array_batches.random_batches, "eval_batches": test_array_batches.held_out()}
  for row in t2t.train(config(**options), str(tmp_path / "run"), **own):
    if row["step"] == 2:
      break
  resumed = train(config(**options), tmp_path / "run")
  assert 0 < len(resumed.params) < len(whole.params)
  jax.tree.map(np.testing.assert_array_equal, resumed.values[-1], whole.values[-1])
  jax.tree.map(np.testing.assert_array_equal, resumed.params[-1], whole.params[-1])
  assert np.any(whole.values[-1]["carried"]["carried/encoder/mean"])


# ---- Skipped updates -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_skipped_update_advances_the_states():
  """They belong to the data, which is consumed; only rows whose state is not finite begin with zeros."""
  model_config = dataclasses.replace(toy.KINDS["gpt2"], feed_forward="recurrent", dropout_rate=0.0)
  mesh = sharding.make_mesh(ONE_DEVICE, devices=jax.devices()[:1])
  _, state, step, _ = made(model_config, mesh, skip_not_finite=True)
  batch, spoilt = batches("decoder_only", 2)
  params = jax.device_get(state.params)
  fresh = lambda: jax.tree.map(jnp.copy, state)
  with jax.set_mesh(mesh):
    expected = step(fresh(), spoilt, toy.key())[0].collections["carried"]
    spoilt["decoder_loss_weights"] *= np.nan
    after, metrics = step(fresh(), spoilt, toy.key())
    assert (float(metrics["skipped"].total), float(metrics["reset_rows"].total)) == (1, 0)
    jax.tree.map(np.testing.assert_array_equal, after.collections["carried"], expected)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(after.params), params)
    # An infinite state of row 3 spoils its loss, and the states of its later layers.
    (name,) = expected
    bad = dataclasses.replace(fresh(), collections={"carried": {name: expected[name].at[3].set(jnp.inf)}})
    after, metrics = step(bad, batch, toy.key())
    good = step(dataclasses.replace(fresh(), collections={"carried": dict(expected)}), batch, toy.key())[0]
  assert (float(metrics["skipped"].total), float(metrics["reset_rows"].total)) == (1, 1)
  found, others = after.collections["carried"][name], np.arange(ROWS) != 3
  assert not np.any(found[3])
  np.testing.assert_allclose(found[others], good.collections["carried"][name][others], atol=1e-6)


# ---- Evaluation ------------------------------------------------------------------------------------------------------


MEMORY = dataclasses.replace(toy.KINDS["transformer_xl"], memory_length=24, dropout_rate=0.0)


def in_rows(length, *, blank=0):
  """Returns held-out batches: two texts of 24 tokens in rows of this length, and some batches of padding."""
  tokens = np.random.default_rng(0).integers(2, 40, (2, 24)).astype(np.int32)
  fed = np.pad(tokens[:, :-1], [(0, 0), (1, 0)])
  parts = [slice(i, i + length) for i in range(0, 24, length)]
  rows = lambda part: {
    "decoder_input_tokens": fed[:, part],
    "decoder_target_tokens": tokens[:, part],
    "decoder_loss_weights": np.ones((2, length), np.float32),
    "decoder_continues": np.full((2, 1), part.start > 0, np.int32),
  }
  return [rows(part) for part in parts] + [jax.tree.map(np.zeros_like, rows(parts[0])) for _ in range(blank)]


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("mesh_shape", [ONE_DEVICE, {"data": 2}, {"tensor": 2}])
def test_evaluation_in_rows_equals_one_forward_of_the_text(mesh_shape):
  """The memory passes from batch to batch, from zeros in each evaluation; padding does not count."""
  mesh = sharding.make_mesh(mesh_shape, devices=jax.devices()[: np.prod(list(mesh_shape.values()))])
  graphdef, state, _, collections = made(MEMORY, mesh)
  evaluate = train_step.make_eval_step(graphdef, toy.loss(), collections)
  with jax.set_mesh(mesh):
    state = dataclasses.replace(state, collections=jax.tree.map(jnp.ones_like, state.collections))  # of training
    place = lambda rows: [jax.device_put(row, sharding.batch_sharding(mesh)) for row in rows]
    measured = lambda rows: jax.device_get(train_step.evaluate(evaluate, state, place(rows), collections))
    whole = measured(in_rows(24))
    for rows in (in_rows(6), in_rows(12), in_rows(6, blank=2), in_rows(6)):
      toy.assert_trees_close(measured(rows), whole, rtol=1e-5)
    apart = [row | {"decoder_continues": np.zeros((2, 1), np.int32)} for row in in_rows(6)]
    assert abs(measured(apart)["loss"].value() - whole["loss"].value()) > 1e-3


def test_evaluation_carries_only_a_memory():
  """States of feed-forward layers stay out, because held-out rows may have any order."""
  both = dataclasses.replace(MEMORY, feed_forward="recurrent")
  found = state_collections.evaluation_features({"carried": CarriedState(both, ROWS)}, 2)
  assert {name: x.shape for name, x in found.items()} == {"carried/decoder/memory": (2, 3, 24, 16)}
  assert len(CarriedState(both, ROWS).init({})[0]) == 2


def test_losses_that_return_no_states_are_refused():
  run = loading.records(config(**{"model.feed_forward": "recurrent"})).with_(model={"vocab_size": 384})
  with pytest.raises(UserError, match="feed_forward=recurrent carries states .* config.train.loss=heads does not"):
    CarriedState.from_config(run.with_(train={"loss": "heads"}))
  assert "carried" in recipe.make(run).collections
  assert not recipe.make(run.with_(model={"feed_forward": "dense"})).collections
