"""Values of a user's table: parsed as intended, or rejected with file and line."""

import csv
import decimal
import json
import pathlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from t2t import UserError
from t2t.configuration.schema import DataConfig
from t2t.data import tables
from t2t.data.sources import tables as table_files
from t2t.data.tables import examples, memory, resolving, values
from t2t.inference import jsonl_io, table_inputs, table_output

ROWS = range(40)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)


def jsonl(name: str, rows) -> str:
  pathlib.Path(name).write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
  return name


def table(name: str, rows) -> str:
  rows = list(rows)
  with open(name, "w", newline="") as file:
    writer = csv.DictWriter(file, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
  return name


def load(files: str, labels: str = "auto", **data) -> tuple:
  spec = resolving.find(DataConfig(files=files, labels=labels, **data))
  return spec, examples.load(spec)


def every(found: tuple) -> list:
  return [*found[1].train, *found[1].held_out]


# ---- Answers in a context --------------------------------------------------------------------------------------------


def span(i: int, answers, **others) -> dict:
  return {"question": f"Who {i}?", "context": f"Ann saw Ann {i}", "answers": answers, **others}


@pytest.mark.parametrize(
  ("answers", "start"),
  [
    (["Ann"], [8]),
    (["Ann"], 8),
    ("Ann", 8.0),
    ("Ann", "8"),
    ("Ann", "[8]"),
    ("Ann", " 8.0 "),
    ({"text": "Ann", "answer_start": 8.0}, None),
    ({"text": ["Ann"], "answer_start": "8"}, None),
    ({"text": ["Ann"]}, [8]),
    ([{"text": "Ann", "answer_start": 8}], None),
    ("{'text': ['Ann'], 'answer_start': [8]}", None),
  ],
)
def test_the_start_of_an_answer_is_used(answers, start):
  found = load(jsonl("a.jsonl", [span(i, answers, answer_start=start) for i in ROWS]))
  assert {tuple(row["answer_starts"]) for row in every(found)} == {(8,)}


@pytest.mark.parametrize(
  ("row", "message"),
  [
    (span(1, "Ann", answer_start="8th"), "the start of an answer is '8th'"),
    (span(1, "Ann", answer_start=8.7), "the start of an answer is '8.7'"),
    (span(1, "Ann", answer_start=True), "the start of an answer is 'True'"),
    (span(1, "Ann", answer_start=800), "at character 800"),
    (span(1, "Ann", answer_start=[8, 0]), r"1 answer\(s\) have 2 start\(s\)"),
    (span(1, {"text": ["Ann"], "answer_start": [None]}), "the start of an answer is null"),
    (span(1, {"text": ["Ann"], "answer_start": [float("nan")]}), "the start of an answer is 'nan'"),
    (json.dumps(span(1, {"text": ["Ann"], "answer_start": [0]})).replace("[0]", "[1e400]"), "an answer is 'inf'"),
    (json.dumps(span(1, {"text": ["Ann"], "answer_start": [0]})).replace("[0]", f"[1{'0' * 400}]"), "an answer is '1"),
    (span(1, "['Ann'"), "begins like a list but is not one"),
    (span(1, [1]), "has no texts"),
    ({**span(1, "84"), "context": 1985}, "the answer '84' is not in 'context'"),
  ],
)
def test_an_answer_that_cannot_be_read_is_refused(row, message):
  with pytest.raises(UserError, match=f"a.jsonl, line 41: .*{message}"):
    load(jsonl("a.jsonl", [*(span(i, {"text": ["Ann"], "answer_start": [0]}) for i in ROWS), row]))


def test_a_context_may_be_a_number():
  rows = [{**span(i, "19"), "context": 1900 + i} for i in ROWS]
  assert every(load(jsonl("a.jsonl", rows)))[0]["answer_starts"] == [0]


def test_an_impossible_question_has_no_answer():
  given = {"text": ["Ann"], "answer_start": [0]}
  rows = [span(i, given, is_impossible=("true", False)[i % 2]) for i in ROWS]
  spec, found = load(jsonl("a.jsonl", [*rows, span(99, {"text": None, "answer_start": None})]))
  assert spec.no_answer
  assert all(
    (row["answer_texts"] == []) == (row["question"][-2] in "02468" or "99" in row["question"])
    for row in every((spec, found))
  )


# ---- Lists -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  ("cell", "words"),
  [
    ("['It', 'is']", ["It", "is"]),
    ('["It", "is"]', ["It", "is"]),
    ("['It' 'is'\n \"don't\"]", ["It", "is", "don't"]),
    (r"['a\'b', 'ü']", ["a'b", "ü"]),
    ("[3 0]", ["3", "0"]),
    ("[3, 0,]", ["3", "0"]),
    ("[1. 2.5]", ["1", "2.5"]),
    ("['one']", ["one"]),
    ("[]", []),
    ("It is", ["It", "is"]),
    ("['It', None]", None),
    ("[1, null]", None),
    ("[1 2 ... 9]", None),
    ("['It', 'is", None),
    ("['It', ['is']]", None),
    ("['It' 'is', 'so']", None),
    ("[It is]", None),
    (["It", None], None),
    (["It", float("nan")], None),
    ("[" * 100_000, None),
  ],
)
def test_lists_as_python_and_numpy_print_them(cell, words):
  assert values.words(cell) == words


