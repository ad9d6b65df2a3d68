"""Independent token noise: literal ids, T5's functions, and restored texts."""

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
import seqio
import tensorflow as tf

from t2t import UserError
from t2t.data import objectives, vocabularies
from t2t.data.objectives import corruption, iid_denoising

NAMES = ("drop_tokens", "iid_span_corruption", "iid_token_corruption")
TOKENS = [3, 4, 5, 6, 7, 8]
MASK = [False, True, True, False, True, False]


def divided(function, tokens=TOKENS, mask=MASK, **keywords):
  found = function(tf.constant(tokens, tf.int32), tf.constant(mask, tf.bool), **keywords)
  return {name: x.numpy().tolist() for name, x in found.items()}


def examples(name, *documents, inputs=512, targets=512, vocab_size=900, extra_ids=100, **options):
  """Returns the examples of an objective from documents; the last ids are sentinels, 1 is EOS."""

  class Ids(seqio.PassThroughVocabulary):
    def __init__(self):
      super().__init__(vocab_size, eos_id=1)
      self._extra_ids = extra_ids

  feature = seqio.Feature(Ids(), add_eos=True)
  dataset = tf.data.Dataset.from_tensor_slices({"targets": tf.ragged.constant(documents, tf.int32)})
  _, preprocessor, end = objectives.preprocessors(name, pack=True, **options)
  output_features = {"inputs": feature, "targets": feature}
  with seqio.utils.map_seed_manager(0):
    found = end(preprocessor(dataset, {"inputs": inputs, "targets": targets}, output_features), output_features)
  return [{key: value.tolist() for key, value in row.items()} for row in found.as_numpy_iterator()]


def test_docstring_examples():
  assert divided(iid_denoising.drop, TOKENS[:5], MASK[:5]) == {"inputs": [3, 6], "targets": [4, 5, 7]}
  sentinel = {"first_sentinel": 99}
  assert divided(iid_denoising.replace_runs, **sentinel) == {
    "inputs": [3, 99, 6, 98, 8],
    "targets": [99, 4, 5, 98, 7, 97],
  }
  assert divided(iid_denoising.replace_each, **sentinel) == {
    "inputs": [3, 99, 98, 6, 97, 8],
    "targets": [99, 4, 98, 5, 97, 7],
  }
  drawn = [
    iid_denoising.later_mask(6, tf.constant([seed, 7]), noise_density=0.3).numpy().tolist() for seed in range(100)
  ]
  assert [False, True, False, False, True, False] in drawn
  assert len({tuple(mask) for mask in drawn}) == 10  # all choices of 2 of the last 5
  assert iid_denoising.later_mask(1, tf.constant([0, 7]), noise_density=0.3).numpy().tolist() == [False]


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize(
  ("name", "density", "expected"),
  [
    ("drop_tokens", 0.3, {"inputs": [3, 5, 6, 8, 1], "targets": [4, 7, 1]}),
    ("iid_span_corruption", 0.5, {"inputs": [3, 99, 6, 98, 8, 1], "targets": [99, 4, 5, 98, 7, 97, 1]}),
    ("iid_token_corruption", 0.5, {"inputs": [3, 99, 98, 6, 97, 8, 1], "targets": [99, 4, 98, 5, 97, 7, 1]}),
  ],
)
def test_docstring_examples_of_datasets(name, density, expected):
  """The docstrings' examples plus EOS, for some seed."""
  options = {"noise_density": density, "vocab_size": 89, "extra_ids": 11}
  found = examples(name, *[TOKENS] * 400, inputs=16, targets=18, **options)
  assert expected in found and len({str(each) for each in found}) >= 10


def t5(function, tokens, mask, sentinel):
  """Implements the documented behaviour of the function in t5.data.preprocessors, in plain Python."""
  if function == "drop_noise_tokens":
    return [token for token, noise in zip(tokens, mask, strict=True) if not noise]
  if function == "drop_nonnoise_tokens":
    return t5("drop_noise_tokens", tokens, [not noise for noise in mask], sentinel)
  if function == "nonnoise_span_to_unique_sentinel":
    return t5("noise_span_to_unique_sentinel", tokens, [not noise for noise in mask], sentinel)
  assert function == "noise_span_to_unique_sentinel"
  out, before = [], False
  for token, noise in zip(tokens, mask, strict=True):
    if not noise:
      out.append(token)
    elif not before:
      out.append(sentinel)
      sentinel -= 1
    before = noise
  return out


masks = st.lists(st.booleans(), min_size=1, max_size=30)


