"""Losses of heads after every layer: the papers' weights, gradients, microbatches, and the model without exits."""

import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_sift
import toy

from t2t import UserError
from t2t.losses import exit_losses, head_losses
from t2t.models.head_config import HeadConfig
from t2t.param_tree import flatten

HEADS = (HeadConfig("topic", 3), HeadConfig("likeness", 1, "score"), HeadConfig("cause", 1, "choice"))


def case(layer_weights="linear", kind="bert"):
  """Returns loss, structure, parameters and batch of a model with exits."""
  sift, _, _, batch = test_sift.case(kind, heads=HEADS)
  config = dataclasses.replace(sift.config, exits=True)
  graphdef, params = toy.split(toy.model(config))
  settings = exit_losses.EarlyExitConfig(layer_weights)
  return exit_losses.EarlyExit(config, None, settings=settings), graphdef, params, batch


def test_weights_are_proportional_to_the_layer():
  np.testing.assert_allclose(exit_losses.layer_weights("linear", 3), [1 / 6, 2 / 6, 3 / 6])
  np.testing.assert_allclose(exit_losses.layer_weights("uniform", 4), [0.25] * 4)


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize(("kind", "name"), [("bert", "linear"), ("modern_bert", "uniform")])
def test_terms_are_a_weighted_mean_of_the_layers(kind, name):
  """Each layer's loss is that of its head on its states; heads of other kinds have no exits."""
  loss, graphdef, params, batch = case(name, kind)
  plain = head_losses.HeadLosses(loss.config, None)
  weights = loss.weights(batch)

  @jax.jit
  def compute(params):
    module = nnx.merge(graphdef, params)
    states, of_exits = module.states(batch, every_layer=True), {}
    for number, head in enumerate(HEADS[:2]):
      losses = []
      for layer in range(loss.config.num_encoder_layers - 1):
        exit_head = jax.tree.map(lambda x, layer=layer: x[layer], module.heads[head.name].exits.layers)
        logits = exit_head(exit_head.normed(states[layer + 1]))
        measured = plain.measure(head, logits, head_losses.asked_of(batch, number), module.heads[head.name])
        losses.append(jnp.sum(measured.loss) / weights[head.name])
      of_exits[head.name] = jnp.stack(losses)
    options = {"key": None, "train": False}
    return loss(module, batch, weights, **options), plain(module, batch, weights, **options), of_exits

  (terms, metrics), (plain_terms, plain_metrics), of_exits = compute(params)
  of_layers = exit_losses.layer_weights(name, loss.config.num_encoder_layers)
  for head, losses in of_exits.items():
    np.testing.assert_allclose(terms[f"{head}_exits"], np.dot(of_layers[:-1], losses), rtol=2e-5)
    np.testing.assert_allclose(terms[head], of_layers[-1] * plain_terms[head], rtol=1e-5)
  np.testing.assert_allclose(terms["cause"], plain_terms["cause"], rtol=1e-5)
  np.testing.assert_allclose(metrics["loss"].total, plain_metrics["loss"].total, rtol=1e-5)  # of the last layer
  assert "topic_exit_1_accuracy" in metrics and "cause_exits" not in terms


def test_the_model_without_exits_has_no_such_parameters():
  config = case()[0].config
  names = set(flatten(toy.split(toy.model(config))[1]))
  without = set(flatten(toy.split(toy.model(dataclasses.replace(config, exits=False)))[1]))
  assert without < names and all(
    name.startswith(("heads/topic/exits/layers/", "heads/likeness/exits/")) for name in names - without
  )


def test_the_key_is_needed():
  """The loss needs exits, and exits their loss."""
  from t2t.configuration.loading import load_config, override, records
  from t2t.training import config_checks

  run = override(load_config("bert_base"), ["--config.train.loss=early_exit"])
  with pytest.raises(UserError, match="config.model.exits=False. Give --config.model.exits=True"):
    exit_losses.EarlyExit.from_config(records(run))
  run = override(load_config("bert_base"), ["--config.model.exits=True", "--config.train.loss=heads"])
  with pytest.raises(UserError, match="config.train.loss=heads does not train the heads after inner layers"):
    config_checks.check(records(run))
