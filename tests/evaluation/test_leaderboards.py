"""Leaderboard zips, read back."""

import json
import zipfile

import folders
import hypothesis
from hypothesis import strategies
import numpy as np
import pytest

from t2t import UserError
from t2t.evaluation import leaderboards

SUPERGLUE = folders.SHARED / "data" / "superglue"
FEW_SHOT = SUPERGLUE.parent / "superglue_fewshot"


def row(index, prediction, **fields):
  """Returns a row as an evaluation does: fields from tf.data, and the prediction of a postprocess function."""
  return {"idx": np.array(index, np.int32), **fields}, prediction


def written(tmp_path, task, rows):
  """Returns the lines of the single file in the zip for `task`."""
  leaderboards.write(tmp_path / "predictions.zip", {task: rows})
  with zipfile.ZipFile(tmp_path / "predictions.zip") as archive:
    (name,) = archive.namelist()
    return name, archive.read(name).decode().splitlines()


def records(path):
  if not path.exists():
    pytest.skip(f"{path} is not there")
  return [json.loads(line) for line in path.open()]


# ---- Lines -----------------------------------------------------------------------------------------------------------

UNPARSEABLE = -1


@pytest.mark.parametrize(
  "task, name, lines",
  [
    ("boolq", "BoolQ.jsonl", ['{"idx": 0, "label": "true"}', '{"idx": 1, "label": "false"}']),
    ("cb", "CB.jsonl", ['{"idx": 0, "label": "contradiction"}', '{"idx": 1, "label": "entailment"}']),
    ("copa", "COPA.jsonl", ['{"idx": 0, "label": 1}', '{"idx": 1, "label": 0}']),
    ("rte", "RTE.jsonl", ['{"idx": 0, "label": "not_entailment"}', '{"idx": 1, "label": "entailment"}']),
    ("wic", "WiC.jsonl", ['{"idx": 0, "label": "true"}', '{"idx": 1, "label": "false"}']),
    ("wsc", "WSC.jsonl", ['{"idx": 0, "label": "True"}', '{"idx": 1, "label": "False"}']),
    ("axb", "AX-b.jsonl", ['{"idx": 0, "label": "not_entailment"}', '{"idx": 1, "label": "entailment"}']),
    ("axg", "AX-g.jsonl", ['{"idx": 0, "label": "not_entailment"}', '{"idx": 1, "label": "entailment"}']),
  ],
)
def test_labels_of_super_glue(tmp_path, task, name, lines):
  """An unparseable prediction is written as the first label."""
  rows = [row(1, UNPARSEABLE), row(0, 1)]
  assert written(tmp_path, f"super_glue_{task}", rows) == (name, lines)


@pytest.mark.parametrize(
  "task, name, first, second",
  [
    ("cola", "CoLA.tsv", "0", "1"),
    ("sst2", "SST-2.tsv", "0", "1"),
    ("mrpc", "MRPC.tsv", "0", "1"),
    ("qqp", "QQP.tsv", "0", "1"),
    ("mnli", "MNLI-m.tsv", "entailment", "neutral"),
    ("mnli_mismatched", "MNLI-mm.tsv", "entailment", "neutral"),
    ("qnli", "QNLI.tsv", "entailment", "not_entailment"),
    ("rte", "RTE.tsv", "entailment", "not_entailment"),
    ("wnli", "WNLI.tsv", "0", "1"),
    ("ax", "AX.tsv", "entailment", "neutral"),
  ],
)
def test_labels_of_glue(tmp_path, task, name, first, second):
  """Files are tab-separated with a header; an unparseable prediction is written as the first label."""
  rows = [row(2, UNPARSEABLE), row(10, 0), row(0, 1)]
  expected = ["index\tprediction", f"0\t{second}", f"2\t{first}", f"10\t{first}"]
  assert written(tmp_path, f"glue_{task}", rows) == (name, expected)


def test_similarities(tmp_path):
  """Values are clipped to 0 to 5, with three digits; unparseable values become 0."""
  rows = [row(i, value) for i, value in enumerate([2.8, 7.0, -1.0, None, 3.14159])]
  expected = ["index\tprediction", "0\t2.800", "1\t5.000", "2\t0.000", "3\t0.000", "4\t3.142"]
  assert written(tmp_path, "glue_stsb", rows) == ("STS-B.tsv", expected)


