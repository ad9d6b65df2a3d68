"""Few training examples: balance over classes, seeds, counts, and errors before training."""

import functools

import hypothesis
from hypothesis import strategies
import numpy as np
import pytest
import seqio
import tensorflow as tf

from t2t import UserError, feature_spec
from t2t.configuration.schema import DataConfig
from t2t.data import batch_iterator, example_windows, fingerprint, pipeline, preprocessors, train_subset, vocabularies
from t2t.evaluation import task_metrics

BYTES = vocabularies.load("bytes", extra_ids=0)
LABELS = ("no", "yes", "unsure")


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(counts=strategies.lists(strategies.integers(1, 30), min_size=1, max_size=5), data=strategies.data())
def test_a_choice_is_balanced_and_grows(counts, data):
  """Classes differ by at most one example, except those used up; a larger choice contains the smaller ones."""
  labels = [name for number, count in enumerate(counts) for name in [f"class{number}"] * count]
  more = data.draw(strategies.integers(1, len(labels)))
  fewer, seed = data.draw(strategies.integers(1, more)), data.draw(strategies.integers(0, 9))
  large, small = (train_subset.chosen(labels, number, seed=(seed, 5)) for number in (more, fewer))
  assert len(set(large)) == more and set(small) <= set(large) and np.all(np.diff(large) > 0)
  numbers = [sum(labels[i] == f"class{number}" for i in large) for number in range(len(counts))]
  unfilled = [number for number, count in zip(numbers, counts, strict=True) if number < count]
  assert not unfilled or max(numbers) - min(unfilled) <= 1
  assert np.array_equal(large, train_subset.chosen(labels, more, seed=(seed, 5)))


def test_the_quotas_of_classes():
  """The docstring's example."""
  assert train_subset.quotas([10, 2, 10], 9) == [4, 2, 3]


def test_seeds_draw_different_examples():
  """And every example is drawn by some seed."""
  labels = ["a", "b"] * 10
  choices = [frozenset(train_subset.chosen(labels, 6, seed=(seed,)).tolist()) for seed in range(40)]
  assert len(set(choices)) > 35 and frozenset.union(*choices) == set(range(20))


# ---- Tasks -----------------------------------------------------------------------------------------------------------


def records(split, shuffle_files=False, seed=None):
  """Returns 60 records: 40 of class 0, 10 of class 1, 4 of class 2, and 6 without a label."""
  del shuffle_files, seed
  numbers = np.arange(60)
  labels = np.select([numbers % 10 == 9, numbers % 6 == 5, numbers % 15 == 7], [-1, 1, 2], 0)
  data = {"text": [f"text {number}" for number in numbers], "label": labels, "idx": numbers}
  dataset = tf.data.Dataset.from_tensor_slices(data)
  return dataset if split == "train" else dataset.take(7)


def task(name="sure", steps=None):
  labelled = functools.partial(preprocessors.labelled, prefix="sure", fields=("text",), labels=LABELS)
  feature = seqio.Feature(BYTES, add_eos=True)
  return seqio.Task(
    name,
    source=seqio.FunctionDataSource(
      records, splits=("train", "validation"), num_input_examples={"train": 60, "validation": 7}
    ),
    preprocessors=preprocessors.text_to_text(*(steps or [labelled])),
    output_features={"inputs": feature, "targets": feature},
    metric_fns=[task_metrics.accuracy],
  )


def config(number, **keys):
  return DataConfig(mixture="sure", vocabulary="bytes", extra_ids=0, max_train_examples=number, **keys)


def read(found, split="train"):
  dataset = found.get_dataset({"inputs": 32, "targets": 8}, split=split, shuffle=False, num_epochs=1)
  return list(dataset.as_numpy_iterator())


