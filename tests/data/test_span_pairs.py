"""Examples with two spans of a text: tokens of spans, cuts, errors, WSC's records, and the head's vectors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
import toy

from t2t import UserError
from t2t.data import head_examples, preprocessors, special_tokens, vocabularies
from t2t.data.head_examples import span_pairs
from t2t.data.head_examples.reading import Reading
from t2t.models import span_pair
from t2t.models.head_config import HeadConfig

pytestmark = pytest.mark.slow

BYTES = vocabularies.load("bytes", extra_ids=0)
BERT = special_tokens.Framing((101,), (102,), (102,))
QUESTION = {"text": "Ann said she won", "spans": [[0, 3], [9, 12]], "label": 1, "options": ["no", "yes"]}


def make(example, *, vocabulary=BYTES, length=64):
  reading = Reading(vocabulary, BERT, length, 0, "spans", False, "wsc")
  record = {name: tf.constant(x) for name, x in example.items()}
  (found,) = tf.data.Dataset.from_tensors(record).map(lambda x: span_pairs.make(x, reading)).as_numpy_iterator()
  return {name: x.tolist() for name, x in found.items()}


def test_docstring_example(tmp_path):
  """Words as tokens; targets have 1 or 2, and 4 times the class."""
  (tmp_path / "vocab.txt").write_text(
    "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *["ann", "said", "she", "won"]])
  )
  assert make(QUESTION, vocabulary=vocabularies.load(str(tmp_path / "vocab.txt"))) == {
    "inputs": [101, 5, 6, 7, 8, 102],
    "token_types": [0] * 6,
    "texts": [0] * 6,
    "answer_heads": [0, 1, 0, 1, 0, 0],
    "answer_marks": [0, 1, 0, 2, 0, 0],
    "answer_targets": [0, 5, 0, 6, 0, 0],
    "inputs_uncut": 6,
    "has_answer": True,
  }


def test_both_spans_stay_in_a_cut_text():
  """The end is cut, or the beginning if a span is at the end; an unknown label is no answer; spans may overlap."""
  text = "Ann " + "x" * 30 + " she"
  whole = make(QUESTION | {"text": text, "spans": [[0, 3], [35, 38]]})
  assert (
    len(whole["inputs"]) == 40 and whole["answer_marks"][1:4] == [1] * 3 and whole["answer_marks"][-4:-1] == [2] * 3
  )
  early = make(QUESTION | {"text": text, "spans": [[0, 3], [5, 9]]}, length=20)
  assert early["inputs"][1:19] == BYTES.encode(text)[:18] and early["inputs_uncut"] == 40
  late = make(QUESTION | {"text": text, "spans": [[33, 34], [35, 38]], "label": -1}, length=20)
  assert late["inputs"][1:19] == BYTES.encode(text)[-18:] and not late["has_answer"]
  assert make(QUESTION | {"spans": [[0, 8], [4, 8]]})["answer_marks"][1:9] == [1] * 3 + [0] + [3] * 4
  with pytest.raises(tf.errors.OpError, match="inputs_length=20 is too short: two spans of wsc need 40 tokens"):
    make(QUESTION | {"text": text, "spans": [[0, 3], [35, 38]]}, length=20)
  for span in ([3, 3], [-1, 2], [10, 99]):
    with pytest.raises(tf.errors.OpError, match=r"wsc: the span \[.*\] has no token of the text 'Ann said she won'"):
      make(QUESTION | {"spans": [[0, 3], span]})


def test_an_example_without_an_answer():
  """Inference converts texts with bounds; the head knows which tokens are in the spans."""
  head = HeadConfig("same", 2, "span_pair", ("no", "yes"))
  converter = head_examples.HeadFeatureConverter(BYTES, "encoder_only", head, 64)
  assert converter.fields == {"text", "spans"}
  features, cut = converter({"text": "Ann won", "spans": np.array([[0, 3], [4, 7]], np.int32)})
  assert features["answer_marks"].tolist() == [1, 1, 1, 0, 2, 2, 2, 0] and cut == 0
  assert "answer_targets" not in features


def bounds(text, first, second, indices=(0, 7)):
  record = {"text": text, "span1_text": first, "span2_text": second, "label": 1, "idx": 4}
  record |= {"span1_index": indices[0], "span2_index": indices[1]}
  dataset = tf.data.Dataset.from_tensors({name: tf.constant(x) for name, x in record.items()})
  (found,) = preprocessors.wsc_spans(dataset, labels=("False", "True")).as_numpy_iterator()
  return found


def test_spans_of_wsc():
  """The docstring's example; the nearest mention of the words, with punctuation left out."""
  text = "Mark told Pete many lies about himself. He lied."
  found = bounds(text, "Mark", "He")
  assert found["spans"].tolist() == [[0, 4], [40, 42]]
  assert found["inputs"].decode() == f"wsc span1: Mark span2: He text: {text}"
  assert (found["targets"], found["text"].decode(), found["head"]) == (b"True", text, b"wsc_spans")
  twice = "The big dog saw the dog. It saw it."
  for index, start in ((2, 8), (5, 20)):
    assert bounds(twice, "dog", "it", (index, 8))["spans"].tolist() == [[start, start + 3], [32, 34]]
  assert bounds(twice, "the dog", "It", (4, 6))["spans"].tolist() == [[16, 23], [25, 27]]
  assert bounds(twice, "cat", "It", (2, 6))["spans"].tolist()[0] == [8, 11]  # the word at the index


@functools.cache
def head_of(**fields):
  config = toy.encoder(heads=(HeadConfig("pair", 3, "span_pair", **fields),))
  return toy.model(config).heads["pair"], config


def test_the_vectors_of_spans():
  """First state, last state and mean with softmax weights, of both and of their product, for packed examples."""
  head, config = head_of()
  hidden = np.random.default_rng(0).normal(size=(1, 7, config.embed_dim)).astype(np.float32)
  marks, groups = np.array([[1, 3, 2, 0, 2, 1, 0]]), np.array([[1, 1, 1, 2, 2, 2, 0]])
  found = jax.jit(head.read)(hidden, marks, groups)

  def of(places):
    states, logits = hidden[0, places], hidden[0, places] @ np.asarray(head.attention[...])
    weights = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    return np.concatenate([states[0], states[-1], weights @ states])

  for row, first, second in ((slice(0, 3), [0, 1], [1, 2]), (slice(3, 6), [5], [4])):
    expected = np.concatenate([of(first), of(second), of(first) * of(second)])
    np.testing.assert_allclose(found[0, row], np.tile(expected, (3, 1)), atol=1e-5)
  other = hidden.copy()
  other[0, [3, 6]] = 9.0  # outside of the spans
  np.testing.assert_allclose(head.read(jnp.asarray(other), marks, groups)[0, :6], found[0, :6], atol=1e-6)


def test_the_scorer_is_a_layer_with_relu_by_default():
  """For decoders, too; its input has nine times the width. It reads nothing but spans."""
  head, config = head_of()
  assert head.pooler.shape == (9 * config.embed_dim, config.embed_dim) and head.activation == "relu"
  assert HeadConfig("pair", 3, "span_pair").spelled_out(toy.decoder().kind).pooler == "relu"
  with pytest.raises(UserError, match="pair has reads='mean', but a span_pair head reads two spans"):
    HeadConfig("pair", 3, "span_pair", reads="mean")
  with pytest.raises(UserError, match="pair has layers='mix', but a span_pair head reads the last layer"):
    HeadConfig("pair", 3, "span_pair", layers="mix")
  assert span_pair.FIRST | span_pair.SECOND < 2**span_pair.CLASS_BITS
