"""Scores of texts: log-likelihoods, pseudo-log-likelihoods, windows, and independence of batches."""

import dataclasses
import functools
import types

import jax
import numpy as np
import pytest
import seqio
import toy

from t2t import UserError, sharding
from t2t.inference import (
  option_scores,
  predictor,
  prompt_features,
  pseudo_likelihood,
  text_scores,
  ties,
  token_logprobs,
)
from t2t.inference.text_scores import ScoredText, TextScore, windows

BYTES = seqio.ByteVocabulary(extra_ids=5)
FRAMING = prompt_features.PromptFraming(bos_id=0, eos_id=1, pad_id=0, cls_id=259, sep_id=260, mask_id=261)
TEXTS = [("the cat", " sat"), ("a", " very long continuation of a short text"), ("", "whole"), ("dogs", " bark at é")]
# Relative, learned and rotary positions; experts, local attention, halting and a bidirectional prefix.
KINDS = ("t5_1_1", "bert", "gpt2", "llama", "local_prefix_lm")
# Every kind with one normalization, and one kind with all of them; then the others.
_CHOICES = sorted(
  ((kind, normalize) for kind in KINDS for normalize in option_scores.NORMALIZATIONS),
  key=lambda pair: pair[0] != KINDS[0] and pair[1] != "mean",
)


@functools.cache
def model_of(kind: str, **fields):
  longest = {"max_length": 64} if toy.KINDS[kind].max_length else {}
  config = dataclasses.replace(toy.KINDS[kind], vocab_size=264, **longest, **fields)
  return config, *toy.split(toy.model(config, seed=3))


def scorer_of(kind: str, *, batch_size: int = 4, fields=(), **options):
  config, graphdef, params = model_of(kind, **dict(fields))
  mesh = sharding.make_mesh({"data": 1}, devices=jax.devices()[:1])
  reader = predictor.Predictor(config, graphdef, mesh, FRAMING, decode=None, batch_size=batch_size, max_inputs=64)
  return text_scores.Scorer(reader, BYTES, **options), params


def log_probabilities(kind: str, batch) -> np.ndarray:
  """Returns the log-softmax of the logits of one row, [length, vocab]."""
  config, *_ = model_of(kind)
  logits = toy.logits(toy.model(config, seed=3), jax.tree.map(jax.numpy.asarray, batch))
  return np.asarray(jax.nn.log_softmax(logits[0].astype(np.float32)))


