"""`t2t infer` with token-level heads: tags of words, and spans of a context."""

import functools
import json
import math
import os
import pathlib
import textwrap

import pytest
import test_classification
import test_hosts
import test_served_commands
import trained

from t2t import UserError
from t2t import __main__ as command
from t2t.data.head_examples import tags as tags_lib

pytestmark = pytest.mark.exhaustive

run = test_classification.run  # the fixture

# Two tasks with the records of `WORDS` and `QUESTIONS`.
MODULE = """
  import json
  import pathlib
  import seqio
  import tensorflow as tf
  from t2t.evaluation import task_metrics
  from t2t.data import postprocessors, qa_preprocessors, preprocessors

  RECORDS = json.loads(pathlib.Path(__file__).with_suffix(".json").read_text())
  NAMES = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")

  def add(name, signature, metric, formats, postprocess, **options):
    def records(split, shuffle_files, seed=None):
      return tf.data.Dataset.from_generator(lambda: RECORDS[name], output_signature=signature)

    seqio.TaskRegistry.add(
      name,
      source=seqio.FunctionDataSource(records, splits=("train", "validation"), num_input_examples={"train": 4}),
      preprocessors=preprocessors.text_to_text(formats, **options),
      output_features=preprocessors.t5_features(),
      postprocess_fn=postprocess,
      metric_fns=[metric],
    )

  text = tf.TensorSpec([], tf.string)
  texts, numbers = tf.TensorSpec([None], tf.string), tf.TensorSpec([None], tf.int32)
  add(
    "marked_ner",
    {"words": texts, "ner": numbers},
    task_metrics.entity_f1,
    preprocessors.tagged,
    postprocessors.tagged(NAMES),
    words="words",
    tags="ner",
    names=NAMES,
    prefix="ner",
  )
  add(
    "marked_squad",
    {"id": text, "question": text, "context": text, "answers": {"text": texts, "answer_start": numbers}},
    task_metrics.squad_v2,
    qa_preprocessors.spans,
    postprocessors.squad(),
    unanswerable=True,
  )
  seqio.MixtureRegistry.add("marked", [("marked_ner", 1.0), ("marked_squad", 1.0)])
"""

LONG = " ".join(f"word{i}" for i in range(60)) + " and Zoë."  # 400 bytes, in several windows
WORDS = [
  ["Ann", "Lee", "saw", "Zoë", "."],
  ["Rome"],
  ["O'Neil", "-", "of", "U.S.", "fame"],
  ["a", "long", "one", *(f"w{i}" for i in range(80))],  # too long for the model
]
QUESTIONS = [("Whom?", LONG), ("Where?", "In Rome."), ("x" * 80, "Ann met Bob."), ("Who?", f"Bob {LONG} {LONG}")]
LENGTH = 256


@functools.cache
def module() -> pathlib.Path:
  """Writes the file that registers the tasks."""
  path = pathlib.Path(os.environ["T2T_TEST_PROGRAMS"]) / f"marked_tasks_{os.getpid()}.py"
  path.write_text(textwrap.dedent(MODULE))
  words = [{"words": words, "ner": [1, 2, 0, 3, 4][: len(words)] + [0] * (len(words) - 5)} for words in WORDS]
  spans = []
  for number, (question, context) in enumerate(QUESTIONS):
    there = {"text": ["Bob"], "answer_start": [context.index("Bob")]} if "Bob" in context else None
    given = there or {"text": [], "answer_start": []}
    spans.append({"id": str(number), "question": question, "context": context, "answers": given})
  path.with_suffix(".json").write_text(json.dumps({"marked_ner": words, "marked_squad": spans}))
  return path


@pytest.fixture(scope="module")
def marked(tmp_path_factory) -> pathlib.Path:
  """An encoder with a head for tags and one for spans."""
  path = tmp_path_factory.mktemp("marked") / "run"
  data = ["--config.data.mixture=marked", f"--config.data.task_modules={module()}"]
  options = [*trained.SMALL, *data, f"--config.data.inputs_length={LENGTH}", f"--config.model.max_length={LENGTH}"]
  options += ["--config.model.num_encoder_layers=1", "--config.train.steps=1"]
  assert command.main(["train", "--config=tiny_bert", *options, f"--workdir={path}"]) == 0
  return path


def evaluated(checkpoint, task: str, folder: pathlib.Path) -> list[dict]:
  """Returns the predictions of `t2t eval` for a task's examples."""
  data = [f"--config.data.mixture={task}", f"--config.data.task_modules={module()}"]
  data += [f"--config.data.inputs_length={LENGTH}", "--config.train.batch_size=8"]
  assert command.main(["eval", f"--checkpoint={checkpoint}", f"--workdir={folder}", *data]) == 0
  text = (folder / "predictions" / f"{task}.validation.jsonl").read_text()
  return [json.loads(line) for line in text.splitlines()]


# ---- Tags ------------------------------------------------------------------------------------------------------------


