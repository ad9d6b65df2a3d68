"""Masked language modelling: literal ids, exact counts, whole words and spans, and rates of replacement."""

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
import seqio
import tensorflow as tf

from t2t import UserError
from t2t.data import vocabularies
from t2t.data.objectives import corruption, masking

CHOICES = {
  "random_tokens": masking.random_tokens,
  "whole_words": masking.whole_words,
  "word_spans": masking.word_spans,
}
# Ids below 3 are special; ids from 50 on start a word; 99 is the last.
ORDINARY = np.arange(3, 99, dtype=np.int32)


def draw(function, *arguments, number=300, **keywords):
  """Returns the results of `function` for `number` seeds, run as in a preprocessor."""
  dataset = tf.data.Dataset.range(number).map(
    lambda i: function(*arguments, tf.stack([tf.cast(i, tf.int32), 7]), **keywords)
  )
  to_list = lambda x: tuple(y.tolist() for y in x) if isinstance(x, tuple) else x.tolist()
  return [to_list(drawn) for drawn in dataset.as_numpy_iterator()]


def flags(zeros_and_ones):
  return tf.constant([bool(flag) for flag in zeros_and_ones])


@pytest.mark.slow
def test_framed_text():
  """The docstring's examples: one segment, or two with a separator at any point in half of the cases."""
  tokens, one = tf.range(3, 8), [101, 3, 4, 5, 6, 7, 102]
  assert draw(masking.frame, tokens, begin=[101], end=[102], two_segments=False) == [one] * 300
  drawn = draw(masking.frame, tokens, begin=[101], end=[102], two_segments=True)
  assert 120 < drawn.count(one) < 180
  assert {tuple(out) for out in drawn if out != one} == {
    (101, *range(3, cut), 102, *range(cut, 8), 102) for cut in range(4, 8)
  }
  assert draw(masking.frame, tokens[:1], begin=[101], end=[102], two_segments=True) == [[101, 3, 102]] * 300
  assert draw(masking.frame, tokens, begin=[], end=[1], two_segments=False, number=1) == [[3, 4, 5, 6, 7, 1]]


@pytest.mark.exhaustive
def test_docstring_examples():
  """The docstrings' examples, for some seed."""
  assert masking.is_one_of(tf.constant([3, 101, 5]), np.array([3, 4, 5, 6], np.int32)).numpy().tolist() == [1, 0, 1]
  np.testing.assert_array_equal(masking.words(flags([0, 1, 1, 1, 1, 0]), flags([1, 0, 0, 1, 0, 1])), [0, 1, 1, 2, 2, 3])
  drawn = draw(masking.random_tokens, flags([0, 1, 1, 1, 1, 0]), flags([0] * 6), noise_density=0.3)
  assert ([0, 0, 0, 1, 0, 0], [0, 1, 2, 3, 4, 5]) in drawn
  candidates = flags([0, 1, 1, 1, 1, 1, 0])
  drawn = draw(masking.whole_words, candidates, flags([1, 1, 0, 1, 1, 0, 1]), noise_density=0.5)
  assert ([0, 1, 1, 0, 0, 0, 0], [0, 1, 2, 3, 4, 5, 6]) in drawn
  drawn = draw(masking.word_spans, candidates, flags([1, 1, 0, 1, 1, 1, 1]), noise_density=0.6)
  assert ([0, 1, 1, 1, 0, 0, 0], [0, 1, 1, 1, 2, 2, 2]) in drawn
  vocabulary = {"mask_id": 99, "ordinary_ids": np.arange(3, 9, dtype=np.int32)}
  tokens = tf.range(3, 8)
  drawn = draw(masking.replace, tokens, flags([0, 1, 1, 1, 0]), tf.range(5), number=5_000, **vocabulary)
  assert [3, 99, 8, 6, 7] in drawn
  drawn = draw(masking.bert_style, tf.range(3, 9), number=5_000, noise_density=0.3, **vocabulary)
  assert [3, 99, 5, 6, 7, 4] in drawn


