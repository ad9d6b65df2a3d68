"""Cloze heads and ADAPET: logits of words, decoupled labels, and label conditioning."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import UserError
from t2t.losses import adapet, head_losses
from t2t.models.config import HeadConfig

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
