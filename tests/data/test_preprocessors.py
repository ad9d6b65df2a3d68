"""Text formats: the literal examples of the docstrings, and records without an answer."""

import ast
import inspect

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t2t.data import preprocessors

NLI = ("entailment", "contradiction", "neutral")
BOOLEAN = ("False", "True")
TAGS = ("O", "B-PER", "I-PER", "B-LOC")
PASSAGE = {"passage": "Ann.", "query": "@placeholder", "entities": ["Ann", "Bob"], "idx": {"passage": 0, "query": 1}}


def dataset_of(record):
  """Data set of one record; an empty list is a list of strings."""

  def tensor(value):
    if isinstance(value, dict):
      return {key: tensor(item) for key, item in value.items()}
    return tf.constant(value, tf.string) if isinstance(value, list) and not value else tf.constant(value)

  return tf.data.Dataset.from_tensors(tensor(record))


def plain(value):
  if isinstance(value, np.ndarray):
    return plain(value.tolist())
  if isinstance(value, list):
    return [plain(item) for item in value]
  if isinstance(value, bytes):
    return value.decode()
  return value.item() if isinstance(value, np.generic) else value


def run(function, record, **options):
  """Examples that a preprocessor makes of one record, as Python values."""
  examples = function(dataset_of(record), **options)
  return [{name: plain(value) for name, value in example.items()} for example in examples.as_numpy_iterator()]


def written(record):
  """A query of ReCoRD as it is written."""
  examples = preprocessors.each_answer(preprocessors.record(dataset_of(record)))
  return [{name: plain(value) for name, value in example.items()} for example in examples.as_numpy_iterator()]


def docstring_example(function):
  """The literal records and the literal examples of a docstring."""
  lines = inspect.getdoc(function).split("\n")
  start = next(i for i, line in enumerate(lines) if line.startswith("In:"))
  middle = next(i for i, line in enumerate(lines) if line.startswith("Out:"))
  end = next((i for i in range(middle, len(lines)) if not lines[i].strip()), len(lines))
  given = ast.literal_eval("[" + " ".join(lines[start:middle]).removeprefix("In:") + "]")
  expected = ast.literal_eval("[" + " ".join(lines[middle:end]).removeprefix("Out:") + "]")
  return given, expected


@pytest.mark.parametrize(
  ("function", "options"),
  [
    (
      preprocessors.labelled,
      {
        "prefix": "cb",
        "fields": ("hypothesis", "premise"),
        "labels": NLI,
        "parts": ("premise", "hypothesis"),
      },
    ),
    (preprocessors.choices, {"prefix": "weather", "fields": ("context",), "candidates": "endings"}),
    (preprocessors.scored, {"prefix": "rating", "fields": ("review",), "label": "stars"}),
    (preprocessors.in_language, {"language": "de"}),
    (preprocessors.each_answer, {}),
    (preprocessors.copa, {}),
    (preprocessors.multirc, {"labels": BOOLEAN}),
    (preprocessors.stsb, {}),
    (preprocessors.pairs, {"first": "en", "second": "de"}),
    (preprocessors.pair, {}),
    (preprocessors.wsc, {}),
    (preprocessors.record, {}),
    (preprocessors.spans, {}),
    (preprocessors.tagged, {"words": "tokens", "tags": "ner", "names": TAGS, "prefix": "ner"}),
    (preprocessors.summarize, {"document": "article", "summary": "highlights"}),
    (preprocessors.translate, {"source": "en", "target": "de"}),
  ],
)
def test_docstring_examples(function, options):
  given, expected = docstring_example(function)
  assert [example for record in given for example in run(function, record, **options)] == expected


@pytest.mark.parametrize(
  ("label", "target"), [(0.0, "0.0"), (5.0, "5.0"), (2.6, "2.6"), (4.923, "5.0"), (1.1, "1.2"), (-1.0, "<unk>")]
)
def test_similarities_are_rounded_to_a_fifth(label, target):
  """Scores are written with one digit; a test record has none."""
  assert run(preprocessors.stsb, {"sentence1": "a", "sentence2": "b", "label": label, "idx": 0})[0]["targets"] == target


@pytest.mark.parametrize(
  ("function", "options", "record"),
  [
    (preprocessors.labelled, {"prefix": "cb", "fields": ("premise",), "labels": NLI}, {"premise": "a"}),
    (
      preprocessors.multirc,
      {"labels": BOOLEAN},
      {"paragraph": "a", "question": "b", "answer": "c", "idx": {"paragraph": 0, "question": 0, "answer": 0}},
    ),
  ],
)
def test_a_label_that_is_not_given(function, options, record):
  """The target is T5's text for it, the label stays -1."""
  found = run(function, {"idx": 3, "label": -1, **record}, **options)[0]
  assert (found["targets"], found["label"]) == ("<unk>", -1)


def test_candidates_in_fields_of_their_own():
  """Candidates may be separate fields, as in SWAG; a test record has no label, and a record's number is kept."""
  record = {"sent": "a", "one": "b", "two": "c", "gold": -1, "idx": 7}
  (found,) = run(preprocessors.choices, record, prefix="x", fields=("sent",), candidates=("one", "two"), label="gold")
  assert (found["inputs"], found["targets"]) == ("x sent: a choice1: b choice2: c", "<unk>")
  assert (found["candidates"], found["label"], found["idx"]) == (["b", "c"], -1, 7)


