"""Corruption of one sequence: literal ids, T5's arithmetic, and invariants for any length."""

import functools
import math

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf

from t2t import UserError
from t2t.data.objectives import corruption

T5 = {"noise_density": 0.15, "mean_noise_span_length": 3.0}
SEEDS = (tf.constant([0, 1]), tf.constant([2, 3]))
MASK = 9_999
LENGTHS = (1, 2, 3, 4, 5, 7, 20, 50, 333)


def draw(function, *arguments, number=300, **keywords):
  """Returns the results of `function` for `number` seeds, run as in a preprocessor."""
  dataset = tf.data.Dataset.range(number).map(
    lambda i: function(*arguments, tf.stack([tf.cast(i, tf.int32), 7]), **keywords)
  )
  to_list = lambda x: {key: value.tolist() for key, value in x.items()} if isinstance(x, dict) else x.tolist()
  return [to_list(drawn) for drawn in dataset.as_numpy_iterator()]


def text(length):
  """Returns distinct ids from 100 on."""
  return tf.range(100, 100 + length)


def test_t5_lengths():
  """568 raw tokens become 512 inputs and 114 targets, as in T5."""
  assert corruption.span_lengths(512, **T5) == corruption.SpanLengths(raw=568, inputs=512, targets=114, spans=28)
  assert corruption.span_counts(568, **T5) == (85, 28)


def test_docstring_examples_of_spans():
  sentinels = corruption.spans_to_sentinels(
    tf.constant([7, 8, 9, 4, 5]), tf.constant([False, True, True, False, True]), first_sentinel=99
  )
  np.testing.assert_array_equal(sentinels, [7, 99, 4, 98])
  corrupted = corruption.corrupt_spans(tf.range(3, 9), SEEDS, first_sentinel=99, noise_density=0.3)
  np.testing.assert_array_equal(corrupted["inputs"], [3, 4, 5, 6, 99])
  np.testing.assert_array_equal(corrupted["targets"], [99, 7, 8])


def test_the_mask_of_a_seed_is_fixed():
  """Noise is stateless: these seeds always give these spans."""

  def draw(seeds):
    return corruption.noise_mask(tf.constant(8), seeds, noise_density=0.4, mean_noise_span_length=1.5)

  np.testing.assert_array_equal(draw(SEEDS), draw(SEEDS))
  drawn = {tuple(draw((tf.constant([i, 1]), tf.constant([i, 2]))).numpy().tolist()) for i in range(40)}
  assert (False, False, True, False, False, False, True, True) in drawn  # the docstring's example
  assert len(drawn) == 2 * 4  # 3 noise tokens in 2 spans, times 5 others in 2 spans: all combinations


def test_partitions_are_all_reached():
  """5 items in 3 parts: all 6 partitions, each part at least 1."""
  ways = {tuple(corruption.random_partition(5, 3, tf.constant([i, 7])).numpy().tolist()) for i in range(60)}
  assert ways == {(1, 1, 3), (1, 3, 1), (3, 1, 1), (1, 2, 2), (2, 1, 2), (2, 2, 1)}


def restored(inputs, targets):
  """Returns the text of span corruption, with each sentinel of the inputs replaced by its span in the targets."""
  spans = {}
  for token in targets:
    if token > 9000:
      spans[token] = []
    else:
      spans[max(spans, key=lambda s: -s)].append(token)  # the latest sentinel is the smallest
  rebuilt = []
  for token in inputs:
    rebuilt += spans.pop(token) if token > 9000 else [token]
  return rebuilt