def test_a_table_with_printed_lists():
  rows = [{"tokens": f"['Ann' 'saw' '{i}']", "ner_tags": "[3 0 7]"} for i in ROWS]
  found = load(table("a.csv", rows))
  assert found[0].classes == ("0", "3", "7")
  assert every(found)[0]["words"] == ["Ann", "saw", "0"] and every(found)[0]["tags"] == [1, 0, 2]
  with pytest.raises(UserError, match="a.csv, line 42: column 'tokens' contains .*'Ann', 'sa"):
    load(table("a.csv", [*rows, {"tokens": "['Ann', 'sa", "ner_tags": "[3 0]"}]))


def test_candidates_in_a_cell():
  rows = [{"question": f"What {i}?", "choices": ("['a b' 'c']", "['a b', 'c']")[i % 2], "label": i % 2} for i in ROWS]
  assert {tuple(row["candidates"]) for row in every(load(table("a.csv", rows)))} == {("a b", "c")}
  with pytest.raises(UserError, match="a.csv, line 42: column 'choices'"):
    load(table("a.csv", [*rows, {"question": "What?", "choices": "['a b', 'c", "label": 0}]))


@pytest.mark.parametrize("mark", [-1, -100, None, float("nan")])
def test_padding_is_no_tag(mark):
  rows = [{"tokens": ["Ann", "saw", str(i)], "ner_tags": [1, 0, 2]} for i in ROWS]
  whole = {"tokens": ["x", "y"], "ner_tags": [mark, mark]}
  found = load(jsonl("a.jsonl", [*rows, whole]))
  assert found[0].classes == ("0", "1", "2") and len(every(found)) == 40
  with pytest.raises(UserError, match="a.jsonl, line 41: the word 'y' has the tag null or .* in 'ner_tags'"):
    load(jsonl("a.jsonl", [*rows, {"tokens": ["x", "y"], "ner_tags": [1, mark]}]))
  if mark in (-1, -100):  # listed, it is a tag
    assert every(load(jsonl("a.jsonl", [*rows, whole]), f"{mark},0,1,2"))[0]["tags"] == [2, 1, 3]


def test_words_that_are_null_are_refused():
  rows = [{"tokens": ["Ann", str(i)], "tags": ["B-PER", "O"]} for i in ROWS]
  with pytest.raises(UserError, match="a.jsonl, line 41: column 'tokens' contains .*without null"):
    load(jsonl("a.jsonl", [*rows, {"tokens": ["Ann", None], "tags": ["B-PER", "O"]}]))


def test_answers_count_the_characters_of_a_context_as_it_stands():
  spec = tables.TableSpec("span", ("question", "context"), "answers")
  read = lambda others: table_inputs.context_of(spec, jsonl_io.Line(1, "Who? Ann saw", others), "Ann saw")
  assert read({"context": "  Ann saw"}) == "  Ann saw" and read({"context": 7}) == read({}) == "Ann saw"
  row = {"question": "Who?", "context": "  Ann saw Ann", "answers": "Ann", "answer_start": 10}
  assert every(load(jsonl("a.jsonl", [{**row, "question": f"Who {i}?"} for i in ROWS])))[0]["answer_starts"] == [10]


