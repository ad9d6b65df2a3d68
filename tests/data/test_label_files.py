"""Training labels from a file: records of several splits, other labels, logits, and wrong files."""

import json

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t2t import UserError
from t2t.data import label_files


def records(split, shuffle_files, seed=None):
  number = {"train": 2, "test": 4}[split]
  return tf.data.Dataset.from_tensor_slices({"text": [f"{split}{i}" for i in range(number)], "label": [-1] * number})


def source(tmp_path, rows):
  path = tmp_path / "labels.jsonl"
  path.write_text("".join(f"{json.dumps(row) if isinstance(row, dict) else row}\n" for row in rows))
  return label_files.LabelledSource(
    seqio.FunctionDataSource(records, splits=("train", "test")), "task", "train", str(path)
  )


def read(made, split="train"):
  return list(made.get_dataset(split, shuffle=False).as_numpy_iterator())


def test_records_of_several_splits_are_the_training_split(tmp_path):
  made = source(
    tmp_path,
    [{"split": "test", "index": i, "label": i % 2} for i in (3, 1)] + [{"split": "train", "index": 0, "label": 1}],
  )
  assert [(x["text"], x["label"]) for x in read(made)] == [(b"test1", 1), (b"test3", 1), (b"train0", 1)]
  assert made.num_input_examples("train") == 3
  assert len(read(made, "test")) == 4


def test_logits_are_soft_labels(tmp_path):
  """The label is the teacher's likeliest class; records of other splits are certain of their label, or of none."""
  made = source(tmp_path, [{"split": "test", "index": 2, "logits": [-0.5, 1.5]}])
  (record,) = read(made)
  assert record["label"] == 1
  np.testing.assert_allclose(record[label_files.SOFT], [-0.5, 1.5])
  assert [x[label_files.SOFT].tolist() for x in read(made, "test")] == [[0.0, 0.0]] * 4


@pytest.mark.parametrize(
  ("rows", "message"),
  [
    ([], "the file has no labels"),
    (["{"], "line 1: JSONDecodeError"),
    ([{"split": "train", "index": 0}], "line 1: KeyError"),
    ([{"split": "train", "index": 0, "label": -1}], "line 1: .* has a value out of range"),
    ([{"split": "train", "index": 0, "logits": [float("nan"), 1.0]}], "line 1: .* out of range"),
    (
      [{"split": "train", "index": 0, "label": 1}, {"split": "train", "index": 1, "logits": [1.0]}],
      "lines with 0 and 1 logits",
    ),
    ([{"split": "dev", "index": 0, "label": 1}], "task has no split 'dev'; known splits: train, test"),
  ],
)
def test_wrong_files(rows, message, tmp_path):
  with pytest.raises(UserError, match=f"config.data.train_labels=.*{message}"):
    source(tmp_path, rows)