def test_a_task_with_few_examples(capsys):
  """Balanced over classes, without unknown answers; other splits are whole. The message has the number per class."""
  few = train_subset.limited(task(), config(8))
  examples = read(few)
  counts = np.bincount([each["label"] for each in examples])
  assert sorted(counts) == [2, 3, 3] and few.num_input_examples("train") == 8
  assert len(read(few, "validation")) == few.num_input_examples("validation") == 7
  said = capsys.readouterr().err
  assert f"config.data.max_train_examples=8: sure keeps 8 of 54 training examples: no {counts[0]}, unsure" in said
  assert said.count("keeps 8 of") == 1
  again = read(train_subset.limited(task(), config(8)))
  assert [each["idx"] for each in again] == [each["idx"] for each in examples]
  other = read(train_subset.limited(task(), config(8, subset_seed=1)))
  assert [each["idx"] for each in other] != [each["idx"] for each in examples]
  larger = {each["idx"] for each in read(train_subset.limited(task(), config(30)))}
  assert {each["idx"] for each in examples} < larger


def test_answers_without_classes_are_drawn_alike():
  """Every record of generated text counts; a mixture limits each of its tasks."""
  texts = lambda dataset: dataset.map(lambda x: {"inputs": x["text"], "targets": tf.strings.as_string(x["idx"])})
  few = train_subset.limited(seqio.Mixture("both", [(task("a", [texts]), 1.0), (task("b"), 1.0)]), config(5))
  first, second = (read(each) for each in sorted(few.tasks, key=lambda each: each.name))
  assert len(first) == len(second) == 5
  assert {each["label"] for each in second} == {0, 1, 2}


def test_streams_read_the_chosen_records_alone():
  """All of them and no others, also over two streams; a position is resumed as without the key."""
  only_idx = lambda dataset: dataset.map(lambda example: {"idx": example["idx"]})
  few = train_subset.limited(task(), config(6))
  plan = example_windows.DataPlan(few, "train", {"inputs": 32, "targets": 8}, only_idx, False, seed=3)
  expected = sorted(each["idx"] for each in read(few))
  (source,) = example_windows.sources_of(plan, 1)
  records_read = [record for piece in source.shares[0] for _, record in source.records.read(piece)]
  assert len(records_read) == 6
  rows = example_windows.of_streams(plan, [0, 1], lambda _: example_windows.beginning(plan), num_streams=2, rows=3)
  batches = list(rows.take(4).as_numpy_iterator())
  assert {int(idx) for batch in batches for idx in batch["idx"].ravel()} <= set(expected)
  third = {0: batches[1][example_windows.POSITION][0, -1], 1: batches[1][example_windows.POSITION][1, -1]}
  resumed = example_windows.of_streams(plan, [0, 1], lambda stream: third[stream], num_streams=2, rows=3)
  found = list(resumed.take(2).as_numpy_iterator())
  for batch, expected_batch in zip(found, batches[2:], strict=True):
    np.testing.assert_array_equal(batch["idx"], expected_batch["idx"])


def test_the_identity_of_the_data_has_the_choice():
  """Another number or seed is another order of the data; runs without the key keep their identity."""
  identity = lambda **keys: fingerprint.settings(
    DataConfig(mixture="", vocabulary="bytes", **keys), BYTES, batch_size=4, seed=0, num_streams=1
  )
  assert not {"data.max_train_examples", "data.subset_seed", "data.mask_rate"} & set(identity())
  assert identity(max_train_examples=4)["data.max_train_examples"] == 4
  assert identity(max_train_examples=4, subset_seed=2)["data.subset_seed"] == 2
  assert {"data.mask_rate", "data.subsampling"} <= set(batch_iterator.OF_FILES)


@pytest.mark.parametrize("number", [0, -2])
def test_a_number_below_one_is_refused(number):
  with pytest.raises(UserError, match=f"config.data.max_train_examples={number} must be at least 1, or -1 for all"):
    config(number)


def test_more_than_there_are_is_refused():
  """The message has the number with an answer; text to pre-train on and a cache have no such choice."""
  with pytest.raises(UserError, match="=55: sure has only 54 examples with an answer .*'train'. Give at most 54"):
    read(train_subset.limited(task(), config(55)))
  with pytest.raises(UserError, match="max_train_examples=5 chooses among records, but the tasks of config.data.cache"):
    config(5, cache_dir="cached")
  text = DataConfig(files="text.txt", vocabulary="bytes", max_train_examples=5)
  with pytest.raises(UserError, match="max_train_examples=5 is for tasks with answers, but config.data.files=text.txt"):
    pipeline.load_task(text)
  assert feature_spec.UNKNOWN == "<unk>"
