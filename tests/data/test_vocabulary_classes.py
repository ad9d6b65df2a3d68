"""Vocabularies without seqio are seqio's: the same ids, texts and comparisons, and instances of its classes."""

import copy
import pickle

import hypothesis
import hypothesis.strategies as st
import pytest
import seqio
import tensorflow as tf

from t2t.data import docs_corpus, vocabulary_classes
from t2t.data.vocabularies import training


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
  """Returns the path of a SentencePiece model of few pieces."""
  lines = docs_corpus.files()["train"].read_text()[:20_000].splitlines()
  return str(training.train_sentencepiece(lines, size=300, output_dir=tmp_path_factory.mktemp("pieces")))


def pairs(model):
  """Returns pairs of a vocabulary of t2t and seqio's."""
  return [
    (vocabulary_classes.SentencePieceVocabulary(model, extra_ids=5), seqio.SentencePieceVocabulary(model, extra_ids=5)),
    (vocabulary_classes.ByteVocabulary(extra_ids=3), seqio.ByteVocabulary(extra_ids=3)),
  ]


@hypothesis.settings(max_examples=20)
@hypothesis.given(st.text(max_size=20), st.lists(st.integers(0, 400), max_size=12))
def test_ids_and_texts_are_those_of_seqio(model, text, ids):
  for ours, theirs in pairs(model):
    assert list(ours.encode(text)) == list(theirs.encode(text))
    assert ours.decode(ids) == theirs.decode(ids)


def test_tensors_are_those_of_seqio(model):
  for ours, theirs in pairs(model):
    ids = theirs.encode_tf(tf.constant("some <extra_id_1> té"))
    assert ours.encode_tf(tf.constant("some <extra_id_1> té")).numpy().tolist() == ids.numpy().tolist()
    batch = tf.stack([ids, tf.reverse(ids, [0])])
    assert ours.decode_tf(batch).numpy().tolist() == theirs.decode_tf(batch).numpy().tolist()
    assert ours.decode(ids) == theirs.decode(ids)


def test_properties_and_comparisons_are_those_of_seqio(model):
  ours = [vocabulary_classes.PassThroughVocabulary(9, eos_id=4), *(pair[0] for pair in pairs(model))]
  theirs = [seqio.PassThroughVocabulary(9, eos_id=4), *(pair[1] for pair in pairs(model))]
  for number, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
    for name in ("pad_id", "eos_id", "unk_id", "vocab_size", "extra_ids"):
      assert getattr(mine, name) == getattr(other, name), name
    assert isinstance(mine, type(other)) and isinstance(mine, seqio.Vocabulary)
    assert [mine == x for x in theirs] == [other == x for x in ours] == [i == number for i in range(len(ours))]
    assert mine == copy.deepcopy(mine) == pickle.loads(pickle.dumps(mine))
  assert str(ours[1]) == str(theirs[1])
  assert [vocabulary_classes.is_bytes(x) for x in (*ours, *theirs)] == [False, False, True] * 2
  assert [vocabulary_classes.is_sentencepiece(x) for x in (*ours, *theirs)] == [False, True, False] * 2
