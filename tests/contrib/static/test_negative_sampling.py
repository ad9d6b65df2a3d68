"""Negative sampling: loss and gradients against the formula in loops, and independence of microbatches and meshes."""

import math

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t import UserError, losses, sharding
from t2t.configuration.loading import load_config, records
from t2t.contrib.static import negative_sampling
from t2t.contrib.static.windows import contexts
from t2t.models.config import TransformerConfig
from t2t.training import optimizers, train_state, train_step

VOCABULARY, WIDTH, NEGATIVES = 24, 5, 3


def loss_of(cbow=False, **changed):
  run = records(load_config("word2vec_cbow" if cbow else "word2vec_skip_gram"))
  fields = dict(vocab_size=VOCABULARY, embed_dim=WIDTH, init_scale=0.5) | changed
  model = run.with_(model=fields, negative_sampling={"negatives": NEGATIVES, "cbow": cbow}, data={"window": 3})
  return losses.make(model), model.model


def batch_of(rows=4, length=7, seed=0, cbow=False):
  """Returns packed rows: a text of three words, one of the rest, and a position of padding."""
  random = np.random.default_rng(seed)
  segments = np.tile([1] * 3 + [2] * (length - 4) + [0], (rows, 1))
  tokens = np.where(segments, random.integers(3, VOCABULARY, (rows, length)), 0)
  windows = np.where(segments, random.integers(1, 4, (rows, length)), 0)
  numbers = np.zeros((rows, length), np.int32)
  for i in range(rows):
    for segment in (1, 2):
      places = np.flatnonzero(segments[i] == segment)
      for place, _ in contexts(places.tolist(), windows[i, places].tolist()):
        numbers[i, place] += 1
  weights = np.minimum(numbers, 1) if cbow else numbers
  features = dict(
    input_tokens=tokens, target_tokens=tokens, segment_ids=segments, windows=windows, loss_weights=weights
  )
  return {f"encoder_{name}": jnp.asarray(x, jnp.int32) for name, x in features.items()}


def trained(loss, model):
  module = loss.build(model, nnx.Rngs(0))
  shape = module.output[...].shape
  module.output = nnx.Param(jax.random.normal(jax.random.key(1), shape), axes=("vocab", "embed"))
  return module


def written_out(vectors, outputs, batch, negatives, *, cbow):
  """Returns loss, gradients and number of predictions by word2vec's loops."""
  sigmoid = lambda x: 1 / (1 + math.exp(-x))
  total, number, to_vectors, to_outputs = 0.0, 0, np.zeros_like(vectors), np.zeros_like(outputs)
  tokens, segments, windows = (np.asarray(batch[f"encoder_{x}"]) for x in ("input_tokens", "segment_ids", "windows"))
  offsets = [-3, -2, -1, 1, 2, 3]
  for i, place in np.ndindex(tokens.shape):
    if not segments[i, place]:
      continue
    others = [(k, place + d) for k, d in enumerate(offsets) if abs(d) <= windows[i, place]]
    others = [(k, j) for k, j in others if 0 <= j < tokens.shape[1] and segments[i, j] == segments[i, place]]
    groups = [(0, [j for _, j in others])] if cbow else [(k, [j]) for k, j in others]
    for k, read in groups:
      if not read:
        continue
      number += 1
      context = np.mean([vectors[tokens[i, j]] for j in read], axis=0)
      samples = [(tokens[i, place], 1.0)]
      samples += [(word, 0.0) for word in negatives[i, place, k] if word != tokens[i, place]]
      for word, label in samples:
        score = sigmoid(float(context @ outputs[word]))
        total -= math.log(score if label else 1 - score)
        for j in read:
          to_vectors[tokens[i, j]] += (score - label) * outputs[word] / len(read)
        to_outputs[word] += (score - label) * context
  return total, to_vectors, to_outputs, number


@pytest.mark.parametrize("cbow", [False, True])
def test_loss_and_gradients_are_the_formula(cbow):
  loss, model = loss_of(cbow)
  module, batch = trained(loss, model), batch_of(cbow=cbow)
  negatives = np.asarray(loss._negatives(batch, VOCABULARY, 1 if cbow else 6))
  graphdef, params = nnx.split(module, graph=False)
  weights = loss.weights(batch)

  def value(params):
    terms, metrics = loss(nnx.merge(graphdef, params), batch, weights, key=None, train=True)
    return terms["negative_sampling"], metrics

  (found, metrics), gradients = jax.value_and_grad(value, has_aux=True)(params)
  gradients = nnx.to_pure_dict(gradients)
  arrays = np.asarray(module.words.embed.table[...]), np.asarray(module.output[...])
  total, to_vectors, to_outputs, number = written_out(*arrays, batch, negatives, cbow=cbow)
  assert float(weights["negative_sampling"]) == number == float(metrics["loss"].weight)
  assert float(found) == pytest.approx(total / number, rel=1e-5)
  np.testing.assert_allclose(gradients["words"]["embed"]["table"], to_vectors / number, atol=1e-6)
  np.testing.assert_allclose(gradients["output"], to_outputs / number, atol=1e-6)


