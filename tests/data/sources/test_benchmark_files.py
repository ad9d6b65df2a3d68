"""Released benchmark files: layouts, shards, shuffling, errors, and the record counts of the real files."""

import json

import folders
import numpy as np
import pytest
import seqio
import tensorflow_datasets as tfds

from t2t import UserError
from t2t.data.sources import benchmark_files

SHARED = folders.SHARED / "data"
needs_shared = pytest.mark.skipif(not SHARED.exists(), reason="../shared/data is not there")

NLI = ("entailment", "contradiction", "neutral")
BOOLEAN = ("False", "True")
TWO = ("zero", "one")


def source(name, folder, *, benchmark="super_glue", labels=BOOLEAN):
  key = "superglue" if benchmark == "super_glue" else ""
  found = benchmark_files.BenchmarkSource(
    benchmark, name, tfds=f"{benchmark}/{name}:1.0.0", labels=labels, folder_key=key
  )
  return found.at(str(folder))


def write(path, *lines):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))


def plain(value):
  if isinstance(value, dict):
    return {key: plain(item) for key, item in value.items()}
  if isinstance(value, np.ndarray):
    return [plain(item) for item in value]
  return value.decode() if isinstance(value, bytes) else value.item() if isinstance(value, np.generic) else value


def records(source, split, **options):
  """Returns records as Python values, in the order of the file."""
  dataset = source.get_dataset(split, **({"shuffle": False} | options))
  return [plain(record) for record in dataset.as_numpy_iterator()]


# ---- Layouts ---------------------------------------------------------------------------------------------------------

CB = {"premise": "It rains.", "hypothesis": "It is wet.", "label": "neutral", "idx": 4}
MULTIRC = {
  "idx": 7,
  "passage": {
    "text": "A passage.",
    "questions": [
      {"question": "Q1?", "idx": 0, "answers": [{"text": "a", "idx": 0, "label": 1}, {"text": "b", "idx": 1}]},
      {"question": "Q2?", "idx": 1, "answers": [{"text": "c", "idx": 2, "label": 0}]},
    ],
  },
}
RECORD = {
  "idx": 2,
  "passage": {
    "text": "Bob met Ann.\n@highlight\nBob won",
    "entities": [{"start": 0, "end": 2}, {"start": 8, "end": 10}, {"start": 24, "end": 26}],
  },
  "qas": [
    {"query": "@placeholder won", "idx": 5, "answers": [{"start": 0, "end": 2, "text": "Bob"}, {"text": "Bob"}]},
    {"query": "@placeholder lost", "idx": 6},
  ],
}
WSC = {
  "text": "The cat saw the dog . It ran.",
  "target": {"span1_text": "The dog.", "span1_index": 3, "span2_text": "It", "span2_index": 6},
  "idx": 1,
  "label": True,
}


def test_lines_with_texts(tmp_path):
  """Fields and labels are read by name; AX-b has its index as a string, and its file may be in any folder."""
  write(tmp_path / "CB" / "val.jsonl", CB, {key: CB[key] for key in CB if key != "label"})
  assert records(source("cb", tmp_path, labels=NLI), "validation") == [
    {"premise": "It rains.", "hypothesis": "It is wet.", "label": 2, "idx": 4, "training": False},
    {"premise": "It rains.", "hypothesis": "It is wet.", "label": -1, "idx": 4, "training": False},
  ]
  expected = {"sentence1": "a", "sentence2": "b", "label": 1, "idx": 12, "training": False}
  for place in ("AX-b/AX-b.jsonl", "AX-b.jsonl"):
    folder = tmp_path / place.replace("/", "-")
    write(folder / place, {"sentence1": "a", "sentence2": "b", "label": "one", "idx": "12"})
    diagnostic = source("axb", folder, labels=TWO)
    assert records(diagnostic, "test") == [expected]
    assert diagnostic.splits == ("test",)


@pytest.mark.parametrize(("value", "label"), [(True, 1), (False, 0), (1, 1), ("True", 1), ("0", 0), (None, -1)])
def test_labels_by_name_and_by_number(tmp_path, value, label):
  """Labels are read in every form of the releases."""
  write(tmp_path / "BoolQ" / "train.jsonl", {"passage": "a", "question": "b", "idx": 0, "label": value})
  assert records(source("boolq", tmp_path), "train")[0]["label"] == label


