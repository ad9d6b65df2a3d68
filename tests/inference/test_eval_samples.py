"""Samples shown during training agree with the model's predictions."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_samples
import toy

from t2t.inference import eval_samples, samples
from t2t.training import train_state

pytestmark = pytest.mark.slow

SENTINELS = (39, 38, 37)


def likeliest(model, batch, *, number=2, sentinel_ids=SENTINELS, vocab_size=40):
  graphdef, params = toy.split(model)
  state = train_state.TrainState(jnp.zeros((), jnp.int32), params, {}, ())
  options = dict(vocabulary=test_samples.Ids(), sentinel_ids=sentinel_ids, hidden_ids=(0, toy.EOS))
  options |= dict(number=number, vocab_size=vocab_size)
  return eval_samples.likeliest(graphdef, state, batch, **options)


def expected(logits, row, places, *, masked=False):
  """Returns the lines of a row from the logits of all positions; tokens that end a blank count as one guess."""
  ends = [0, toy.EOS, *SENTINELS]
  lines = []
  for blank, place in enumerate(places, start=1):
    chances = np.asarray(jax.nn.softmax(logits[row, place]))
    together = sum(chances[token] for token in ends)
    chances = np.where(np.isin(np.arange(chances.size), ends), 0, chances)
    chances[0] = 0 if masked else together
    best = np.argsort(-chances, kind="stable")[:5]
    text = lambda token: eval_samples.NOTHING if token in ends else str(token)
    lines.append(
      f"[{blank}] " + ", ".join(f"{text(token)} {eval_samples.in_percent(chances[token])}" for token in best)
    )
  return lines


def test_a_blank_begins_behind_its_sentinel():
  """A sentinel at the end of a truncated row, or one without loss weight, has no first token."""
  targets = np.array([[39, 5, 38, 6, 1], [9, 39, 5, 5, 38]])
  counts = np.array([[True] * 5, [True, False, True, True, True]])
  found = eval_samples.places_of(targets, counts, SENTINELS)
  assert [x.tolist() for x in found] == [[1, 3], []]
  assert [x.tolist() for x in eval_samples.places_of(targets, counts, None)] == [[0, 1, 2, 3, 4], [0, 2, 3, 4]]


@pytest.mark.exhaustive
def test_the_likeliest_tokens_of_blanks():
  """Guesses follow the true text of earlier blanks; the second sequence of a packed row is ignored."""
  model, batch = toy.model(toy.KINDS["t5_1_1"]), toy.batch((8, 7), (7, 6), padded_to=(9, 8))
  targets = batch["decoder_target_tokens"].at[0, :7].set(jnp.array([39, 5, 38, 6, 7, 37, 1]))
  batch |= {"decoder_target_tokens": targets.at[1, 0].set(39)}
  logits = toy.logits(model, batch)
  assert likeliest(model, batch) == [expected(logits, 0, [1, 3, 6]), expected(logits, 1, [1])]


def test_samples_are_compiled_once():
  model, batch = toy.model(toy.KINDS["t5_1_1"]), toy.batch((8, 7), (7, 6), padded_to=(9, 8))
  looks = lambda: (likeliest(model, batch), test_samples.held_out(model, batch, sentinel_ids=SENTINELS))
  first, compiled = looks(), (eval_samples._guesses._cache_size(), samples._writing.cache_info().misses)
  assert looks() == first
  assert (eval_samples._guesses._cache_size(), samples._writing.cache_info().misses) == compiled


def test_an_encoders_masked_tokens_are_blanks():
  """The first three positions with a loss weight are blanks."""
  model, batch = toy.model(toy.KINDS["bert"]), toy.batch((8, 5), padded_to=(9, 6), architecture="encoder_only")
  weights = jnp.zeros(batch["encoder_input_tokens"].shape).at[0, jnp.array([1, 4, 5, 6])].set(1).at[1, 2].set(1)
  batch |= {"encoder_loss_weights": weights}
  logits = toy.logits(model, batch)
  assert likeliest(model, batch) == [
    expected(logits, 0, [1, 4, 5], masked=True),
    expected(logits, 1, [2], masked=True),
  ]


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize(("vocab_size", "sentinel_ids"), [(7, SENTINELS), (40, (7, 8, 11))])
def test_the_prediction_is_the_first_of_the_likeliest(vocab_size, sentinel_ids):
  """An encoder never predicts special ids or ids without a token; neither does a decoder."""
  model, batch = toy.model(toy.KINDS["bert"]), toy.batch((8, 5), padded_to=(9, 6), architecture="encoder_only")
  batch["encoder_loss_weights"] = jnp.ones(batch["encoder_input_tokens"].shape, jnp.int32)
  options = dict(sentinel_ids=sentinel_ids, vocab_size=vocab_size)
  for (_, made, _), lines in zip(
    test_samples.held_out(model, batch, **options), likeliest(model, batch, **options), strict=True
  ):
    first = [line.rpartition(",")[0].split("%")[0].split()[1] for line in lines]
    assert [text.split()[1] for text in made.split("  ")][:3] == first
    assert all(1 < int(token) < vocab_size and int(token) not in sentinel_ids for token in first)
  model, batch = toy.model(toy.config()), toy.batch((6, 4), (6, 4))
  for _, made, _ in test_samples.held_out(model, batch, **options):
    assert all(int(token) < vocab_size for token in re.sub(r"\[\d+\]|-", "", made).split())


def test_text_without_blanks_has_none():
  """Continuations and padding rows have no blanks."""
  model, batch = toy.model(toy.KINDS["llama"]), toy.batch((5, 3), (4, 4), architecture="decoder_only")
  assert likeliest(model, batch, sentinel_ids=()) == [[], []]
  assert likeliest(model, {name: jnp.zeros_like(x) for name, x in batch.items()}) == []


def test_a_guess_can_be_read_in_a_list_with_commas():
  """Commas are quoted, and small probabilities are not 0%."""
  told = [eval_samples.in_words(text) for text in (" the", ",", "'", "don't", " ", "", "_")]
  assert told == ["the", "','", '"\'"', "don't", "_", "_", "'_'"]
  assert [eval_samples.in_percent(chance) for chance in (0.0004, 0.02, 1.0)] == ["<1%", "2%", "100%"]