def test_the_loss_of_new_vectors_is_that_of_chance():
  """Vectors of predicted words begin at 0, so that every score is 0; a negative equal to the word does not count."""
  loss, model = loss_of()
  batch = batch_of()
  _, metrics = loss(loss.build(model, nnx.Rngs(0)), batch, loss.weights(batch), key=None, train=False)
  chance = loss.chance({}, batch_size=4, vocab_size=VOCABULARY)["loss"].loss
  assert chance == pytest.approx((1 + NEGATIVES) * math.log(2))
  assert 0.8 * chance < float(metrics["loss"].value()) <= chance + 1e-5


def test_negatives_have_the_distribution_of_the_table():
  thresholds, other = jnp.array([0.5, 0.0, 1.0, 0.25]), jnp.array([2, 3, 0, 2])
  drawn = negative_sampling.draw(jax.random.key(0), (40_000,), thresholds, other)
  expected = np.array([0.5, 0.0, 1.0 + 0.5 + 0.75, 0.25 + 1.0]) / 4
  np.testing.assert_allclose(np.bincount(drawn, minlength=4) / 40_000, expected, atol=0.01)


def test_neighbours_are_the_docstrings_array():
  assert negative_sampling.neighbours(jnp.array([[1, 2, 3]]), (-1, 1)).tolist() == [[[0, 2], [1, 3], [2, 0]]]


def step_of(loss, model, batch, *, microbatches=1, mesh_shape=None):
  tx, _ = optimizers.make_optimizer(records(load_config("word2vec_skip_gram")).optimizer, 100)
  shape = mesh_shape or {"data": 1}
  mesh = sharding.make_mesh(shape, devices=jax.devices()[: math.prod(shape.values())])
  with jax.set_mesh(mesh):
    graphdef, state, shardings = train_state.init_train_state(
      lambda key: trained(loss, model), tx, jax.random.key(0), mesh
    )
    step = train_step.make_train_step(graphdef, loss, tx, shardings, num_microbatches=microbatches)
    state, metrics = step(state, batch, jax.random.key(2))
    return float(metrics["loss"].value()), jax.tree.map(np.asarray, state.params)


@pytest.mark.slow
@pytest.mark.parametrize("cbow", [False, True])
@pytest.mark.parametrize("changed", [{"microbatches": 2}, {"mesh_shape": {"data": 2}}, {"mesh_shape": {"fsdp": 2}}])
def test_microbatches_and_meshes_change_nothing(cbow, changed):
  loss, model = loss_of(cbow, vocab_size=32, embed_dim=8)
  batch = batch_of(cbow=cbow)
  plain, other = step_of(loss, model, batch), step_of(loss, model, batch, **changed)
  assert other[0] == pytest.approx(plain[0], rel=1e-5)
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), plain[1], other[1])


def test_settings_that_do_not_fit_are_refused():
  run = records(load_config("word2vec_skip_gram"))
  for changed, message in (
    ({"negative_sampling": {"negatives": 0}}, "config.negative_sampling.negatives=0"),
    ({"negative_sampling": {"power": -1.0}}, "config.negative_sampling.power=-1.0"),
  ):
    with pytest.raises(UserError, match=message):
      losses.make(run.with_(**changed))
  with pytest.raises(UserError, match="needs config.model.architecture=encoder_only"):
    losses.make(records(load_config("tiny_gpt")).with_(train={"loss": "negative_sampling"}))
  with pytest.raises(UserError, match="the examples have cbow. Set --config.data.objective=skip_gram"):
    negative_sampling.check_objectives({"cbow"}, run, where="config.data.objective=cbow")
  with pytest.raises(UserError, match="which config.train.loss=cross_entropy does not read"):
    negative_sampling.check_objectives({"cbow"}, run.with_(train={"loss": "cross_entropy"}), where="x")


def test_a_model_without_layers_returns_the_vectors_of_its_words():
  _, model = loss_of()
  assert isinstance(model, TransformerConfig)
  module = negative_sampling.WordTables(model, nnx.Rngs(0))
  batch = batch_of()
  states = module.words.hidden(batch, dropout_key=jax.random.key(0)).x
  np.testing.assert_array_equal(states, module.words.embed.table[...][batch["encoder_input_tokens"]])