tokens_of_text = st.lists(st.sampled_from([0, 1, 5, 6, 7, 50, 51, 52]), min_size=1, max_size=60)


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("name", CHOICES)
@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(tokens=tokens_of_text, seed=st.integers(0, 2**30), density=st.sampled_from([0.15, 0.5, 1.0]))
def test_budgets_and_candidates(name, tokens, seed, density):
  """Only candidates are chosen, in the exact number; whole words do not exceed it unless no word fits."""
  tokens = tf.constant(tokens)
  candidates, starts = masking.is_one_of(tokens, ORDINARY), tokens >= 50
  chosen, groups = CHOICES[name](candidates, starts, tf.constant([seed, 0]), noise_density=density)
  chosen, candidates, groups = chosen.numpy(), candidates.numpy(), groups.numpy()
  count = int(corruption.noise_count(int(candidates.sum()), density))
  assert not (chosen & ~candidates).any()
  assert len(groups) == len(tokens) and (groups >= 0).all() and (groups < len(tokens)).all()
  words = masking.words(tf.constant(candidates), starts).numpy()
  if name != "whole_words":
    assert chosen.sum() == count
  else:
    sizes = np.bincount(words[candidates], minlength=1)
    for word in set(words[candidates]):
      assert len(set(chosen[words == word])) == 1
    if sizes[sizes > 0].size and sizes[sizes > 0].min() <= count:
      assert chosen.sum() <= count
      assert chosen.sum() > 0
    elif candidates.any():
      assert len(set(words[chosen])) == 1
  if name == "word_spans":
    assert (np.diff(groups) >= 0).all() and all(len(set(groups[words == word])) == 1 for word in set(words))
    # At most one span is cut.
    cut = [g for g in set(groups[chosen]) if (chosen != candidates)[groups == g].any()]
    assert len(cut) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("share_of_starts", [0.7, 0.2])
def test_words_nearly_fill_the_budget(share_of_starts):
  """Words leave less than one of 75 tokens unused on average, with subwords and with bytes (words of five)."""
  starts = np.random.default_rng(0).random(500) < share_of_starts
  counts = [sum(chosen) for chosen, _ in draw(masking.whole_words, flags([1] * 500), tf.constant(starts))]
  assert max(counts) == 75 and np.mean(counts) > 74


def test_span_lengths_are_geometric():
  """SpanBERT's lengths: mean 3.8 words, at most 10, and all lengths occur."""
  lengths = []
  for _, groups in draw(masking.word_spans, flags([1] * 400), flags([1] * 400), number=100):
    lengths += np.bincount(groups)[:-1].tolist()  # the last span is cut by the end of the text
  assert set(lengths) == set(range(1, 11))
  assert abs(np.mean(lengths) - 3.8) < 0.08
  shares = np.bincount(lengths) / len(lengths)
  np.testing.assert_allclose(shares[2:] / shares[1:-1], 0.8, atol=0.12)


def shares(out, tokens, chosen):
  """Returns the fractions of masks, other tokens and kept tokens among the chosen."""
  out, tokens = out[chosen], tokens[chosen]
  masks, kept = (out == 99).mean(), (out == tokens).mean()
  return masks, 1 - masks - kept, kept