@hypothesis.settings(max_examples=25, deadline=None)
@hypothesis.given(length=st.integers(1, 700), seed=st.integers(0, 2**30), density=st.sampled_from([0.15, 0.3, 0.5]))
def test_inputs_and_targets_hold_the_text(length, seed, density):
  """Replacing sentinels by the spans restores the text, and the lengths are as computed."""
  tokens = np.arange(1, length + 1, dtype=np.int32)
  seeds = (tf.constant([seed, 0]), tf.constant([seed, 1]))
  out = corruption.corrupt_spans(tf.constant(tokens), seeds, first_sentinel=9999, noise_density=density)
  inputs, targets = out["inputs"].numpy(), out["targets"].numpy()
  if length > 1:
    np.testing.assert_array_equal(restored(inputs, targets), tokens)
    noise, count = corruption.span_counts(length, noise_density=density, mean_noise_span_length=3.0)
    assert (len(inputs), len(targets)) == (length - noise + count, noise + count)
    assert targets[0] == 9999
  else:
    assert inputs.tolist() == [1] and targets.tolist() == [9999]


def test_an_infinite_span_is_the_end_of_the_text():
  """UL2's S-denoising masks the last quarter for any seed."""
  for length in (2, 3, 10, 100):
    kinds = {
      "noise_density": tf.constant(0.25, tf.float64),
      "mean_noise_span_length": tf.constant(math.inf, tf.float64),
    }
    out = corruption.corrupt_spans(text(length), SEEDS, first_sentinel=9999, **kinds)
    noise = max(round(length / 4), 1)
    np.testing.assert_array_equal(out["inputs"], [*range(100, 100 + length - noise), 9999])
    np.testing.assert_array_equal(out["targets"], [9999, *range(100 + length - noise, 100 + length)])
    counts = corruption.span_counts(length, noise_density=0.25, mean_noise_span_length=math.inf)
    assert counts == (noise, 1)


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(
  inputs_length=st.integers(3, 600),
  density=st.floats(0.05, 0.8),
  mean=st.one_of(st.floats(1.0, 10.0), st.just(math.inf)),
  shorter=st.integers(0, 599),
)
def test_no_piece_is_longer_than_the_full_one(inputs_length, density, mean, shorter):
  """Remainders of documents fit as well, so that nothing is trimmed."""
  arguments = {"noise_density": density, "mean_noise_span_length": mean}
  full = corruption.span_lengths(inputs_length, **arguments)
  length = max(1, full.raw - shorter)
  noise, spans = corruption.span_counts(length, **arguments)
  assert full.inputs <= inputs_length
  assert max(length, 2) - noise + spans + 1 <= full.inputs
  assert noise + spans + 1 <= full.targets


@pytest.mark.parametrize(
  "arguments, message",
  [
    ({"targets_length": 113}, "config.data.targets_length=113 is too short.*targets_length=114"),
    ({"extra_ids": 27}, "config.data.extra_ids=27.*28 noise spans.*extra_ids=28"),
    ({"noise_density": 1.0}, "config.data.noise_density=1.0"),
    ({"mean_noise_span_length": 0.5}, "config.data.mean_noise_span_length=0.5"),
    ({"inputs_length": 2}, "config.data.inputs_length=2"),
  ],
)
def test_lengths_that_do_not_work(arguments, message):
  """Each message names its key and a valid value."""
  given = {"inputs_length": 512, "targets_length": 114, "extra_ids": 100, **T5, **arguments}
  with pytest.raises(UserError, match=message):
    corruption.check_lengths(given.pop("inputs_length"), given.pop("targets_length"), **given)


def test_lengths_of_several_kinds_of_noise():
  """The error's values fit all kinds, and mode tokens reduce the inputs."""
  noise = [(0.15, 3.0), (0.5, 3.0)]
  with pytest.raises(
    UserError, match="targets_length=114 is too short.*Set config.data.targets_length=(?P<n>[0-9]+)"
  ) as e:
    corruption.check_mixture(512, 114, noise=noise, extra_ids=1000, mode_length=5)
  targets_length = int(str(e.value).rsplit("=", 1)[1].removesuffix("."))
  with pytest.raises(UserError, match="extra_ids=28.*Set config.data.extra_ids=") as e:
    corruption.check_mixture(512, targets_length, noise=noise, extra_ids=28, mode_length=5)
  extra_ids = int(str(e.value).split("Set config.data.extra_ids=")[1].split()[0])
  kinds = corruption.check_mixture(512, targets_length, noise=noise, extra_ids=extra_ids, mode_length=5)
  assert kinds[0] == corruption.span_lengths(507, **T5)
  with pytest.raises(
    UserError, match="inputs_length=7 is too short for 5 mode tokens, .* Set config.data.inputs_length=8"
  ):
    corruption.check_mixture(7, 114, noise=noise, extra_ids=28, mode_length=5)


