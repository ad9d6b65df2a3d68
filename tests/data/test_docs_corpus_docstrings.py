"""Tasks on the installed documentation: their formats, and labels that neither text alone reveals."""

import collections
import json

from hypothesis import given, strategies
import numpy as np
import pytest
import seqio
import tensorflow as tf

from t2t import sharding
from t2t.configuration.schema import DataConfig
from t2t.data import docs_corpus, pipeline, registry, vocabularies
from t2t.data.sources import docstrings

registry.load("t2t.tasks.docs")

MONTH = (
  "Return the number of days in a month. The month is a number from 1 to 12, and the year has to be given since"
  " February may have 29 days."
)
PARTS = (
  "Return the number of days in a month.",
  "The month is a number from 1 to 12, and the year has to be given since February may have 29 days.",
)


def document(name, package="a", rest="What follows is long enough to say what the function is good for"):
  return {"text": f"Return the value of {name}. {rest} {name}.", "package": package}


@pytest.fixture
def installed(tmp_path, monkeypatch):
  """Installs forty docstrings of two packages per split, as the only documentation."""
  monkeypatch.setenv("T2T_CACHE_DIR", str(tmp_path))
  folder = docs_corpus.folder()
  folder.mkdir(parents=True)
  for split in ("train", "validation"):
    documents = [document(f"{split} {i}", package=("scipy", "numpy")[i % 2]) for i in range(10, 50)]
    (folder / f"{split}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in documents))


def examples(task, split="train"):
  task = seqio.TaskRegistry.get(task)
  features = {name: seqio.Feature(seqio.ByteVocabulary(), add_eos=True) for name in task.output_features}
  dataset = task.replace(output_features=features).get_dataset(
    {"inputs": 512, "targets": 512}, split=split, shuffle=False
  )
  return list(dataset.as_numpy_iterator())


def test_first_sentence_and_the_rest():
  """Splits the example that the docstring of `docstrings.split` quotes."""
  assert docstrings.split(MONTH) == PARTS
  literal = docstrings.split.__doc__
  assert all(piece in literal for piece in (f'"{PARTS[0]}"', f'"{PARTS[1]}"'))


@pytest.mark.parametrize(
  "text",
  [
    "Return it. No more than this.",  # the rest is too short
    "Args: a number of days. The month is a number from 1 to 12, and the year has to be given, too.",
    "Return the days, e.g. Monday or Tuesday, and what else the calendar of this locale calls a day of the week",
    "return the number of days. The month is a number from 1 to 12, and the year has to be given since it matters.",
  ],
)
def test_no_summary(text):
  """Argument lists, abbreviations and fragments are not sentences."""
  assert docstrings.split(text) is None


def test_literal_example_of_match():
  """Each body is paired with its own summary and with the other one."""
  record = {"summary": "Adds.", "other": "Closes.", "body": "All terms are added.", "idx": 3}
  made = docstrings.match(tf.data.Dataset.from_tensors(record)).as_numpy_iterator()
  plain = [{name: x.decode() if isinstance(x, bytes) else int(x) for name, x in each.items()} for each in made]
  assert plain == [
    {"summary": "Adds.", "body": "All terms are added.", "label": 1, "idx": 6},
    {"summary": "Closes.", "body": "All terms are added.", "label": 0, "idx": 7},
  ]


def test_records_of_two_docstrings():
  """Each record has the other's summary; a document without a second one in its package is left out."""
  documents = [
    document("mass"),
    document("charge", package="b"),
    document("speed"),
    document("mass", rest="That it was described before is why this one is left out: there is one text for each"),
  ]
  found = docstrings.records(documents)
  assert [(each["summary"], each["other"], each["idx"]) for each in found] == [
    ("Return the value of mass.", "Return the value of speed.", 0),
    ("Return the value of speed.", "Return the value of mass.", 1),
  ]
  assert found[0]["body"].startswith("What follows")


def test_neither_text_alone_tells_the_label(installed):
  """Each summary and each body has both labels equally often; a wrong summary comes from the same package."""
  found = examples("docs_match")
  assert len(found) == 80 and sum(each["label"] for each in found) == 40
  labels, halves = collections.defaultdict(list), [[], []]
  for each in found:
    text = each["inputs_pretokenized"].decode()
    summary, _, body = text.removeprefix("docs match summary: ").partition(" body: ")
    labels[summary].append(int(each["label"]))
    labels[body].append(int(each["label"]))
    halves[each["label"]].append((summary, body))
  assert all(sorted(of_text) == [0, 1] for of_text in labels.values())
  number = lambda text: int(text.rstrip(".").split()[-1])
  assert all(number(summary) == number(body) for summary, body in halves[1])
  assert all(number(summary) != number(body) and number(summary) % 2 == number(body) % 2 for summary, body in halves[0])


def test_formats(installed):
  """Inputs have T5's prefixes, and examples have the fields that evaluation needs."""
  true, false = examples("docs_match")[:2]
  assert true["inputs_pretokenized"].decode().startswith("docs match summary: Return the value of train 10. body: What")
  assert [each["targets_pretokenized"] for each in (true, false)] == [b"True", b"False"]
  assert [(each["label"], each["idx"], each["options"].tolist()) for each in (true, false)] == [
    (1, 0, [b"False", b"True"]),
    (0, 1, [b"False", b"True"]),
  ]
  first = examples("docs_summary")[0]
  assert first["inputs_pretokenized"].decode().startswith("summarize: What follows is long enough")
  assert first["targets_pretokenized"] == b"Return the value of train 10."


def test_which_package_it_is_of(installed):
  """The target is the package's name; the label is its index in `docs_corpus.NAMES`."""
  for each in examples("docs_package"):
    name = each["targets_pretokenized"].decode()
    assert docs_corpus.NAMES[each["label"]] == name and each["options"].tolist()[each["label"]].decode() == name
    assert each["inputs_pretokenized"].decode().startswith("docs package summary: Return the value of")


def test_a_word_of_the_summary_is_blanked():
  """The longest word that both parts have, as the docstring shows; none if they share no word of five letters."""
  body = "The calendar of some month begins on its first day, and ends on its last."
  blanked = docstrings.blanked("Return the calendar of a month.", body)
  assert blanked == ("Return the @placeholder of a month.", "calendar", [4])
  assert body[4:].startswith("calendar") and docstrings.blanked("Add a to b.", "The sum of a and b, or a.") is None
  assert docstrings.blanked("Finds items.", "An item of the itemset is returned.") is None  # whole words only


def test_cloze_and_punctuation(installed):
  """A span answers each question, and tags of words give the marks that were removed."""
  for each in examples("docs_cloze"):
    (start, *_), (text, *_) = each["answer_starts"], each["answer_texts"]
    assert each["context"].decode()[start:].startswith(text.decode()) and b"@placeholder" in each["question"]
  record = {"summary": ["Adds terms."], "body": ['If empty, "zero"! (b) -- Then']}
  (found,) = docstrings.punctuation(tf.data.Dataset.from_tensor_slices(record)).as_numpy_iterator()
  assert [word.decode() for word in found["words"]] == ["adds", "terms", "if", "empty", "zero", "b", "then"]
  assert [docstrings.PUNCTUATION[tag] for tag in found["tags"]] == ["O", "B-stop", "O", "B-comma", "B-stop", "O", "O"]
  tagged = examples("docs_punctuation")
  assert len(tagged) == 40 and tagged[0]["targets_pretokenized"].decode().startswith("stop: 10; ")


@given(
  strategies.lists(strategies.sampled_from(["the", "sum", "of", "two", "terms."]), max_size=9),
  strategies.integers(0, 99),
)
def test_inner_words_are_shuffled(words, number):
  """The summary as it is, and with its inner words in another order; the first and the last word keep their places."""
  record = {"summary": [" ".join(words)], "idx": [number]}
  found = list(docstrings.shuffled(tf.data.Dataset.from_tensor_slices(record)).as_numpy_iterator())
  if not found:  # too short, or the draw did not change the order
    return
  true, false = found
  assert (true["label"], true["idx"], false["label"], false["idx"]) == (1, 2 * number, 0, 2 * number + 1)
  kept, changed = true["summary"].decode().split(), false["summary"].decode().split()
  assert kept == words and len(words) >= 4 and changed != words
  assert sorted(changed) == sorted(words) and (changed[0], changed[-1]) == (words[0], words[-1])


def test_a_long_summary_is_always_shuffled():
  words = [str(i) for i in range(12)]
  record = {"summary": [" ".join(words)] * 50, "idx": list(range(50))}
  found = list(docstrings.shuffled(tf.data.Dataset.from_tensor_slices(record)).as_numpy_iterator())
  assert len(found) == 100 and len({each["summary"] for each in found}) == 51


def test_the_order_of_words_is_a_task(installed):
  found = examples("docs_order")
  assert len(found) == 80 and sum(each["label"] for each in found) == 40
  assert found[0]["inputs_pretokenized"].decode().startswith("docs order summary: Return the value of")


def test_a_vocabulary_of_another_size(installed):
  """config.data.vocabulary=docs-SIZE has at most so many tokens, and is compared by its size."""
  small, large = (vocabularies.load(f"docs-{size}", extra_ids=10) for size in (100, 100_000))
  assert 50 < small.vocab_size <= 110 and large.vocab_size < 1_000 and small != large
  assert small == vocabularies.docs_vocabulary(size=100, extra_ids=10)
  assert small != vocabularies.docs_vocabulary(size=100, extra_ids=9)
  assert large.decode(large.encode("Return the value")) == "Return the value"


@pytest.mark.slow
def test_splits_have_nothing_in_common(installed):
  """Wrong summaries of held-out docstrings are also held out."""
  texts = {
    split: {each["inputs_pretokenized"] for each in examples("docs_match", split)} for split in ("train", "validation")
  }
  assert all(b"validation" in text and b"train" not in text for text in texts["validation"])
  assert all(b"validation" not in text for text in texts["train"])


def test_shards_are_the_whole(installed):
  """Each record is in exactly one of seven shards."""
  whole = docstrings.DocstringSource().num_input_examples("train")
  found = [
    int(each["idx"])
    for shard in range(7)
    for each in docstrings.DocstringSource()
    .get_dataset("train", shard_info=seqio.ShardInfo(shard, 7))
    .as_numpy_iterator()
  ]
  assert sorted(found) == list(range(whole)) == list(range(40))


@pytest.mark.exhaustive
@pytest.mark.parametrize("steps", [3, 30])
def test_training_goes_on_where_it_was(installed, steps):
  """A position in the first epoch or after several is restored bit for bit, whatever the buffers contained."""
  data = DataConfig(
    mixture="docs_match", task_modules=("t2t.tasks.docs",), vocabulary="bytes", inputs_length=96, num_streams=2
  )
  mesh = sharding.make_mesh({"fsdp": -1})
  batches = lambda: pipeline.train_batches(data, "encoder_decoder", mesh, batch_size=8, seed=1)
  take = lambda iterator, count: [np.asarray(next(iterator)["encoder_input_tokens"]) for _ in range(count)]
  whole = batches()
  take(whole, steps)
  position = whole.state()
  expected = take(whole, 4)
  resumed = batches()
  resumed.restore(position, step=0)
  np.testing.assert_array_equal(take(resumed, 4), expected)


def test_answers_and_metrics(installed):
  """A prediction is correct if it equals the target; both tasks define their metrics."""
  task = seqio.TaskRegistry.get("docs_match")
  example = examples("docs_match")[0]
  values = [task.postprocess_fn(text, example=example, is_target=False) for text in ("True", "False", "maybe")]
  assert values == [1, 0, -1]
  assert task.postprocess_fn("True", example=example, is_target=True) == 1
  assert task.predict_metric_fns[0]([1, 1, 1], values)["accuracy"] == pytest.approx(100 / 3)
  task = seqio.TaskRegistry.get("docs_summary")
  target = task.postprocess_fn("?", example=examples("docs_summary")[0], is_target=True)
  assert task.predict_metric_fns[0]([target], [target])["rougeLsum"] == pytest.approx(100)