# ---- Windows ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("first", [0, 3, 11])
@pytest.mark.parametrize(("width", "stride"), [(4, 1), (4, 2), (5, 5), (5, 3), (40, 20)])
def test_windows_score_each_token_once(is_causal, first, width, stride):
  """Windows fit the width, scored tokens are read, and every token from the first on is scored once."""
  length = 23
  spans = windows(length, width, stride, first=first, is_causal=is_causal)
  scored = [position for span in spans for position in range(span.first, span.last)]
  assert scored == list(range(first, length))
  for start, end, begin, last in spans:
    assert 0 <= start <= begin < last <= end <= length and end - start == min(width, length)
  assert all(
    later.first - later.start >= (width - stride if is_causal else (width - stride) // 2) for later in spans[1:]
  )


def test_the_windows_of_the_docstring():
  assert windows(10, 4, 2) == [(0, 4, 0, 4), (2, 6, 4, 6), (4, 8, 6, 8), (6, 10, 8, 10)]
  assert windows(8, 4, 2, is_causal=False) == [(0, 4, 0, 3), (2, 6, 3, 5), (4, 8, 5, 8)]
  assert windows(0, 4, 2) == []


@pytest.mark.parametrize(("length", "stride"), [(20, 3), (20, 5), (20, 6), (6, 3), (5, 3)])
def test_each_window_of_a_span_begins_with_its_sentinel(length, stride):
  """An encoder-decoder reads the unscored tokens in each window of the target; they take room, not scores."""
  config = dataclasses.replace(toy.KINDS["t5_1_1"], vocab_size=264)
  scorer = text_scores.Scorer(types.SimpleNamespace(config=config), BYTES, max_tokens=6, stride=stride)
  sentinel, target = 263, list(range(10, 10 + length))
  rows = scorer.rows(scorer.layout(ScoredText([sentinel, 1], [sentinel, *target], num_unscored=1)))
  assert all(row.prompt == [sentinel, 1] and row.target[0] == sentinel for row in rows)
  assert all(len(row.target) <= 6 and sentinel not in row.target[1:] for row in rows)
  assert [row.target[position] for row in rows for position in row.scored] == target
  assert len(rows) == (1 if length == 5 else 1 + -(-(length - 5) // min(stride, 5)))
  with pytest.raises(UserError, match="max_tokens=1: each window begins with 1 tokens that are not scored; give 2"):
    text_scores.Scorer(scorer.reader, BYTES, max_tokens=1).layout(ScoredText([1], [sentinel, 10], num_unscored=1))


# ---- Pseudo-log-likelihoods ------------------------------------------------------------------------------------------


def test_masks_of_each_rule():
  """The docstrings' examples; a word of three tokens masks its later tokens."""
  starts = np.array([True, False, True])
  rules = {name: [tuple(step) for step in rule(starts)] for name, rule in pseudo_likelihood.PSEUDO_LIKELIHOODS.items()}
  assert rules == {
    "pll_word_l2r": [([0], [0, 1]), ([1], [1]), ([2], [2])],
    "pll": [([0], [0]), ([1], [1]), ([2], [2])],
    "joint": [([0, 1, 2], [0, 1, 2])],
  }
  steps = pseudo_likelihood.word_left_to_right(np.array([True, False, False, True]))
  assert [masked for _, masked in steps] == [[0, 1, 2], [1, 2], [2], [3]]


@pytest.mark.slow
@pytest.mark.parametrize("rule", pseudo_likelihood.PSEUDO_LIKELIHOODS)
def test_pseudo_log_likelihoods_are_sums_over_masked_copies(rule):
  """Each token's log-probability where it is masked, with the prefix and the unmasked tokens as context."""
  scorer, params = scorer_of("bert", pseudo_likelihood=rule)
  (score,) = scorer(params, [("ab", "cd ef")])
  prompt, target = BYTES.encode("ab"), BYTES.encode("cd ef")
  starts = [True, False, True, False, False]  # a space starts a word
  expected, likeliest = 0.0, []
  for position in range(5):
    later = next((p for p in range(position + 1, 5) if starts[p]), 5)
    masked = {"joint": range(5), "pll": [position], "pll_word_l2r": range(position, later)}[rule]
    shown = [FRAMING.mask_id if p in masked else token for p, token in enumerate(target)]
    ids = np.array([[FRAMING.cls_id, *prompt, *shown, FRAMING.sep_id]], np.int32)
    batch = {"encoder_input_tokens": ids, "encoder_segment_ids": np.ones_like(ids)}
    log_p = log_probabilities("bert", batch)[1 + len(prompt) + position]
    expected += log_p[target[position]]
    likeliest.append(np.argmax(log_p) == target[position])
  np.testing.assert_allclose(score.log_p, expected, rtol=1e-5)
  assert (score.num_tokens, score.num_bytes, score.is_greedy) == (5, 5, all(likeliest))


# ---- Scores ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.exhaustive_from(2)
@pytest.mark.parametrize("kind", ["t5_1_1", "local_prefix_lm", "gpt2"])
def test_scores_of_generative_models(kind):
  """Scores equal the log-softmax of the logits at the continuation, and EOS in an encoder-decoder."""
  scorer, params = scorer_of(kind)
  apart = kind == "t5_1_1"
  end = [1] if apart else []
  for (prefix, text), score in zip(TEXTS, scorer(params, TEXTS), strict=True):
    prompt, target = [*BYTES.encode(prefix), *end], [*BYTES.encode(text), *end]
    widths = (len(prompt), len(target)) if apart else (len(prompt) + len(target),)
    row = predictor.ScoredRow(prompt, target)
    architecture = model_of(kind)[0].architecture
    batch = predictor.scored_features([row], widths, architecture=architecture, framing=FRAMING)
    log_p = log_probabilities(kind, batch)[-len(target) :]
    chosen = np.take_along_axis(log_p, np.array(target)[:, None], 1)[:, 0]
    np.testing.assert_allclose(score.log_p, chosen.sum(), rtol=1e-5)
    assert score.is_greedy == bool(np.all(chosen >= log_p.max(axis=1)))
    assert (score.num_tokens, score.num_bytes) == (len(target), len(text.encode()))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["t5_1_1", "gpt2", "bert"])
def test_the_greedy_continuation_is_greedy(kind):
  """The likeliest token after a prefix is greedy, and the unlikeliest is not."""
  scorer, params = scorer_of(kind)
  tokens = [[token] for token in range(3, 259)]
  scores = scorer(params, [ScoredText([5, 6, 1], token, 1) for token in tokens])
  order = np.argsort([score.log_p for score in scores])
  likeliest = [score.is_greedy for score in scores]
  # The likeliest of all ids may be a special id.
  assert sum(likeliest) <= 1 and not likeliest[order[0]]
  assert all(likeliest[position] is False for position in order[:-1])


@pytest.mark.slow
@pytest.mark.exhaustive_from(2)
@pytest.mark.parametrize("kind", KINDS)
def test_scores_do_not_depend_on_batch_or_order(kind):
  """Batches of 1, 4 and 16 rows and another order: equal scores up to far less than the tolerance of ties."""
  many = [*TEXTS, *((prefix * 3, text * 2) for prefix, text in TEXTS), ("x", "y")]
  scorer, params = scorer_of(kind, batch_size=1)
  expected = np.array([score.log_p for score in scorer(params, many)])
  for batch_size, step in ((4, 1), (16, 1), (4, -1)):
    other, _ = scorer_of(kind, batch_size=batch_size)
    actual = np.array([score.log_p for score in other(params, many[::step])])[::step]
    np.testing.assert_allclose(actual, expected, rtol=ties.TOLERANCE / 5)


@pytest.mark.slow
@pytest.mark.exhaustive_from(8)
@pytest.mark.parametrize(("kind", "normalize"), _CHOICES)
def test_choices_do_not_depend_on_the_batch(kind, normalize):
  """Batches of 1, 4 and 16 rows give the same best options, with ties among equal options."""
  options = ["yes", "no", "maybe not", "no", "é"]
  inputs = [BYTES.encode(text) for text in ("is it", "a long question about nothing?", "", "why", "so")]
  inputs = [[*tokens, 1] for tokens in inputs]
  candidates = [[option_scores.Option(text, tuple(BYTES.encode(text))) for text in options]] * len(inputs)
  choices = []
  for batch_size in (1, 4, 16):
    scorer, params = scorer_of(kind, batch_size=batch_size)
    ranker = option_scores.Ranker(scorer, normalize=normalize, neutral=[1])
    choices.append([option_scores.best(scores) for scores in ranker(params, inputs, candidates)])
  assert choices[0] == choices[1] == choices[2]
  # The empty input is the neutral context, so `unconditional` scores are all 0.
  assert all(tied in ([0], [1, 3], [2], [4], [0, 1, 2, 3, 4]) for tied in choices[0])


@pytest.mark.slow
def test_long_texts_are_scored_in_windows():
  """Each window equals a text of its own: context without weight, then the tokens it adds; and the note counts them."""
  scorer, params = scorer_of("gpt2", max_tokens=16, stride=4)
  text = "a sentence that is longer than sixteen bytes"
  scores = scorer.texts(params, [text, "short"])
  ids, whole = BYTES.encode(text), scorer_of("gpt2")[0]
  expected = whole(params, [([], ids[:16])])[0].log_p
  for first in range(16, len(ids), 4):
    last = min(first + 4, len(ids))
    context, added = ids[last - 16 : first], ids[first:last]
    expected += whole(params, [(context, added)])[0].log_p
  np.testing.assert_allclose(scores[0].log_p, expected, rtol=1e-5)
  assert scores[0].num_windows == 8 and scores[0].num_cut == 0 and scores[0].num_tokens == len(ids)
  assert scores[1].num_windows == 1
  note = scorer.long_note(scores)
  assert note.startswith("1 of 2 texts are longer than the 16 tokens") and "stride 4" in note
  assert scorer.long_note(scores[1:]) == ""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["t5_1_1", "gpt2", "local_prefix_lm", "bert"])
def test_no_prefix_is_cut_silently(kind):
  """A continuation after a long prefix is scored after the tokens that fit; the others are counted."""
  scorer, params = scorer_of(kind, max_tokens=16)
  prefix, text = "a prefix with more than sixteen bytes", " end"
  (score,) = scorer(params, [(prefix, text)])
  special = 2 if kind == "bert" else 0
  end = [1] if kind == "t5_1_1" else []
  room = 16 if kind == "t5_1_1" else 16 - special - 4
  kept = [*BYTES.encode(prefix), *end][-room:]
  (expected,) = scorer(params, [(kept, [*BYTES.encode(text), *end])])
  assert score.num_cut == len(prefix) + len(end) - room and score.log_p == expected.log_p
  assert "the beginning of 1 prefixes is not read" in scorer.long_note([score])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["t5_1_1", "gpt2", "bert"])
