"""Postprocessors: predictions and targets as values."""

import json

import folders
import hypothesis
from hypothesis import strategies
import numpy as np
import pytest

from t2t import UserError
from t2t.data import postprocessors
from t2t.evaluation import task_metrics

SUPERGLUE = folders.SHARED / "data" / "superglue"


def example(**fields):
  """Returns an example as tf.data yields it: NumPy values, bytes."""
  return {
    name: np.array([text.encode() for text in value], object)
    if isinstance(value, list) and all(isinstance(text, str) for text in value)
    else value.encode()
    if isinstance(value, str)
    else np.array(value)
    for name, value in fields.items()
  }


# ---- Labels ----------------------------------------------------------------------------------------------------------


def test_a_label_is_the_one_that_the_text_names():
  """Only white space is ignored: "entailments" and "Neutral" are not labels."""
  postprocess = postprocessors.label(("entailment", "contradiction", "neutral"))
  texts = ["entailment", " neutral\n", "Neutral", "entailments", "it is neutral", "", "<unk>"]
  assert [postprocess(text) for text in texts] == [0, 2, -1, -1, -1, -1, -1]


def test_a_target_is_the_label_of_the_example():
  """Whatever the text, which has been through a vocabulary, has become."""
  postprocess = postprocessors.label(("False", "True"))
  assert postprocess("?", example=example(label=np.int32(1)), is_target=True) == 1
  assert postprocess("True", example=example(label=-1), is_target=True) == postprocessors.UNPARSEABLE


def test_one_label_within_another():
  """ "entailment" ends "not_entailment"; neither is taken for the other."""
  postprocess = postprocessors.label(("entailment", "not_entailment"))
  assert [postprocess(text) for text in ("not_entailment", "entailment", "not_")] == [1, 0, -1]


@pytest.mark.exhaustive
@hypothesis.given(strategies.text())
def test_whatever_is_written_has_a_value(text):
  """No text is an error, and what is not a label is never the index of one."""
  assert postprocessors.label(("yes", "no"))(text) == {"yes": 0, "no": 1}.get(text.strip(), -1)
  assert postprocessors.multirc()(text, example(idx=[0, 1, 2]))["value"] in (0, 1, -1)
  assert postprocessors.wsc()(text, example(targets_pretokenized="Mark")) in (0, 1, -1)
  value = postprocessors.number()(text)
  assert value is None or np.isfinite(value)


def test_numbers():
  """STS-B; not a number and infinity are no similarity."""
  texts = ["2.8", " 5.000 ", "-1.0", "1e1", "nan", "inf", "-infinity", "high", "", "2,8", "3 of 5"]
  expected = [2.8, 5.0, -1.0, 10.0, None, None, None, None, None, None, None]
  assert [postprocessors.number()(text) for text in texts] == expected
  target = postprocessors.number()("?", example=example(label=np.float32(2.8)), is_target=True)
  assert isinstance(target, float) and target == pytest.approx(2.8)


def test_pairs_of_axg():
  postprocess = postprocessors.axg()
  assert postprocess("not_entailment", example(label=0, pair=7)) == 1
  assert postprocess("?", example(label=1, pair=7), is_target=True) == {"label": 1, "pair": 7}


def test_an_answer_of_multirc_knows_its_question():
  """Questions 14 of two paragraphs are two questions."""
  postprocess = postprocessors.multirc()
  fields = example(idx=np.array([3, 14, 15], np.int32), label=np.int32(1))
  assert postprocess("True", fields) == {"group": (3, 14), "value": 1}
  assert postprocess("maybe", fields) == {"group": (3, 14), "value": -1}
  assert postprocess("False", fields, is_target=True) == {"group": (3, 14), "value": 1}
  assert postprocess("True", example(idx=[4, 14, 15]))["group"] == (4, 14)


# ---- Text ------------------------------------------------------------------------------------------------------------


def test_record_and_squad():
  """A prediction is the text, a target all answers, as str."""
  fields = example(idx=[0, 7], answers=["Benazir Bhutto", "Bhutto", "Müller"])
  assert postprocessors.record()(" Bhutto\n", fields) == postprocessors.squad()(" Bhutto\n", fields) == "Bhutto"
  right = ["Benazir Bhutto", "Bhutto", "Müller"]
  assert postprocessors.record()("?", fields, is_target=True) == {"group": (0, 7), "answers": right}
  assert postprocessors.squad()("?", fields, is_target=True) == right
  assert postprocessors.squad()("?", {"answers": np.array([], object)}, is_target=True) == []


