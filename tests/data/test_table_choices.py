"""Candidates of a table: label numbering is decided per column, or the table is rejected."""

import csv
import json
import pathlib

import hypothesis
from hypothesis import strategies as st
import pytest

from t2t import UserError
from t2t.configuration.schema import DataConfig
from t2t.data import tables
from t2t.data.tables import choices, examples, reading, resolving

ROWS = range(40)
WORDS = ["p", "q", "r", "s"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)


def written(rows, name: str = "a.jsonl") -> str:
  rows = list(rows)
  with open(name, "w", newline="") as file:
    if name.endswith(".csv"):
      table = csv.DictWriter(file, list(rows[0]))
      table.writeheader()
      table.writerows(rows)
    else:
      file.writelines(json.dumps(row) + "\n" for row in rows)
  return name


def find(rows, name: str = "a.jsonl", labels: str = "auto", **data) -> tables.TableSpec:
  return resolving.find(DataConfig(files=written(rows, name), labels=labels, **data))


def right_of(rows, name: str = "a.jsonl", **data) -> list[str]:
  """The text of the right candidate of each row, in the order of the file."""
  table = examples.load(find(rows, name, **data))
  line = lambda row: int(row["row"].rsplit(" ", 1)[1])
  return [row["candidates"][row["label"]] for row in sorted([*table.train, *table.held_out], key=line)]


def refused(rows, name: str = "a.jsonl", **data) -> str:
  with pytest.raises(UserError, match=".") as error:
    examples.load(find(rows, name, **data))
  return str(error.value)


def asked(i: int, candidates, label) -> dict:
  return {"question": f"What is {i}?", "choices": candidates, "answer": label}


# ---- One reading per column ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  ("row", "wanted"),
  [
    (lambda i: asked(i, ["3", "1", "0", "2"], i % 4), lambda i: "3102"[i % 4]),  # numbers in JSON are no texts
    (lambda i: asked(i, ["8", "2", "4", "6"], "8246"[i % 4]), lambda i: "8246"[i % 4]),
    (lambda i: asked(i, [["3", "1", "0", "2"], WORDS][i % 2], str(i % 4)), lambda i: ["3102", WORDS][i % 2][i % 4]),
    (lambda i: asked(i, [["B", "A", "O", "C"], WORDS][i % 2], "ABCD"[i % 4]), lambda i: ["BAOC", WORDS][i % 2][i % 4]),
    (lambda i: asked(i, ["-1", "0", "1"], ["-1", "0", "1"][i % 3]), lambda i: ["-1", "0", "1"][i % 3]),
    (lambda i: asked(i, [2, 4, 8], i % 3), lambda i: "248"[i % 3]),
    (lambda i: asked(i, WORDS, str(float(i % 4))), lambda i: WORDS[i % 4]),
    (lambda i: asked(i, ["the  cat", "a dog"], ["the cat", "a dog"][i % 2]), lambda i: ["the  cat", "a dog"][i % 2]),
  ],
)
def test_labels_of_a_column_are_read_in_one_way(row, wanted):
  assert right_of(map(row, ROWS)) == [wanted(i) for i in ROWS]


@pytest.mark.parametrize(
  ("row", "typed"),
  [
    (lambda i: asked(i, ["3", "1", "0", "2"], str(i % 4)), {"0,1,2,3": "3102", "text": "0123"}),
    (lambda i: asked(i, ["B", "C", "D", "A"], "ABCD"[i % 4]), {"A,B,C,D": "BCDA", "text": "ABCD"}),
    (lambda i: asked(i, WORDS, 1 + i % 2), {"0,1,2,3": "qr", "1,2,3,4": "pq"}),
  ],
)
def test_what_can_be_read_in_two_ways_is_refused_with_what_to_type(row, typed):
  message = refused(map(row, ROWS))
  assert "a.jsonl, line" in message and "'answer'" in message
  for labels, wanted in typed.items():
    assert f"--config.data.labels={labels}" in message
    assert right_of(map(row, ROWS), labels=labels) == [wanted[i % len(wanted)] for i in ROWS]


def test_a_label_of_another_kind_is_named_with_its_line():
  message = refused([*(asked(i, WORDS, i % 4) for i in ROWS), asked(99, WORDS, "r")])
  assert "a.jsonl, line 41: column 'answer' contains 'r'" in message and "the number of a candidate, from 0" in message
  assert "line 1: column 'answer' contains 'x', which matches none of the 4 candidates" in refused(
    asked(i, WORDS, "xyz"[i % 3]) for i in ROWS
  )
  assert "Give auto, or one of: 0,1,2,3 (" in refused((asked(i, WORDS, i % 4) for i in ROWS), labels="number")


