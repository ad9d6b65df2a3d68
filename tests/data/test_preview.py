"""Previews: contents, counts and error messages."""

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t2t import UserError
from t2t.configuration.schema import DataConfig
from t2t.data import objectives, pipeline, vocabularies
from t2t.data.preview import examples

pytestmark = pytest.mark.slow

BYTES = vocabularies.load("bytes", extra_ids=100)  # "a" is 100, EOS 1, the sentinels 358 and down
FEATURES = {"inputs": seqio.Feature(BYTES), "targets": seqio.Feature(BYTES)}
TEXTS = ["ab", "abcdefgh", "", "a 12"]


def source(records):
  def dataset(split, shuffle_files, seed=None):
    del shuffle_files, seed
    texts = list(records) if split == "validation" else ["of training"]
    return tf.data.Dataset.from_tensor_slices({"text": tf.constant(texts, tf.string)})

  return seqio.FunctionDataSource(dataset, splits=("train", "validation"))


@seqio.map_over_dataset
def to_pair(features):
  return {"inputs": features["text"], "targets": tf.strings.substr(features["text"], 0, 1)}


PAIR = [to_pair, seqio.preprocessors.tokenize, seqio.preprocessors.append_eos]


def task(name, preprocessors, *, features=FEATURES, records=TEXTS):
  """A registered task of these preprocessors; once in a session."""
  name = f"preview_test_{name}"
  if name not in seqio.TaskRegistry.names():
    seqio.TaskRegistry.add(name, source=source(records), preprocessors=preprocessors, output_features=features)
  return seqio.TaskRegistry.get(name)


def of_objective(name):
  text = ["the quick brown fox jumps over the lazy dog " * (i % 3 + 1) for i in range(30)]
  return task(name, objectives.preprocessors(name), features=objectives.output_features(name, BYTES), records=text)


def previewed(task, architecture="encoder_decoder", *, num_examples=100, **data):
  data = DataConfig(mixture=task.name, **({"inputs_length": 8, "targets_length": 4} | data))
  return examples.preview(data, architecture, task, split="validation", num_records=3, num_examples=num_examples), data


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  ("objective", "architecture", "pack"),
  [
    ("span_corruption", "encoder_decoder", False),
    ("span_corruption", "encoder_decoder", True),
    ("masked_lm", "encoder_only", False),
    ("causal_lm", "decoder_only", False),
  ],
)
def test_the_model_gets_what_training_evaluates_on(objective, architecture, pack):
  """The sequences are the held-out rows of the training loop, number for number."""
  shown, data = previewed(of_objective(objective), architecture, inputs_length=64, targets_length=40, pack=pack)
  assert shown.complete
  rows = pipeline.eval_rows(data, architecture, batch_size=1, max_batches=1000)
  assert len(rows) == len(shown.sequences) > 3
  for row, sequence in zip(rows, shown.sequences, strict=True):
    assert row.keys() == sequence.keys()
    for name in row:
      np.testing.assert_array_equal(row[name][0], sequence[name], err_msg=name)


def test_records_examples_and_where_they_are_cut():
  """The third text is empty, and its example is EOS alone; the second is longer than the inputs may be."""
  shown, _ = previewed(task("pair", PAIR))
  assert shown.one_to_one
  assert [record["text"].decode() for record in shown.records["preview_test_pair"]] == TEXTS[:3]
  assert [len(example["inputs"]) for example in shown.examples] == [3, 9, 1, 5]
  assert shown.trimmed(1)["inputs"].tolist() == [100, 101, 102, 103, 104, 105, 106, 107]
  assert shown.trimmed(0)["targets"].tolist() == [100, 1]


@pytest.mark.parametrize("objective", ["span_corruption", "causal_lm"])
def test_joined_records_are_not_one_to_one(objective):
  architecture = "decoder_only" if objective == "causal_lm" else "encoder_decoder"
  shown, _ = previewed(of_objective(objective), architecture, inputs_length=64, targets_length=40)
  assert not shown.one_to_one


def test_fewer_examples_than_there_are():
  shown, _ = previewed(task("pair", PAIR), num_examples=2)
  assert len(shown.examples) == len(shown.sequences) == 2 and not shown.complete


