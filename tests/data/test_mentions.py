"""Entities of a passage as candidates: first mentions and truncation."""

import ast
import inspect
import re

import numpy as np
import pytest
import tensorflow as tf

from t2t.data import head_examples, registry, special_tokens, task_resolution, vocabularies
from t2t.data.head_examples import mentions
from t2t.data.head_examples.reading import Reading
from t2t.inference import head_predictor
from t2t.models.head_config import HeadConfig

BYTES = vocabularies.load("bytes", extra_ids=0)
BERT = special_tokens.Framing((101,), (102,), (102,))


def asked(example, *, vocabulary=BYTES, length=200, number=0):
  """Example that is made of a record, as Python values."""
  example = {"query": "@placeholder is glad", "training": False} | example
  record = {name: tf.constant(x, tf.string if x == [] else None) for name, x in example.items()}
  reading = Reading(vocabulary, BERT, length, number, "first", False)
  (found,) = tf.data.Dataset.from_tensors(record).map(lambda x: mentions.make(x, reading)).as_numpy_iterator()
  found["options"] = [option.decode() for option in found["options"]]
  return {name: x.tolist() if isinstance(x, np.ndarray) else x for name, x in found.items()}


def told(found, vocabulary=BYTES):
  """Each candidate with the three bytes at its position and its label."""
  places = np.flatnonzero(found["answer_heads"])
  texts = [vocabulary.decode(found["inputs"][place : place + 3]) for place in places]
  return list(zip(found["options"], texts, np.array(found["answer_targets"])[places].tolist(), strict=True))


def test_docstring_examples(tmp_path):
  words = "[PAD] [UNK] [CLS] [SEP] [MASK] ann met bob and won @ placeholder is glad"
  (tmp_path / "vocab.txt").write_text(words.replace(" ", "\n"))
  text = re.sub(r"\s+", " ", inspect.getdoc(mentions.make))
  given, expected = (ast.literal_eval(x) for x in re.search(r"In: ({.*?}) words.*? Out: ({.*?})", text).groups())
  assert asked(given, vocabulary=vocabularies.load(str(tmp_path / "vocab.txt"), extra_ids=0)) == expected
  assert mentions.find("Annabel met Ann.", ["Ann", "bel", "Bob", ""]) == [[12], [4], [], []]


def test_the_first_mention_of_each_is_asked():
  """Candidates follow the order of the passage; entities without a mention are dropped."""
  example = {"passage": "Bob met Ann. Ann won.", "options": ["Ann", "Bob", "Eve"], "answers": ["Bob", "Eve"]}
  found = asked(example, number=2)
  assert told(found) == [("Bob", "Bob", 1), ("Ann", "Ann", 0)]
  assert set(found["answer_heads"]) == {0, 3} and found["has_answer"]
  assert not asked(example | {"answers": ["Eve"]})["has_answer"]
  assert not asked(example | {"answers": []})["has_answer"]
  nothing = asked(example | {"options": ["Eve"]})
  assert (nothing["options"], max(nothing["answer_heads"])) == ([], 0)
  assert head_predictor.answer(HeadConfig("record", 1, "choice"), nothing, np.zeros((0, 1), np.float32)) == ("", 0.0)


def test_entities_that_begin_alike():
  """An entity takes its next mention if another entity begins at the same place."""
  passage = "Up York City, and then York."
  found = told(asked({"passage": passage, "options": ["York", "York City"], "answers": ["York"]}))
  assert found == [("York City", "Yor", 0), ("York", "Yor", 1)]
  found = told(asked({"passage": passage[:-5], "options": ["York", "York City"], "answers": ["York"]}))
  assert len(found) == 1


@pytest.mark.parametrize("training", [False, True])
def test_a_passage_that_is_cut(training):
  """Passages are cut at the end; in training, the cut keeps a right answer. Labels change nothing in evaluation."""
  passage = "Ann ran. " + "so on " * 30 + "Bob won. Ann lost."
  example = {"passage": passage, "options": ["Ann", "Bob"], "training": training}
  right, wrong = (asked(example | {"answers": [name]}, length=100) for name in ("Bob", "Ann"))
  assert len(right["inputs"]) == len(wrong["inputs"]) == 100
  if training:
    assert told(right) == [("Bob", "Bob", 1), ("Ann", "Ann", 0)] and right["has_answer"]
    assert told(wrong) == [("Ann", "Ann", 1)]
  else:
    assert right["inputs"] == wrong["inputs"] and told(right) == [("Ann", "Ann", 0)]
  assert right["inputs"][-22:-1] == [102, *BYTES.encode("@placeholder is glad")]


def test_a_long_query_leaves_half_of_the_room():
  """Passage and query are both truncated."""
  found = asked({"passage": "Ann " * 50, "query": "q" * 300, "options": ["Ann"], "answers": ["Ann"]}, length=103)
  assert len(found["inputs"]) == 103 and sum(found["token_types"]) == 51


@pytest.mark.exhaustive
def test_a_query_is_one_example_for_a_head(tmp_path):
  """Released files yield one example per query; several candidates may be right."""
  (tmp_path / "ReCoRD").mkdir()
  text = "Ann met Bob.\\n@highlight\\nEve saw it"
  entities = [{"start": text.replace("\\n", "\n").index(name), "end": 0} for name in ("Ann", "Bob", "Eve")]
  entities = [f'{{"start": {each["start"]}, "end": {each["start"] + 2}}}' for each in entities]
  answers = '[{"start": 0, "end": 2, "text": "Ann"}, {"start": 8, "end": 10, "text": "Bob"}]'
  query = f'{{"query": "@placeholder met", "idx": 7, "answers": {answers}}}'
  line = f'{{"idx": 3, "passage": {{"text": "{text}", "entities": [{", ".join(entities)}]}}, "qas": [{query}]}}'
  (tmp_path / "ReCoRD" / "train.jsonl").write_text(line)
  task = registry.task_or_mixture("super_glue_record", modules=("t2t.tasks.superglue",))
  task = task_resolution.adapt(task, vocabulary=BYTES, folders={"superglue": str(tmp_path)})
  assert head_examples.need_of(task) == head_examples.Need("record", "choice", (), 1)
  head = HeadConfig("record", 1, "choice")
  asks = lambda task: list(task.get_dataset({"inputs": 200, "targets": 9}, split="train", shuffle=False))
  (found,) = asks(head_examples.for_heads(task, "encoder_only", (head,)))
  assert found["options"].numpy().tolist() == [b"Ann", b"Bob", b"Eve"]
  logits = np.array([[0.0], [1.0], [0.5]], np.float32)
  example = {name: x.numpy() for name, x in found.items()}
  value = task.postprocess_fn(head_predictor.answer(head, example, logits)[0], example=example, is_target=False)
  right = task.postprocess_fn("?", example=example, is_target=True)
  assert task.metric_fns[0]([right], [value]) == {"exact_match": 100.0, "f1": 100.0}
  assert len(asks(task)) == 2  # written, each answer is an example