def test_multirc(tmp_path):
  """There is one record for each answer."""
  write(tmp_path / "MultiRC" / "train.jsonl", MULTIRC)
  found = records(source("multirc", tmp_path), "train")
  assert found[1] == {
    "paragraph": "A passage.",
    "question": "Q1?",
    "answer": "b",
    "label": -1,
    "idx": {"paragraph": 7, "question": 0, "answer": 1},
    "training": True,
  }
  assert [(record["answer"], record["label"]) for record in found] == [("a", 1), ("b", -1), ("c", 0)]


def test_record(tmp_path):
  """There is one record for each query, with unique entities and answers."""
  write(tmp_path / "ReCoRD" / "test.jsonl", RECORD)
  first, second = records(source("record", tmp_path, labels=()), "test")
  assert first == {
    "passage": RECORD["passage"]["text"],
    "query": "@placeholder won",
    "entities": ["Ann", "Bob"],
    "answers": ["Bob"],
    "idx": {"passage": 2, "query": 5},
    "training": False,
  }
  assert (second["answers"], second["entities"]) == ([], ["Ann", "Bob"])


def test_wsc(tmp_path):
  """The noun is spelled as in the text."""
  write(tmp_path / "WSC" / "train.jsonl", WSC)
  (found,) = records(source("wsc", tmp_path), "train")
  assert found["span1_text"] == "the dog"
  assert (found["span2_text"], found["span2_index"], found["label"]) == ("It", 6, 1)