def test_eighty_ten_ten():
  """For 10,000 chosen tokens; random tokens are ordinary ids, and all of these occur."""
  tokens, chosen = np.full(20_000, 200, np.int32), np.arange(20_000) % 2 == 0
  replace = lambda groups, **rates: masking.replace(
    tokens, chosen, groups, tf.constant([1, 2]), mask_id=99, ordinary_ids=ORDINARY, **rates
  ).numpy()
  out = replace(tf.range(20_000))
  np.testing.assert_allclose(shares(out, tokens, chosen), (0.8, 0.1, 0.1), atol=0.01)
  np.testing.assert_array_equal(out[~chosen], 200)
  assert set(out) - {99, 200} == set(ORDINARY.tolist())
  out = replace(tf.range(20_000), mask_rate=0.9, random_rate=0.1)
  np.testing.assert_allclose(shares(out, tokens, chosen), (0.9, 0.1, 0.0), atol=0.01)
  # One draw per group: ten tokens of a group are masked, replaced or kept together.
  out = replace(tf.range(20_000) // 10).reshape(-1, 5, 2)[:, :, 0]
  fates = np.where(out == 99, 0, np.where(out == 200, 2, 1))
  assert (fates == fates[:, :1]).all()
  np.testing.assert_allclose(np.bincount(fates[:, 0]) / len(fates), (0.8, 0.1, 0.1), atol=0.03)
  assert (np.diff(out[fates[:, 0] == 1]) != 0).any()  # but random tokens are independent


@pytest.mark.parametrize("rates", [(1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (0.5, 0.5), (0.25, 0.5)])
def test_rates_of_the_replacement(rates):
  """Exact where a rate is 0 or 1; otherwise within five standard deviations. Random tokens are uniform."""
  tokens, number = np.full(20_000, 200, np.int32), 20_000
  options = {"mask_id": 99, "ordinary_ids": ORDINARY, "mask_rate": rates[0], "random_rate": rates[1]}
  out = masking.replace(tokens, np.ones(number, bool), tf.range(number), tf.constant([3, 4]), **options).numpy()
  for share, rate in zip(shares(out, tokens, np.ones(number, bool)), (*rates, 1 - sum(rates)), strict=True):
    assert abs(share - rate) <= 5 * np.sqrt(rate * (1 - rate) / number)
  drawn = out[(out != 99) & (out != 200)]
  counts = np.array([np.sum(drawn == token) for token in ORDINARY])
  assert np.all(np.abs(counts - len(drawn) / len(ORDINARY)) <= 5 * np.sqrt(len(drawn) / len(ORDINARY)))


def examples(vocabulary, *, inputs=16, targets=16, tokens=None, number=40, choose=masking.random_tokens, seed=0):
  """Returns the results of `masked_lm` for `number` copies of a document."""
  tokens = tf.range(3, 8) if tokens is None else tf.constant(tokens)
  documents = tf.data.Dataset.range(number).map(lambda _: {"targets": tokens})
  with seqio.utils.map_seed_manager(seed):
    dataset = masking.masked_lm(
      documents,
      {"inputs": inputs, "targets": targets, "loss_weights": inputs},
      {"targets": seqio.Feature(vocabulary)},
      choose=choose,
      merge_documents=False,
    )
  return [{key: value.tolist() for key, value in example.items()} for example in dataset.as_numpy_iterator()]


class Ids(seqio.PassThroughVocabulary):
  """Maps ids to themselves: 0 is padding, 1 EOS; further special ids are arguments."""

  def __init__(self, *, cls_id=None, sep_id=None, mask_id=None, bos_id=None, extra_ids=0):
    super().__init__(100 - extra_ids, eos_id=1)
    self._extra_ids = extra_ids
    self.cls_id, self.sep_id, self.mask_id, self._bos_id = cls_id, sep_id, mask_id, bos_id
    self.special_ids = {0, 1, 2, cls_id, sep_id, mask_id} - {None}

  @property
  def bos_id(self):
    return self._bos_id

  def token_texts(self):
    return ["x" if i < 50 else " x" for i in range(self._base_vocab_size)]


@pytest.mark.exhaustive
def test_masked_language_modelling():
  """The docstring's example, with EOS without [SEP]; targets are the text, weights mark chosen tokens."""
  found = examples(Ids(extra_ids=1), number=300)
  expected = {"inputs": [3, 99, 5, 6, 7, 1], "targets": [3, 4, 5, 6, 7, 1], "loss_weights": [0, 1, 0, 0, 0, 0]}
  assert expected in found
  assert all(sum(example["loss_weights"]) == 1 and example["targets"] == expected["targets"] for example in found)
  assert found == examples(Ids(extra_ids=1), number=300)
  assert found != examples(Ids(extra_ids=1), number=300, seed=1)


@pytest.mark.parametrize("choose", CHOICES.values(), ids=CHOICES)
def test_special_tokens_are_never_chosen(choose):
  """Special tokens around and inside the text are never chosen, nor used as random tokens."""
  vocabulary = Ids(cls_id=97, sep_id=98, mask_id=99, extra_ids=0)
  text = [5, 97, 50, 6, 98, 51, 2, 7, 52, 53, 1, 9]
  for example in examples(vocabulary, tokens=text, choose=choose, number=100):
    inputs, targets, weights = (np.array(example[key]) for key in ("inputs", "targets", "loss_weights"))
    special = np.isin(targets, [1, 2, 97, 98, 99])
    assert not weights[special].any() and weights.sum() in (1, 2)
    np.testing.assert_array_equal(inputs[weights == 0], targets[weights == 0])
    assert not np.isin(inputs[weights == 1], [0, 1, 2, 97, 98]).any()


@pytest.mark.slow
@pytest.mark.exhaustive_from(2)
@pytest.mark.parametrize("length", [1, 2, 3, 12, 13, 14, 40])
def test_lengths_and_segments(length):
  """No token is lost, lengths fit, and half of the examples with [CLS] have a second segment."""
  bert, roberta = Ids(cls_id=97, sep_id=98, mask_id=99), Ids(cls_id=97, sep_id=98, mask_id=99, bos_id=97)
  text = [3 + i % 40 for i in range(length)]
  for vocabulary in (bert, roberta, Ids(mask_id=99)):
    found = examples(vocabulary, tokens=text)
    targets = [example["targets"] for example in found]
    assert max(len(row) for row in targets) <= 16
    assert [token for row in targets for token in row if token not in (1, 97, 98)] == text * 40
    separators = [row.count(98) for row in targets]
    if vocabulary is bert:
      assert all(row[0] == 97 and row[-1] == 98 for row in targets)
      assert set(separators) == ({1, 2} if length > 1 else {1})
    elif vocabulary is roberta:
      assert set(separators) == {1} and all(row[0] == 97 and row[-1] == 98 for row in targets)
    else:
      assert set(separators) == {0} and all(row[-1] == 1 for row in targets)


def test_each_epoch_draws_its_own_noise():
  """Repeated texts have other masks, because seqio repeats before preprocessing."""
  found = examples(Ids(mask_id=99), tokens=[3 + i for i in range(15)])
  assert len({tuple(example["loss_weights"]) for example in found}) > 20


def test_what_does_not_work():
  with pytest.raises(UserError, match="config.data.targets_length=8 .*Set config.data.targets_length=16"):
    examples(Ids(mask_id=99), targets=8)
  with pytest.raises(UserError, match="config.data.inputs_length=3 .*Set config.data.inputs_length=4"):
    examples(Ids(cls_id=97, sep_id=98, mask_id=99), inputs=3)
  with pytest.raises(UserError, match="config.data.extra_ids=1"):
    examples(Ids())


def test_bytes_have_whole_words():
  """Words, with the space before them, are masked completely or not at all."""
  vocabulary = vocabularies.load("bytes", extra_ids=1)
  text = "a fox or two ran off to the far end of the old mill"
  starts = [i for i, letter in enumerate(text) if letter == " "]
  for example in examples(
    vocabulary, inputs=64, targets=64, tokens=vocabulary.encode(text), choose=masking.whole_words
  ):
    weights = example["loss_weights"]
    assert 4 <= sum(weights) <= 8 and weights[-1] == 0
    assert all(weights[i] == weights[i - 1] for i in range(1, len(text)) if i not in starts)
