"""UniLM: four directions of reading, their ranks in batches, and training."""

import dataclasses

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t2t import UserError
from t2t.configuration.loading import load_config, records
from t2t.configuration.schema import DataConfig
from t2t.data import objectives, pipeline, train_data
from t2t.data.objectives import unilm
from t2t.training import recipe

# Token types of a direction -> its ranks, from the lengths of the first and the second text.
RANKS = {
  (0, 1): lambda first, second: [0] * (first + second),
  (2, 3): lambda first, second: [0] * first + [*range(1, second + 1)],
  (4,): lambda first, second: [*range(first)],
  (5,): lambda first, second: [*range(first)][::-1],
}


class Ids(seqio.PassThroughVocabulary):
  """Maps ids to themselves: 0 is padding, [CLS] 101 and [SEP] 102; 99 is the mask."""

  mask_id, pad_id, bos_id, cls_id, sep_id, _extra_ids = 99, 0, 1, 101, 102, 0
  special_ids = frozenset({0, 1, 2, *range(99, 110)})

  def __init__(self):
    super().__init__(110, eos_id=102)


def examples(number, length=9, **options):
  dataset = tf.data.Dataset.from_tensors({"targets": tf.range(3, 3 + length)}).repeat(number)
  features = dict.fromkeys(("inputs", "targets"), seqio.Feature(Ids()))
  with seqio.utils.map_seed_manager(0):
    dataset = unilm.unilm(dataset, {"inputs": 16, "targets": 16}, features, merge_documents=False, **options)
  return [{name: x.tolist() for name, x in example.items()} for example in dataset.as_numpy_iterator()]


def test_each_direction_has_its_ranks_types_and_share():
  """A third bidirectional, a third as source and target, cut anywhere, and a sixth each way; only text is masked."""
  counts, cuts = dict.fromkeys(RANKS, 0), set()
  for example in examples(600, noise_density=0.3):
    types, targets = example["token_types"], np.array(example["targets"])
    direction = tuple(dict.fromkeys(types))
    counts[direction] += 1
    first = types.count(direction[0])
    cuts |= {first} if len(direction) == 2 else set()
    assert example["input_ranks"] == RANKS[direction](first, len(types) - first)
    text = list(range(3, 12))
    framed = [101, *text[: first - 2], 102] + ([*text[first - 2 :], 102] if len(direction) == 2 else [])
    assert targets.tolist() == framed
    weights, inputs = np.array(example["loss_weights"]), np.array(example["inputs"])
    assert weights.sum() == 3 and not weights[targets > 100].any()
    np.testing.assert_array_equal(inputs[weights == 0], targets[weights == 0])
  assert cuts == set(range(3, 11))
  np.testing.assert_allclose([counts[direction] / 600 for direction in RANKS], [1 / 3, 1 / 3, 1 / 6, 1 / 6], atol=0.06)


def test_a_token_is_one_text():
  """Nothing can be cut."""
  assert {tuple(dict.fromkeys(example["token_types"])) for example in examples(40, length=1)} == {
    (0,),
    (2,),
    (4,),
    (5,),
  }


def test_four_fifths_of_the_masked_spans_are_single_tokens():
  """The others have two or three tokens."""
  candidates = tf.ones(400, tf.bool)
  dataset = tf.data.Dataset.range(50).map(
    lambda i: unilm.tokens_and_ngrams(candidates, candidates, tf.stack([tf.cast(i, tf.int32), 7]))[0]
  )
  lengths = []
  for chosen in dataset.as_numpy_iterator():
    assert chosen.sum() == 60
    bounds = np.flatnonzero(np.diff(np.pad(chosen.astype(int), 1)))
    lengths += (bounds[1::2] - bounds[::2]).tolist()
  # Neighbouring spans are counted as one.
  assert abs(lengths.count(1) / len(lengths) - 0.7) < 0.07 and lengths.count(2) and lengths.count(3)


@pytest.mark.slow
@pytest.mark.parametrize("pack", [False, True])
def test_batches_have_the_ranks_of_the_plan(tmp_path, pack):
  """Names and shapes are known without reading data; ranks start anew in each packed example, padding has rank 0."""
  (tmp_path / "a.txt").write_text("\n\n".join(f"line {i}" for i in range(2_000)))
  data = DataConfig(files=f"{tmp_path}/a.txt", objective="unilm", vocabulary="bytes", inputs_length=40, pack=pack)
  config = records(load_config("tiny_bert"))
  config = dataclasses.replace(config, data=dataclasses.replace(data, targets_length=40, num_streams=1))
  task = pipeline.load_task(config.data)
  rows = pipeline.model_features(
    config.data, "encoder_only", task, pipeline.task_examples(config.data, "encoder_only", task, split="train")
  )
  row = next(rows.as_numpy_iterator())
  assert set(row) == set(recipe.batch(config))
  segments, ranks = row["encoder_segment_ids"], row["encoder_ranks"]
  assert not ranks[segments == 0].any() and (not pack or segments.max() > 1)
  for number in range(1, segments.max() + 1):
    assert ranks[segments == number].min() == 0


def test_a_model_needs_a_segment_type_for_each_direction(tmp_path):
  """Two would read rows outside the table."""
  (tmp_path / "a.txt").write_text("a text\n" * 100)
  config = records(load_config("tiny_bert")).with_(
    data={"files": f"{tmp_path}/a.txt", "objective": "unilm", "vocabulary": "bytes", "mixture": ""},
    model={"segment_types": 2},
  )
  with pytest.raises(UserError, match=r"objective=unilm has 6 token types.*segment_types=2. Set .*segment_types=6"):
    train_data.check(config)


def test_a_decoder_does_not_read_in_directions():
  """The message names the objectives that fit."""
  with pytest.raises(UserError, match="objective=unilm does not fit config.model.architecture=decoder_only"):
    objectives.check_fits("unilm", "decoder_only")