@pytest.mark.slow
@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(masks)
def test_noise_and_text_are_divided_as_by_t5(mask):
  """Equal to T5's four functions, also for texts that begin with noise."""
  tokens = list(range(100, 100 + len(mask)))
  expected = lambda *names: {
    side: t5(name, tokens, mask, 99) for side, name in zip(("inputs", "targets"), names, strict=True)
  }
  assert divided(iid_denoising.drop, tokens, mask) == expected("drop_noise_tokens", "drop_nonnoise_tokens")
  spans = expected("noise_span_to_unique_sentinel", "nonnoise_span_to_unique_sentinel")
  assert divided(iid_denoising.replace_runs, tokens, mask, first_sentinel=99) == spans
  # Without neighbouring noise tokens, one sentinel per token equals one per span.
  alone = [noise and not mask[i - 1] for i, noise in enumerate(mask)]
  alone[0] = False
  each, runs = (
    divided(f, tokens, alone, first_sentinel=99) for f in (iid_denoising.replace_each, iid_denoising.replace_runs)
  )
  assert each["inputs"] == runs["inputs"] and runs["targets"][: len(each["targets"])] == each["targets"]


@pytest.mark.parametrize("name", NAMES)
def test_full_examples_and_what_they_hold(name):
  """512 inputs have the docstring's number of targets, and both contain the whole text."""
  text = list(range(100, 700))
  length = {"drop_tokens": 601, "iid_span_corruption": 511, "iid_token_corruption": 511}[name]
  longest = {"drop_tokens": 91, "iid_span_corruption": 156, "iid_token_corruption": 155}[name]
  noise = round(0.15 * length)
  found = examples(name, *[list(range(100, 100 + length))] * 60, targets=longest)
  assert len(found) == 60
  for example in found:
    inputs, targets = ([token for token in example[side] if token < 900][:-1] for side in ("inputs", "targets"))
    assert len(targets) == noise and sorted(inputs + targets) == list(range(100, 100 + length))
    assert inputs == sorted(inputs) and targets == sorted(targets)
  assert max(len(example["inputs"]) for example in found) <= 512
  with pytest.raises(UserError, match=f"targets_length={longest - 1} is too short.*targets_length={longest}"):
    examples(name, text, targets=longest - 1)
  if name != "iid_span_corruption":  # full only without neighbouring noise, which is rare for 77 tokens
    assert {(len(e["inputs"]), len(e["targets"])) for e in found} == {(512, longest)}
  if name != "drop_tokens":
    with pytest.raises(
      UserError, match=r"extra_ids=60 is too small. .*inputs_length=512 gives 7[78] noise spans.*extra_ids=7[78]"
    ):
      examples(name, text, extra_ids=60)
  with pytest.raises(UserError, match="config.data.inputs_length=2"):
    examples(name, text, inputs=2)


@pytest.mark.exhaustive_from(8)
@pytest.mark.parametrize("density", [0.15, 0.5, 0.9])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_longer_than_its_length(name, density):
  """Chunks of any length fit for every draw, including a single token."""
  documents = [list(range(100, 100 + length)) for length in (1, 2, 3, 5, 33, 40)] * 8
  found = examples(name, *documents, inputs=21, targets=400, noise_density=density, extra_ids=99)
  assert all(len(example["inputs"]) <= 21 and example["targets"] for example in found)
  tokens = [t for e in found for side in e.values() for t in side if 100 <= t < 900]
  assert sorted(tokens) == sorted(token for document in documents for token in document)


def test_one_side_restores_the_other():
  """Replacing each sentinel of the inputs by its targets restores the text."""
  for seed in range(40):
    tokens = tf.range(100, 140)
    mask = iid_denoising.later_mask(40, tf.constant([seed, 3]), noise_density=0.4)
    for function in (iid_denoising.replace_runs, iid_denoising.replace_each):
      found = function(tokens, mask, first_sentinel=99)
      spans = {}
      for token in found["targets"].numpy().tolist():
        if token < 100:
          spans[token] = last = []
        else:
          last.append(token)
      restored = [token for given in found["inputs"].numpy().tolist() for token in spans.get(given, [given])]
      assert restored == list(range(100, 140))


def test_noise_is_counted_as_it_is_drawn():
  """Python's count for lengths equals TensorFlow's count for noise."""
  for length in range(1, 200):
    for density in (0.05, 0.15, 0.5):
      assert iid_denoising._noise(length, density) == int(corruption.noise_count(length, density))


def test_bytes_have_sentinels_for_short_texts():
  """With a real vocabulary, the first sentinel is the last id."""
  vocabulary = vocabularies.load("bytes", extra_ids=20)
  dataset = tf.data.Dataset.from_tensors({"text": "one two three"})
  features = objectives.output_features("iid_token_corruption", vocabulary)
  with seqio.utils.map_seed_manager(1):
    for step in objectives.preprocessors("iid_token_corruption", pack=True):
      step = seqio.add_kwargs_to_transform(
        step, sequence_length={"inputs": 32, "targets": 32}, output_features=features
      )
      dataset = step(dataset)
    (found,) = dataset.as_numpy_iterator()
  assert found["targets"][0] == vocabulary.vocab_size - 1 and np.isin(found["targets"][0], found["inputs"])
