"""Answers that are spans of a context: windows, targets and the best span over all windows."""

import ast
import dataclasses
import inspect
import itertools
import json
import math
import re

import hypothesis
from hypothesis import strategies
import numpy as np
import pytest
import tensorflow as tf
from test_subwords import shared
import toy
import trained

from t2t import UserError
from t2t import __main__ as command
from t2t.configuration.schema import DataConfig
from t2t.data import (
  head_examples,
  postprocessors,
  preprocessors,
  qa_preprocessors,
  registry,
  sources,
  task_resolution,
  vocabularies,
)
from t2t.data.head_examples import spans
from t2t.data.head_examples.reading import Reading
from t2t.data.special_tokens import Framing
from t2t.data.vocabularies import offsets
from t2t.evaluation import few_shot, task_metrics
from t2t.inference import head_predictor
from t2t.models.head_config import HeadConfig

pytestmark = pytest.mark.slow

BYTES = vocabularies.load("bytes", extra_ids=0)
BERT, DECODER = Framing((101,), (102,), (102,)), Framing((0,), (1,), ())
HEAD = HeadConfig("span", 2, "span")


def words(number: int) -> offsets.Tokens:
  """A context of words of one letter with a space between them."""
  return offsets.Tokens(*(np.arange(number, dtype=np.int32) * k + j for k, j in ((1, 1000), (2, 0), (2, 1))))


def make(question, context, answer, *, length=200, framing=BERT):
  return spans.windows([7] * question, words(context), answer, framing=framing, length=length, eos_id=1)


# ---- Windows ---------------------------------------------------------------------------------------------------------


def test_docstring_example():
  vocabulary = vocabularies.load(shared("bert_uncased/vocab.txt"))
  text = re.sub(r"\s+", " ", inspect.getdoc(spans.make))
  given, expected = (ast.literal_eval(part) for part in re.search(r"In: ({.*?}) Out: ({.*?})", text).groups())
  records = tf.data.Dataset.from_tensors({name: tf.constant(x) for name, x in given.items()})
  (found,) = records.map(lambda record: spans.make(record, Reading(vocabulary, BERT, 200, 0, "each", False)))
  plain = lambda x: x.to_list() if isinstance(x, tf.RaggedTensor) else x.numpy().tolist()
  assert {name: plain(x) for name, x in found.items()} == {
    name: [each.encode() for each in x] if name == "answers" else x for name, x in expected.items()
  }


def test_the_question_of_roberta_ends_before_its_separators():
  """Longformer makes these tokens global, like transformers' `_compute_global_attention_mask`."""
  (window,) = make(5, 20, None, length=200, framing=Framing((0,), (2, 2), (2,)))
  first_separator = window.inputs.tolist().index(2)
  assert np.flatnonzero(window.token_types == 0).tolist() == list(range(first_separator))


@hypothesis.given(
  strategies.integers(0, 90), strategies.integers(0, 500), strategies.data(), strategies.sampled_from([BERT, DECODER])
)
def test_windows_cover_the_context(question, number, data, framing):
  """Windows fit the length and overlap by 128 tokens; each token is a candidate at its position."""
  first = data.draw(strategies.integers(0, max(number - 1, 0)))
  last = data.draw(strategies.integers(first, min(first + 60, max(number - 1, 0))))
  length = data.draw(strategies.integers(200, 400))
  found = make(question, number, (2 * first, 2 * last + 1) if number else None, length=length, framing=framing)
  question = min(question, 64)
  seen, complete = [], 0
  for window in found:
    assert len(window.inputs) <= length and (len(window.inputs) == length or window is found[-1])
    behind = len(framing.begin) + question + len(framing.between)
    assert window.inputs[:behind].tolist() == [*framing.begin, *[7] * question, *framing.between]
    inside = window.context_starts >= 0
    assert np.flatnonzero(inside).tolist() == list(range(behind, behind + inside.sum()))
    nothing = 0 if framing is BERT else len(window.inputs) - 1
    assert np.flatnonzero(window.head_mask).tolist() == sorted([nothing, *np.flatnonzero(inside)])
    own = window.inputs[inside] - 1000
    assert own.tolist() == list(range(own[0], own[-1] + 1)) if len(own) else number == 0
    assert (window.context_starts[inside] == 2 * own).all() and (window.context_ends[inside] == 2 * own + 1).all()
    assert window.token_types.tolist() == [0] * behind + [1] * (len(window.inputs) - behind)
    start, end = np.flatnonzero(window.targets % 2 == 1), np.flatnonzero(window.targets >= 2)
    assert len(start) == len(end) == 1
    if len(own) and own[0] <= first and last <= own[-1]:
      assert (window.inputs[start[0]] - 1000, window.inputs[end[0]] - 1000) == (first, last)
      complete += 1
    else:
      assert start[0] == end[0] == nothing
    seen.append(own)
  assert [x for i, own in enumerate(seen) for x in own[128 * (i > 0) :]] == list(range(number))
  assert complete or not number  # an answer that is no longer than the overlap is whole somewhere


