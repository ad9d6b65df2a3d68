"""Fine-tuning on a user's own table: columns, labels, splits, the task, and the whole command."""

import csv
import dataclasses
import json
import pathlib

import pytest
import tensorflow as tf
import test_control_tokens
import test_served_commands
import trained

import t2t
from t2t import UserError
from t2t import __main__ as command
from t2t.checkpoints import pretrained
from t2t.configuration.loading import load_config, records
from t2t.configuration.schema import DataConfig
from t2t.data import pipeline, tables, vocabularies
from t2t.data.tables import examples, memory, resolving
from t2t.inference import batch_inference, jsonl_io, ranking, table_output, text_generation

ROWS = range(40)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)


def tsv(name: str, header: str, rows) -> str:
  text = "\n".join("\t".join(map(str, row)) for row in [header.split(), *rows]) + "\n"
  pathlib.Path(name).write_text(text)
  return name


def jsonl(name: str, rows) -> str:
  pathlib.Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
  return name


def find(files: str, labels: str = "auto", **data) -> tables.TableSpec:
  return resolving.find(DataConfig(files=files, labels=labels, **data))


def load(files: str, labels: str = "auto", **data) -> examples.Table:
  return examples.load(find(files, labels, **data), malformed=data.get("max_bad_record_fraction", 0.0))


def sentences(label=lambda i: ("bad", "good")[i % 2]):
  return [(f"this is what I think of {i}", label(i)) for i in ROWS]


def test_a_table_is_not_written_over_another_file():
  """Refuses to overwrite the input; resumes a table that `t2t infer` wrote."""
  given, other = tsv("given.tsv", "text", [("a",)]), tsv("other.tsv", "text", [("b",)])
  with pytest.raises(UserError, match="--output given.tsv is also the input"):
    table_output.check(given, given)
  with pytest.raises(
    UserError, match="--output other.tsv exists, but its file of rows other.tsv.rows.jsonl is missing"
  ):
    table_output.check(other, given)
  pathlib.Path(table_output.rows_path(other)).write_text("")
  table_output.check(other, given)
  table_output.check("new.csv", given)


def test_a_list_of_objects_is_an_input():
  """A JSON list gives the same rows as CSV; the error for an invalid object names its row."""
  rows = [{"text": f"t {i}", "id": str(i)} for i in range(3)]
  pathlib.Path("in.json").write_text(json.dumps(rows, indent=1))
  pathlib.Path("in.csv").write_text("text,id\n" + "".join(f"t {i},{i}\n" for i in range(3)))
  found = [[(x.number, x.text, x.others) for x in jsonl_io.read(name, field="text")] for name in ("in.json", "in.csv")]
  assert found[0] == found[1] == [(i + 1, f"t {i}", rows[i]) for i in range(3)]
  pathlib.Path("in.json").write_text('[{"text": "a"}, {"no": 1}]')
  with pytest.raises(UserError, match="in.json, row 2"):
    list(jsonl_io.read("in.json", field="text"))


def test_the_column_that_is_named_stays_in_the_table():
  lines = list(jsonl_io.read(tsv("given.tsv", "id review", [(1, "good")]), field="review"))
  assert [(line.text, line.others) for line in lines] == [("good", {"id": "1", "review": "good"})]


# ---- Columns ---------------------------------------------------------------------------------------------------------

_TAGS = {"tokens": ["Ann", "saw", "Rome"], "tags": ["B-PER", "O", "B-LOC"]}
_SPAN = {"question": "Who?", "context": "Ann met Bob.", "answers": {"text": ["Bob"], "answer_start": [8]}}
_CHOICE = {"question": "What?", "choices": ["a", "b"], "label": 1}