def test_answers_of_multirc_are_nested(tmp_path):
  """Answers are sorted by passage, question and answer, for any order of the rows."""
  indices = [[1, 2, 7], [0, 1, 4], [0, 0, 1], [0, 0, 0], [1, 2, 6], [0, 1, 5]]
  values = [1, 0, 1, UNPARSEABLE, 0, 1]
  rows = [row(i, {"group": tuple(i[:2]), "value": v}) for i, v in zip(indices, values, strict=True)]
  name, lines = written(tmp_path, "super_glue_multirc", rows)
  assert name == "MultiRC.jsonl"
  assert lines == [
    '{"idx": 0, "passage": {"questions": ['
    '{"idx": 0, "answers": [{"idx": 0, "label": 0}, {"idx": 1, "label": 1}]}, '
    '{"idx": 1, "answers": [{"idx": 4, "label": 0}, {"idx": 5, "label": 1}]}]}}',
    '{"idx": 1, "passage": {"questions": [{"idx": 2, "answers": [{"idx": 6, "label": 0}, {"idx": 7, "label": 1}]}]}}',
  ]


def test_entities_of_record(tmp_path):
  """The index is that of the query; an unparseable prediction is written as the first entity."""
  options = np.array(["Zürich".encode(), b"Bhutto"], object)
  rows = [row([0, 3], "Bhutto", options=options), row([0, 2], "", options=options)]
  name, lines = written(tmp_path, "super_glue_record", rows)
  assert name == "ReCoRD.jsonl"
  assert [json.loads(line) for line in lines] == [{"idx": 2, "label": "Zürich"}, {"idx": 3, "label": "Bhutto"}]


# ---- Zip -------------------------------------------------------------------------------------------------------------


def test_what_is_missing(tmp_path):
  """All tasks without predictions are listed; a task without rows has no file."""
  missing = leaderboards.write(
    tmp_path / "new" / "glue.zip", {"glue_rte": [row(0, 1)], "glue_cola": [row(0, 1)], "glue_ax": []}
  )
  assert missing == [task for task in leaderboards.LEADERBOARDS["glue"] if task not in ("glue_rte", "glue_cola")]
  with zipfile.ZipFile(tmp_path / "new" / "glue.zip") as archive:
    assert archive.namelist() == ["CoLA.tsv", "RTE.tsv"]
  assert [path.name for path in (tmp_path / "new").iterdir()] == ["glue.zip"]


@pytest.mark.parametrize("name", leaderboards.LEADERBOARDS)
def test_nothing_is_missing(tmp_path, name):
  """The zip contains every file of a leaderboard, with unique names."""
  files = leaderboards.LEADERBOARDS[name]
  indices = {"super_glue_multirc": [0, 0, 0], "super_glue_record": [0, 0]}
  rows = {task: [row(indices.get(task, 0), 0 if task != "super_glue_record" else "x")] for task in files}
  assert leaderboards.write(tmp_path / "all.zip", rows) == []
  with zipfile.ZipFile(tmp_path / "all.zip") as archive:
    assert sorted(archive.namelist()) == sorted({name for name, _ in files.values()})
  assert len(files) == {"super_glue": 10, "glue": 11}[name]


@hypothesis.given(strategies.permutations(range(12)))
def test_the_order_of_rows_does_not_matter(tmp_path_factory, order):
  """The same predictions give the same bytes, on any day."""
  folder = tmp_path_factory.mktemp("zips")
  rows = [row(i, i % 3) for i in range(12)]
  leaderboards.write(folder / "first.zip", {"super_glue_cb": rows})
  leaderboards.write(folder / "second.zip", {"super_glue_cb": [rows[i] for i in order]})
  assert (folder / "first.zip").read_bytes() == (folder / "second.zip").read_bytes()


def test_what_stood_there_stays_until_the_new_zip_is_whole(tmp_path):
  """An error keeps the old zip, without temporary files."""
  path = tmp_path / "glue.zip"
  leaderboards.write(path, {"glue_rte": [row(0, 1)]})
  before = path.read_bytes()
  with pytest.raises(UserError, match="glue_rte: the example with idx 4 has two predictions"):
    leaderboards.write(path, {"glue_cola": [row(0, 1)], "glue_rte": [row(4, 1), row(3, 0), row(4, 1)]})
  assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
  leaderboards.write(path, {"glue_rte": [row(0, 0)]})
  assert path.read_bytes() != before and list(tmp_path.iterdir()) == [path]


