"""Features of an example for a head are the same in training, evaluation and inference."""

import dataclasses
import functools

from etils import epath
from flax import nnx
import jax
import numpy as np
import pytest
import seqio
import tensorflow as tf
from tensorflow.experimental import numpy as tnp
import toy

from t2t import feature_spec, sharding
from t2t.checkpoints import pretrained
from t2t.configuration.schema import DataConfig, EvalConfig
from t2t.data import head_examples, pipeline, special_tokens, vocabularies
from t2t.data.head_examples import kinds
from t2t.evaluation import few_shot, methods
from t2t.inference import head_predictor, jsonl_io, row_batches, token_classify
from t2t.losses import head_losses
from t2t.models.head_config import HeadConfig

BYTES = vocabularies.load("bytes", extra_ids=0)
LENGTH = 208  # less than a context, which makes several windows
LABELS = ("no", "yes", "maybe")
DATA = DataConfig(inputs_length=LENGTH, targets_length=8)
CONTEXT = " ".join(f"word{i}" for i in range(40)) + " and Zoë."

# Question kind -> a record, and the inference line with the same question; None: only tasks have this kind.
RECORDS = {
  "class": (
    {"inputs": "is it? so", "parts": ["is it?", "so"], "label": 1, "options": LABELS, "targets": "yes"},
    {"parts": ["is it?", "so"]},
  ),
  "score": ({"inputs": "is it? so", "parts": ["is it?", "so"], "label": 2.5}, {"parts": ["is it?", "so"]}),
  "choice": (
    {"parts": ["It rained."], "candidates": ["It is wet, " * 20, "Dry."], "label": 1},
    {"inputs": "It rained.", "candidates": ["It is wet, " * 20, "Dry."]},
  ),
  "tag": (
    {"words": ["Zoë", "saw", "x" * LENGTH, "Rome"], "tags": [1, 0, 0, 2], "options": LABELS},
    {"words": ["Zoë", "saw", "x" * LENGTH, "Rome"]},
  ),
  "span": (
    {
      "question": "Who? " * 16,
      "context": CONTEXT,
      "answer_starts": [CONTEXT.index("Zoë")],
      "answer_texts": ["Zoë"],
      "id": "q",
    },
    {"question": "Who? " * 16, "context": CONTEXT},
  ),
  "mention": (
    {
      "passage": "Ann met Bob and Ann won",
      "query": "@placeholder is glad",
      "options": ["Ann", "Bob", "Eve"],
      "answers": ["Bob"],
      "training": False,
    },
    None,
  ),
  "title": (
    {"title": "Rain in Rome", "label": 2, "options": LABELS, "targets": "maybe"},
    {"inputs": "unread", "title": "Rain in Rome"},
  ),
}


def title(example, reading):
  """Makes a question about a title; the middle token predicts the class."""
  tokens, types = special_tokens.framed(reading.encode(example["title"][None]), reading.framing, reading.length)
  at, label, size = tf.size(tokens) // 2, tf.cast(example["label"], tf.int32), tf.size(tokens)
  return {
    "inputs": tokens,
    "inputs_uncut": size,
    "token_types": types,
    "texts": tf.zeros_like(tokens),
    "answer_heads": special_tokens.one_hot(at, size, reading.number + 1),
    "answer_targets": special_tokens.one_hot(at, size, tf.maximum(label, 0)),
    "has_answer": label >= 0,
  }


TITLE = kinds.QuestionKind(("title",), ("options",), title, "class", unanswered=lambda _: {"label": tf.constant(-1)})


@pytest.fixture(autouse=True)
def one_kind_more(monkeypatch):
  """Adds a user's question kind to the table."""
  monkeypatch.setattr(kinds, "KINDS", {"title": TITLE} | kinds.KINDS)


