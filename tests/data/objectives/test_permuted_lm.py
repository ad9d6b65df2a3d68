"""Permutation language modelling: chosen tokens in spans, ranks in a random order, and no masks."""

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t2t import UserError
from t2t.configs import default
from t2t.configuration import loading
from t2t.data import train_data
from t2t.data.objectives import chunking, corruption, permuted_lm, registry
from t2t.training import recipe


def seeds(number):
  return [tf.constant([number, i], tf.int32) for i in range(20)]


def test_spans_have_their_context_and_exactly_the_count():
  """A sixth of 512 tokens, mostly in spans of 1 to 5, in all parts of the text."""
  candidates = tf.ones([512], tf.bool)
  counts = np.zeros(512)
  spans = []
  for seed in seeds(0):
    chosen = permuted_lm.spans_in_context(candidates, candidates, seed, noise_density=1 / 6)[0].numpy()
    assert chosen.sum() == int(corruption.noise_count(tf.constant(512), 1 / 6)) == 85
    counts += chosen
    edges = np.flatnonzero(np.diff(np.pad(chosen.astype(int), 1)))
    spans += (edges[1::2] - edges[::2]).tolist()
  assert 1.3 < np.mean(spans) < 2.5 and max(spans) < 12
  assert np.all(counts.reshape(8, 64).sum(1) / (20 * 64) > 0.1)


def test_only_candidates_are_chosen():
  """Special tokens are never predicted."""
  candidates = tf.constant([False] + [True] * 40 + [False])
  for seed in seeds(1):
    chosen = permuted_lm.spans_in_context(candidates, candidates, seed)[0].numpy()
    assert not chosen[0] and not chosen[-1] and chosen.sum() == 7


def test_ranks_number_the_chosen_tokens_in_any_order():
  """From 1, each once; the others have rank 0."""
  chosen, orders = tf.constant([True, False, False, True, True]), set()
  for seed in seeds(2):
    ranks = permuted_lm.ranks(chosen, seed).numpy()
    assert sorted(ranks[[0, 3, 4]]) == [1, 2, 3] and not ranks[[1, 2]].any()
    orders.add(tuple(ranks))
  assert len(orders) > 3


@pytest.mark.slow
def test_examples_have_unmasked_tokens_and_weights_where_ranks_are():
  """The whole objective, on bytes."""
  vocabulary = seqio.ByteVocabulary(10)
  dataset = tf.data.Dataset.from_tensor_slices({"text": ["a text of some words. " * 6] * 3})
  features, lengths = registry.output_features("permuted_lm", vocabulary), {"inputs": 32, "targets": 32}
  source = seqio.FunctionDataSource(lambda split, shuffle_files, seed=None: dataset, splits=("train",))
  preprocessors = registry.preprocessors("permuted_lm")
  task = seqio.Task("permuted", source=source, preprocessors=preprocessors, output_features=features)
  examples = list(task.get_dataset(lengths, "train", shuffle=False).as_numpy_iterator())
  assert len(examples) > 8
  for example in examples:
    np.testing.assert_array_equal(example["inputs"], example["targets"])
    np.testing.assert_array_equal(example["loss_weights"] > 0, example["input_ranks"] > 0)
    assert sorted(example["input_ranks"][example["input_ranks"] > 0]) == list(
      range(1, 1 + example["loss_weights"].sum())
    )
    assert example["inputs"][-1] == vocabulary.eos_id and not example["input_ranks"][-1]


def run(tmp_path, **model):
  """Returns the records of a run on a file of text."""
  (tmp_path / "text.txt").write_text("some text\n" * 9)
  config = default.get_config()
  sizes = {"num_encoder_layers": 2, "num_decoder_layers": 0, "vocab_size": 384}
  config.model.update({"architecture": "encoder_only"} | sizes | model)
  config.data.update(files=f"{tmp_path}/text.txt", vocabulary="bytes", targets_length=512)
  return loading.records(config).with_(train={"loss": "cross_entropy"})


def test_ranks_and_two_streams_need_each_other(tmp_path):
  """A model with one stream would read what it predicts; without ranks nothing trains the second."""
  permuted = {"objective": "permuted_lm"}
  with pytest.raises(UserError, match="objective=permuted_lm: .* Set config.model.two_streams=True"):
    train_data.check(run(tmp_path).with_(data=permuted))
  with pytest.raises(UserError, match="objective=masked_lm: the examples have no ranks, but config.model.two_streams"):
    train_data.check(run(tmp_path, two_streams=True).with_(data={"objective": "masked_lm"}))
  overlapping = run(tmp_path, two_streams=True).with_(data={"objective": "overlapping_permuted_lm"})
  with pytest.raises(UserError, match="an example begins 256 tokens after .* Set config.model.memory_reuse=256"):
    train_data.check(overlapping)
  shapes = recipe.batch(run(tmp_path, two_streams=True).with_(data=permuted | {"continuous_rows": True}))
  assert shapes["encoder_ranks"].shape[1] == 512 and shapes["encoder_continues"].shape[1] == 1


def test_the_second_half_is_above_the_first():
  """So no state of the first half depends on the second."""
  for seed in seeds(3):
    ranks = permuted_lm.ranks_of_halves(tf.constant([True, False, True, False, True]), seed, 3).numpy()
    assert sorted(ranks[:3]) == [0, 1, 2] and ranks[1] == 0 and ranks[3:].tolist() == [3, 4]


def test_overlapping_chunks_are_those_of_the_docstring():
  """Every token is in a chunk, and the last chunk ends with the text."""
  cut = lambda size, length, stride: [
    row["targets"].tolist()
    for row in chunking.split(
      tf.data.Dataset.from_tensors({"targets": tf.range(1, size + 1)}), length=length, stride=stride
    ).as_numpy_iterator()
  ]
  assert cut(5, 3, 1) == [[1, 2, 3], [2, 3, 4], [3, 4, 5]]
  assert cut(2, 3, 1) == [[1, 2]] and cut(6, 4, 2) == [[1, 2, 3, 4], [3, 4, 5, 6]]
  assert cut(7, 4, 2)[-1] == [5, 6, 7] and cut(7, 5, 3) == [[1, 2, 3, 4, 5], [4, 5, 6, 7]]