def test_a_number_that_is_not_given():
  """NaN; others are written as short as they are."""
  numbers = (float("nan"), -1.0, 0.1, 4)
  rows = [run(preprocessors.scored, {"a": "b", "label": x}, prefix="p", fields=("a",))[0] for x in numbers]
  assert [row["targets"] for row in rows] == ["<unk>", "-1", "0.1", "4"]
  np.testing.assert_array_equal([row["label"] for row in rows], np.float32(numbers))


def test_answers_that_are_not_given():
  """A query or a question without answers is one example, whether it is trained on or not."""
  for training in (True, False):
    (found,) = written(PASSAGE | {"answers": [], "training": training})
    assert (found["targets"], found["answers"], found["options"]) == ("<unk>", [], ["Ann", "Bob"])
  question = {
    "id": "a",
    "question": "b?",
    "context": "c",
    "answers": {"text": [], "answer_start": np.zeros(0, np.int32)},
  }
  (found,) = run(preprocessors.squad, question)
  assert (found["targets"], found["answers"], "no_answer" in found) == ("<unk>", [], False)
  (found,) = run(preprocessors.spans, question, unanswerable=True)
  assert found["targets"] == found["no_answer"] == "unanswerable"


def test_a_query_is_evaluated_once():
  """Evaluation keeps one example with all right answers."""
  (found,) = written(PASSAGE | {"answers": ["Ann", "Bob"], "training": False})
  assert (found["targets"], found["answers"]) == ("Ann", ["Ann", "Bob"])


def test_each_answer_is_written():
  """Training has one example per answer, with the same inputs."""
  found = written(PASSAGE | {"answers": ["Ann", "Bob"], "training": True})
  inputs = "record query: @placeholder entities: Ann, Bob passage: Ann."
  assert [(each["inputs"], each["targets"]) for each in found] == [(inputs, "Ann"), (inputs, "Bob")]
  assert "training" not in found[0]


@pytest.mark.parametrize("before", [".", "?", "!", '"', "'"])
def test_highlights_become_sentences(before):
  """Highlights are joined by one full stop unless another mark is there."""
  record = PASSAGE | {"passage": f"A{before}\n@highlight\nB\n@highlight\nC", "answers": ["Ann"], "training": False}
  assert run(preprocessors.record, record)[0]["inputs"].endswith(f"passage: A{before} B. C")


@pytest.mark.parametrize(
  ("text", "pronoun", "index", "marked"),
  [
    ("Ann met Eve. She left.", "She", 3, "Ann met Eve. *She* left."),
    ('"Good for him," he said.', "him", 2, '"Good for *him*," he said.'),  # with punctuation around it
    ("Bob saw Tim; he hid when he ran", "he", 6, "Bob saw Tim; he hid when *he* ran"),  # the nearest
    ("They might use it , but how", "it", 2, "They might use *it* , but how"),  # an index that is off by one
    ("a book, beside it, fell", "it,", 3, "a book, beside *it*, fell"),  # the comma in the span
    ("He  ran.", "he", 0, "*He*  ran."),  # the first word; white space stays
    ("Ann ran.", "they", 0, "Ann ran."),  # it is not there
  ],
)
def test_the_pronoun_is_marked(text, pronoun, index, marked):
  """Stars surround the pronoun alone, at any position."""
  record = {"text": text, "span1_text": "Ann", "span2_text": pronoun, "span2_index": index, "label": 0, "idx": 0}
  assert run(preprocessors.wsc, record | {"training": False})[0]["inputs"] == f"wsc: {marked}"


@pytest.mark.parametrize("label", [-1, 0, 1])
def test_wrong_nouns_are_not_trained_on(label):
  """Training keeps right nouns only; evaluation keeps all."""
  record = {"text": "He ran.", "span1_text": "Bob", "span2_text": "He", "span2_index": 0, "label": label, "idx": 0}
  assert len(run(preprocessors.only_right, record | {"training": True})) == (label == 1)
  assert len(run(preprocessors.only_right, record | {"training": False})) == 1


def test_tokens_keep_their_text():
  """Ids under the name of the feature, the text beside them, everything else untouched; EOS fits into the length."""
  features = dict.fromkeys(("inputs", "targets"), seqio.Feature(seqio.ByteVocabulary(), add_eos=True))
  steps = preprocessors.text_to_text(preprocessors.summarize, document="article", summary="highlights")
  dataset = dataset_of({"article": "rain", "highlights": "a b"})
  dataset = preprocessors.tokenize(steps[0](dataset), features)
  dataset = steps[-1](dataset, output_features=features, sequence_length={"inputs": 8, "targets": 8})
  (found,) = dataset.as_numpy_iterator()
  assert found["targets"].tolist() == [ord("a") + 3, ord(" ") + 3, ord("b") + 3, 1]
  assert found["inputs"].tolist() == [ord(letter) + 3 for letter in "summari"] + [1]
  assert (found["inputs_pretokenized"], found["targets_pretokenized"]) == (b"summarize: rain", b"a b")