GLUE = {
  "cola": ("CoLA", ["gj04\t1\t\tA b.", "x\t0\t*\tC d."], {"sentence": "A b.", "label": 1, "idx": 0}),
  "sst2": ("SST-2", ["sentence\tlabel", 'a "b\t1'], {"sentence": 'a "b', "label": 1, "idx": 0}),
  "mrpc": (
    "MRPC",
    ["\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String", "0\t7\t8\tA.\tB."],
    {"sentence1": "A.", "sentence2": "B.", "label": 0, "idx": 0},
  ),
  "stsb": (
    "STS-B",
    ["index\tgenre\tsentence1\tsentence2\tscore", "9\tnews\tA.\tB.\t3.25"],
    {"sentence1": "A.", "sentence2": "B.", "label": 3.25, "idx": 0},
  ),
  "qqp": (
    "QQP",
    ["id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "5\t1\t2\tA?\tB?\t1", "6\t1\t2\tbroken", " here?\tB?\t0"],
    {"question1": "A?", "question2": "B?", "label": 1, "idx": 0},
  ),
  "mnli": (
    "MNLI",
    ["index\tsentence1\tsentence2\tlabel1\tgold_label", "0\tA.\tB.\tzero\tone"],
    {"premise": "A.", "hypothesis": "B.", "label": 1, "idx": 0},
  ),
  "qnli": ("QNLI", ["index\tquestion\tsentence\tlabel", "0\tA?\tB.\tone"], {"question": "A?", "sentence": "B."}),
  "rte": ("RTE", ["index\tsentence1\tsentence2\tlabel", "0\tA.\tB.\tone"], {"sentence1": "A.", "label": 1}),
  "wnli": ("WNLI", ["index\tsentence1\tsentence2\tlabel", "0\tA.\tB.\t1"], {"sentence2": "B.", "label": 1}),
}


@pytest.mark.parametrize("name", GLUE)
def test_tables(tmp_path, name):
  """Columns are found by their header names; quotes are kept."""
  folder, lines, expected = GLUE[name]
  write(tmp_path / folder / "train.tsv", *lines)
  labels = () if name == "stsb" else TWO
  first = records(source(name, tmp_path, benchmark="glue", labels=labels), "train")[0]
  assert {key: first[key] for key in expected} == expected


def test_rows_of_a_table(tmp_path):
  """Rows are numbered below the header; broken rows are skipped in QQP, and are an error elsewhere."""
  write(tmp_path / "RTE" / "test.tsv", "index\tsentence1\tsentence2", "0\ta\tb", "1\tc\td")
  found = records(source("rte", tmp_path, benchmark="glue", labels=TWO), "test")
  assert [(record["idx"], record["label"], record["sentence2"]) for record in found] == [(0, -1, "b"), (1, -1, "d")]
  write(tmp_path / "CoLA" / "test.tsv", "index\tsentence", "0\ta")
  assert records(source("cola", tmp_path, benchmark="glue", labels=TWO), "test")[0]["sentence"] == "a"
  write(tmp_path / "QQP" / "train.tsv", *GLUE["qqp"][1])
  assert source("qqp", tmp_path, benchmark="glue", labels=TWO).num_input_examples("train") == 1


def test_splits_of_tables(tmp_path):
  """MNLI has two validation sets, MRPC has its own file names, and the diagnostic set is a test split."""
  write(tmp_path / "MNLI" / "dev_matched.tsv", *GLUE["mnli"][1])
  write(tmp_path / "MNLI" / "dev_mismatched.tsv", *GLUE["mnli"][1], "1\tC.\tD.\tone\tone")
  write(tmp_path / "MRPC" / "msr_paraphrase_train.txt", *GLUE["mrpc"][1])
  write(tmp_path / "diagnostic" / "diagnostic.tsv", "index\tsentence1\tsentence2", "0\tA.\tB.")
  count = lambda name, split: source(name, tmp_path, benchmark="glue", labels=TWO).num_input_examples(split)
  assert [count("mnli", "validation"), count("mnli_mismatched", "validation")] == [1, 2]
  assert [count("mrpc", "train"), count("ax", "test")] == [1, 1]


SQUAD = {
  "version": "1.1",
  "data": [
    {
      "title": "T",
      "paragraphs": [
        {"context": "A b.", "qas": [{"id": "i", "question": "Q?", "answers": [{"answer_start": 0, "text": "A"}]}]},
        {"context": "C.", "qas": [{"id": "j", "question": "R?"}]},
      ],
    }
  ],
}


def test_squad_without_an_answer(tmp_path):
  """A file with only unanswered questions has lists of the same types."""
  write(tmp_path / "test.json", {"data": [{"paragraphs": [SQUAD["data"][0]["paragraphs"][1]]}]})
  given = source("", tmp_path, benchmark="squad", labels=()).get_dataset("test").element_spec["answers"]
  assert {name: spec.dtype.name for name, spec in given.items()} == {"text": "string", "answer_start": "int32"}


def test_squad(tmp_path):
  """There is one record for each question, with all answers; any other file is a split with its own name."""
  for name in ("dev-v1.1", "mine"):
    write(tmp_path / f"{name}.json", SQUAD)
  squad = source("", tmp_path, benchmark="squad", labels=())
  expected = {"id": "i", "question": "Q?", "context": "A b.", "training": False}
  expected["answers"] = {"text": ["A"], "answer_start": [0]}
  for split in ("validation", "mine"):
    first, second = records(squad, split)
    assert first == expected
    assert second["answers"] == {"text": [], "answer_start": []}


# ---- Splits and shards -----------------------------------------------------------------------------------------------


def many(tmp_path, number):
  write(tmp_path / "CB" / "train.jsonl", *({**CB, "idx": i} for i in range(number)))
  return source("cb", tmp_path, labels=NLI)


def test_files_are_splits(tmp_path):
  """val.jsonl is the split "validation" under both names; other files are splits too, and "training" is set."""
  for stem in ("val", "train", "train32", "dev32"):
    write(tmp_path / "CB" / f"{stem}.jsonl", {**CB, "idx": len(stem)})
  cb = source("cb", tmp_path, labels=NLI)
  assert cb.splits[:2] == ("train", "validation")
  assert set(cb.splits) == {"train", "validation", "val", "train32", "dev32"}
  assert records(cb, "val") == records(cb, "validation")
  assert {split: records(cb, split)[0]["training"] for split in ("train", "train32", "dev32", "val")} == {
    "train": True,
    "train32": True,
    "dev32": False,
    "val": False,
  }


@pytest.mark.exhaustive_from(3)
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("number", "num_shards"), [(11, 1), (11, 4), (3, 3), (2, 5), (1, 1)])
def test_shards_share_out_the_records(tmp_path, number, num_shards, shuffle):
  """Every record is in exactly one shard in every epoch; shard sizes differ by at most one."""
  cb = many(tmp_path, number)
  for repeat in (1, 2):
    shards = []
    for index in range(num_shards):
      info = seqio.ShardInfo(index=index, num_shards=num_shards)
      dataset = cb.get_dataset("train", shuffle=shuffle, seed=3, shard_info=info).repeat(repeat)
      shards.append([int(record["idx"]) for record in dataset.as_numpy_iterator()])
    assert sorted(sum(shards, [])) == sorted([*range(number)] * repeat)
    assert max(map(len, shards)) - min(map(len, shards)) <= repeat


def test_each_epoch_has_its_own_order(tmp_path):
  """The seed determines the order; without shuffling it is the order of the file."""
  cb = many(tmp_path, 40)
  order = lambda **options: [record["idx"] for record in records(cb, "train", **options)]
  assert order() == [*range(40)]
  assert order(shuffle=True, seed=1) == order(shuffle=True, seed=1) != order(shuffle=True, seed=2)
  twice = [int(r["idx"]) for r in cb.get_dataset("train", shuffle=True, seed=1).repeat(2).as_numpy_iterator()]
  assert twice[:40] != twice[40:] and sorted(twice[:40]) == [*range(40)]