def example(**fields):
  fields = {"question": "Who?", "context": "Ann met Bob.", "answer_starts": [8], "answer_texts": ["Bob"]} | fields
  return {name: tf.constant(x, tf.string if x == [] else None) for name, x in fields.items()} | {
    "answer_starts": tf.constant(fields["answer_starts"], tf.int32)
  }


def asked(records, *, length=256, vocabulary=BYTES, architecture="encoder_only"):
  """Head examples of records, one window after another."""
  spec = {name: tf.TensorSpec([None] * x.shape.rank, x.dtype) for name, x in records[0].items()}
  dataset = tf.data.Dataset.from_generator(lambda: iter(records), output_signature=spec)
  return head_examples.HeadFeatureConverter(vocabulary, architecture, HEAD, length, task="mine").convert_dataset(
    dataset
  )


LONG = " ".join(f"word{i}" for i in range(60)) + " and Zoë."  # 400 bytes


@pytest.mark.exhaustive_from(2)
@pytest.mark.parametrize("architecture", ["encoder_only", "encoder_decoder", "decoder_only"])
def test_windows_are_examples_and_become_one_again(architecture):
  """Each window is an example with the fields of its record."""
  start = LONG.index("Zoë")
  records = [example(context=LONG, answer_starts=[start], answer_texts=["Zoë"], id="a"), example(id="b")]
  apart = list(asked(records, architecture=architecture).as_numpy_iterator())
  assert [int(each["window"]) for each in apart] == [*range(len(apart) - 1), 0] and len(apart) > 3
  one, other = head_examples.gathered(iter(apart))
  assert (one["id"], other["id"]) == (b"a", b"b")
  assert len(one["windows"]) == len(apart) - 1 and len(other["windows"]) == 1
  texts = []
  for window in one["windows"]:
    (first,), (last,) = (np.flatnonzero(x) for x in (window["answer_targets"] % 2, window["answer_targets"] >= 2))
    texts.append(LONG[max(window["context_starts"][first], 0) : max(window["context_ends"][last], 0)])
  assert texts[-1] == "Zoë" and set(texts) == {"", "Zoë"}
  assert list(head_examples.gathered([{"idx": 1}, {"idx": 2}])) == [{"idx": 1}, {"idx": 2}]


@pytest.mark.exhaustive
def test_right_answers_are_those_of_the_context():
  """Right answers are spans of the context, without T5's spaces around punctuation."""
  (found,) = asked([example(answers=["Bob ."], answer_texts=["Bob."])]).as_numpy_iterator()
  assert (found["answers"].tolist(), found["has_answer"]) == ([b"Bob."], True)
  nothing = {"answer_starts": [], "answer_texts": []}
  (found,) = asked([example(**nothing)]).as_numpy_iterator()
  assert not found["has_answer"]
  (found,) = asked([example(**nothing, no_answer="unanswerable")]).as_numpy_iterator()
  assert found["has_answer"] and found["answer_targets"][0] == 3


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize(
  ("fields", "message"),
  [
    (
      {"answer_starts": [7]},
      r"mine: record 'q7': the answer 'Bob' is not in the context at character 7. The context has ' Bo' there",
    ),
    ({"answer_starts": [90]}, r"'Bob' is not in the context at character 90. The context has '' there"),
    ({"answer_starts": [-4]}, r"'Bob' is not in the context at character -4"),
  ],
)
def test_an_answer_that_is_not_in_its_context(fields, message):
  """The error names the record, the answer and the text at the position."""
  with pytest.raises(tf.errors.OpError) as error:
    list(asked([example(id="q7", **fields)]).as_numpy_iterator())
  assert re.search(message, str(sources.user_error(error.value)))