@hypothesis.settings(max_examples=50, deadline=None)
@hypothesis.given(
  st.lists(st.tuples(st.permutations(["0", "1", "2", "3"]), st.integers(0, 3)), min_size=4, max_size=12),
  st.sampled_from([0, 1]),
)
def test_a_number_is_never_taken_for_another_candidate(rows, first):
  """Numbers name their candidates, whatever the candidates are, or the column is refused."""
  made = [reading.TableRow(asked(n, texts, label + first), f"line {n}") for n, (texts, label) in enumerate(rows)]
  spec = tables.TableSpec("choice", ("question",), "answer", candidates=("choices",))
  try:
    spec = choices.decide(spec, made, "auto", where="a.jsonl")
  except UserError:
    assert [0, 3][first] not in {label for _, label in rows}  # else one reading alone is possible
    return
  found = [examples.read_example(spec, row) for row in made]
  assert [row["candidates"][row["label"]] for row in found] == [texts[label] for texts, label in rows]


# ---- Empty candidates, numbers from 1 --------------------------------------------------------------------------------


def test_an_empty_candidate_does_not_shift_labels():
  row = lambda i: {"premise": f"Rain {i}", "choice1": "" if i % 2 else "dry", "choice2": "wet", "choice3": "cold"}
  assert right_of({**row(i), "label": 2 - i % 2} for i in ROWS) == [["cold", "wet"][i % 2] for i in ROWS]
  assert right_of(({**row(i), "label": "BC"[i % 2]} for i in ROWS), "a.csv") == [["wet", "cold"][i % 2] for i in ROWS]
  message = refused({**row(i), "label": i % 3} for i in ROWS)
  assert "a.jsonl, line 4: column 'label' contains '0', but candidate 1 of 3 is empty" in message
  assert "line 2: column 'answer' contains '1', but candidate 2 of 3 is empty" in refused(
    asked(i, ["a", None, "b"], i % 3) for i in ROWS
  )


def test_the_first_number_is_decided_by_the_whole_column_and_said():
  table = lambda first: [asked(i, WORDS[: 3 + i % 2], first + i % 3) for i in ROWS]
  for first in (0, 1):
    assert right_of(table(first)) == [WORDS[i % 3] for i in ROWS]
    assert f"labels count from {first}" in "".join(examples.load(find(table(first))).notes)


@pytest.mark.parametrize("names", [list("1234"), [1, 2, 3, 4], list("ABCD")])
def test_the_names_of_candidates_are_read_where_they_stand(names):
  rows = [
    {"question": f"Which {i}?", "choices": {"text": WORDS, "label": names}, "answerKey": names[i % 3]} for i in ROWS
  ]
  assert right_of(rows) == [WORDS[i % 3] for i in ROWS]
  mixed = [
    {"question": f"Which {i}?", "choices": {"text": WORDS, "label": own}, "answerKey": own[i % 4]}
    for i in ROWS
    for own in (names, list("EFGH"))
  ]
  assert right_of(mixed) == [WORDS[i % 4] for i in ROWS for _ in range(2)]


# ---- Columns ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  ("names", "label"),
  [
    ([f"option_{x}" for x in "abcdefgh"], lambda n: "ABCDEFGH"[n]),
    ([f"choice{n}" for n in range(1, 13)], lambda n: str(n + 1)),
    ([f"choice{n}" for n in range(11)], lambda n: n),
    (["opa", "opb", "opc", "opd"], lambda n: n + 1),
    (list("ABCD"), lambda n: "ABCD"[n]),
    (["choice1", "choice2"], lambda n: f"choice{n + 1}"),
  ],
)
def test_columns_of_candidates_are_read_in_their_order(names, label):
  number = len(names)
  own = {name: f"text {n}" for n, name in enumerate(names)}
  shuffled = {name: own[name] for name in sorted(names, reverse=True)}
  rows = [{"question": f"Which {i}?", **shuffled, "answer": label(i % number)} for i in ROWS]
  assert find(rows).candidates == tuple(names)
  assert right_of(rows) == [f"text {i % number}" for i in ROWS]