def test_a_file_that_changes_is_read_again(tmp_path):
  """The cache is invalidated when the file changes."""
  assert many(tmp_path, 3).num_input_examples("train") == 3
  assert many(tmp_path, 4).num_input_examples("train") == 4


def test_tfds_has_the_same_fields(tmp_path):
  """Records from TFDS have all fields of records from files."""
  write(tmp_path / "MultiRC" / "train.jsonl", MULTIRC)
  there = source("multirc", tmp_path)
  with tfds.testing.mock_data(num_examples=2):
    multirc = benchmark_files.BenchmarkSource("super_glue", "multirc", tfds="super_glue/multirc:1.0.2", labels=BOOLEAN)
    (first, _) = records(multirc, "train")
  (expected, *_) = records(there, "train")
  assert first.keys() == expected.keys()
  assert first["idx"].keys() == expected["idx"].keys()
  assert first["training"]


# ---- Errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  ("name", "line", "message"),
  [
    ("cb", '{"premise": "a"', r"line 2: .* is not JSON \(.*column 16\)"),
    ("cb", [1], r"line 2: expected an object with a field 'premise', not a list"),
    ("cb", {"premise": "a", "idx": 0}, r"line 2: no field 'hypothesis' \(fields: 'premise', 'idx'\)"),
    ("cb", {**CB, "premise": 3}, r"line 2: field 'premise' is a number, not a string"),
    ("cb", {**CB, "premise": "\ud800"}, r"line 2: field 'premise' is not valid Unicode"),
    (
      "cb",
      {**CB, "label": "maybe"},
      r"line 2: label 'maybe' is not valid. Give one of entailment, contradiction, neutral",
    ),
    ("cb", {**CB, "label": 3}, r"line 2: label 3 is not valid. Give one of .* from 0 to 2"),
    ("cb", {**CB, "idx": None}, r"line 2: field 'idx' is null, not a number"),
    ("cb", {key: CB[key] for key in CB if key != "idx"}, r"line 2: no field 'idx'"),
    ("multirc", {"idx": 0, "passage": "text"}, r"line 2: field 'passage' is a string, not an object"),
    ("multirc", {"idx": 0, "passage": {"text": "a"}}, r"line 2: no field 'questions'"),
    ("wsc", {**WSC, "target": {}}, r"line 2: no field 'span1_index'"),
  ],
)
def test_bad_lines(tmp_path, name, line, message):
  """The error names the config key, the file, the line and the fault."""
  folder, good = {"cb": ("CB", CB), "multirc": ("MultiRC", MULTIRC), "wsc": ("WSC", WSC)}[name]
  write(tmp_path / folder / "train.jsonl", good, line)
  with pytest.raises(UserError, match=r"^config\.data\.benchmark_dirs\.superglue: .*train\.jsonl, " + message):
    source(name, tmp_path, labels=NLI if name == "cb" else BOOLEAN).num_input_examples("train")


@pytest.mark.parametrize(
  ("lines", "message"),
  [
    (["index\tsentence1\tlabel"], r"line 1: no column 'sentence2' \(columns: 'index', 'sentence1', 'label'\)"),
    (["index\tsentence1\tsentence2\tlabel", "0\ta"], r"line 2: the row has 2 column\(s\), not 4 \(index, sentence1"),
    (
      ["index\tsentence1\tsentence2\tlabel", "0\ta\tb\tmaybe"],
      r"line 2: label 'maybe' is not valid. Give one of zero, one",
    ),
    (["index\tsentence1\tsentence2\tlabel"], r"contains no record"),
    ([], r"line 1: no column"),
  ],
)
def test_bad_rows(tmp_path, lines, message):
  """The error names the file and the line of a table."""
  write(tmp_path / "RTE" / "train.tsv", *lines)
  with pytest.raises(UserError, match=r"^config\.data\.benchmark_dirs\.glue: .*train\.tsv(, | )" + message):
    source("rte", tmp_path, benchmark="glue", labels=TWO).num_input_examples("train")


