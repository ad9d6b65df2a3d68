"""Labels of an ensemble: mean logits, and training sets of iPET."""

import json

from etils import epath
import numpy as np

from t2t.evaluation import pseudo_labels
from t2t.evaluation.pseudo_labels import LabelledRow

MEMBERS = [np.array([[4.0, 0.0]] * 50 + [[0.0, 2.0]] * 30, np.float32), np.zeros((80, 2), np.float32)]


def test_soft_labels_are_mean_logits(tmp_path):
  pseudo_labels.write(epath.Path(tmp_path / "soft.jsonl"), pseudo_labels.soft_rows(MEMBERS, split="test"))
  rows = [json.loads(line) for line in (tmp_path / "soft.jsonl").read_text().splitlines()]
  assert rows[0] == {"split": "test", "index": 0, "logits": [2.0, 0.0]} and len(rows) == 80
  assert rows[79] == {"split": "test", "index": 79, "logits": [0.0, 1.0]}


def test_a_generation_keeps_labels_and_shares_of_classes():
  """Added records have the ensemble's label, in the classes' shares of the labeled records; a seed repeats them."""
  labelled = [LabelledRow("train", i, int(i == 0)) for i in range(4)]
  how = {"number": 24, "split": "test"}
  rows = pseudo_labels.chosen_rows(MEMBERS, labelled, seed=(0,), **how)
  assert rows[:4] == labelled and len(rows) == len(set(rows)) == 24
  added = rows[4:]
  assert [sum(row.label == label for row in added) for label in (0, 1)] == [15, 5]
  assert all((row.index >= 50) == row.label for row in added) and {row.split for row in added} == {"test"}
  assert rows == pseudo_labels.chosen_rows(MEMBERS, labelled, seed=(0,), **how)
  assert rows != pseudo_labels.chosen_rows(MEMBERS, labelled, seed=(1,), **how)


def test_confident_records_are_preferred():
  """Records are drawn with the probability of their label."""
  unsure = [np.array([[0.2, 0.0]] * 50 + [[9.0, 0.0]] * 50, np.float32)]
  rows = pseudo_labels.chosen_rows(unsure, [LabelledRow("train", 0, 0)], number=41, split="test", seed=(0,))
  assert np.mean([row.index >= 50 for row in rows[1:]]) > 0.55