# ---- Independent noise -----------------------------------------------------------------------------------------------


def test_docstring_examples_of_draws():
  assert int(corruption.noise_count(10, 0.15)) == 2
  np.testing.assert_array_equal(corruption.lowest(tf.constant([0.3, 0.1, 0.9, 0.1]), 2), [False, True, False, True])
  masks = draw(corruption.random_mask, 6, noise_density=0.3)
  assert [False, True, False, False, True, False] in masks
  assert len({tuple(mask) for mask in masks}) == 15  # all choices of 2 of 6


def test_noise_counts():
  """The count is the rounded fraction, at least one, and at most the number of tokens."""
  counted = {n: int(corruption.noise_count(n, 0.15)) for n in (0, 1, 2, 6, 10, 11, 100, 512)}
  assert counted == {0: 0, 1: 1, 2: 1, 6: 1, 10: 2, 11: 2, 100: 15, 512: 77}


# ---- Each kind of noise ----------------------------------------------------------------------------------------------

ENDS = np.arange(10_000) % 10 == 9  # ids that end a sentence
# Name -> (function, the docstring's input, options, the docstring's output).
EXAMPLES = {
  "random_prefix": (corruption.random_prefix, [3, 4, 5, 6, 7], {}, {"inputs": [3, 4], "targets": [5, 6, 7]}),
  "prefix, suffix, middle": (
    corruption.fill_in_the_middle,
    [3, 4, 5, 6, 7],
    {"marks": (97, 98, 99), "eos_id": 1},
    [97, 3, 98, 6, 7, 99, 4, 5, 1],
  ),
  "suffix, prefix, middle": (
    corruption.fill_in_the_middle,
    [3, 4, 5, 6, 7],
    {"marks": (97, 98, 99), "eos_id": 1, "suffix_first": True},
    [97, 98, 6, 7, 99, 3, 4, 5, 1],
  ),
  "mask_tokens": (
    corruption.mask_tokens,
    [3, 4, 5, 6, 7, 8],
    {"mask_id": 99, "noise_density": 0.3},
    [3, 99, 5, 6, 99, 8],
  ),
  "delete_tokens": (corruption.delete_tokens, [3, 4, 5, 6, 7, 8], {"noise_density": 0.3}, [3, 5, 6, 8]),
  "infill": (
    corruption.infill,
    [3, 4, 5, 6, 7, 8, 9, 10],
    {"mask_id": 99, "noise_density": 0.5},
    [3, 99, 6, 7, 99, 10],
  ),
  "permute_sentences": (
    corruption.permute_sentences,
    [3, 4, 9, 5, 9, 6, 7],
    {"sentence_ends": ENDS},
    [5, 9, 6, 7, 3, 4, 9],
  ),
  "permute_and_infill": (
    corruption.permute_and_infill,
    [3, 4, 9, 5, 9, 6, 7],
    {"sentence_ends": ENDS, "mask_id": 99, "noise_density": 0.4},
    [5, 9, 6, 99, 9],
  ),
  "rotate": (corruption.rotate, [3, 4, 5, 6, 7], {}, [6, 7, 3, 4, 5]),
  "shuffle": (corruption.shuffle, [3, 4, 5, 6], {}, [5, 3, 6, 4]),
  "mask_fragment": (
    corruption.mask_fragment,
    [3, 4, 5, 6, 7, 8],
    {"mask_id": 99},
    {"inputs": [3, 4, 99, 99, 99, 8], "targets": [5, 6, 7]},
  ),
}