def test_summary():
  """Four examples of 3, 9 (cut to 8), 1 and 5 inputs, and 2, 2, 1 and 2 targets."""
  summary = examples.summarize(previewed(task("pair", PAIR))[0])
  assert summary.lengths["inputs"].tolist() == [3, 9, 1, 5]
  assert summary.truncated == {"inputs": 1, "targets": 0}
  assert summary.padding == {"encoder": pytest.approx(1 - 17 / 32), "decoder": pytest.approx(1 - 7 / 16)}
  assert summary.tokens == (17 + 7) / 4 and summary.loss_tokens == 7 / 4
  assert summary.hidden is None and summary.unknown == 0.0


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize(
  ("objective", "architecture", "share"),
  [("span_corruption", "encoder_decoder", 0.15), ("masked_lm", "encoder_only", 0.15), ("mass", "encoder_decoder", 0.5)],
)
def test_the_share_that_is_hidden_is_the_published_one(objective, architecture, share):
  shown, _ = previewed(of_objective(objective), architecture, inputs_length=64, targets_length=40)
  assert examples.summarize(shown).hidden[1] == pytest.approx(share, abs=0.02)


def test_unknown_tokens_are_counted():
  unknown = lambda dataset: dataset.map(lambda _: {"inputs": [2, 2, 100], "targets": [1]})
  assert examples.summarize(previewed(task("unknown", [unknown]))[0]).unknown == 0.5


# ---- Errors ----------------------------------------------------------------------------------------------------------


@seqio.map_over_dataset
def second_word(features):
  return {"text": tf.strings.split(features["text"])[1]}


@seqio.map_over_dataset
def wrong_key(features):
  return {"text": features["txt"]}


def to_number(text):
  return np.int64(text[2:])


@seqio.map_over_dataset
def in_python(features):
  return features | {"number": tf.numpy_function(to_number, [features["text"]], tf.int64)}


def leave_out(dataset):
  return dataset.filter(lambda _: False)


@pytest.mark.exhaustive_from(2)
@pytest.mark.parametrize(
  ("name", "preprocessors", "records", "messages"),
  [
    ("graph", [second_word, *PAIR], ["a b", "c d", "g"], [", record 3: preprocessor 1 of 4, second_word", "'g'"]),
    ("python", [in_python, *PAIR], ["a 1", "b 2", "c x"], [", record 3: preprocessor 1 of 4, in_python", "'x'", "c x"]),
    ("build", [wrong_key, *PAIR], TEXTS, [": preprocessor 1 of 4, wrong_key", "KeyError: 'txt'", "text (str"]),
    ("output", PAIR[:1], TEXTS, ["incorrect type for feature 'inputs'", "yield inputs (string, rank 0)"]),
    ("nothing", [leave_out, *PAIR], TEXTS, ["its preprocessors drop all records of the source"]),
    ("empty", PAIR, [], ["source of the task has no record"]),
  ],
)
def test_a_task_that_fails(name, preprocessors, records, messages):
  """The error names the record, the preprocessor and the file."""
  with pytest.raises(UserError) as error:
    previewed(task(name, preprocessors, records=records))
  message = str(error.value)
  assert message.startswith(f"preview_test_{name}, split validation")
  assert all(each in message for each in messages), message
  assert "preprocessor " not in messages[0] or "test_preview.py, line " in message


@pytest.mark.exhaustive
def test_a_record_far_behind_is_found():
  """Record 75 is found for any number of examples."""
  records = [f"{i} x" if i != 74 else "74" for i in range(100)]
  with pytest.raises(UserError, match=r"record 75: .*second_word.*b?'74'"):
    previewed(task("far", [second_word, *PAIR], records=records))


def named(dataset):
  return dataset.map(lambda line: {"text": line})


def test_a_source_that_fails():
  missing = seqio.TextLineDataSource({"validation": "/nowhere/text.txt"})
  name = "preview_test_missing_file"
  if name not in seqio.TaskRegistry.names():
    seqio.TaskRegistry.add(name, source=missing, preprocessors=[named, *PAIR], output_features=FEATURES)
  with pytest.raises(UserError, match=r"record 1: its source fails: NotFoundError: /nowhere/text.txt"):
    previewed(seqio.TaskRegistry.get(name))


def test_a_mixture_names_the_task_that_fails():
  task("pair", PAIR), task("graph_again", [second_word, *PAIR], records=["a"] * 5)
  if "preview_test_mixture" not in seqio.MixtureRegistry.names():
    seqio.MixtureRegistry.add("preview_test_mixture", ["preview_test_pair", "preview_test_graph_again"], default_rate=1)
  with pytest.raises(UserError, match="preview_test_graph_again, split validation, record 1: .*second_word"):
    previewed(seqio.MixtureRegistry.get("preview_test_mixture"))
