"""Heads with a language-model loss on the same rows, and factors of terms."""

import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import test_head_losses
import toy

from t2t import UserError, sharding
from t2t.configuration.loading import load_config, override, records
from t2t.configuration.schema import TrainConfig
from t2t.losses import cross_entropy, head_losses, heads_and_lm
from t2t.models.head_config import HeadConfig
from t2t.training import recipe, train_step

HEADS = (HeadConfig("topic", 3),)


def batch_of(*, pack):
  """Returns a packed or unpacked batch of four texts of a class head."""
  examples = [test_head_losses.example("class", np.random.default_rng(seed), "last") for seed in range(4)]
  return test_head_losses.batch_of(examples, "decoder_only", pack=pack)


def terms_of(config, batch, *, lm=None):
  """Returns terms, metrics and the gradient of the terms, weighted by `lm`."""
  graphdef, params = toy.split(toy.model(config))
  loss = heads_and_lm.HeadsAndLm(config, None, lm=toy.loss_config(z_loss=0.0))

  def compute(params):
    terms, metrics = loss(nnx.merge(graphdef, params), batch, loss.weights(batch), key=None, train=False)
    return sum(train_step.weighted(terms, {"lm": 1.0 if lm is None else lm}).values()), (terms, metrics)

  (_, (terms, metrics)), gradient = jax.jit(jax.value_and_grad(compute, has_aux=True))(params)
  return terms, {name: x.value() for name, x in metrics.items()}, gradient, graphdef, params


def test_the_token_after_each_token():
  """The docstring's arrays."""
  batch = {"decoder_input_tokens": jnp.array([[5, 6, 7, 8, 0]]), "decoder_segment_ids": jnp.array([[1, 1, 2, 2, 0]])}
  targets, weights = heads_and_lm.next_tokens(batch)
  assert targets.tolist() == [[6, 7, 8, 0, 0]] and weights.tolist() == [[1, 0, 1, 0, 0]]


@pytest.mark.exhaustive
def test_each_term_has_its_own_denominator():
  """The head's is its loss alone; the term lm is the mean cross-entropy of next tokens; packing changes neither."""
  config = toy.decoder(heads=HEADS)
  terms, metrics, gradient, graphdef, params = terms_of(config, batch := batch_of(pack=False))
  again, _, packed_gradient, *_ = terms_of(config, batch_of(pack=True))
  toy.assert_trees_close(terms, again, rtol=1e-5)
  toy.assert_trees_close(gradient, packed_gradient, atol=1e-5)
  model, alone = nnx.merge(graphdef, params), head_losses.HeadLosses(config, None)
  head_terms, _ = alone(model, batch, alone.weights(batch), key=None, train=False)
  np.testing.assert_allclose(terms["topic"], head_terms["topic"], rtol=1e-6)
  total, number = 0.0, 0
  tokens, segments = np.asarray(batch["decoder_input_tokens"]), np.asarray(batch["decoder_segment_ids"])
  log_p = jax.nn.log_softmax(model.logits(model.states(batch)))
  for row, place in np.argwhere((segments[:, 1:] > 0) & (segments[:, 1:] == segments[:, :-1])):
    total -= float(log_p[row, place, tokens[row, place + 1]])
    number += 1
  np.testing.assert_allclose([terms["lm"], metrics["lm_loss"]], total / number, rtol=1e-4)
  np.testing.assert_allclose(metrics["loss"], terms["topic"], rtol=1e-5)  # of the heads


@pytest.mark.slow
def test_gradients_add_up_with_the_factor():
  """lambda times the gradient of the language model is added to the head's: exactly none with 0."""
  config, batch = toy.decoder(heads=HEADS), batch_of(pack=True)
  none, half, whole = (terms_of(config, batch, lm=factor)[2] for factor in (0.0, 0.5, 1.0))
  middle = jax.tree.map(lambda a, b: 0.5 * (a + b), none, whole)
  toy.assert_trees_close(half, middle, atol=1e-6)
  assert not np.any(none["head"]["projection"]) and np.any(whole["head"]["projection"])


@pytest.mark.slow
def test_a_training_step_applies_factors():
  """SGD's update with microbatches is that of the weighted terms; a factor of an unknown term is an error."""
  config, batch = toy.decoder(heads=HEADS), batch_of(pack=False)
  loss, tx = heads_and_lm.HeadsAndLm(config, None, lm=toy.loss_config(z_loss=0.0)), optax.sgd(0.1)
  *_, gradient, graphdef, params = terms_of(config, batch, lm=0.5)
  mesh = sharding.make_mesh({"data": 1}, devices=jax.devices()[:1])
  from t2t.training import train_state

  with jax.set_mesh(mesh):
    graphdef, state, _ = train_state.init_train_state(lambda _: toy.model(config), tx, toy.key(), mesh)
    shardings = jax.tree.map(lambda x: x.sharding, state)
    make = lambda **options: train_step.make_train_step(graphdef, loss, tx, shardings, **options)
    expected = jax.tree.map(lambda x, g: np.asarray(x - 0.1 * g), state.params, gradient)
    with pytest.raises(UserError, match=r"config.train.term_weights.topics=2.0: the loss has no such term.*topic, lm"):
      make(term_weights={"topics": 2.0}).lower(state, batch, toy.key())
    state, _ = make(term_weights={"lm": 0.5}, num_microbatches=2)(state, batch, toy.key())
  toy.assert_trees_close(jax.tree.map(np.asarray, state.params), expected, atol=1e-5)


def test_factors_are_numbers():
  """In a config and on the command line."""
  config = override(load_config("tiny"), ["--config.train.term_weights.loss=0.5"])
  assert records(config).train.term_weights == {"loss": 0.5}
  assert TrainConfig(term_weights={"lm": 2}).term_weights == {"lm": 2.0}
  for value in ("half", -1, float("inf"), float("nan")):
    with pytest.raises(UserError, match="config.train.term_weights.lm=.* must be a number of at least 0"):
      TrainConfig(term_weights={"lm": value})


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"bidirectional_prefix": True}, "config.model.bidirectional_prefix=True reads texts in both directions"),
    ({"vocabulary_head": False}, "predicts tokens, but config.model.vocabulary_head=False"),
  ],
)
def test_models_without_next_tokens_are_refused(fields, message):
  config = records(load_config("tiny_gpt")).with_(train={"loss": "heads_and_lm"})
  model = dataclasses.replace(config.model, heads=HEADS)
  assert heads_and_lm.HeadsAndLm.from_config(dataclasses.replace(config, model=model)).heads == ("topic",)
  with pytest.raises(UserError, match=message):
    recipe.make(dataclasses.replace(config, model=dataclasses.replace(model, **fields)))
  for name in ("tiny", "tiny_bert"):
    with pytest.raises(UserError, match="heads_and_lm predicts the next tokens .*architecture=.* reads texts in both"):
      recipe.make(records(load_config(name)).with_(train={"loss": "heads_and_lm"}))


def test_the_settings_of_tokens_are_those_of_the_cross_entropy():
  """z-loss and label smoothing of config.train apply to the language model."""
  config = records(load_config("tiny_gpt")).with_(train={"loss": "heads_and_lm", "z_loss": 0.25})
  config = dataclasses.replace(config, model=dataclasses.replace(config.model, heads=HEADS))
  assert heads_and_lm.HeadsAndLm.from_config(config).lm == cross_entropy.CrossEntropy.from_config(config).config
  assert heads_and_lm.HeadsAndLm.from_config(config).lm.z_loss == 0.25