@dataclasses.dataclass(frozen=True)
class Case:
  """A task of one record, the inference line with the same question, and a model that answers with its second head."""

  kind: str
  name: str

  @functools.cached_property
  def config(self):
    kind = kinds.KINDS[self.kind]
    number = kind.number or len(LABELS)
    labels = () if kind.number else LABELS
    heads = (HeadConfig("other", 4), HeadConfig("mine", number, kind.head, labels))
    longest = 256 if toy.KINDS[self.name].max_length else 0
    return dataclasses.replace(toy.KINDS[self.name], vocab_size=384, max_length=longest, heads=heads)

  @property
  def task(self):
    record = {name: tf.constant(x) for name, x in RECORDS[self.kind][0].items()}
    records = lambda split, shuffle_files, seed=None: tf.data.Dataset.from_tensors(record)
    feature = seqio.Feature(BYTES, add_eos=True)
    return seqio.Task(
      "mine",
      source=seqio.FunctionDataSource(records, splits=("train", "validation"), num_input_examples={"train": 1}),
      preprocessors=[],
      output_features={"inputs": feature, "targets": feature},
    )

  @property
  def source(self):
    """A checkpoint without parameters."""
    return pretrained.Source(epath.Path("nowhere"), self.config, {"data": {"vocabulary": "bytes"}}, "")

  @property
  def mesh(self):
    return sharding.make_mesh({"data": 1}, devices=jax.devices()[:1])

  # ---- Three readers -----------------------------------------------------------------------------------------------

  def trained_on(self):
    """Returns model features of a batch of the task, as in `pipeline.train_batches`."""
    task = head_examples.for_heads(self.task, self.config.architecture, self.config.heads)
    examples = pipeline.task_examples(DATA, self.config.architecture, task, split="train")
    rows = list(pipeline.model_features(DATA, self.config.architecture, task, examples).as_numpy_iterator())
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}

  @functools.cached_property
  def method(self):
    graphdef = pretrained.abstract(self.source, self.mesh).graphdef
    return methods.HeadMethod(
      methods.EvaluationContext(DATA, EvalConfig(), self.config, graphdef, self.mesh, BYTES, 2, None)
    )

  def evaluated(self):
    """Returns the examples of `t2t eval`."""
    return few_shot.read(DATA, self.config.architecture, self.method.task(self.task), "validation")

  @functools.cached_property
  def way(self):
    head = self.config.heads[1]
    return token_classify.way_of(head)(self.source, self.mesh, head=head, longest=LENGTH, batch_size=2)

  def line(self):
    """Returns the line as `t2t infer`, the server and `t2t.load` read it."""
    line, whole = RECORDS[self.kind][1], self.config.kind.is_generative and self.kind in ("class", "score")
    line = {"inputs": RECORDS[self.kind][0]["inputs"]} if whole else line
    line = jsonl_io.made(1, line, form=self.way.form, where="line 1")
    self.way.check(line, "line 1")
    return self.way.read(line)


def features_of(case, example):
  """Returns model features of an example, with the head's positions, as in evaluation and inference."""
  rows, side = head_predictor.rows_of(example), case.config.kind.answers
  heads = [np.pad(row["answer_heads"], (0, LENGTH - len(row["inputs"]))) for row in rows]
  return row_batches.features_of(rows, LENGTH, side=side, pad_id=0) | {f"{side}_answer_heads": np.stack(heads)}


WRITERS = [(kind, name) for kind in ("class", "choice", "span") for name in ("prefix_lm", "t5_1_1")]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kind", "name"), [*((kind, "bert") for kind in RECORDS), *WRITERS])
def test_all_readers_get_the_same_features(kind, name):
  """Ids, segments, positions and the head's positions agree; so does the number of cut tokens."""
  case = Case(kind, name)
  trained = case.trained_on()
  (example,) = case.evaluated()
  readers = [example]
  if RECORDS[kind][1] is not None:
    asked = case.line()
    readers.append(asked.given)
    rows = head_predictor.rows_of(asked.given)
    assert asked.tokens - asked.cut == sum(len(row["inputs"]) for row in rows)
    assert asked.cut == (16 if kind == "span" else example["inputs_uncut"] - len(example["inputs"]))
    assert set(asked.given).isdisjoint({"answer_targets", "has_answer", "answers", "inputs_uncut"})
  assert (len(trained[f"{case.config.kind.answers}_input_tokens"]) > 1) == (kind == "span")
  for reader in readers:
    for name, x in features_of(case, reader).items():
      np.testing.assert_array_equal(trained[name], x, err_msg=name)
  names = {name.partition("_")[2] for name in trained} - {name.partition("_")[2] for name in features_of(case, example)}
  assert names == {"answer_targets", "answer_groups"}


@pytest.mark.parametrize("numpy", [np, tnp], ids=["numpy", "tensorflow"])
def test_texts_of_a_row_are_told_apart(numpy):
  """The example of the docstring holds for training (TensorFlow) and for evaluation and inference (NumPy)."""
  groups, texts = (numpy.asarray(x, dtype=np.int32) for x in ([1, 1, 2, 2, 2, 0], [0, 0, 0, 1, 1, 0]))
  segments, positions = feature_spec.texts_apart(groups, texts, numpy=numpy)
  assert (np.asarray(segments).tolist(), np.asarray(positions).tolist()) == ([1, 1, 2, 3, 3, 0], [0, 1, 0, 0, 1, 0])


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["title", "span"])
def test_all_readers_get_the_same_answer(kind):
  """A user's question kind is trained, measured and answered like a built-in one."""
  case = Case(kind, "bert")
  graphdef, params = toy.split(toy.model(case.config))
  loss, batch = head_losses.HeadLosses(case.config, None), case.trained_on()

  def compute(params):
    terms, _ = loss(nnx.merge(graphdef, params), batch, loss.weights(batch), key=None, train=False)
    return sum(terms.values())

  gradient = jax.jit(jax.grad(compute))(params)["heads"]
  assert np.any(gradient["mine"]["projection"]) and not np.any(gradient["other"]["projection"])
  examples = case.evaluated()
  (text,), (score,), _ = case.method.answer(case.method.task(case.task), examples, params, None)
  (row,) = case.way.answer(params, [case.line().given], numbers=[0], done=None)
  assert text == row["prediction"]
  assert score == pytest.approx(row["score"], abs=1e-5)
