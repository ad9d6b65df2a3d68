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


def steps(kind, mesh_shape, number=3, *, microbatches=1):
  """Returns the state after some steps, the loss of each, and the carried state after each."""
  model_config = dataclasses.replace(toy.KINDS[kind], feed_forward="recurrent", dropout_rate=0.0, dtype="float32")
  model, collections = toy.model(model_config), {"carried": CarriedState(model_config, ROWS)}
  mesh = sharding.make_mesh(mesh_shape, devices=jax.devices()[:1] if mesh_shape == ONE_DEVICE else None)
  options = {"name": "adamw", "learning_rate": 0.01, "schedule": "constant", "warmup_steps": 0}
  tx, _ = optimizers.make_optimizer(toy.optimizer_config(**options, scale_by_parameter=False), 10)
  with jax.set_mesh(mesh):
    graphdef, abstract, make = train_state.abstract_train_state(lambda _: model, tx, mesh, collections=collections)
    shardings = jax.tree.map(lambda x: x.sharding, abstract)
    state = jax.jit(make, out_shardings=shardings)(toy.key())
    step = train_step.make_train_step(
      graphdef, toy.loss(), tx, shardings, num_microbatches=microbatches, collections=collections
    )
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


@pytest.mark.slow
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


def test_losses_that_return_no_states_are_refused():
  run = loading.records(config(**{"model.feed_forward": "recurrent"})).with_(model={"vocab_size": 384})
  with pytest.raises(UserError, match="feed_forward=recurrent carries states .* config.train.loss=heads does not"):
    CarriedState.from_config(run.with_(train={"loss": "heads"}))
  assert "carried" in recipe.make(run).collections
  assert not recipe.make(run.with_(model={"feed_forward": "dense"})).collections
