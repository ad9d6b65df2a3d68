"""From documents to chunks: the docstrings' examples, and no lost tokens."""

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t2t import UserError
from t2t.data.objectives import chunking


def rows(*rows_of_targets):
  dataset = tf.data.Dataset.from_tensor_slices(tf.ragged.constant(rows_of_targets, tf.int32))
  return dataset.map(lambda row: {"targets": row})


def lists(dataset):
  return [{key: value.tolist() for key, value in row.items()} for row in dataset.as_numpy_iterator()]


def test_docstring_examples(monkeypatch):
  assert lists(chunking.concatenate(rows([1, 2], [3], [4, 5]), group=2)) == [
    {"targets": [1, 2, 3]},
    {"targets": [4, 5]},
  ]
  parts = [{"targets": [1, 2]}, {"targets": [3, 4]}, {"targets": [5]}]
  assert lists(chunking.split(rows([1, 2, 3, 4, 5]), length=2)) == parts
  assert lists(chunking.cut(rows([1, 2], [3, 4, 5]), length=2, merge_documents=True)) == parts
  monkeypatch.setattr(chunking, "MAX_DOCUMENT", 2)
  whole = chunking.cut(rows([1, 2], [3, 4, 5]), length=2, merge_documents=True, whole_documents=True)
  assert lists(whole) == parts
  drawn = lists(chunking.random_chunk(rows(*[[1, 2, 3, 4, 5]] * 30)))
  assert {tuple(chunk["targets"]) for chunk in drawn} == {(1, 2), (3, 4), (5,)}


def test_text_to_ids():
  """Documents without a token are dropped."""
  documents = tf.data.Dataset.from_tensor_slices({"text": ["ab", "", "c"]})
  features = {"targets": seqio.Feature(seqio.ByteVocabulary())}
  assert lists(chunking.tokenize(documents, features)) == [{"targets": [100, 101]}, {"targets": [102]}]


def test_documents_apart_are_cut_on_their_own():
  cut = lists(chunking.cut(rows([1, 2], [3, 4, 5]), length=2, merge_documents=False))
  assert cut == [{"targets": [1, 2]}, {"targets": [3, 4]}, {"targets": [5]}]


@pytest.mark.parametrize("merge", [True, False])
def test_kinds_have_their_lengths(merge):
  """Each chunk has the length of its kind, except the last of a document or group; no token is lost."""
  documents = [list(range(100 * i, 100 * i + length)) for i, length in enumerate((1, 2, 3, 50, 7))]
  with seqio.utils.map_seed_manager(3):
    found = lists(chunking.cut_into_kinds(rows(*documents), lengths=(2, 3, 5), merge_documents=merge))
  assert [token for piece in found for token in piece["targets"]] == sum(documents, [])
  short = [piece for piece in found if len(piece["targets"]) != (2, 3, 5)[piece["kind"]]]
  assert len(short) <= (1 if merge else 5)
  assert all(len(piece["targets"]) < (2, 3, 5)[piece["kind"]] for piece in short)
  with seqio.utils.map_seed_manager(3):
    assert lists(chunking.cut_into_kinds(rows(*documents), lengths=(2, 3, 5), merge_documents=merge)) == found


@pytest.mark.slow
def test_kinds_are_equally_likely():
  """Kinds are equally likely although their lengths differ; the docstring's example occurs."""
  with seqio.utils.map_seed_manager(0):
    found = lists(chunking.cut_into_kinds(rows(*[[1] * 900] * 10), lengths=(2, 3, 10), merge_documents=False))
  counts = np.bincount([piece["kind"] for piece in found]) / len(found)
  np.testing.assert_allclose(counts, 1 / 3, atol=0.04)
  with seqio.utils.map_seed_manager(0):
    found = lists(chunking.cut_into_kinds(rows(*[[1, 2, 3, 4, 5, 6]] * 50), lengths=(2, 3), merge_documents=False))
  expected = [([1, 2], 0), ([3, 4, 5], 1), ([6], 1)]
  drawn = [(piece["targets"], piece["kind"]) for piece in found]
  assert any(drawn[i : i + 3] == expected for i in range(len(drawn)))


def test_room():
  lengths = {"inputs": 10, "targets": 4}
  assert chunking.room(lengths, {"inputs": 1}) == 9
  assert chunking.room(lengths, {"inputs": 1, "targets": 1}) == 3
  with pytest.raises(UserError, match="config.data.targets_length=4 is too short.*targets_length=6"):
    chunking.room(lengths, {"targets": 5})