def test_no_room_for_a_window():
  """The length is checked before reading; the suggested length works."""
  with pytest.raises(
    UserError,
    match=r"config\.data\.inputs_length=194 is too short for mine. A context is read .*inputs_length=195 or more",
  ):
    asked([example()], length=194)
  where = dict(answer_starts=[0], answer_texts=["word0"])
  assert len(list(asked([example(context=LONG, question="x" * 99, **where)], length=195))) > 100


# ---- The best span ---------------------------------------------------------------------------------------------------


def gathered(context, logits, **fields):
  """A context of words of one letter in windows, and logits of what is asked of each: a column for starts and ends."""
  rows = [
    {"answer_heads": window.head_mask, "context_starts": window.context_starts, "context_ends": window.context_ends}
    for window in make(3, context, None)
  ]
  logits = logits([int(row["answer_heads"].sum()) for row in rows])
  text = " ".join(chr(0x4E00 + i) for i in range(context))
  return {"context": text.encode(), "windows": rows, **fields}, text, logits


@hypothesis.given(strategies.integers(1, 400), strategies.integers(0, 2**32 - 1), strategies.booleans())
@hypothesis.settings(max_examples=25)
def test_the_best_of_all_spans(context, seed, withheld):
  """The best span has at most 30 tokens and comes from the 20 likeliest starts and ends, or is empty."""
  random = np.random.default_rng(seed)
  found, text, logits = gathered(
    context,
    lambda numbers: random.normal(size=(sum(numbers), 2)).astype(np.float32),
    **({"no_answer": b"unanswerable"} if withheld else {}),
  )
  best, nothing, at = (-math.inf, ""), math.inf, 0
  for window in found["windows"]:
    own = logits[at : (at := at + int(window["answer_heads"].sum()))]
    nothing = min(nothing, own[0].sum())
    starts = window["context_starts"][window["context_starts"] >= 0]
    likeliest = [sorted(range(len(starts)), key=lambda i: -own[1 + i, side])[:20] for side in (0, 1)]
    for i, j in itertools.product(*likeliest):
      if 0 <= j - i < 30:
        best = max(best, (own[1 + i, 0] + own[1 + j, 1], text[starts[i] : starts[j] + 1]))
  told, score = head_predictor.answer(HEAD, found, logits)
  assert told == ("unanswerable" if withheld and nothing > best[0] else best[1])
  assert score <= 0


@hypothesis.given(strategies.integers(1, 400), strategies.integers(0, 2**32 - 1), strategies.booleans())
@hypothesis.settings(max_examples=25)
def test_a_row_has_the_likeliest_spans(context, seed, withheld):
  """The prediction of evaluation is the first of at most five distinct spans."""
  random = np.random.default_rng(seed)
  found, text, logits = gathered(
    context,
    lambda numbers: 3 * random.normal(size=(sum(numbers), 2)).astype(np.float32),
    **({"no_answer": b""} if withheld else {}),
  )
  told, score = head_predictor.answer(HEAD, found, logits)
  row = head_predictor.fields(HEAD, found | {"context": text}, logits)
  assert row["prediction"] == told and ("null" in row) == withheld
  if not row["best"]:
    assert not told
    return
  assert row["score"] == pytest.approx(score, rel=1e-4, abs=1e-6)
  assert row["probability"] == pytest.approx(np.exp(score), rel=1e-4)
  assert all(text[each["start"] : each["end"]] == each["text"] for each in row["best"])
  probabilities = [each["probability"] for each in row["best"]]
  assert len(row["best"]) <= 5 and probabilities == sorted(probabilities, reverse=True)
  assert len({(each["start"], each["end"]) for each in row["best"]}) == len(row["best"])
  assert sum(probabilities) + (row["null"] if withheld else 0) <= 1 + 1e-4
  bounds = (row["start"], row["end"], row["probability"])
  if told:
    assert bounds == tuple(row["best"][0][name] for name in ("start", "end", "probability"))
    assert not withheld or row["null"] <= row["probability"]
  else:
    assert bounds == (None, None, row["null"]) and row["null"] >= probabilities[0]