def test_no_answer_is_written_twice(tmp_path):
  """In MultiRC all three indices identify an answer, so equal answers of two questions are different."""
  rows = [row([0, 0, 1], {"value": 1}), row([0, 1, 1], {"value": 1})]
  assert len(written(tmp_path, "super_glue_multirc", rows)[1]) == 1
  with pytest.raises(UserError, match=r"super_glue_multirc: the example with idx \[0, 1, 1\] has two predictions"):
    leaderboards.write(tmp_path / "a.zip", {"super_glue_multirc": [*rows, rows[1]]})


@pytest.mark.parametrize(
  "predictions, message",
  [
    ({}, "no predictions to write"),
    ({"glue_rte": []}, "no predictions to write"),
    ({"super_glue_rt": [row(0, 1)]}, "no leaderboard takes predictions of super_glue_rt; did you mean super_glue_rte"),
    ({"squad": [row(0, "a")]}, "no leaderboard takes predictions of squad"),
    ({"glue_rte": [row(0, 1)], "super_glue_cb": [row(0, 1)]}, r"different leaderboards \(glue, super_glue\)"),
    ({"glue_rte": [({}, 1)]}, "no field 'idx'"),
  ],
)
def test_what_cannot_be_written(tmp_path, predictions, message):
  with pytest.raises(UserError, match=message):
    leaderboards.write(tmp_path / "a.zip", predictions)
  assert not list(tmp_path.iterdir())


# ---- Released data ---------------------------------------------------------------------------------------------------

# Labels in the order of the tasks' classes: in the release, and for the leaderboard.
RELEASED = {
  "super_glue_boolq": ("BoolQ/val.jsonl", (False, True), ("false", "true")),
  "super_glue_cb": ("CB/val.jsonl", ("entailment", "contradiction", "neutral"), None),
  "super_glue_copa": ("COPA/val.jsonl", (0, 1), None),
  "super_glue_rte": ("RTE/val.jsonl", ("entailment", "not_entailment"), None),
  "super_glue_wic": ("WiC/val.jsonl", (False, True), ("false", "true")),
  "super_glue_wsc": ("WSC/val.jsonl", (False, True), ("False", "True")),
  "super_glue_axb": ("AX-b/AX-b.jsonl", ("entailment", "not_entailment"), None),
  "super_glue_axg": ("AX-g/AX-g.jsonl", ("entailment", "not_entailment"), None),
}


@pytest.mark.parametrize("task", RELEASED)
def test_the_labels_of_a_release(tmp_path, task):
  """Labels written and read back equal the released labels, line by line."""
  path, labels, wanted = RELEASED[task]
  gold = records(SUPERGLUE / path)
  _, lines = written(tmp_path, task, [row(int(record["idx"]), labels.index(record["label"])) for record in gold])
  read = [json.loads(line) for line in lines]
  assert [line["idx"] for line in read] == [int(record["idx"]) for record in gold]
  back = labels if wanted is None else wanted
  assert [labels[back.index(line["label"])] for line in read] == [record["label"] for record in gold]
  assert {type(line["label"]) for line in read} == {int if task == "super_glue_copa" else str}


def test_multirc_of_the_release(tmp_path):
  """The output equals the release without its texts."""
  gold = records(SUPERGLUE / "MultiRC" / "val.jsonl")
  rows = [
    row([record["idx"], question["idx"], answer["idx"]], {"value": answer["label"]})
    for record in gold
    for question in record["passage"]["questions"]
    for answer in question["answers"]
  ]
  assert len(rows) == 4848
  _, lines = written(tmp_path, "super_glue_multirc", rows[::-1])
  for record in gold:
    del record["version"], record["passage"]["text"]
    for question in record["passage"]["questions"]:
      del question["question"]
      question["answers"] = [{"idx": answer["idx"], "label": answer["label"]} for answer in question["answers"]]
      question.pop("sentences_used", None)
  assert [json.loads(line) for line in lines] == gold


def test_record_of_the_release(tmp_path):
  """The output has the first correct answer of each query."""
  gold = records(FEW_SHOT / "ReCoRD" / "dev32.jsonl")
  queries = [(record["idx"], query) for record in gold for query in record["qas"]]
  rows = [row([passage, query["idx"]], query["answers"][0]["text"]) for passage, query in queries]
  _, lines = written(tmp_path, "super_glue_record", rows)
  expected = {query["idx"]: query["answers"][0]["text"] for _, query in queries}
  assert [tuple(json.loads(line).values()) for line in lines] == sorted(expected.items())