def test_words_to_predict_on_are_read_alike():
  spec = tables.TableSpec("tags", ("tokens",), "tags", classes=("O", "B-PER"))
  read = lambda cell: table_inputs.words_of(spec, jsonl_io.Line(1, "It is", {"tokens": cell}), "row 1")
  assert read("['It' 'is']") == read(["It", "is"]) == read("It is") == read(None) == ["It", "is"]
  for cell in (["It", None], "['It', 'is"):
    with pytest.raises(UserError, match="row 1: column 'tokens' is .*without null"):
      read(cell)


# ---- Labels ----------------------------------------------------------------------------------------------------------


def labelled(label, name: str = "label", number: int = 40) -> list[dict]:
  return [{"text": f"some text {i}", name: label(i)} for i in range(number)]


def test_numbers_are_classes_by_their_value():
  files = table("a.csv", labelled(lambda i: float(i % 5 + 1), "stars"))
  for other in (lambda i: i % 4 + 1, lambda i: f"{i % 4 + 1}.00"):
    found = load(files, eval_files=table("e.csv", labelled(other, "stars")))
    assert [row["targets"] for row in found[1].held_out[:4]] == ["1.0", "2.0", "3.0", "4.0"]
  with pytest.raises(UserError, match="e.csv, line 2: column 'stars' contains '0', which is not a class"):
    load(files, eval_files=table("e.csv", labelled(lambda i: 0, "stars")))
  given = load(files, "1,2,3,4,5")
  assert {row["label"] + 1 == float(row["key"].split()[-1]) % 5 + 1 for row in every(given)} == {True}
  names = load(table("b.csv", labelled(lambda i: i % 2)), "bad,good")  # of which none is a number
  assert every(names)[1]["targets"] == "good"
  with pytest.raises(UserError, match="'1' .* and '1.0' .* have the same value"):
    load(table("c.csv", labelled(lambda i: ("1", "1.0", "2")[i % 3])))


@pytest.mark.parametrize("mark", ["nan", "N/A", "inf", "-inf", "null", "NA"])
def test_one_mark_makes_no_classes_of_numbers(mark):
  score = table("a.csv", labelled(lambda i: mark if i == 3 else i % 4 + 0.5, "score"))
  found = load(score, eval_files=score)
  assert found[0].kind == "score" and any("(the first: a.csv, line 5)" in note for note in found[1].notes)
  stars = load(table("b.csv", labelled(lambda i: mark if i == 3 else i % 5, "stars")))
  assert stars[0].classes == ("0", "1", "2", "3", "4") and len(every(stars)) == 39
  words = load(table("c.csv", labelled(lambda i: ("yes", "no", mark)[i % 3])))
  assert mark in words[0].classes


@pytest.mark.parametrize(
  ("label", "message"),
  [
    (lambda i: f"{i % 4},5", "column 'score' has '.,5' .*0.5 and not 0,5"),
    (lambda i: f"1,{i:03d}.5" if i > 30 else i / 8, "no commas between thousands"),
    (lambda i: "1e400" if i == 3 else i / 8, "a.csv, line 5: column 'score' contains '1e400', not a number"),
    (lambda i: "much" if i == 3 else i / 8, "a.csv, line 5: column 'score' contains 'much', not a number"),
    (
      lambda i: "none" if i % 3 else i % 2,
      "have none in column 'score', .* If none is a class, give --config.data.labels=none,0",
    ),
  ],
)
def test_a_score_that_is_no_number_is_refused(label, message):
  with pytest.raises(UserError, match=message):
    load(table("a.csv", labelled(label, "score")))


@pytest.mark.parametrize("mark", [-1, -100])
def test_an_unanswered_class(mark):
  found = load(jsonl("a.jsonl", labelled(lambda i: mark if i == 3 else i % 2)))
  assert found[0].classes == ("0", "1") and len(every(found)) == 39


