"""Tests of what studies of pre-training add to the suite: lengths, equal FLOPs, orders of writing, and a rule."""

import json

from etils import epath
import numpy as np
import pytest
import seqio
import tensorflow as tf

from t2t import UserError
from t2t.data import objectives, vocabularies
from t2t.studies import claims, definition, results

BYTES = vocabularies.load("bytes", extra_ids=100)


def _module(name):
  """Returns the globals of a study's file."""
  return definition.load(name).arms.__globals__


@pytest.mark.exhaustive  # reads text by TensorFlow
@pytest.mark.parametrize(
  "row",
  [("iid_span_corruption", 0.5, 0), ("drop_tokens", 0.15, 0), ("span_corruption", 0.15, 2)],
  ids=lambda row: row[0],
)
def test_targets_of_spans_fit_exactly(row):
  """Examples of each kind of targets fit the length that the study gives them, and no shorter one."""
  objective, rate, span = row
  inputs_length = 64
  targets_length = _module("spans")["targets_length"](*row, inputs_length=inputs_length)
  noise = {"noise_density": rate} | ({"mean_noise_span_length": float(span)} if span else {})
  steps = objectives.preprocessors(objective, **noise)
  text = tf.data.Dataset.from_tensors({"text": "a" * 600})
  task = seqio.Task(
    "files",
    source=seqio.FunctionDataSource(lambda split, shuffle_files, seed=None: text, splits=["train"]),
    preprocessors=steps,
    output_features=objectives.output_features(objective, BYTES),
  )
  read = lambda targets: list(
    task.get_dataset({"inputs": inputs_length, "targets": targets}, split="train", shuffle=False, seed=0)
  )
  assert max(len(example["targets"]) for example in read(targets_length)) <= targets_length
  with pytest.raises(UserError, match="targets"):
    read(targets_length - 1)


def test_arms_of_electra_have_equal_flops():
  """Steps times the FLOPs of a step are the same for all arms with the whole budget, within one step."""
  module = _module("electra")
  setting = definition.Setting("toy")
  costs = {
    name: module["pretraining"](setting, name).keys["train.steps"] * module["step_flops"](setting, name)
    for name, (_, part) in module["ARMS"].items()
    if part == 1.0
  }
  np.testing.assert_allclose(list(costs.values()), costs["ELECTRA"], rtol=0.002)
  steps = module["pretraining"](setting, "all-tokens MLM").keys["train.steps"]
  assert steps < module["pretraining"](setting, "ELECTRA").keys["train.steps"]


def test_orders_of_writing():
  """Left to right reads what was written before; easiest first begins at the surest place; at once reads nothing."""
  module = _module("masked_generation")
  seen = []

  def read(rows, places):
    # The token at a place is one more than the token before it; later places are surer.
    seen.append(rows.copy())
    scores = np.full((len(rows), len(places), 10), -9.0)
    for index, place in enumerate(places):
      scores[np.arange(len(rows)), index, (rows[:, place - 1] + 1) % 10] = -1.0 / (index + 1)
    return scores

  rows, places = np.array([[3, 7, 7, 7]]), np.array([1, 2, 3])
  write = lambda order: module["write"](
    read, rows, places, order=order, blank=0, ordinary_ids=np.arange(10), rng=None
  ).tolist()
  assert write("left to right") == [[3, 4, 5, 6]]
  assert write("at once") == [[3, 4, 1, 1]]
  seen.clear()
  assert write("easiest first") == [[3, 4, 1, 1]]
  assert [rows.tolist() for rows in seen] == [[[3, 0, 0, 0]], [[3, 0, 0, 1]], [[3, 0, 1, 1]]]


def test_not_lower_needs_the_margin():
  """The rule agrees if the interval lies above the margin, and disagrees if it lies below."""
  rule = _module("sentence_pairs")["not_lower"]("a", than="b", column="mean", margin=1.0)
  row = lambda arm, seed, value: results.parsed(
    {
      "study": "s", "scale": "toy", "definition": "", "arm": arm, "seed": seed, "status": "finished",
      "figures": {"mean": value}, "curves": {}, "stages": [], "setting": {}, "t2t": "", "devices": "", "ended": "",
    }
  )  # fmt: skip
  word = lambda *differences: (
    rule.decide(
      [row("b", seed, 50.0) for seed in range(3)] + [row("a", seed, 50.0 + x) for seed, x in enumerate(differences)]
    ).word
  )
  assert word(-0.5, -0.4, -0.5) == claims.AGREE
  assert word(-3.0, -3.1, -3.0) == claims.DISAGREE
  assert word(-3.0, 3.0, 0.0) == claims.UNDECIDED


@pytest.mark.exhaustive  # reads the documentation by TensorFlow
def test_general_text_has_no_sentence_of_the_task(tmp_path):
  """General text is the rest of each document; the task's text has both orders of each sentence."""
  folders = {name: epath.Path(tmp_path / name) for name in ("text", "texts")}
  for folder in folders.values():
    folder.mkdir()
  _module("ulmfit")["suite"].documentation().function(folders["text"], {}, 0)
  _module("ulmfit")["_write_texts"](folders["texts"], {"text": folders["text"]}, 0)
  read = lambda path: [json.loads(line)["text"] for line in path.read_text().splitlines()]
  documents = read(folders["text"] / "validation.jsonl")
  general, of_task = (read(folders["texts"] / f"{name}_validation.jsonl") for name in ("general", "task"))
  sentences = [text for text in of_task if any(document.startswith(text) for document in documents)]
  assert len(sentences) == len(of_task) // 2
  assert len(general) == len(documents)
  for document, text in zip(documents, general, strict=True):
    assert text == document or document.endswith(text) and not text.startswith(tuple(sentences))
  assert sum(text != document for document, text in zip(documents, general, strict=True)) >= len(sentences)
