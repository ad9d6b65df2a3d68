"""Questions about texts in NumPy, for inference, are those of TensorFlow in training."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

from t2t.data import special_tokens, vocabularies
from t2t.data.head_examples import kinds, text_questions
from t2t.data.head_examples.reading import Reading

BYTES = vocabularies.load("bytes", extra_ids=1)
TEXTS = st.lists(st.text("ab é", max_size=9), min_size=1, max_size=3)
FRAMINGS = (((), (1,), (1,)), ((8,), (9,), (9,)), ((8,), (9, 9), (9,)), ((8,), (9,), ()))


@hypothesis.settings(max_examples=25)
@hypothesis.given(st.lists(st.integers(0, 20), min_size=1, max_size=4), st.integers(0, 50))
def test_lengths_that_fit(lengths, room):
  shortened = special_tokens.shortened(tf.constant(lengths), tf.constant(room))
  assert text_questions.shortened(lengths, room) == shortened.numpy().tolist()


def tensors(question):
  return {name: tf.constant(x, tf.string) for name, x in question.items()}


def assert_same(name, question, reading, **answer):
  kind = kinds.KINDS[name]
  found, expected = kind.read(question, reading), kind.make(tensors(question) | answer, reading)
  assert {"inputs", "inputs_uncut", "token_types", "texts", "answer_heads"} == set(found)
  for feature, values in found.items():
    np.testing.assert_array_equal(values, expected[feature].numpy(), err_msg=feature)
    assert values.dtype == np.int32


@pytest.mark.slow
@hypothesis.settings(max_examples=8)
@hypothesis.given(
  TEXTS, TEXTS, st.sampled_from(FRAMINGS), st.sampled_from(("first", "last")), st.booleans(), st.integers(48, 80)
)
def test_features_are_those_of_training(parts, candidates, framing, reads, whole, length):
  """Classes, scores and candidates, cut and uncut."""
  reading = Reading(BYTES, special_tokens.Framing(*framing), length, 2, reads, whole)
  short = Reading(BYTES, special_tokens.Framing(*framing), 14, 2, reads, whole)
  for each in (reading, short):
    assert_same("class", {"inputs": " ".join(parts), "parts": parts}, each, label=tf.constant(-1))
  assert_same("score", {"inputs": "a", "parts": parts}, reading, label=tf.constant(0.5))
  assert_same("choice", {"parts": parts, "candidates": candidates}, reading, label=tf.constant(0))


@hypothesis.settings(max_examples=8)
@hypothesis.given(st.text("ab ", max_size=20), st.text("ab ", max_size=20), st.sampled_from(FRAMINGS))
def test_blanks_are_those_of_training(before, after, framing):
  reading = Reading(BYTES, special_tokens.Framing(*framing), 16, 0, "first", False)
  texts = {"header": "h:", "blank_before": before, "blank_space": " ", "blank_after": after}
  found = text_questions.read_cloze(texts | {"inputs_uncut": np.array(40, np.int32)}, reading)
  answer = {"inputs_uncut": tf.constant(40), "label": tf.constant(0)}
  expected = kinds.KINDS["cloze"].make(tensors(texts) | answer, reading)
  for feature, values in found.items():
    np.testing.assert_array_equal(values, expected[feature].numpy(), err_msg=feature)