def test_snli_marks_rows_without_a_gold_label():
  label = lambda i: "-" if i == 3 else ("entailment", "neutral", "contradiction")[i % 3]
  files = jsonl("a.jsonl", labelled(label, "gold_label"))
  found = load(files, eval_files=files)
  assert found[0].classes == ("contradiction", "entailment", "neutral") and len(every(found)) == 78
  for signs in ("+-", "+-0"):
    assert "-" in load(jsonl("b.jsonl", labelled(lambda i, signs=signs: signs[i % len(signs)])))[0].classes


@pytest.mark.parametrize("target", ["-", "none", "N/A"])
def test_a_text_to_be_written_is_no_mark(target):
  rows = [{"document": f"text {i}", "summary": target if i % 2 else f"say {i}"} for i in ROWS]
  assert target in {row["targets"] for row in every(load(jsonl("a.jsonl", rows)))}
  rows = [{"document": f"text {i}", "summary": (target, i + 100)[i % 2]} for i in ROWS]
  assert target in {row["targets"] for row in every(load(jsonl("b.jsonl", rows)))}


@pytest.mark.parametrize("label", [["joy", "anger"], [1, 0, 0], {"a": 0}, ["joy"], "['joy', 'anger']", "[1 0 0]"])
def test_several_labels_in_a_row_are_refused(label):
  with pytest.raises(
    UserError, match="a.jsonl, line 4: column 'label' contains .* several labels in a row are not supported"
  ):
    load(jsonl("a.jsonl", labelled(lambda i: label if i == 3 else "ab"[i % 2])))


@pytest.mark.parametrize("digit", ["①", "²"])
def test_digits_that_are_no_numbers(digit):
  files = jsonl("a.jsonl", labelled(lambda i: "ab"[i % 2]))
  for labels in ("auto", "a,b"):
    with pytest.raises(UserError, match=f"e.jsonl, line 1: column 'label' contains '{digit}', which is not a class"):
      load(files, labels, eval_files=jsonl("e.jsonl", labelled(lambda i: digit)))
  with pytest.raises(UserError, match=f"has the label '{digit}'"):
    load(jsonl("b.jsonl", labelled(lambda i: (digit, "c")[i % 2])), "a,b")


def test_scores_are_written_with_all_their_digits():
  numbers = [10001, 123456.75, 0.1, 0.00001, 3.0, -2.5, 1 / 3, 1e22]
  found = load(jsonl("a.jsonl", labelled(lambda i: numbers[i % len(numbers)])), "number")
  for row in every(found):
    assert float(row["targets"]) == row["label"] and "e" not in row["targets"]
  assert {"10001", "123456.75", "0.1", "0.00001", "3"} < {row["targets"] for row in every(found)}


def test_a_key_that_a_json_row_lacks_is_an_empty_cell():
  rows = labelled(lambda i: "ab"[i % 2])
  del rows[0]["label"], rows[5]["text"]
  found = load(jsonl("a.jsonl", rows))
  (note,) = [note for note in found[1].notes if "left out" in note]
  assert "1 without a label in 'label' (the first: a.jsonl, line 1)" in note and "a.jsonl, line 6" in note
  with pytest.raises(UserError, match="e.jsonl, line 1: no column 'label'"):
    load("a.jsonl", eval_files=jsonl("e.jsonl", [{"text": "x"}, {"text": "y"}]))


# ---- Text ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["text", "label"])
def test_half_a_surrogate_pair_is_named(name):
  rows = labelled(lambda i: "ab"[i % 2])
  rows[3][name] = "b \ud800"
  for files, where in ((jsonl("a.jsonl", rows), "a.jsonl, line 4"), (memory.keep(rows, where="rows"), r"rows\[3\]")):
    with pytest.raises(UserError, match=f"{where}: .* unpaired surrogate"):
      load(files)