def test_text_of_a_target_is_the_examples():
  """The target is the original text, because the vocabulary loses unknown characters."""
  postprocess = postprocessors.text()
  assert postprocess(" Guten Tag ") == "Guten Tag"
  assert postprocess("Gr <unk>e", example(targets_pretokenized=" Grüße "), is_target=True) == "Grüße"
  assert postprocess("?", {"targets_pretokenized": np.array("Grüße".encode(), object)}, is_target=True) == "Grüße"


@pytest.mark.parametrize(
  "written, meant, expected",
  [
    ("The city councilmen", "The city councilmen", 1),
    ("the councilmen", "The city councilmen", 1),
    ("The big city councilmen", "the city councilmen", 1),
    ("demonstrators", "The city councilmen", 0),
    ("city demonstrators", "city councilmen", 0),
    ("Mark", "mark.", 1),
    ("his great-grandfather", "My great grandfather", 1),
    ("Bob", "Bob's hat", 0),
    ("Bob’s hat", "bob's hat", 1),
    ("hat", "Bob's hat", 0),
    ("foxes' tails", "foxes' tails", 1),
    ("Kamenev Zinoviev and Stalin", "Kamenev, Zinoviev, and Stalin", 1),
    ("the councilman", "The city councilmen", 0),
    ("Ann", "Annabel", 0),
    ("the", "The city councilmen", -1),
    (" . ", "The city councilmen", -1),
    ("", "The city councilmen", -1),
    ("Zoë", "zoë", 1),
  ],
)
def test_a_noun_that_names_the_same(written, meant, expected):
  """WSC: one has all words of the other, determiners, case and punctuation aside; a possessive is another thing."""
  assert postprocessors.wsc()(written, example(targets_pretokenized=meant)) == expected


def test_the_target_of_wsc_is_its_label():
  """A wrong candidate has label 0, so a prediction of another noun is right."""
  fields = example(targets_pretokenized="Mark", label=0)
  assert postprocessors.wsc()("Mark", fields, is_target=True) == 0
  assert postprocessors.wsc()("Pete", fields) == 0


def test_every_noun_of_wsc_names_itself():
  """The release has no noun of determiners only."""
  if not SUPERGLUE.exists():
    pytest.skip(f"{SUPERGLUE} is not there")
  lines = [line for name in ("train", "val", "test") for line in (SUPERGLUE / "WSC" / f"{name}.jsonl").open()]
  nouns = {json.loads(line)["target"]["span1_text"] for line in lines}
  assert len(nouns) > 300
  for noun in nouns:
    assert postprocessors.wsc()(noun, example(targets_pretokenized=noun)) == 1
    assert postprocessors.wsc()(f"the {noun.upper()}", example(targets_pretokenized=noun)) == 1


# ---- No answer -------------------------------------------------------------------------------------------------------


def test_what_counts_as_no_answer():
  """None, -1 and empty text are no answer; the number -1.0 and values of other postprocessors are answers."""
  no_answer = [None, -1, np.int64(-1), "", {"group": (0, 1), "value": -1}]
  assert all(postprocessors.is_unparseable(value) for value in no_answer)
  found = [0, 1, -1.0, 0.0, "no", [], [-1], np.array([-1, -1]), {"group": (0, 1), "value": 0}, {"start": -1}, True]
  assert not any(postprocessors.is_unparseable(value) for value in found)


def test_a_missing_field_says_what_there_is():
  """A preprocessor that dropped the label."""
  with pytest.raises(UserError, match=r"no field 'label' \(fields of the example: idx, inputs"):
    postprocessors.label(("no", "yes"))("no", example(idx=0, inputs="a"), is_target=True)
  with pytest.raises(UserError, match=r"no field 'idx' \(fields of the example: none"):
    postprocessors.multirc()("True")


# ---- Released data ---------------------------------------------------------------------------------------------------

LABELS = {
  "BoolQ": (False, True),
  "CB": ("entailment", "contradiction", "neutral"),
  "RTE": ("entailment", "not_entailment"),
  "WiC": (False, True),
}


@pytest.mark.parametrize("name", LABELS)
def test_labels_of_the_release_are_all_right(name):
  """Written as T5 writes them, the labels of a validation set score 100, their neighbours less."""
  path = SUPERGLUE / name / "val.jsonl"
  if not path.exists():
    pytest.skip(f"{path} is not there")
  records = [json.loads(line) for line in path.open()]
  postprocess = postprocessors.label([str(label) for label in LABELS[name]])
  targets = [postprocess("?", example(label=LABELS[name].index(record["label"])), is_target=True) for record in records]
  written = [postprocess(str(record["label"])) for record in records]
  assert task_metrics.accuracy(targets, written) == {"accuracy": 100.0}
  assert 0 < task_metrics.accuracy(targets, written[1:] + written[:1])["accuracy"] < 100
