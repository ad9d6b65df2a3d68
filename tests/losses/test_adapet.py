"""Cloze heads and ADAPET: logits of words, decoupled labels, and label conditioning."""

import dataclasses
import types

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toy

from t2t import UserError
from t2t.losses import adapet, head_losses, heads_and_mlm
from t2t.models.head_config import HeadConfig

HEAD = HeadConfig("nli_cloze", 2, "cloze", labels=("no", "yes"), words=((5, 7), (9,)))
MODEL = dataclasses.replace(toy.KINDS["bert"], heads=(HEAD,))
MASK = 39


@pytest.fixture(scope="module")
def case():
  """Returns a model and a batch of two rows, of classes 1 and 0, with the blank at positions 3 and 1."""
  tokens = np.array([[11, 12, 13, MASK, 14, 15, 16, 0], [21, MASK, 22, 23, 24, 0, 0, 0]], np.int32)
  answers = (tokens == MASK).astype(np.int32)
  batch = {
    "encoder_input_tokens": tokens,
    "encoder_token_types": np.zeros_like(tokens),
    "encoder_answer_heads": answers,
    "encoder_answer_targets": answers * np.array([[1], [0]], np.int32),
  }
  return toy.model(MODEL), {name: jnp.asarray(x) for name, x in batch.items()}


def loss(**settings):
  return adapet.Adapet(MODEL, None, settings=adapet.AdapetConfig(**settings))


def vocabulary_logits(model, batch):
  return np.asarray(model.logits_fn()(model.hidden_states(batch).x))


def test_a_class_has_the_mean_logit_of_its_words(case):
  """The head reads the vocabulary logits of its words, and has no parameters."""
  model, batch = case
  logits = head_losses.all_answers(model, batch, ["nli_cloze"])["nli_cloze"]
  whole = vocabulary_logits(model, batch)
  np.testing.assert_allclose(logits[..., 0], whole[..., [5, 7]].mean(-1), atol=1e-5)
  np.testing.assert_allclose(logits[..., 1], whole[..., 9], atol=1e-5)
  assert not any("heads" in name for name in toy.flat(toy.split(model)[1]))
  assert "^head/" not in head_losses.without_tokens(MODEL)


def test_labels_compete_with_the_whole_vocabulary(case):
  model, batch = case
  measured = loss()
  outputs, logits = measured.predict(model, batch, dropout_key=None)
  found = measured.label_loss(model, outputs, logits["nli_cloze"], head_losses.asked_of(batch, 0))
  whole = vocabulary_logits(model, batch)
  for row, (blank, label) in enumerate(((3, 1), (1, 0))):
    at = whole[row, blank]
    q = np.exp(np.array([at[[5, 7]].mean(), at[9]]) - np.logaddexp.reduce(at))
    np.testing.assert_allclose(found[row], -np.log(q[label]) - np.log(1 - q[1 - label]), rtol=1e-4)


def test_label_conditioning_masks_ordinary_tokens_only(case, monkeypatch):
  """The blank has the word of a label; first and last token, blank and padding are never masked."""
  model, batch = case
  read = []
  hidden_states = type(model).hidden_states
  monkeypatch.setattr(
    type(model), "hidden_states", lambda self, b, **how: read.append(b) or hidden_states(self, b, **how)
  )
  targets = head_losses.asked_of(batch, 0)
  losses = [
    loss(mask_rate=0.4).conditioning(model, batch, HEAD, targets, jax.random.key(i), dropout_key=None) for i in range(6)
  ]
  assert np.isfinite(losses).all() and (np.array(losses) > 0).all()
  tokens = np.stack([x["encoder_input_tokens"] for x in read])
  assert set(tokens[:, 0, 3]) == set(tokens[:, 1, 1]) == {5, 9}
  masked = (tokens == MASK).any(axis=0)
  assert masked.tolist() == [
    [False, True, True, False, True, True, False, False],
    [False, False, True, True, False, False, False, False],
  ]
  assert ((tokens == MASK).sum(axis=2) == [2, 1]).all()


def test_terms(case):
  """A step has both terms and finite gradients of the whole model; evaluation has the loss of classes."""
  model, batch = case
  measured = loss(conditioning_weight=0.5)
  weights = measured.weights(batch)
  terms, metrics = measured(model, batch, weights, key=jax.random.key(0), train=True)
  assert set(terms) == {"nli_cloze", "nli_cloze_conditioning"}
  label = metrics["nli_cloze_label"]
  np.testing.assert_allclose(terms["nli_cloze"], label.total / label.weight, rtol=1e-5)
  mean = metrics["nli_cloze_conditioning"]
  np.testing.assert_allclose(terms["nli_cloze_conditioning"], 0.5 * mean.total / mean.weight, rtol=1e-5)
  evaluated, _ = measured(model, batch, weights, key=None, train=False)
  assert set(evaluated) == {"nli_cloze"}