def test_binary_text_of_parquet_is_text():
  texts, labels = [f"text é {i}" for i in ROWS], ["pn"[i % 2] for i in ROWS]
  columns = {"text": [text.encode() for text in texts], "label": [label.encode() for label in labels]}
  pa.parquet.write_table(pa.table({**columns, "image": [b"\xff\xd8"] * 40}), "a.parquet")
  found = load("a.parquet")
  assert found[0].classes == ("n", "p") and every(found)[0]["key"] == "text é 0"
  in_memory = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
  assert load(memory.keep(in_memory, where="rows"))[0].classes == ("n", "p")
  form = jsonl_io.Form(columns=("text",))
  assert [line.text for line in jsonl_io.read("a.parquet", form=form)] == texts
  with pytest.raises(UserError, match="a.parquet, record 1: column 'image' is binary and not UTF-8"):
    list(jsonl_io.read("a.parquet", field="image"))
  pa.parquet.write_table(pa.table({"text": texts, "label": [b"\xff", b"\xfe"] * 20}), "b.parquet")
  with pytest.raises(UserError, match="b.parquet, record 1: column 'label' contains bytes that are not UTF-8"):
    load("b.parquet")


def test_decimal_numbers_of_parquet_are_numbers():
  for name, own, divisor in (("score", 40, 4), ("stars", 4, 1)):
    numbers = [decimal.Decimal(i % own) / divisor for i in ROWS]
    pa.parquet.write_table(pa.table({"text": [f"some text {i}" for i in ROWS], name: pa.array(numbers)}), "a.parquet")
    found = load("a.parquet", columns=f"text=text,label={name}")
    assert found[0].kind == ("score" if name == "score" else "class")
    assert {row["targets"] for row in every(found)} == {f"{float(x):g}" for x in numbers}


def test_rows_in_memory_may_have_numbers_of_numpy():
  tags = lambda i: {"tokens": [np.str_("Ann"), f"w{i}"], "ner_tags": list(np.array([1, 0]))}
  assert every(load(memory.keep(map(tags, ROWS), where="rows")))[0]["tags"] == [1, 0]
  answers = lambda i: span(i, {"text": np.array(["Ann"], object), "answer_start": (np.int32(8),)})
  assert every(load(memory.keep(map(answers, ROWS), where="rows")))[0]["answer_starts"] == [8]
  scores = labelled(lambda i: np.float32(i / 8), "score")
  assert every(load(memory.keep(scores, where="rows")))[0]["label"] == 0.0


class _Polars:
  """A fake of what is used of polars' DataFrame, which is no dependency."""

  columns = ("text", "label")

  def to_dict(self, *, as_series: bool = True):
    raise AssertionError("columns, not rows")

  def iter_rows(self, *, named: bool = False):
    return iter(labelled(lambda i: "ab"[i % 2]) if named else [])


def test_frames_of_polars_and_pyarrow_are_examples():
  for frame in (_Polars(), pa.Table.from_pylist(labelled(lambda i: "ab"[i % 2]))):
    assert load(memory.keep(frame, where="examples"))[0].classes == ("a", "b")


# ---- Predictions beside a table --------------------------------------------------------------------------------------


def written(path: str, records: list[dict]) -> None:
  lines = [jsonl_io.Line(number, "", record) for number, record in enumerate(records, 1)]
  rows = [json.dumps({**jsonl_io.row(line, {}), "prediction": "p"}) + "\n" for line in lines]
  pathlib.Path(table_output.rows_path(path)).write_text("".join(rows))
  table_output.write(path, lambda: (line for line in lines))


def test_what_infer_writes_as_csv_is_read_again():
  records = [{"text": text, "more": "x"} for text in ("one\rtwo", 'a "b", c', "l\nm", "", " plain ", "one\r\ntwo")]
  written("a.csv", records)
  with open("a.csv", newline="") as file:
    assert list(csv.DictReader(file)) == [{**record, "prediction": "p"} for record in records]
  assert [dict(row.values) for row in table_files.read_rows(["a.csv"])] == [
    {**record, "prediction": "p"} for record in records
  ]


def test_columns_of_several_types_are_text_in_parquet():
  records = [{"id": 1, "n": 1, "t": "\ud800"}, {"id": "x", "n": None, "t": "b"}, {"id": [2], "n": 3, "t": None}]
  written("a.parquet", records)
  found = pa.parquet.read_table("a.parquet").to_pydict()
  assert found == {"id": ["1", "x", "[2]"], "n": [1, None, 3], "t": [r"\ud800", "b", None], "prediction": ["p"] * 3}