def test_a_span_that_two_windows_have_is_one():
  """A span in two windows is listed once, with the higher likelihood."""
  found, text, _ = gathered(250, lambda numbers: None)
  windows = found["windows"]
  assert len(windows) == 2
  logits = np.zeros((sum(int(window["answer_heads"].sum()) for window in windows), 2), np.float32)
  place = 100  # of a token that both have
  first, second = (int(np.flatnonzero(window["context_starts"] == 2 * place)[0]) for window in windows)
  asked = [int(window["answer_heads"][:at].sum()) for window, at in zip(windows, (first, second), strict=True)]
  logits[asked[0]], logits[int(windows[0]["answer_heads"].sum()) + asked[1]] = 9.0, 8.0
  best = head_predictor.fields(HEAD, found | {"context": text}, logits)["best"]
  assert [each["text"] for each in best].count(text[2 * place]) == 1 and best[0]["text"] == text[2 * place]
  assert best[0]["probability"] > 0.8


def test_nowhere_to_answer():
  """Without a valid span the prediction is empty and has no probability."""
  found, text, _ = gathered(60, lambda numbers: None)
  logits = np.zeros((61, 2), np.float32)
  logits[41:, 0] = logits[1:21, 1] = 9.0  # all starts behind all ends
  row = head_predictor.fields(HEAD, found | {"context": text}, logits)
  assert row == dict.fromkeys(("score", "start", "end", "probability")) | {"prediction": "", "best": []}
  row = head_predictor.fields(HEAD, found | {"context": text, "no_answer": ""}, logits)
  assert (row["prediction"], row["probability"], row["null"], row["best"]) == ("", 1.0, 1.0, [])


@pytest.mark.exhaustive
@pytest.mark.parametrize(("architecture", "least"), [("encoder_only", 195), ("decoder_only", 196)])
def test_a_context_that_somebody_gives_is_read_as_that_of_a_task(architecture, least):
  """Windows equal those of a task; the cut tokens belong to the question."""
  convert = head_examples.HeadFeatureConverter(BYTES, architecture, HEAD, 256)
  for question, cut in (("Who?", 0), ("x" * 80, 16)):
    features, own_cut = convert({"question": question, "context": LONG})
    found = features["windows"]
    nothing = {"answer_starts": [], "answer_texts": [], "no_answer": "unanswerable"}
    rows = list(asked([example(question=question, context=LONG, **nothing)], architecture=architecture))
    assert len(found) == len(rows) > 1
    assert own_cut == cut
    for features, row in zip(found, rows, strict=True):
      assert {name: x.tolist() for name, x in features.items()} == {
        name: row[name].numpy().tolist() for name in features
      }
  with pytest.raises(
    UserError, match=f"--inputs_length 100 is too short. A context is read in windows.*Give {least} or more"
  ):
    head_examples.HeadFeatureConverter(BYTES, architecture, HEAD, 100).check("--inputs_length")


def test_a_span_is_short_and_does_not_go_back():
  """The likeliest start and end are far apart, or the wrong way round."""
  logits = np.zeros((61, 2), np.float32)
  logits[[1, 60], [0, 1]] = 9.0  # 60 tokens
  logits[[30, 31], [0, 1]] = 5.0
  found, text, _ = gathered(60, lambda numbers: None)
  assert head_predictor.answer(HEAD, found, logits)[0] in (text[0], text[58:61], text[-1])  # a start or an end alone: 9
  logits[[1, 60]] = 0.0
  logits[[40, 20], [0, 1]] = 9.0
  assert head_predictor.answer(HEAD, found, logits)[0] == text[2 * 29 : 2 * 30 + 1]