@pytest.mark.slow
@pytest.mark.exhaustive_from(2)
@pytest.mark.parametrize("name", EXAMPLES)
def test_docstring_examples(name):
  """Some seed gives the docstring's output, reproducibly, and others differ."""
  function, tokens, keywords, expected = EXAMPLES[name]
  drawn = draw(function, tf.constant(tokens), number=2_000, **keywords)
  assert expected in drawn
  assert drawn[:20] == draw(function, tf.constant(tokens), number=20, **keywords)
  assert any(other != drawn[0] for other in drawn)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_prefix_and_what_follows_are_the_text(length):
  for out in draw(corruption.random_prefix, text(length), number=50):
    assert out["inputs"] + out["targets"] == text(length).numpy().tolist()
    assert out["targets"]
    assert out["inputs"] or length == 1


def test_every_split_is_reached():
  splits = {len(out["inputs"]) for out in draw(corruption.random_prefix, text(7))}
  assert splits == set(range(1, 7))


@pytest.mark.parametrize("length", LENGTHS)
def test_the_middle_fills_the_gap(length):
  """Both orders contain the text: the middle belongs between prefix and suffix."""
  before, behind, between, eos = marks = (1, 2, 3, 4)
  move = functools.partial(corruption.fill_in_the_middle, marks=marks[:3], eos_id=eos)
  for out in draw(move, text(length), number=50):
    assert out[0] == before and out[-1] == eos and len(out) == length + 4
    prefix, rest = out[1 : out.index(behind)], out[out.index(behind) + 1 : -1]
    suffix, middle = rest[: rest.index(between)], rest[rest.index(between) + 1 :]
    assert prefix + middle + suffix == text(length).numpy().tolist()
  for out in draw(move, text(length), number=50, suffix_first=True):
    assert out[:2] == [before, behind] and out[-1] == eos and len(out) == length + 4
    suffix, start = out[2 : out.index(between)], out[out.index(between) + 1 : -1]
    assert start + suffix == text(length).numpy().tolist()


@pytest.mark.exhaustive_from(17)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("density", [0.15, 0.3, 0.9])
def test_masks_and_deletions_keep_the_count(length, density):
  noise = int(corruption.noise_count(length, density))
  tokens = text(length).numpy().tolist()
  for out in draw(corruption.mask_tokens, text(length), number=20, mask_id=MASK, noise_density=density):
    assert out.count(MASK) == noise
    assert all(new in (MASK, old) for new, old in zip(out, tokens, strict=True))
  for out in draw(corruption.delete_tokens, text(length), number=20, noise_density=density):
    assert len(out) == length - noise
    assert out == [token for token in tokens if token in out]


def fills(inputs, tokens):
  """Returns True if the inputs' masks can be filled with any numbers of tokens to give the text."""
  parts, part = [], []
  for token in [*inputs, MASK]:
    if token == MASK:
      parts.append(part)
      part = []
    else:
      part.append(token)
  if len(parts) == 1:
    return inputs == tokens
  at = len(parts[0])
  if tokens[:at] != parts[0]:
    return False
  for part in parts[1:-1]:
    while part and tokens[at : at + len(part)] != part:
      at += 1
      if at > len(tokens):
        return False
    at += len(part)
  last = parts[-1]
  return not last or (tokens[-len(last) :] == last and at <= len(tokens) - len(last))


@pytest.mark.exhaustive_from(12)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("density, mean", [(0.3, 3.0), (0.15, 1.0), (0.9, 10.0)])
def test_infilled_masks_stand_for_the_missing_tokens(length, density, mean):
  """Exactly the noise is missing, in order, and inputs are never longer than the text."""
  tokens = text(length).numpy().tolist()
  noise = int(corruption.noise_count(length, density))
  keywords = {"mask_id": MASK, "noise_density": density, "mean_noise_span_length": mean}
  for out in draw(corruption.infill, text(length), number=40, **keywords):
    assert len(out) - out.count(MASK) == length - noise
    assert fills(out, tokens)
    assert 1 <= out.count(MASK) <= noise
    assert len(out) <= length