@pytest.mark.parametrize(
  ("row", "kind", "texts", "label"),
  [
    (lambda i: {"id": i, "review": f"a text {i}", "title": "T", "stars": i % 5}, "class", ("review",), "stars"),
    (lambda i: {"Sentence1": f"a {i}", "Sentence2": "b", "label": i % 2}, "class", ("Sentence1", "Sentence2"), "label"),
    (lambda i: {"question": f"a {i}", "passage": "b", "label": i % 2 == 0}, "class", ("question", "passage"), "label"),
    (lambda i: {"what they said": f"is a text {i}", "verdict": "yn"[i % 2]}, "class", ("what they said",), "verdict"),
    (lambda i: {"inputs": f"cola {i}", "targets": ["ok", "bad"][i % 2]}, "class", ("inputs",), "targets"),
    (lambda i: {"sentence1": f"a {i}", "sentence2": "b", "score": i / 7}, "score", ("sentence1", "sentence2"), "score"),
    (lambda i: {**_TAGS, "id": i}, "tags", ("tokens",), "tags"),
    (lambda i: {"words": f"Ann saw {i}", "tags": "B-PER O O"}, "tags", ("words",), "tags"),
    (lambda i: _SPAN, "span", ("question", "context"), "answers"),
    (lambda i: {"question": "Who?", "context": f"Bob {i}", "answer": "Bob"}, "span", ("question", "context"), "answer"),
    (lambda i: {**_CHOICE, "question": f"What {i}?", "label": i % 2}, "choice", ("question",), "label"),
    (lambda i: {"premise": f"p {i}", "choice1": "a", "choice2": "b", "label": i % 2}, "choice", ("premise",), "label"),
    (lambda i: {"inputs": f"{i} + 1", "targets": i + 1}, "text", ("inputs",), "targets"),
    (lambda i: {"document": f"long {i}", "summary": f"short {i}"}, "text", ("document",), "summary"),
  ],
)
def test_columns_are_found(row, kind, texts, label):
  found = find(jsonl("a.jsonl", map(row, ROWS)))
  assert (found.kind, found.texts, found.label) == (kind, texts, label)


@pytest.mark.parametrize(
  ("header", "rows", "message"),
  [
    ("review urgent spam", [(*x, i % 3) for i, x in enumerate(sentences())], "text=COLUMN,label=urgent"),
    ("review comment label", [(f"a {i}", f"b {i}", i % 2) for i in ROWS], "may be `review` or `comment`"),
    ("text", [(f"a {i}",) for i in ROWS], "no column looks like a label"),
    ("Good 1", [(f"a {i}", i % 2) for i in ROWS], "Add a line with column names above this line"),
    ("text label", sentences(lambda i: "good"), "all labels in column 'label' are 'good'"),
    ("text label", sentences(lambda i: f"l{i}"), "--config.data.labels=text"),
    ("text price", sentences(lambda i: i), "--config.data.labels=number"),
    ("text label", sentences(lambda i: ["Yes", "yes"][i % 2]), "differ only in case"),
    ("text label", sentences(lambda i: "" if i % 3 else i % 2), "line 3"),
    ("text label", sentences(lambda i: i % 3 - 1), "--config.data.labels=-1,0,1"),
    ("tokens tags", [(f"Ann {i}", "D N") if i != 5 else ("Ann", "D N") for i in ROWS], "line 7: the row has 1 words"),
  ],
)
def test_what_is_ambiguous_is_refused_with_what_to_type(header, rows, message):
  files = tsv("a.tsv", header, rows)
  with pytest.raises(UserError, match=".") as error:
    load(files)
  assert message in str(error.value) and "a.tsv" in str(error.value)


@pytest.mark.parametrize(
  ("data", "message"),
  [
    ({"columns": "text=txt"}, "did you mean text?"),
    ({"columns": "txt=text"}, "unknown role 'txt'; did you mean text?"),
    ({"columns": "text"}, "is not ROLE=COLUMN"),
    ({"labels": "good"}, "Give auto, number"),
    ({"labels": "good,god"}, "has the label 'bad'"),
    ({"labels": "a,a"}, "'a' is listed twice"),
  ],
)
def test_keys_are_checked(data, message):
  files = tsv("a.tsv", "text label", sentences())
  with pytest.raises(UserError, match=".") as error:
    find(files, **data)
  assert message in str(error.value)


