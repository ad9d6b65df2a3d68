"""Rows of two kinds, each with a mean of its own in the loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import UserError, losses
from t2t.configuration.loading import load_config, override, records
from t2t.losses import rows_by_kind
from t2t.models import auxiliary
from t2t.training import train_step


def test_each_position_has_the_weight_of_its_kind():
  """The docstring's arrays; without attention features, all rows are causal."""
  batch = {"decoder_loss_weights": jnp.array([[1, 1], [0, 1]])}
  found = rows_by_kind.weights_by_kind(batch | {"decoder_causal_attention": jnp.array([[0, 0], [1, 1]])})
  assert {kind: x.tolist() for kind, x in found.items()} == {"causal": [[1, 1], [0, 0]], "masked": [[0, 0], [0, 1]]}
  assert not rows_by_kind.weights_by_kind(batch)["masked"].any()


class Projection:
  """A model with only a projection to the vocabulary."""

  def __init__(self, projection):
    self.projection = projection

  def logits_fn(self):
    return jax.tree_util.Partial(lambda projection, states: states @ projection, self.projection)


@pytest.mark.slow
def test_each_kind_has_the_loss_of_its_rows_alone():
  """Terms and gradients are those of the cross-entropy of a batch with only these rows, times the factor."""
  random = np.random.default_rng(0)
  params = {"states": random.normal(size=(4, 6, 3)), "projection": random.normal(size=(3, 5))}
  is_masked = np.array([[0], [0], [1], [1]]) * np.ones((4, 6), np.int32)
  weights = np.where(is_masked > 0, random.random((4, 6)) < 0.5, 1.0)
  batch = {"decoder_target_tokens": random.integers(0, 5, (4, 6)), "decoder_loss_weights": weights}
  batch = jax.tree.map(jnp.asarray, batch | {"decoder_causal_attention": is_masked})
  params, factors = jax.tree.map(jnp.float32, params), {"causal": 0.25, "masked": 3.0}
  settings = toy.loss_config()

  def gradient_of(loss, batch, factors):
    def compute(params):
      model, hidden = Projection(params["projection"]), auxiliary.Hidden(params["states"], {})
      terms, metrics = loss.of_hidden(model, hidden, batch, loss.weights(batch), train=False)
      return sum(train_step.weighted(terms, factors).values()), (terms, metrics)

    return jax.jit(jax.grad(compute, has_aux=True))(params)

  gradient, (terms, metrics) = gradient_of(rows_by_kind.RowsByKind(settings), batch, factors)
  expected = jax.tree.map(jnp.zeros_like, params)
  for kind, number in (("causal", 0), ("masked", 1)):
    alone = batch | {"decoder_loss_weights": weights * (is_masked == number)}
    part, (term, metric) = gradient_of(losses.CrossEntropy(settings), alone, {})
    np.testing.assert_allclose(terms[kind], term["loss"], rtol=1e-5)
    for name in ("loss", "accuracy"):
      np.testing.assert_allclose(metrics[f"{kind}_{name}"].value(), metric[name].value(), rtol=1e-5)
    expected = jax.tree.map(lambda total, x, factor=factors[kind]: total + factor * x, expected, part)
  toy.assert_trees_close(gradient, expected, atol=1e-5)
  assert abs(float(metrics["causal_loss"].value() - metrics["masked_loss"].value())) > 1e-3


@pytest.mark.parametrize(("name", "key"), [("gpt2_small", "bidirectional_prefix"), ("t5_1_1_small", "architecture")])
def test_models_without_rows_of_both_kinds_are_refused(name, key):
  config = records(override(load_config(name), ["--config.train.loss=rows_by_kind"]))
  with pytest.raises(UserError, match=f"rows_by_kind needs a decoder .*but config.model.{key}.*Set config.train.loss"):
    losses.make(config)