def test_words_are_tagged_as_the_example_of_a_task(marked, run, tmp_path):
  """Tags equal those of `t2t eval`; entities have the offsets of their text."""
  expected = evaluated(marked, "marked_ner", tmp_path / "eval")
  code, rows, said = run(marked, [{"words": words, "id": 7} for words in WORDS], "--head=ner")
  assert code == 0 and "lines          4 (1 truncated to 256 tokens)" in said
  for row, other, words in zip(rows, expected, WORDS, strict=True):
    assert (row["inputs"], row["words"], row["id"]) == (" ".join(words), words, 7)
    assert " ".join(row["tags"]) == other["prediction"]
    assert row["score"] == pytest.approx(other["score"], rel=1e-4)
    assert all(row["inputs"][each["start"] : each["end"]] == each["text"] for each in row["prediction"])
  assert rows[-1]["cut"] == sum(len(word) + 1 for word in WORDS[-1]) - 1 - (LENGTH - 1)


def test_a_text_is_tagged_as_its_words(marked, run):
  """Words are separated from punctuation; offsets refer to the original text."""
  texts = ["  Ann Lee, saw\\tZoë. ".replace("\\t", "\t"), "", "Rome"]
  code, rows, said = run(marked, texts, "--head=ner", name="in.txt")
  apart = [{"words": tags_lib.split(text)} for text in texts if text]
  _, expected, _ = run(marked, apart, "--head=ner", output="words.jsonl")
  assert code == 0 and "(1 empty)" in said
  assert {"prediction": None, "score": None, "tags": None, "error": "empty line"}.items() <= rows[1].items()
  assert [rows[0]["tags"], rows[2]["tags"]] == [row["tags"] for row in expected]
  assert rows[0]["words"] == ["Ann", "Lee", ",", "saw", "Zoë", "."]
  for row in (rows[0], rows[2]):
    assert all(row["inputs"][each["start"] : each["end"]] == each["text"] for each in row["prediction"])


# ---- Spans -----------------------------------------------------------------------------------------------------------


def test_a_question_is_answered_as_the_example_of_a_task(marked, run, tmp_path):
  """Answers equal those of `t2t eval` over all windows; offsets are those of the answer."""
  expected = evaluated(marked, "marked_squad", tmp_path / "eval")
  lines = [{"question": question, "context": context, "id": 7} for question, context in QUESTIONS]
  code, rows, said = run(marked, lines, "--head=span")
  assert code == 0 and "lines          4 (1 truncated to 64 tokens of the question)" in said
  assert [row.get("cut") for row in rows] == [None, None, 16, None]
  for row, other, line in zip(rows, expected, lines, strict=True):
    assert (row["inputs"], row["context"], row["id"]) == (line["question"], line["context"], 7)
    assert (row["prediction"] or "unanswerable") == other["prediction"]
    assert row["score"] == pytest.approx(other["score"], rel=1e-4)
    assert row["probability"] == pytest.approx(math.exp(row["score"]), rel=1e-4)
    told = row["best"][0] if row["prediction"] else dict(text="", start=None, end=None, probability=row["null"])
    assert {name: row["prediction" if name == "text" else name] for name in told} == told
    assert all(row["context"][each["start"] : each["end"]] == each["text"] for each in row["best"])


def test_whether_there_may_be_no_answer(marked, run):
  """The default is as in training; an output of one setting cannot be resumed with the other."""
  lines = [{"question": question, "context": context} for question, context in QUESTIONS]
  _, rows, _ = run(marked, lines, "--head=span")
  assert all(0 <= row["null"] <= 1 for row in rows)
  code, others, _ = run(marked, lines, "--head=span", "--no_answer=no", output="others.jsonl")
  assert code == 0 and all("null" not in row and row["prediction"] == row["best"][0]["text"] for row in others)
  code, _, said = run(marked, lines, "--head=span", "--no_answer=no")
  assert code == 2 and "--no_answer no, previously yes" in said


def test_a_line_without_a_context_or_a_question(marked, run):
  """The line is not computed, and its row has the error."""
  lines = [
    {"question": "Who?", "context": " "},
    {"question": "", "context": "Bob."},
    {"question": "Who?", "context": "B"},
  ]
  code, rows, said = run(marked, lines, "--head=span")
  assert code == 0 and "lines          3 (1 empty, 1 without a context)" in said
  assert [row.get("error") for row in rows] == ["empty context", "empty line", None]
  assert rows[0]["prediction"] is rows[0]["null"] is rows[1]["best"] is None