def test_columns_and_classes_may_be_said():
  files = tsv("a.tsv", "text urgent spam", [(*x, i % 3) for i, x in enumerate(sentences(lambda i: i % 2))])
  found = find(files, "no,yes", columns="text=text,label=urgent")
  assert (found.label, found.classes) == ("urgent", ("no", "yes"))
  assert find(files, "number", columns="label=spam").kind == "score"
  table = load(files, "no,yes", columns="label=urgent")
  assert {row["targets"] for row in table.train} == {"no", "yes"}


# ---- Labels and splits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  ("labels", "classes"),
  [
    ([10, 9, 1], ("1", "9", "10")),
    (["b", "a", "C"], ("C", "a", "b")),
    ([True, False], ("false", "true")),
    ([1.0, 0.0], ("0", "1")),
    ([" yes ", "no"], ("no", "yes")),
  ],
)
def test_the_order_of_classes_does_not_depend_on_that_of_rows(labels, classes):
  rows = [{"text": f"t {i}", "label": labels[i % len(labels)]} for i in ROWS]
  assert find(jsonl("a.jsonl", rows)).classes == find(jsonl("b.jsonl", reversed(rows))).classes == classes


def test_rows_are_held_out_by_their_text_and_of_each_class():
  rows = [(f"text {i // 2}", "rare" if i // 2 in (7, 8) else "often") for i in range(120)]
  table = load(tsv("a.tsv", "text label", rows))
  train, held_out = ({row["key"] for row in side} for side in (table.train, table.held_out))
  assert not train & held_out and len(table.train) + len(table.held_out) == 120
  assert {row["targets"] for row in table.train} == {row["targets"] for row in table.held_out} == {"rare", "often"}
  again = load(tsv("b.tsv", "text label", rows[::-1]))
  assert {row["key"] for row in again.held_out} == held_out
  assert 5 <= len(held_out) <= 8


@pytest.mark.parametrize(
  ("label", "alike"),
  [
    (("Good", "good"), "differ only in case"),
    (("so so", "so\u00a0so"), "differ only in white space"),
    (("true", "1"), "have the same value"),
    (("caf\u00e9", "cafe\u0301"), "look alike but contain different characters"),
    (("good", "good\u200b"), "look alike but contain different characters"),
  ],
)
def test_labels_that_look_alike_are_refused(label, alike):
  files = tsv("train.tsv", "text label", sentences(lambda i: (*label, "other")[i % 3]))
  with pytest.raises(UserError, match=alike):
    find(files)


def test_tags_of_single_words_are_refused():
  """Refuses one tag per row, which gives classes of words without their sentence, unless the labels are listed."""
  files = tsv("train.tsv", "word tag", [(f"w{i}", "OOB"[i % 3].replace("B", "B-PER")) for i in ROWS])
  with pytest.raises(UserError, match="a tag for each row, and column 'word' has one word"):
    find(files)
  assert find(files, "O,B-PER").kind == "class"


@pytest.mark.parametrize(
  "columns", ["text=text+label,label=label", "text=text+text,label=label", "text=text,label=text"]
)
def test_a_column_is_named_once(columns):
  """A model that reads its label has nothing to learn."""
  with pytest.raises(UserError, match="is named twice"):
    find(tsv("train.tsv", "text label", sentences()), columns=columns)


def test_what_a_number_or_a_text_cannot_be_measured_by_is_told():
  """Notes report a number that is equal in all rows, and texts without a word that ROUGE reads."""
  constant = load(tsv("a.tsv", "text score", sentences(lambda i: 0.5)))
  assert "warning: the number is 0.5 in all" in constant.notes[0]
  rows = [(f"текст {chr(1072 + i % 32)}{i}", "резюме" if i % 2 else "a résumé 2") for i in ROWS]
  notes = load(tsv("b.tsv", "inputs targets", rows), "text").notes
  assert "have no letter a to z and no digit. ROUGE reads nothing else" in notes[1]


def test_what_comes_behind_a_json_list_is_refused():
  """Two concatenated lists (from `cat`) are refused, because the second would be lost."""
  one = json.dumps([{"text": f"t {i}", "label": i % 2} for i in ROWS])
  pathlib.Path("train.json").write_text(f"{one}\n")
  assert find("train.json").classes == ("0", "1")
  pathlib.Path("train.json").write_text(f"{one}\n{one}\n")
  with pytest.raises(UserError, match="train.json, line 2: text after the end of the list"):
    find("train.json")


def test_rows_without_a_label_or_a_text_are_counted():
  rows = [(text, "" if i == 3 else label) for i, (text, label) in enumerate(sentences())]
  rows[5] = (" ", "good")
  table = load(tsv("a.tsv", "text label", rows))
  (note,) = [note for note in table.notes if "left out" in note]
  assert "1 without a label in 'label' (the first: a.tsv, line 5)" in note and "a.tsv, line 7" in note
  assert len(table.train) + len(table.held_out) == 38
  most = [(text, "" if i % 2 else label) for i, (text, label) in enumerate(sentences(lambda i: "ab"[i % 4 // 2]))]
  assert load(tsv("b.tsv", "text label", most), max_bad_record_fraction=0.6).train


def test_a_text_with_two_labels_is_told():
  rows = [*sentences(), ("this is what I think of 3", "bad")]
  (note,) = [note for note in load(tsv("a.tsv", "text label", rows)).notes if "different labels" in note]
  assert "1 texts" in note and "(a.tsv, line 5: good; a.tsv, line 42: bad)" in note


@pytest.mark.parametrize(
  ("rows", "message"),
  [
    ([("a", "maybe")], "e.tsv, line 2: column 'label' contains 'maybe', which is not a class.*: bad, good"),
    ([("this is what I think of 3", "good"), ("x", "bad")], None),
  ],
)
def test_the_table_to_measure_on_is_compared(rows, message):
  files = {"files": tsv("a.tsv", "text label", sentences()), "eval_files": tsv("e.tsv", "text label", rows)}
  if message:
    with pytest.raises(UserError, match=message):
      load(**files)
    return
  table = load(**files)
  assert any("1 of 2 texts" in note and "e.tsv, line 2 equals a.tsv, line 5" in note for note in table.notes)
  assert any('majority baseline: "bad" is correct for 50.0% of the 2 held-out rows' in note for note in table.notes)


@pytest.mark.parametrize(
  ("row", "message"),
  [
    ({"tokens": ["Ann", "saw"], "tags": ["O"]}, "line 41: the row has 2 words in 'tokens' and 1 tags"),
    ({"question": "Who?", "context": "Ann", "answers": "Bob"}, "line 41: the answer 'Bob' is not in 'context'"),
    (
      {"question": "a", "choices": ["a", "b"], "label": 2},
      "line 41: column 'label' contains '2', which matches none of the 2 candidates",
    ),
    ({"text": ["a"], "label": 0}, "line 41: column 'text' contains"),
    ({"text": "a", "score": 1e39}, "line 41: column 'score' contains 1e\\+39, too large for float32"),
  ],
)
def test_a_value_that_cannot_be_used_is_named_with_its_line(row, message):
  alike = {
    "tokens": lambda i: {**_TAGS, "tokens": ["Ann", "saw", str(i)]},
    "context": lambda i: {**_SPAN, "question": f"Who {i}?"},
    "choices": lambda i: {**_CHOICE, "question": f"What {i}?", "label": i % 2},
    "score": lambda i: {"text": f"a {i}", "score": i / 7},
    "text": lambda i: {"text": f"a {i}", "label": i % 2},
  }
  good = next(make for name, make in alike.items() if name in row)
  with pytest.raises(UserError, match=message):
    load(jsonl("a.jsonl", [*map(good, ROWS), row]))


# ---- The prefix ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  ("texts", "given", "prefix", "inputs"),
  [
    (("review",), "", "review: ", "review: A"),
    (("review",), "sst2 sentence:", "sst2 sentence: ", "sst2 sentence: A"),
    (("review",), "none", "", "A"),
    (("premise", "text_b"), "", "premise: ", "premise: A text b: B"),
    (("premise", "text_b"), "cb", "cb premise: ", "cb premise: A text b: B"),
  ],
)
def test_inputs_begin_with_a_prefix_once(texts, given, prefix, inputs):
  from t2t.data.tables import spec

  found = spec.default_prefix("class", texts, given)
  assert found == prefix
  made = tables.TableSpec("class", texts, "label", prefix=found)
  assert made.inputs(["A", "B"][: len(texts)]) == inputs
  assert made.inputs([inputs]) == inputs


# ---- Examples in memory ----------------------------------------------------------------------------------------------


class _ClassLabel:
  def __init__(self, names):
    self.names = names


class _Sequence:
  def __init__(self, feature):
    self.feature = feature


class _Dataset:
  """Fake with the parts of `datasets.Dataset` that are used: features, column_names and iteration."""

  def __init__(self, rows, features):
    self._rows, self.features, self.column_names = rows, features, list(rows[0])

  def __iter__(self):
    return iter(self._rows)


def test_names_of_a_datasets_classes_are_kept_in_their_order():
  rows = [{"text": f"t {i}", "label": -1 if i == 3 else i % 3} for i in ROWS]
  found = find(memory.keep(_Dataset(rows, {"label": _ClassLabel(["z", "a", "m"])}), where="examples"))
  assert found.classes == ("z", "a", "m")
  table = examples.load(found)
  assert all(row["targets"] == "zam"[int(row["key"].split()[1]) % 3] for row in table.train)
  words = [{"tokens": ["a", str(i)], "ner_tags": [0, 1]} for i in ROWS]
  names = {"ner_tags": _Sequence(_ClassLabel(["O", "B-X"]))}
  assert find(memory.keep(_Dataset(words, names), where="examples")).classes == ("O", "B-X")


@pytest.mark.parametrize(
  ("given", "message"),
  [
    ([], "examples is empty"),
    ([{"text": "a", "label": 1}, "b"], r"examples\[1\] has type str, not dict"),
    ({"train": []}, "examples has the unsupported type dict"),
    ("train.tsv", "examples has the unsupported type str"),
  ],
)
def test_examples_that_are_none_are_refused(given, message):
  with pytest.raises(UserError, match=message):
    memory.keep(given, where="examples")


def test_a_name_of_examples_tells_what_they_hold():
  rows = [{"text": f"t {i}", "label": i % 2} for i in ROWS]
  keep = lambda given: memory.keep(given, where="examples")
  assert keep(rows) == keep(list(rows)) != keep([{**rows[0], "text": "other"}, *rows[1:]])
  with pytest.raises(UserError, match="were passed to t2t.train by a Python program"):
    find("examples:0000000000000000")


# ---- The task --------------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive_from(5)
@pytest.mark.parametrize(
  "row",
  [
    lambda i: {"text": f"t {i}", "label": i % 2},
    lambda i: {"text": f"t {i}", "label": i / 7},
    lambda i: {**_TAGS, "tokens": ["Ann", "saw", str(i)]},
    lambda i: {**_SPAN, "context": f"Ann met Bob {i}."},
    lambda i: {**_CHOICE, "question": f"What {i}?", "choices": ["a", "b", "c"][: 2 + i % 2], "label": i % 4 // 2},
    lambda i: {"inputs": f"{i} + 1", "targets": i + 1},
  ],
)
def test_a_task_yields_what_the_table_has(row):
  data = tables.with_table(DataConfig(files=jsonl("a.jsonl", map(row, ROWS)), labels="auto", vocabulary="bytes"))
  task = pipeline.adapted(data, pipeline.registered(data))
  table = examples.load(tables.spec_of(data))
  assert {split: task.num_input_examples(split) for split in task.splits} == {
    "train": len(table.train),
    "validation": len(table.held_out),
  }
  made = task.source.get_dataset(split="validation", shuffle=False).as_numpy_iterator()
  for found, wanted in zip(made, table.held_out, strict=True):
    assert found["inputs"].decode() == wanted["inputs"] and found["targets"].decode() == wanted["targets"]
    for name in ("candidates", "words", "answer_texts"):
      assert [x.decode() for x in found.get(name, [])] == list(wanted.get(name, []))
  right = [row for row in task.get_dataset({"inputs": 99, "targets": 99}, "validation", shuffle=False)]
  values = [
    task.postprocess_fn(x["targets_pretokenized"].numpy().decode(), example=numpy_of(x), is_target=True) for x in right
  ]
  predicted = [
    task.postprocess_fn(x["targets_pretokenized"].numpy().decode(), example=numpy_of(x), is_target=False) for x in right
  ]
  for metric in task.predict_metric_fns:
    assert min(metric(values, predicted).values()) > 99 or len(values) < 4 or metric.__name__ == "rouge"


def numpy_of(example: dict[str, tf.Tensor]) -> dict:
  return {name: x.numpy() for name, x in example.items()}


@pytest.mark.parametrize(
  ("saved", "message"),
  [
    ("class", "t2t_table='class' must be a mapping"),
    ({"kind": "class", "texts": ["a"], "label": 3}, "t2t_table.label='3' must have type str"),
    ({"kind": "class", "texts": [1], "label": "b"}, r"t2t_table.texts='\(1,\)' must have type tuple"),
    ({"kind": "class", "texts": ["a"]}, "t2t_table.label=.* must have type str"),
    ({"kind": "class", "texts": ["a"], "label": "b", "more": 1}, "t2t_table has the key 'more'.*upgrade t2t"),
  ],
)
def test_a_specification_from_another_machine_is_checked(saved, message):
  with pytest.raises(UserError, match=message):
    tables.from_dict(saved, where="t2t_table")


def test_lengths_and_classes_count_tokens_as_training_reads_them(capsys):
  """A control token is many tokens when it is read as text, and a single token otherwise."""
  name = "<extra_id_10> <extra_id_11>"
  files = tsv("a.tsv", "text label", [(f"t {i} {name}", f"{name} {'ab'[i % 2]}") for i in ROWS])
  path = test_control_tokens.bpe_with_bytes(pathlib.Path())
  vocabulary = vocabularies.load(str(path), extra_ids=100)
  config = records(load_config("finetune")).with_(data={"files": files, "labels": "auto", "vocabulary": str(path)})
  lengths = {}
  for special in (False, True):
    found = resolving.resolved(config.with_(data={"special_tokens": special}), lambda: vocabulary)
    lengths[special] = (found.data.inputs_length, found.data.targets_length)
    with pytest.raises(UserError, match="targets_length=2: the longest label has"):
      resolving.resolved(config.with_(data={"special_tokens": special, "targets_length": 2}), lambda: vocabulary)
  assert lengths[False][1] >= 24 and lengths[True][1] == 8 and lengths[True][0] < lengths[False][0]


# ---- The whole command -----------------------------------------------------------------------------------------------


def animals(number: int, first: int = 0) -> list[tuple[str, str]]:
  return [(f"{('dog', 'fox')[i % 2] * 3} {i}", ("bark", "yelp")[i % 2]) for i in range(first, first + number)]


def train(architecture: str, files: str, *options: str) -> int:
  base = f"--config.init.checkpoint={trained.workdir(architecture)}"
  quick = ("--config.eval.num_logged_samples=0", "--config.data.labels=auto", "--config.optimizer.learning_rate=0.05")
  return command.main(["train", "--config=finetune", base, f"--config.data.files={files}", *quick, *options])


def table_of(path: str) -> list[dict[str, str]]:
  with open(path, newline="") as file:
    return list(csv.DictReader(file, delimiter="\t" if path.endswith(".tsv") else ","))


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder_only", "encoder_only"])
def test_a_table_is_learned_measured_and_predicted(architecture, capsys):
  files, test = tsv("train.tsv", "sound kind", animals(96)), tsv("test.tsv", "sound kind", animals(20, first=200))
  pathlib.Path("test.tsv").write_text(pathlib.Path("test.tsv").read_text().replace("sound", "id\tsound", 1))
  rows = [f"{n}\t{line}" for n, line in enumerate(pathlib.Path("test.tsv").read_text().splitlines()[1:])]
  pathlib.Path("test.tsv").write_text("\n".join(["id\tsound\tkind", *rows]) + "\n")
  assert train(architecture, files, "--workdir=run") == 0
  said = capsys.readouterr()
  said_at_start = said.err + said.out
  assert "text: `sound`; label: `kind`" in said_at_start
  assert train(architecture, files, "--workdir=run") == 0
  said = capsys.readouterr()
  assert "resuming from step" in said.err + said.out

  assert command.main(["eval", "--checkpoint=run", f"--config.data.eval_files={test}", "--workdir=scores"]) == 0
  result = json.loads(pathlib.Path("scores/results.json").read_text())["table.validation"]
  assert result["metrics"]["accuracy"] > 60 and result["classes"]["n"] == 20
  assert "confusion matrix" in capsys.readouterr().out

  assert command.main(["infer", "--checkpoint=run", f"--input={test}", "--output=out.csv"]) == 0
  found = table_of("out.csv")
  assert [list(row) for row in found] == [["id", "sound", "kind", "prediction", "probability"]] * 20
  assert [row["id"] for row in found] == [str(n) for n in range(20)]
  right = sum(row["prediction"] == row["kind"] for row in found)
  assert 5 * right == pytest.approx(result["metrics"]["accuracy"])

  model = t2t.load("run")
  answers = model.classify([{"sound": row["sound"]} for row in found])
  assert [row["prediction"] for row in answers] == [row["prediction"] for row in found]
  for row, answer in zip(found, answers, strict=True):
    assert float(row["probability"]) == answer["probabilities"][answer["prediction"]]
  assert model.classify([row["sound"] for row in found]) == answers
  if architecture != "encoder_only":  # an encoder reads no prefix
    assert model.classify([f"sound: {row['sound']}" for row in found]) == answers

  if architecture == "encoder_only":
    assert "`t2t convert --to hf` will refuse this model" in " ".join(said_at_start.split())
    return
  # The exported folder for transformers also has the columns, the classes and the prefix.
  model.save_pretrained("exported")
  again = t2t.load("exported").classify([{"sound": row["sound"]} for row in found])
  assert [row["prediction"] for row in again] == [row["prediction"] for row in found]
  assert command.main(["infer", "--checkpoint=exported", f"--input={test}", "--output=again.csv"]) == 0
  assert [row["prediction"] for row in table_of("again.csv")] == [row["prediction"] for row in found]
  assert command.main(["eval", "--checkpoint=exported", f"--config.data.eval_files={test}", "--workdir=again"]) == 0
  again = json.loads(pathlib.Path("again/results.json").read_text())["table.validation"]
  assert again["metrics"]["accuracy"] == pytest.approx(result["metrics"]["accuracy"])


@pytest.mark.parametrize(("data", "how"), [({}, "none"), ({"special_tokens": True}, "all")])
def test_letters_of_control_tokens_are_read_as_in_training(data, how, monkeypatch):
  """Table models that generate or rank read control tokens as in training; other models read blanks. The option
  overrides both.
  """
  seen = []
  encode = vocabularies.encode_text
  spy = lambda vocabulary, text, *, special_tokens: seen.append(special_tokens) or encode(vocabulary, text)
  monkeypatch.setattr(vocabularies, "encode_text", spy)
  source = pretrained.read_source(str(trained.workdir("encoder_decoder")))
  spec = tables.TableSpec("class", ("text",), "label", classes=("a", "b"), prefix="text: ")
  own = {"table": spec.to_dict(), "vocabulary": source.run["data"]["vocabulary"], **data}
  tuned = dataclasses.replace(source, run=source.run | {"data": source.run["data"] | own})
  mesh = batch_inference.make_mesh(1)
  options = {"longest": 20, "ends_prompts": True, "batch_size": 1}
  for given, option, expected in (
    (tuned, {}, how),
    (tuned, {"special_tokens": "blanks"}, "blanks"),
    (source, {}, "blanks"),
  ):
    ways = [
      ranking.Ranking(given, mesh, classes=spec.classes, **options, **option),
      text_generation.Writing(
        given, mesh, decode=text_generation.decode_config(max_length=2), seed=0, **options, **option
      ),
    ]
    for way in ways:
      way.read(jsonl_io.Line(1, "<extra_id_0>", {}))
    assert set(seen) == {expected}
    seen.clear()


@pytest.mark.exhaustive
def test_examples_in_memory_are_resumed_by_what_they_hold(capsys):
  rows = [{"words": [f"w{i}", "Ann"], "tags": ["O", "B-PER"]} for i in range(40)]
  config = t2t.config(
    "finetune",
    init={"checkpoint": str(trained.workdir("encoder_only"))},
    train={"steps": 4},
    eval={"every": 2},
    checkpoint={"save_interval_steps": 2},
  )
  training = t2t.train(config, "run", examples=rows)
  next(row for row in training if row["step"] >= 2)
  training.close()
  last = t2t.train(config, "run", examples=list(rows)).run()
  assert "eval/table/f1" in last and last["step"] == 4
  (row,) = t2t.load("run").answer([{"words": ["x", "Ann", "y"]}])
  assert len(row["tags"]) == 3 and set(row["tags"]) <= {"O", "B-PER"}
  assert command.main(["eval", "--checkpoint=run", "--workdir=scores"]) == 2
  assert "config.data.eval_files is empty, and the examples that a Python program passed" in " ".join(
    capsys.readouterr().err.split()
  )
  more = t2t.config("finetune", init={"checkpoint": str(trained.workdir("encoder_only"))}, train={"steps": 6})
  with pytest.raises(UserError, match="^examples: .* these examples or their order differ. Pass the same"):
    t2t.train(more, "run", examples=[{"words": ["other", "Ann"], "tags": ["O", "B-PER"]}, *rows[1:]]).run()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  ("architecture", "row", "fields"),
  [
    ("encoder_only", lambda i: {"text": f"t {i}", "score": i / 7}, {"prediction"}),
    ("decoder_only", lambda i: {"premise": f"p {i}", "choices": ["a", "b"], "label": i % 2}, {"prediction"}),
    ("encoder_decoder", lambda i: {"tokens": ["Ann", f"w{i}"], "tags": ["B-PER", "O"]}, {"prediction", "words"}),
  ],
)
def test_each_kind_of_table_is_trained_and_asked(architecture, row, fields):
  files = jsonl("train.jsonl", map(row, ROWS))
  steps = ("--config.train.steps=2", "--config.eval.every=2", "--config.checkpoint.save_interval_steps=2")
  assert train(architecture, files, *steps, "--workdir=run") == 0
  asked = ["--config.eval.max_examples=4", "--workdir=scores"]
  assert command.main(["eval", "--checkpoint=run", f"--config.data.eval_files={files}", *asked]) == 0
  measured = json.loads(pathlib.Path("scores/results.json").read_text())["table.validation"]
  assert measured["metrics"] and ("errors" in measured) == ("score" in row(0))
  assert command.main(["infer", "--checkpoint=run", f"--input={files}", "--output=out.jsonl"]) == 0
  found = [json.loads(line) for line in pathlib.Path("out.jsonl").read_text().splitlines()]
  for number, answer in enumerate(found):
    assert row(number).items() <= answer.items() and fields <= set(answer)
  if "tags" not in row(0):  # tags are generated from words, and the page takes text
    asker = test_served_commands.service("run")
    columns = {name: x for name, x in row(0).items() if name not in ("score", "label")}
    assert list(asker.generate(asker.parse(json.dumps(columns).encode())))[-1]["prediction"] == found[0]["prediction"]
    if row(0).keys() >= {"score"}:
      with pytest.raises(UserError, match="the request has 2 text"):
        asker.parse(b'{"parts": ["a", "b"]}')
    with pytest.raises(UserError, match="'inputs' and '.*' both give the text; give only one of these fields"):
      asker.parse(json.dumps({"inputs": "a"} | columns).encode())
    first = next(iter(columns))
    with pytest.raises(UserError, match=f"'{first}' is missing"):
      asker.parse(json.dumps(columns | {first: None}).encode())