def test_single_tokens_sum_to_the_score_of_a_text(kind):
  """Also of texts in windows, whose tokens are in order; the likeliest token says what is greedy."""
  scorer, params = scorer_of(kind, max_tokens=12, stride=4)
  items = [ScoredText([7, 8, 9], list(range(10, 14))), ScoredText([7], list(range(10, 32))), ScoredText([7], [])]
  tokens = token_logprobs.TokenScorer(scorer, vocab_size=40)(params, items)
  for item, score, found in zip(items, scorer(params, items), tokens, strict=True):
    assert found.log_p.shape == found.ids.shape[:1] == (len(item.continuation),)
    np.testing.assert_allclose(found.log_p.sum(), score.log_p, rtol=1e-5, atol=1e-5)
    assert (found.log_p <= found.log_p_of[:, 0] + 1e-6).all()
    assert score.is_greedy == (found.log_p >= found.log_p_of[:, 0]).all()


@pytest.mark.slow
def test_a_window_within_a_text_starts_with_the_token_before_it():
  """The row of a decoder that starts with another token than BOS, against logits of that row."""
  scorer, params = scorer_of("gpt2")
  (log_p,), _ = scorer.reader.likelihoods(params, [predictor.ScoredRow([7], [8, 9], start=5)])
  row = predictor.ScoredRow([7], [8, 9])
  batch = predictor.scored_features([row], (4,), architecture="decoder_only", framing=FRAMING)
  batch["decoder_input_tokens"][0, 0] = 5
  expected = log_probabilities("gpt2", batch)
  np.testing.assert_allclose(log_p, expected[1, 8] + expected[2, 9], rtol=1e-5)