def test_a_sample_of_a_batch():
  """Bounds are tokens of the context from 1; position 0 means no answer."""
  logits = np.zeros((9, 2), np.float32)
  logits[[3, 5], [0, 1]] = 1.0
  assert head_predictor.sample(HEAD, logits, np.array([3, 0, 0, 0, 0, 0, 0, 0, 0])) == ("tokens 3-5", "no answer")
  assert head_predictor.sample(HEAD, logits, np.array([0, 0, 1, 0, 2, 0, 0, 0, 0]))[1] == "tokens 2-4"
  logits[[7, 5], [0, 1]] = 3.0, 2.0  # the likeliest start is behind the likeliest end
  assert head_predictor.sample(HEAD, logits, np.zeros(9, np.int32))[0] in ("tokens 7-7", "tokens 7-8", "tokens 3-5")
  logits[0] = 4.0
  assert head_predictor.sample(HEAD, logits, np.zeros(9, np.int32))[0] == "no answer"


def test_metrics_with_unanswerable_questions():
  """Right where both say that there is none; nothing in common where one does."""
  none = postprocessors.UNANSWERABLE
  right = [[], [], ["a big dog"], ["big dog"], ["unanswerable riddle"]]
  found = task_metrics.squad_v2(right, [none, "big", none, "dog", none])
  assert found == {"exact_match": pytest.approx(20.0), "f1": pytest.approx(100 * (1 + 2 / 3) / 5)}
  assert task_metrics.squad_v2([["Paris"]], ["paris"]) == {"exact_match": 100.0, "f1": 100.0}


# ---- From files to metrics -------------------------------------------------------------------------------------------


def write(folder, number):
  """Squad 2.0 in files as released: names in a long text, and questions for some that are not there."""
  paragraphs = []
  for i in range(number):
    context = f"{LONG} She met O'Neil-{i} (x)."
    start = context.index(f"O'Neil-{i}")
    given = [{"text": f"O'Neil-{i}", "answer_start": start}, {"text": "O'Neil", "answer_start": start}]
    qas = [
      {"id": f"a{i}", "question": "Whom?", "answers": given, "is_impossible": False},
      {"id": f"b{i}", "question": "Where?", "answers": [], "is_impossible": True, "plausible_answers": given},
    ]
    paragraphs.append({"context": context, "qas": qas})
  for name in ("train", "dev"):
    (folder / f"{name}-v2.0.json").write_text(json.dumps({"data": [{"title": "T", "paragraphs": paragraphs}]}))
  return folder


@pytest.fixture(scope="module")
def squad(tmp_path_factory):
  """The registered task, read from files."""
  found = registry.task_or_mixture("squad_v2", modules=("t2t.tasks.squad",))
  folder = write(tmp_path_factory.mktemp("squad"), 3)
  return task_resolution.adapt(found, vocabulary=BYTES, folders={"squad_v2": str(folder)})


@pytest.mark.exhaustive
def test_who_knows_the_answers_is_right(squad):
  """Perfect logits score 100 from released files to metrics; uninformed logits score half."""
  need = head_examples.need_of(squad)
  assert (need.head, need.kind, need.number, need.labels, need.no_answer) == ("span", "span", 2, (), True)
  data = DataConfig(mixture="squad_v2", vocabulary="bytes", inputs_length=256)
  task = head_examples.for_heads(squad, "encoder_only", (HEAD,))
  examples = few_shot.read(data, "encoder_only", task, "validation")
  assert [each["id"].decode() for each in examples] == ["a0", "b0", "a1", "b1", "a2", "b2"]
  assert [each["id"].decode() for each in few_shot.read(data, "encoder_only", task, "validation", limit=2)] == [
    "a0",
    "b0",
  ]

  def measured(knows: bool) -> dict[str, float]:
    told, right = [], []
    for each in examples:
      targets = np.concatenate([row["answer_targets"][row["answer_heads"] > 0] for row in each["windows"]])
      logits = np.stack([targets % 2 == 1, targets >= 2], axis=1) * (8.0 if knows else 0.0)
      logits[targets == 3] += 0.0 if knows else 1.0
      text, _ = head_predictor.answer(HEAD, each, logits)
      told.append(task.postprocess_fn(text, example=each, is_target=False))
      right.append(task.postprocess_fn("?", example=each, is_target=True))
    (metric,) = task.metric_fns
    return metric(right, told)

  assert measured(True) == {"exact_match": 100.0, "f1": 100.0}
  assert measured(False)["exact_match"] == 50.0