@pytest.mark.parametrize(
  ("content", "message"),
  [
    ('{\n"data" 1}', r"line 2: '\"data\" 1}' is not JSON \(.*column 8\)"),
    ("[]", r"expected an object with a field 'data', not a list"),
    ('{"data": [{"paragraphs": [{"qas": []}, {"qas": [{}]}]}]}', r"article 1, paragraph 2: no field 'id'"),
  ],
)
def test_bad_articles(tmp_path, content, message):
  """The error names the article and the paragraph."""
  write(tmp_path / "train-v1.1.json", content)
  with pytest.raises(UserError, match=r"^config\.data\.benchmark_dirs\.squad: .*train-v1\.1\.json[,:] " + message):
    source("", tmp_path, benchmark="squad", labels=()).num_input_examples("train")


def test_bytes_that_are_no_text(tmp_path):
  """The error names the line."""
  write(tmp_path / "CB" / "train.jsonl", CB)
  with (tmp_path / "CB" / "train.jsonl").open("ab") as file:
    file.write(b'{"premise": "\xff"}\n')
  with pytest.raises(UserError, match=r"train\.jsonl, line 2: not valid UTF-8"):
    source("cb", tmp_path, labels=NLI).num_input_examples("train")


def test_files_that_are_not_there(tmp_path):
  """The error names the expected file, the existing files and the key to set."""
  with pytest.raises(UserError, match=r"config\.data\.benchmark_dirs\.superglue=/no/such: no such folder"):
    source("cb", "/no/such").file("train")
  write(tmp_path / "COPA" / "val.jsonl", "")
  with pytest.raises(
    UserError, match=r"has no folder 'CB' for super_glue_cb \(found: COPA\)\. .*mixture=super_glue_copa "
  ):
    source("cb", tmp_path).file("train")
  with pytest.raises(
    UserError,
    match=r"super_glue_copa has no split 'train', because there is no file .*COPA/train\.jsonl\. Known splits:"
    r" validation, val\. Set --config\.data\.train_split",
  ):
    source("copa", tmp_path).file("train")


def test_all_tasks_without_files_are_left_out_at_once(tmp_path):
  """The error names the tasks that have files, and of a missing split those with this split."""
  for path in ("COPA/val.jsonl", "RTE/train.jsonl", "RTE/val.jsonl"):
    write(tmp_path / path, "")
  with pytest.raises(UserError, match=r"mixture=super_glue_copa,super_glue_rte .*tasks=copa,rte "):
    source("cb", tmp_path).file("train")
  with pytest.raises(UserError, match=r"mixture=super_glue_rte .*tasks=rte "):
    source("copa", tmp_path).file("train")


def test_tfds_without_the_data(tmp_path, monkeypatch):
  """The error names the key of the folder."""
  monkeypatch.setattr(tfds, "load", lambda *_, **__: 1 / 0)
  with pytest.raises(UserError, match=r"cannot provide super_glue/cb:1\.0\.2 \(division by zero\)\. Set config\.data"):
    benchmark_files.BenchmarkSource("super_glue", "cb", tfds="super_glue/cb:1.0.2", labels=NLI).get_dataset("train")


# ---- Real files ------------------------------------------------------------------------------------------------------

COUNTS = {
  "boolq": {"validation": 3270, "test": 3245},
  "cb": {"train": 250, "validation": 56, "test": 250},
  "copa": {"train": 400, "validation": 100, "test": 500},
  "multirc": {"train": 27_243, "validation": 4_848, "test": 9_693},
  "rte": {"train": 2490, "validation": 277, "test": 3000},
  "wic": {"train": 5428, "validation": 638, "test": 1400},
  "wsc": {"train": 554, "validation": 104, "test": 146},
  "axb": {"test": 1104},
  "axg": {"test": 356},
}


@needs_shared
@pytest.mark.parametrize("name", COUNTS)
def test_counts_of_superglue(name):
  """The released files have all of their records, and only known labels."""
  labels = NLI if name == "cb" else ("entailment", "not_entailment") if name in ("rte", "axb", "axg") else BOOLEAN
  real = source(name, SHARED / "superglue", labels=labels)
  assert {split: real.num_input_examples(split) for split in COUNTS[name]} == COUNTS[name]


@needs_shared
def test_counts_of_other_releases():
  """The counts are right for the few-shot sets, by file name, and for the English part of XQuAD."""
  few_shot = lambda name: source(name, SHARED / "superglue_fewshot", labels=() if name == "record" else BOOLEAN)
  assert [few_shot(name).num_input_examples("train32") for name in ("boolq", "multirc", "record")] == [32, 154, 32]
  assert source("", SHARED / "xquad", benchmark="squad", labels=()).num_input_examples("xquad.en") == 1190