@pytest.mark.slow
def test_windows_of_an_encoder_have_context_on_both_sides():
  """The tokens in the middle are scored, and every token counts once."""
  scorer, params = scorer_of("bert", max_tokens=12, stride=4, pseudo_likelihood="pll")
  ids = BYTES.encode("twenty-one bytes long")
  (score,) = scorer(params, [([], ids)])
  expected = 0.0
  for start, end, first, last in windows(len(ids), 10, 4, is_causal=False):
    rows = [predictor.ScoredRow([], ids[start:end], [p - start]) for p in range(first, last)]
    expected += scorer.reader.likelihoods(params, rows)[0].sum()
  assert score.num_windows > 2 and score.num_tokens == len(ids)
  np.testing.assert_allclose(score.log_p, expected, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["t5_1_1", "gpt2", "bert"])
def test_the_softmax_is_float32_in_a_bfloat16_model(kind):
  """Scores of a bfloat16 model are no multiples of a bfloat16 step: sums of many tokens keep their fractions."""
  scorer, params = scorer_of(kind, fields=(("dtype", "bfloat16"),))
  scores = np.array([score.log_p for score in scorer(params, TEXTS)], np.float32)
  rounded = np.asarray(jax.numpy.asarray(scores, jax.numpy.bfloat16), np.float32)
  assert np.all(scores != rounded)
  exact, _ = scorer_of(kind)
  np.testing.assert_allclose(scores, [score.log_p for score in exact(params, TEXTS)], rtol=0.05)


def test_texts_of_one_row_are_encoded_together():
  """Tokens of the whole after those of the prefix; separately, if a token crosses the boundary."""
  scorer, _ = scorer_of("gpt2", encode=lambda text: [len(word) for word in text.split(" ") if word])
  assert scorer.tokens(ScoredText("the ca", " sat on")) == ([3, 2], [3, 2])
  assert scorer.tokens(ScoredText("the ca", "t sat")) == ([3, 2], [1, 3])
  ends, _ = scorer_of("gpt2", ends_prompts=True)
  assert ends.tokens(ScoredText("a", "b")) == ([100, 1], [101])
  assert scorer_of("t5_1_1")[0].tokens(ScoredText("", "b")) == ([1], [101, 1])


def test_an_empty_continuation_is_certain():
  """It has the log-probability 0 after any prefix, and no window."""
  scorer, params = scorer_of("gpt2", max_tokens=16)
  assert scorer(params, [("a prefix with more than sixteen bytes", ""), ("", [])]) == [TextScore(0.0, 0, 0, True)] * 2


# ---- Errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  ("kind", "options", "message"),
  [
    ("gpt2", {"max_tokens": 65}, "max_tokens=65: the model has 64 positions; give 1 to 64"),
    ("gpt2", {"max_tokens": 8, "stride": 9}, "stride=9, max_tokens=8: a window has 8 tokens"),
    ("bert", {"max_tokens": 2}, "max_tokens=2: a window has 0 tokens"),
    ("bert", {"pseudo_likelihood": "pl"}, "pseudo_likelihood=pl: unknown value.*did you mean pll"),
    ("gpt2", {"pseudo_likelihood": "pll"}, "only encoders have pseudo-log-likelihoods"),
  ],
)
def test_what_cannot_be_scored(kind, options, message):
  with pytest.raises(UserError, match=message):
    scorer_of(kind, **options)