def test_infilling_draws_poisson_lengths():
  """In 100,000 tokens, spans have a mean of 3 tokens, and a twentieth of the masks are insertions."""
  tokens, inserted, masks, missing = tf.range(1, 2001), 0, 0, 0
  for out in draw(corruption.infill, tokens, number=50, mask_id=MASK):
    masks += out.count(MASK)
    missing += 600
    # A mask between neighbours of the text hides nothing.
    inserted += sum(
      middle == MASK and left != MASK and right == left + 1
      for left, middle, right in zip(out, out[1:], out[2:], strict=False)
    )
  assert abs(missing / masks - 3.0) < 0.06
  # Six of seven neighbours are text: 1,400 tokens to 211 masks.
  assert abs(inserted / masks - math.exp(-3) * (1400 / 1611) ** 2) < 0.01


def sentences(tokens):
  """Splits after each id that ends a sentence; of several consecutive ends, after the last."""
  found = [[]]
  for i, token in enumerate(tokens):
    found[-1].append(token)
    if ENDS[token] and not (i + 1 < len(tokens) and ENDS[tokens[i + 1]]):
      found.append([])
  return [sentence for sentence in found if sentence]


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(tokens=st.lists(st.integers(1, 30), min_size=1, max_size=60), seed=st.integers(0, 2**30))
def test_sentences_are_permuted_whole(tokens, seed):
  """Each sentence occurs once and whole, including text after the last end."""
  out = corruption.permute_sentences(tf.constant(tokens), tf.constant([seed, 1]), sentence_ends=ENDS)
  out = out.numpy().tolist()
  left = sorted(sentences(tokens), key=len, reverse=True)
  assert sorted(out) == sorted(tokens)

  def consists(rest, left):
    if not rest:
      return not left
    heads = {tuple(sentence) for sentence in left if rest[: len(sentence)] == sentence}
    for head in heads:
      others = list(left)
      others.remove(list(head))
      if consists(rest[len(head) :], others):
        return True
    return False

  assert consists(out, left)


def test_every_order_of_sentences_is_reached():
  orders = {
    tuple(out) for out in draw(corruption.permute_sentences, tf.constant([1, 9, 2, 3, 9, 9, 4]), sentence_ends=ENDS)
  }
  assert len(orders) == 6
  assert all(order[order.index(2) :][:4] == (2, 3, 9, 9) for order in orders)  # two consecutive ends end one sentence


@pytest.mark.parametrize("length", LENGTHS)
def test_rotations_and_shuffles_are_permutations(length):
  tokens = text(length).numpy().tolist()
  starts = set()
  for out in draw(corruption.rotate, text(length), number=100):
    start = tokens.index(out[0])
    assert out == tokens[start:] + tokens[:start]
    starts.add(start)
  assert len(starts) == length or length > 10
  for out in draw(corruption.shuffle, text(length), number=20):
    assert sorted(out) == tokens
  assert len({tuple(out) for out in draw(corruption.shuffle, text(length))}) >= min(300, math.factorial(length)) * 0.9


@pytest.mark.exhaustive_from(16)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("density", [0.5, 0.3])
def test_the_fragment_restores_the_text(length, density):
  tokens = text(length).numpy().tolist()
  count = int(corruption.noise_count(length, density))
  starts = set()
  for out in draw(corruption.mask_fragment, text(length), number=100, mask_id=MASK, noise_density=density):
    start = out["inputs"].index(MASK)
    assert len(out["targets"]) == count == out["inputs"].count(MASK)
    assert out["inputs"][:start] + out["targets"] + out["inputs"][start + count :] == tokens
    starts.add(start)
  assert {0, length - count} <= starts or length > 20