@pytest.mark.parametrize(
  ("row", "texts"),
  [
    ({"article": "A long text.", "question": "What?", "options": WORDS, "answer": "A"}, ("article", "question")),
    ({"question": "What?", "passage": "A long text.", "choices": WORDS, "label": 0}, ("passage", "question")),
    ({"context": "A long text.", "question": "What?", "answers": WORDS, "label": 0}, ("context", "question")),
    ({"question": "What?", "answers": WORDS, "correct_answer_id": 0}, ("question",)),
    ({"question": "What?", "choices": WORDS, "answers": ["p", "q"], "label": 0}, ("question",)),
    ({"question": "What is it?", "choices": WORDS, "label": 0, "rationale": "It is long since so"}, ("question",)),
    ({"question": "What?", "choices": {"A": "p", "B": "q"}, "answer": "A"}, ("question",)),
  ],
)
def test_the_texts_in_front_of_candidates_are_found(row, texts):
  found = find({**row, "id": i} for i in ROWS)
  assert (found.kind, found.texts) == ("choice", texts)


def test_an_empty_cell_among_candidates_is_named():
  spec = find({"question": f"Which {i}?", "choice1": "p", "choice2": "q", "label": i % 2} for i in ROWS)
  with pytest.raises(UserError, match=r"^line 3: column 'choice2' contains ' ', but the columns choice1, choice2 must"):
    choices.read(spec, {"question": "Which?", "choice1": "p", "choice2": " "}, where="line 3")


def test_candidates_in_a_cell_are_read_and_others_refused():
  rows = [{"question": f"Which {i}?", "choices": json.dumps(WORDS), "answer": i % 4} for i in ROWS]
  assert right_of(rows, "a.csv") == [WORDS[i % 4] for i in ROWS]
  assert right_of(({**row, "choices": str(WORDS)} for row in rows), "a.csv") == [WORDS[i % 4] for i in ROWS]
  for cell in ("p, q, r", "a) p b) q"):
    assert "`choices` are not lists of at least two texts" in refused(
      ({**row, "choices": cell} for row in rows), "b.csv"
    )


@pytest.mark.parametrize(
  ("row", "message"),
  [
    ({"question": "What?", "choices": WORDS, "hint": "a much longer text"}, "text=question,label=answer,candidates=ch"),
    ({"question": "What?", "choice1": "p", "choice3": "q"}, "candidates=choice1+choice3"),
    ({"question": "What?", "choice1": "p", "choice2": "q", "sol1": "p", "sol2": "q"}, "candidates=choice1+choice2"),
  ],
)
def test_columns_that_may_be_read_or_not_are_refused_with_what_to_type(row, message):
  rows = [{**row, "question": f"What {i}?", "answer": i % 2} for i in ROWS]
  assert message in refused(rows)
  assert find(rows, columns=refused(rows).rsplit("--config.data.columns=", 1)[1]).kind == "choice"


def test_a_task_and_its_input_are_read_both():
  rows = [{"instruction": f"Do {i}", "input": "" if i % 3 else f"with {i}", "output": f"done {i} now"} for i in ROWS]
  table = examples.load(find(rows))
  inputs = {row["inputs"] for row in [*table.train, *table.held_out]}
  assert {"instruction: Do 0 input: with 0", "instruction: Do 1"} < inputs and len(inputs) == len(ROWS)
  found = find({"instruction": f"Do {i}", "context": "a", "response": f"b {i} c", "category": "qa"} for i in ROWS)
  assert (found.kind, found.texts, found.label) == ("text", ("instruction", "context"), "response")


# ---- Rows of one question --------------------------------------------------------------------------------------------


def test_rows_of_one_question_differ_by_their_candidates():
  make = lambda word, rows: [
    {"question": "Which is right?", "choices": [f"{word} {i} apples", f"{word} {i} cars"], "label": i % 2} for i in rows
  ]
  table = examples.load(find(make("ate", ROWS)))
  assert table.held_out and len(table.train) + len(table.held_out) == len(ROWS)
  assert not any("different labels" in note for note in table.notes)
  pathlib.Path("e.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*make("saw", ROWS), *make("ate", [3])]))
  notes = examples.load(find(make("ate", ROWS), eval_files="e.jsonl")).notes
  assert any("1 of 41 texts" in note for note in notes)


def test_the_order_of_candidates_makes_no_other_row():
  rows = [asked(i // 2, ["p", "q"][:: 1 - i % 2 * 2], i % 2) for i in range(80)]
  table = examples.load(find(rows))
  train, held_out = ({row["key"] for row in side} for side in (table.train, table.held_out))
  assert not train & held_out and not any("different labels" in note for note in table.notes)
  rows[0] = asked(0, ["p", "q"], 1)
  (note,) = [note for note in examples.load(find(rows)).notes if "different labels" in note]
  assert "line 1: q; a.jsonl, line 2: p" in note