@pytest.mark.slow
@pytest.mark.parametrize("measured", [loss(), heads_and_mlm.HeadsAndMlm(MODEL, None)], ids=["adapet", "heads_and_mlm"])
def test_every_term_falls(measured):
  """Forty steps on texts whose last token decides the class lower each term, and predict the classes."""
  random = np.random.default_rng(0)
  labels = np.arange(16) % 2
  tokens = np.stack([[1, MASK, *random.integers(10, 14, 3), 20 + label, 20 + label, 2] for label in labels])
  answers = (tokens == MASK).astype(np.int32)
  batch = {
    "encoder_input_tokens": tokens,
    "encoder_token_types": np.zeros_like(tokens),
    "encoder_answer_heads": answers,
    "encoder_answer_targets": answers * labels[:, None],
  }
  batch = {name: jnp.asarray(x, jnp.int32) for name, x in batch.items()}
  graphdef, params = toy.split(toy.model(MODEL))
  weights, optimizer = measured.weights(batch), optax.adam(3e-3)

  @jax.jit
  def step(params, state, key):
    def summed(params):
      terms, metrics = measured(nnx.merge(graphdef, params), batch, weights, key=key, train=True)
      return sum(terms.values()), (terms, metrics["accuracy"])

    grads, (terms, accuracy) = jax.grad(summed, has_aux=True)(params)
    updates, state = optimizer.update(grads, state)
    return optax.apply_updates(params, updates), state, terms, accuracy.total / accuracy.weight

  state, history = optimizer.init(params), []
  for number in range(40):
    params, state, terms, accuracy = step(params, state, jax.random.key(number))
    history.append({name: float(x) for name, x in terms.items()})
  for name in history[0]:
    of_term = [terms[name] for terms in history]
    assert 0 < np.mean(of_term[-5:]) < 0.8 * np.mean(of_term[:5]), name
  assert accuracy == 1


def test_masked_tokens_beside_heads(case, monkeypatch):
  """The term has the texts with masks at ordinary tokens; the blank stays, and heads have the loss that they had."""
  model, batch = case
  measured, read = heads_and_mlm.HeadsAndMlm(MODEL, None), []
  hidden_states = type(model).hidden_states
  monkeypatch.setattr(
    type(model), "hidden_states", lambda self, b, **how: read.append(b) or hidden_states(self, b, **how)
  )
  weights = measured.weights(batch)
  for number in range(8):
    terms, metrics = measured(model, batch, weights, key=jax.random.key(number), train=True)
    assert set(terms) == {"nli_cloze", "mlm"} and terms["mlm"] > 0
    np.testing.assert_allclose(terms["mlm"], metrics["mlm_loss"].total / metrics["mlm_loss"].weight, rtol=1e-5)
  plain, _ = head_losses.HeadLosses(MODEL, None)(model, batch, weights, key=None, train=False)
  evaluated, _ = measured(model, batch, weights, key=None, train=False)
  assert set(evaluated) == {"nli_cloze"} and evaluated["nli_cloze"] == plain["nli_cloze"]
  changed = np.stack([x["encoder_input_tokens"] != batch["encoder_input_tokens"] for x in read[1:16:2]])
  ordinary = [[0, 1, 1, 0, 1, 1, 0, 0], [0, 0, 1, 1, 0, 0, 0, 0]]
  assert changed.any() and not (changed & ~np.array(ordinary, bool)).any() and (changed.sum(axis=2) <= 1).all()


@pytest.mark.parametrize(
  ("heads", "pack", "settings", "message"),
  [
    ((HeadConfig("label", 2),), False, {}, "the head label has kind='class'"),
    ((HEAD,), True, {}, "Set config.data.pack=False"),
    ((HEAD,), False, {"mask_rate": 1.0}, "config.adapet.mask_rate=1.0: must be above 0"),
    ((HEAD,), False, {"conditioning_weight": -1.0}, "config.adapet.conditioning_weight=-1.0: must be at least 0"),
  ],
)
def test_wrong_settings(heads, pack, settings, message, monkeypatch):
  base = head_losses.HeadLosses(dataclasses.replace(MODEL, heads=heads), None)
  monkeypatch.setattr(head_losses.HeadLosses, "from_config", classmethod(lambda cls, run: base))
  run = types.SimpleNamespace(data=types.SimpleNamespace(pack=pack), adapet=adapet.AdapetConfig(**settings))
  with pytest.raises(UserError, match=message):
    adapet.Adapet.from_config(run)


def test_a_cloze_head_needs_words():
  with pytest.raises(UserError, match="has kind='cloze', num_classes=2 and words of 0 classes"):
    HeadConfig("a", 2, "cloze")
  with pytest.raises(UserError, match="has kind='class', num_classes=2 and words of 2 classes"):
    HeadConfig("a", 2, words=((1,), (2,)))