# ---- Both ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  ("line", "others", "message"),
  [
    ({"words": []}, ("--head=ner",), "line 1: field 'words' is [], not a list of texts"),
    ({"words": ["a", 3]}, ("--head=ner",), "line 1: field 'words' is [\"a\", 3], not a list of texts"),
    (
      {"inputs": "b a", "words": ["a", "b"]},
      ("--head=ner",),
      "line 1: the text does not contain all 'words' in order",
    ),
    (
      {"inputs": "a", "tags": [0]},
      ("--head=ner",),
      "line 1 has the field 'tags', but this name is reserved for the output",
    ),
    (
      {"parts": ["a"]},
      ("--head=ner",),
      "a tag head reads the text 'inputs' or the list 'words'",
    ),
    ({"inputs": "a" * 300}, ("--head=ner", "--strict"), "line 1: 45 of the 301 tokens do not fit (limit: 256 tokens)"),
    ({"inputs": "a"}, ("--head=ner", "--no_answer=yes"), "--no_answer yes: ner is a tag head"),
    ({"context": "a"}, ("--head=span",), "line 1 has no field 'question'"),
    ({"question": "a"}, ("--head=span",), "line 1 has no field 'context' for the head span; give an object like"),
    ({"question": "a", "context": ["b"]}, ("--head=span",), "line 1: field 'context' is [\"b\"], not a string"),
    ({"question": "a", "context": "b", "best": 1}, ("--head=span",), "line 1 has the field 'best'"),
    (
      {"question": "a" * 80, "context": "b"},
      ("--head=span", "--strict"),
      "line 1: 16 of the 83 tokens do not fit (limit: 64 tokens of the question)",
    ),
    (
      {"question": "a", "context": "b"},
      ("--head=span", "--inputs_length=194"),
      "--inputs_length 194 is too short. A context is read",
    ),
  ],
)
def test_what_cannot_be_asked(line, others, message, marked, run):
  """A line is refused before anything is computed."""
  code, rows, said = run(marked, [line], *others)
  assert code == 2 and message in said and not rows


@pytest.mark.parametrize(
  ("head", "lines"),
  [
    ("ner", [{"inputs": f"Ann {i % 7} saw {LONG[: 3 * i]}."} for i in range(12)]),
    ("span", [{"question": f"Who {i}?", "context": LONG[: 40 * i + 9]} for i in range(12)]),
  ],
)
def test_resumed_at_any_byte_equals_uninterrupted(head, lines, marked, run, tmp_path):
  run(marked, lines, f"--head={head}")
  whole = (tmp_path / "out.jsonl").read_bytes()
  for size in (1, len(whole) // 2, len(whole) - 1):
    (tmp_path / "out.jsonl").write_bytes(whole[:size])
    assert run(marked, lines, f"--head={head}")[0] == 0
    assert (tmp_path / "out.jsonl").read_bytes() == whole
  name = "context" if head == "span" else "inputs"
  code, _, said = run(marked, [*lines[:-1], {**lines[-1], name: "other"}], f"--head={head}")
  assert code == 2 and "belongs to another input" in said


def test_two_processes_answer_as_one_does(marked, run, tmp_path):
  """The first process reads and writes, both compute."""
  questions = [{"question": question, "context": context} for question, context in QUESTIONS]
  _, answered, _ = run(marked, questions, "--head=span", name="span.jsonl", output="spans.jsonl")
  asked = ["infer", f"--checkpoint={marked}", "--head=span", "--batch_size=1"]
  asked += [f"--input={tmp_path / 'span.jsonl'}", f"--output={tmp_path / 'two.jsonl'}"]
  codes, said = test_hosts.Processes(2, 1, [asked], cache=tmp_path).wait()
  assert codes == [0, 0], "\n".join(said)
  found = [json.loads(line) for line in (tmp_path / "two.jsonl").read_text().splitlines()]
  for row, other in zip(found, answered, strict=True):
    assert row["score"] == pytest.approx(other["score"], rel=1e-4)
    assert all(row[name] == other[name] for name in ("prediction", "start", "end"))


# ---- The page --------------------------------------------------------------------------------------------------------


def test_the_page_is_answered_as_a_line(marked, run):
  """The last event has the fields of a row; missing fields are reported."""
  tagger, extractor = (test_served_commands.service(marked, f"--head={head}") for head in ("ner", "span"))
  assert (tagger.about()["asks"], extractor.about()["asks"]) == ("tag", "span")
  assert not tagger.about()["pairs"] and not extractor.about()["pairs"]
  question = {"question": "Who?", "context": QUESTIONS[3][1]}
  for asker, line, head in ((tagger, {"inputs": "Ann Lee, saw Zoë."}, "ner"), (extractor, question, "span")):
    *before, found = asker.generate(asker.parse(json.dumps(line).encode()))
    assert {"state": "compiling"} in before and found["ended"]
    (row,) = run(marked, [line], f"--head={head}", output=f"{head}.jsonl")[1]
    assert set(row) - {"line", "inputs", "context"} == set(found) - {"tokens", "ended"}
    assert found["score"] == pytest.approx(row["score"], rel=1e-4)
    assert found["prediction"] == row["prediction"] or head == "ner" and found["tags"] == row["tags"]
  for fields, message in (
    ({"question": "Who?"}, "the request has no field 'context'"),
    ({"context": "Bob."}, "'question' is missing; give a text"),
    ({"question": "Who?", "context": 3}, "field 'context' is 3, not a string"),
    (
      {"question": "Who?", "context": "Bob.", "inputs": "a"},
      "'inputs' is an unknown field; give one of question, context",
    ),
  ):
    with pytest.raises(UserError, match=message):
      extractor.parse(json.dumps(fields).encode())
  with pytest.raises(UserError, match="the request: empty context; give the text that contains the answer"):
    list(extractor.generate(extractor.parse(b'{"question": "Who?", "context": " "}')))