def test_a_head_knows_whether_there_may_be_no_answer(squad):
  """no_answer is taken from one task, from several and from a restored head; other kinds of head reject it."""
  given = squad.replace(name="given", preprocessors=preprocessors.text_to_text(qa_preprocessors.spans))
  kept = lambda tasks, heads=(): [
    head.no_answer for head in head_examples.heads_of(tasks, toy.encoder(heads=heads), BYTES)
  ]
  assert (kept([squad]), kept([given])) == ([True], [False])
  assert kept([given, squad]) == kept([squad, given]) == [True]
  assert kept([squad], (HEAD,)) == kept([given], (dataclasses.replace(HEAD, no_answer=True),)) == [True]
  with pytest.raises(UserError, match="ner has no_answer=True and kind='tag'. Only kind='span' supports no_answer"):
    HeadConfig("ner", 2, "tag", no_answer=True)


def test_a_model_that_writes_reads_and_writes_text(squad):
  """Inputs and targets are T5's; unanswerable questions have the target "unanswerable"."""
  texts = list(squad.preprocessors[0](squad.source.get_dataset("train", shuffle=False)).as_numpy_iterator())
  assert [text["targets"].decode() for text in texts[:2]] == ["O ' Neil - 0", "unanswerable"]
  assert texts[0]["inputs"].decode().startswith("question: Whom ? context: word0 word1")
  value = squad.postprocess_fn(" unanswerable ", example=texts[1], is_target=False)
  assert squad.metric_fns[0]([squad.postprocess_fn("?", example=texts[1], is_target=True)], [value])["f1"] == 100.0


@pytest.mark.exhaustive
def test_the_command(tmp_path):
  """The command trains and evaluates a span head; each question has one answer."""
  data = ["--config.data.mixture=squad_v2", f"--config.data.benchmark_dirs.squad_v2={write(tmp_path, 3)}"]
  data += ["--config.data.task_modules=t2t.tasks.squad", "--config.data.inputs_length=256"]
  model = ["--config=tiny_bert", *trained.SMALL, *data]
  model += ["--config.model.num_encoder_layers=1", "--config.model.max_length=256"]
  assert command.main(["train", *model, f"--workdir={tmp_path / 'run'}"]) == 0
  out = tmp_path / "eval"
  assert command.main(["eval", f"--checkpoint={tmp_path / 'run'}", f"--workdir={out}", *data]) == 0
  rows = [json.loads(line) for line in (out / "predictions" / "squad_v2.validation.jsonl").read_text().splitlines()]
  assert [row["id"] for row in rows] == ["a0", "b0", "a1", "b1", "a2", "b2"]
  context = json.loads((tmp_path / "dev-v2.0.json").read_text())["data"][0]["paragraphs"][0]["context"]
  assert rows[0]["prediction"] == "unanswerable" or rows[0]["prediction"] in context
  assert rows[0]["target"] == ["O'Neil-0", "O'Neil"]
  assert set(json.loads((out / "results.json").read_text())["squad_v2.validation"]["metrics"]) == {"exact_match", "f1"}


@pytest.mark.exhaustive
@hypothesis.given(strategies.text("aé三☹", min_size=1, max_size=30), strategies.data())
def test_an_answer_of_any_characters_is_found(context, data):
  """Targets cover all bytes of the answer's characters and no others."""
  first = data.draw(strategies.integers(0, len(context) - 1))
  behind = data.draw(strategies.integers(first + 1, len(context)))
  tokens = offsets.tokens_of(BYTES, context)
  (window,) = spans.windows([7], tokens, (first, behind), framing=BERT, length=200, eos_id=1)
  start, end = (int(np.flatnonzero(window.targets & bit)[0]) for bit in (1, 2))
  assert BYTES.decode(window.inputs[start : end + 1].tolist()) == context[first:behind]
