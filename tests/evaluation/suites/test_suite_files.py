"""Readers of suites: items of each format, equal weights of groups, and messages for files that cannot be used."""

import io
import json
import re
import types

import numpy as np
import pytest
import rich.console
import suite_files

from t2t import UserError
from t2t.data.sources import benchmark_files
from t2t.evaluation import results
from t2t.evaluation.suites import cloze, ewok, items, registry, run, scoring, texts
from t2t.evaluation.suites.items import OptionItem
from t2t.inference.text_scores import ScoredText, ScoredWindow, TextLayout, TextScore


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return suite_files.babylm(tmp_path_factory.mktemp("babylm"))


def test_suites_of_babylm(folder):
  """Each suite is found in its folder; options are ordered with the right one first."""
  read = {name: registry.read(name, path) for name, path in run.babylm_paths(str(folder), ()).items()}
  assert tuple(read) == registry.BABYLM
  assert [len(found) for found in read.values()] == [100, 10, 22, 6, 6, 3, 3]
  (first, *_) = read["blimp"]
  assert [text.continuation for text in first.options] == ["The cat sees adj.", "The cat see adj."]
  assert first.groups == ("adjunct_island",) and read["supplement"][0].groups == ("hypernym",)
  pairs = [(text.prefix, text.continuation) for text in read["ewok"][0].options]
  assert pairs[0] == ("Ali agen Bo.", " Bo is kept.") and pairs[3] == ("Bo agen Ali.", " Ali is kept now.")
  assert [(text.prefix, text.continuation) for text in read["comps"][0].options] == [
    ("A cat", " can bark."),
    ("A stone", " can bark."),
  ]
  assert read["entity_tracking"][1].groups == ("regular", "1 operations")
  assert [item.human for item in read["wug_past_tense"]] == [0.2, 0.9, 0.55]
  assert run.babylm_paths(str(folder), ["comps"]) == {"comps": str(folder / "comps")}


def test_fast_data_has_other_folders(tmp_path):
  (tmp_path / "blimp_fast").mkdir()
  with pytest.raises(UserError, match=r"folders are missing: supplement_fast \(supplement\)") as error:
    run.babylm_paths(str(tmp_path), ())
  assert "comps" not in str(error.value) and "--suites blimp" in str(error.value)


def test_groups_of_a_level_count_equally():
  """Two of three leaves are below the first group, which counts one half; leaves of one size have weights of 1."""
  grouped = lambda *groups: [OptionItem((), tuple(group.split("/")), "") for group in groups]
  found = items.weights(grouped("a/x", "a/x", "a/y", "b/x"))
  np.testing.assert_allclose(found, [0.5, 0.5, 1.0, 2.0])
  assert items.weights(grouped("a", "b", "c")).tolist() == [1.0, 1.0, 1.0]
  np.testing.assert_allclose(items.weights(grouped("a", "a", "b")), [0.75, 0.75, 1.5])


# ---- Texts -----------------------------------------------------------------------------------------------------------


def test_words_of_penn_treebank_include_line_ends(tmp_path):
  (tmp_path / "ptb.test.txt").write_text(" no it was n't \n <unk> said N \n")
  text = texts.ptb(str(tmp_path / "ptb.test.txt"), "ptb=")
  assert text.documents == (("no it was n't", "<unk> said N"),) and text.ends_lines
  assert (text.num_words, text.num_bytes) == (4 + 3 + 2, 14 + 13)


def test_wikitext_is_detokenized_and_counted_as_released(tmp_path):
  line = ' The 15 @-@ year @-@ old said ( in 1 @,@ 000 words ) : " no " , it \'s 2 @.@ 5 .'
  (tmp_path / "wiki.test.tokens").write_text(f" = Title = \n \n{line} \n")
  text = texts.wikitext(str(tmp_path / "wiki.test.tokens"), "wikitext=")
  expected = 'The 15-year-old said (in 1,000 words): "no", it\'s 2.5.'
  assert text.documents == (("= Title =", "", expected),)
  assert text.num_words == 3 + len(line.split()) + 3
  assert text.num_bytes == len("= Title =") + len(expected) + 3


@pytest.mark.parametrize(("suite", "names"), [("ptb", ["ptb.test.txt"]), ("wikitext", ["wiki.test.tokens"])])
def test_a_folder_has_the_released_file(suite, names, tmp_path):
  """The test set alone is read from a folder, whatever lies beside it; JSON lines are refused."""
  rows = suite_files.lines(tmp_path / "a.jsonl", [{"text": "train"}])
  with pytest.raises(UserError, match=rf"{suite}=.*: the folder has no {names[0]}.*Give the path of the file"):
    registry.read(suite, str(tmp_path))
  with pytest.raises(UserError, match=rf"{suite}=.*a.jsonl: JSON lines are no released text. Give {names[0]}"):
    registry.read(suite, str(rows))
  for name in (*names, "wiki.train.tokens", "ptb.train.txt"):
    (tmp_path / name).write_text(f"{name}\n")
  assert registry.read(suite, str(tmp_path)).documents == ((names[0],),)
  (tmp_path / "wiki.test.raw").write_text("raw\n")
  if suite == "wikitext":
    with pytest.raises(UserError, match=r"the folder has both wiki.test.tokens and wiki.test.raw. Give the path"):
      registry.read(suite, str(tmp_path))


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\f", "\v", "\x1c"])
def test_lines_end_at_newlines_alone(separator, tmp_path):
  """Other separators are within a line: neither further words for line ends nor further EOS."""
  path = tmp_path / "wiki.test.tokens"
  path.write_bytes(f" a{separator}b c \r\n \n d \n".encode())
  text = texts.wikitext(str(path), "")
  assert text.documents == ((f"a{separator}b c", "", "d"),) and text.num_words == 3 + 1 + 3
  path = tmp_path / "ptb.test.txt"
  path.write_bytes(f" a{separator}b c \n d".encode())
  assert texts.ptb(str(path), "").documents == (("a b c", "d"),)


def test_documents_of_a_plain_text(tmp_path):
  (tmp_path / "a.txt").write_text("é b\nc")
  rows = suite_files.lines(tmp_path / "b.jsonl", [{"text": "a b"}, {"text": "c"}])
  assert texts.plain(str(tmp_path / "a.txt"), "") == texts.EvaluatedText((("é b\nc",),), 3, 6)
  assert texts.plain(str(rows), "").documents == (("a b",), ("c",))


class Bytes:
  """A scorer with a token for each byte and one window, without a model; a token has one nat."""

  max_tokens = stride = 0

  def __init__(self, pseudo_likelihood):
    self.pseudo_likelihood = pseudo_likelihood

  def encode(self, text):
    return [] if text == "\u200b" else list(text.encode())

  def layout(self, text):
    number = len(text.continuation)
    spans = [ScoredWindow(0, number, 0, number)] if number else []
    return TextLayout([], text.continuation, 0, spans, number, 0)

  def by_window(self, params, encoded, on_batch):
    numbers = np.array([len(text.continuation) for text in encoded])
    return -numbers.astype(np.float32), numbers


def text_suite(text, pseudo_likelihood=""):
  vocabulary = types.SimpleNamespace(eos_id=1)
  return texts.TextSuite("ptb", text, scoring.SuiteScoring(Bytes(pseudo_likelihood), "sum", "", vocabulary))


def test_line_ends_are_bytes_where_they_are_scored(tmp_path):
  """A byte of one nat has 1 / ln 2 bits, whether EOS is scored at line ends or, by an encoder, not."""
  (tmp_path / "ptb.test.txt").write_text("a\nb\ncd\n")
  text = texts.ptb(str(tmp_path), "")
  result, of_encoder = text_suite(text).run({}), text_suite(text, "pll").run({})
  assert result.metrics["bits_per_byte"] == pytest.approx(1 / np.log(2))
  assert of_encoder.metrics["pseudo_bits_per_byte"] == pytest.approx(1 / np.log(2))
  assert [(x.details["tokens"], x.details["words"], x.details["bytes"]) for x in (result, of_encoder)] == [
    (7, 6, 7),
    (4, 3, 4),
  ]


def test_a_text_without_tokens_is_refused_before_it_is_scored(tmp_path):
  (tmp_path / "a.txt").write_text("\u200b")
  with pytest.raises(UserError, match=r"ptb=.*a.txt: the model's vocabulary has no token of this text"):
    text_suite(texts.plain(str(tmp_path / "a.txt"), ""))


# ---- Cloze -----------------------------------------------------------------------------------------------------------


def test_facts_of_lama(tmp_path):
  """Templates with distinct facts, rejected facts and long sentences left out, relations without a file skipped."""
  data = str(suite_files.lama(tmp_path))
  trex = cloze.trex(data, "")
  assert [(item.before, item.after, item.answer) for item in trex.items[:2]] == [
    ("Rome is by ", " .", "a"),
    ("Oslo is by ", " .", "b"),
  ]
  assert len(trex.items) == 6 and {item.relation for item in trex.items} == {"P1", "P2"}
  google = cloze.google_re(data, "")
  assert [item.before for item in google.items] == ["Ann was born in ", "Ann (born ", "Ann died in "]
  assert google.left_out == {"rejected by annotators": 3}
  assert cloze.conceptnet(data, "").left_out == {"more than 100 words": 1}
  assert cloze.squad(data, "").items[0].relation == "test"


# ---- Errors ----------------------------------------------------------------------------------------------------------


def broken(folder, name, content):
  path = folder / f"{name}.jsonl"
  path.write_text(content)
  return str(path)


ROW = json.dumps({"sentence_good": "a", "sentence_bad": "b"})


@pytest.mark.parametrize(
  ("content", "message"),
  [
    (f"{ROW}\n{{", r"pairs=.*x.jsonl, line 2: '\{' is not JSON"),
    ("[1]", "line 1: expected a JSON object"),
    ("", "the file is empty"),
    ('{"sentence_good": "a"}', "line 1: no field 'sentence_bad' \\(fields: 'sentence_good'\\)"),
    ('{"sentence_good": 3, "sentence_bad": "b"}', "field 'sentence_good' is 3, not a str"),
    ('{"sentence_good": " ", "sentence_bad": "b"}', "field 'sentence_good' is ' ', not a str"),
  ],
)
def test_a_line_that_cannot_be_used(content, message, tmp_path):
  with pytest.raises(UserError, match=message):
    registry.read("pairs", broken(tmp_path, "x", content))


def test_bytes_that_are_not_utf8(tmp_path):
  (tmp_path / "x.jsonl").write_bytes(b"\xff\xfe")
  with pytest.raises(UserError, match="not valid UTF-8"):
    registry.read("pairs", str(tmp_path / "x.jsonl"))


def test_missing_files_are_named(folder, tmp_path):
  """A missing file of a suite, of all suites of a folder, and a file in place of a folder."""
  for name in ("regular", "ambiref"):
    suite_files.lines(tmp_path / f"{name}.jsonl", [{}])
  with pytest.raises(UserError, match=r"entity_tracking=.*: 1 of 3 files are missing: move_contents.jsonl"):
    registry.read("entity_tracking", str(tmp_path))
  with pytest.raises(UserError, match=r"67 of 67 files are missing: adjunct_island.jsonl, .* and 57 more. Download"):
    registry.read("blimp", str(tmp_path))
  with pytest.raises(UserError, match="is a file, but the suite has 67 files"):
    registry.read("blimp", str(tmp_path / "regular.jsonl"))
  with pytest.raises(UserError, match="no such file or folder"):
    registry.read("pairs", str(tmp_path / "absent"))
  (tmp_path / "empty").mkdir()
  with pytest.raises(UserError, match=re.escape("the folder has no file *.jsonl")):
    registry.read("pairs", str(tmp_path / "empty"))
  with pytest.raises(UserError, match="--suites pairs: not a suite of BabyLM"):
    run.babylm_paths(str(folder), ["pairs"])
  with pytest.raises(UserError, match="no such suite; did you mean blimp"):
    run.babylm_paths(str(folder), ["blmp"])


PAIR = json.loads(ROW)


@pytest.mark.parametrize(
  ("suite", "row", "message"),
  [
    ("cloze", {"masked_sentences": ["no mask"], "obj_label": "a"}, r"the text has 0 \[MASK\], not one"),
    ("cloze", {"masked_sentences": ["[MASK] [MASK]"], "obj_label": "a"}, r"the text has 2 \[MASK\]"),
    ("wug_past_tense", {"sentences": "one", "ratio": 0.1}, "1 sentences, not two"),
    ("wug_past_tense", {"sentences": "one\ttwo", "ratio": "x"}, "field 'ratio' is 'x', not a number"),
    ("wug_past_tense", {"sentences": "one\ttwo", "ratio": "nan"}, "line 1: field 'ratio' is 'nan', not a share from 0"),
    (
      "wug_past_tense",
      {"sentences": "one\ttwo", "ratio": float("nan")},
      "field 'ratio' is nan, not a share from 0 to 1",
    ),
    ("wug_past_tense", {"sentences": "one\ttwo", "ratio": float("inf")}, "field 'ratio' is inf, not a share"),
    ("wug_past_tense", {"sentences": "one\ttwo", "ratio": 7}, "field 'ratio' is 7, not a share"),
    (
      "cloze",
      {"masked_sentences": [None, "x [MASK]"], "obj_label": "a"},
      r"line 1: .*is \[None, .*give a list of texts",
    ),
    ("pairs", PAIR | {"UID": None}, "line 1: field 'UID' is None, not a str or int"),
  ],
)
def test_fields_that_cannot_be_used(suite, row, message, tmp_path):
  name = "wug_past_tense" if suite.startswith("wug") else "x"
  with pytest.raises(UserError, match=message):
    registry.read(suite, str(suite_files.lines(tmp_path / f"{name}.jsonl", [row])))


def test_equal_sentences_are_reported(tmp_path, capfd):
  """They tie; the message has their number and the first line."""
  rows = [PAIR, PAIR | {"sentence_bad": "a"}, PAIR | {"sentence_bad": "a"}]
  assert len(registry.read("pairs", str(suite_files.lines(tmp_path / "x.jsonl", rows)))) == 3
  said = " ".join(capfd.readouterr().err.split())
  assert "2 of 3 pairs have equal sentences, and tie; the first: pairs=" in said and "x.jsonl, line 2" in said


@pytest.mark.parametrize("judgments", [None, ["yes"]])
def test_judgments_that_cannot_be_used(judgments, tmp_path):
  suite_files.lama(tmp_path)
  row = {"sub_label": "Ann", "obj_label": "c", "judgments": judgments}
  suite_files.lines(tmp_path / "Google_RE" / "place_of_birth_test.jsonl", [row])
  with pytest.raises(UserError, match=r"place_of_birth_test.jsonl, line 1: field 'judgments' is "):
    registry.read("lama_google_re", str(tmp_path))


def test_options_of_a_question(tmp_path):
  for name in ("regular", "ambiref", "move_contents"):
    suite_files.lines(tmp_path / f"{name}.jsonl", [{"input_prefix": "a", "options": ["b"], "numops": 1}])
  with pytest.raises(UserError, match="field 'options' has .*; two or more texts are needed"):
    registry.read("entity_tracking", str(tmp_path))


def test_a_text_needs_words(tmp_path):
  for name in ("a.txt", "ptb.test.txt"):
    (tmp_path / name).write_text(" \n")
  with pytest.raises(UserError, match="the file has no text"):
    registry.read("text", str(tmp_path / "a.txt"))
  with pytest.raises(UserError, match="the file has no text"):
    registry.read("ptb", str(tmp_path / "ptb.test.txt"))
  with pytest.raises(UserError, match="unknown file type. Give a .txt file"):
    registry.read("text", str(tmp_path / "a.csv"))


# ---- BabyLM's fine-tuning set ----------------------------------------------------------------------------------------


def test_records_of_the_fine_tuning_set(tmp_path):
  """Texts joined as in BabyLM's pipeline, numbered by line, with training and validation files of the task alone."""
  wsc = {"span1_text": "Bo", "span2_text": "he", "text": "Bo said he came.", "label": 1, "idx": 7}
  suite_files.lines(tmp_path / "wsc.train.jsonl", [wsc, wsc | {"label": 0}])
  suite_files.lines(tmp_path / "wsc.valid.jsonl", [wsc])
  multirc = {"question": "Who?", "answer": "Bo", "paragraph": "Bo came.", "label": 0, "idx": {"paragraph": 0}}
  suite_files.lines(tmp_path / "multirc.train.jsonl", [multirc])
  of = lambda name: benchmark_files.BenchmarkSource(
    "babylm", name, tfds="", labels=("False", "True"), splits=("train", "validation"), folder=str(tmp_path)
  )
  read = lambda name, split: list(of(name).get_dataset(split, shuffle=False).as_numpy_iterator())
  first, second = read("wsc", "train")
  assert first["question"] == b'Does "he" refer to "Bo" in this passage?' and first["text"] == b"Bo said he came."
  assert [(int(row["idx"]), int(row["label"])) for row in (first, second)] == [(0, 1), (1, 0)]
  assert len(read("wsc", "validation")) == 1
  (row,) = read("multirc", "train")
  assert (row["question"], row["paragraph"]) == (b"Question: Who? Answer: Bo", b"Bo came.")
  with pytest.raises(UserError, match="no split 'validation'"):
    of("multirc").file("validation")


def test_the_table_of_babylm_has_the_fine_tuned_tasks():
  """Rows of the workdir's records; their accuracies are one suite of the mean."""
  end = {"low": 50.0, "high": 90.0}
  record = {"metrics": {"accuracy": 60.0}, "n": 30, "intervals": {"accuracy": end}}
  f1 = {"metrics": {"f1": 10.0, "accuracy": 80.0}, "n": 9, "intervals": {}, "tied": 2}
  saved = {"babylm_rte.validation": record, "babylm_mrpc.validation": f1, "blimp.test": record}
  finetuned, _ = run.finetuned_tasks(saved | {"babylm_rte.test": {"metrics": {}}}, "/runs/gpt")
  assert list(finetuned) == ["babylm_rte", "babylm_mrpc"]
  suite = results.Result("comps", "test", {"accuracy": 50.0}, [], {"accuracy"}, details={"long": 0})
  console = rich.console.Console(width=100, record=True, file=io.StringIO())
  run.print_table([suite], console, has_mean=True, finetuned=finetuned)
  text = console.export_text()
  assert "50.0 to 90.0" in text and "babylm_mrpc" in text
  assert re.search(r"mean of 2\s+60.00", text)  # (50 + (60 + 80) / 2) / 2


def test_fine_tuned_tasks_of_another_checkpoint_are_left_out():
  """The message names the checkpoint; a record without its origin is shown with the checkpoint that it has."""
  record = lambda **about: {"metrics": {"accuracy": 60.0}, "n": 30, "intervals": {}} | about
  saved = {
    "babylm_rte.validation": record(initial_checkpoint="/runs/gpt", checkpoint="/runs/babylm/finetune/checkpoints/20"),
    "babylm_mrpc.validation": record(initial_checkpoint="/runs/other", checkpoint="/runs/x/finetune/checkpoints/20"),
    "babylm_qqp.validation": record(checkpoint="/runs/y"),
  }
  finetuned, notes = run.finetuned_tasks(saved, "/runs/gpt")
  assert list(finetuned) == ["babylm_rte", "babylm_qqp"]
  assert notes == [
    "babylm_mrpc is left out: it was fine-tuned from /runs/other, not from /runs/gpt",
    "babylm_qqp: figures of /runs/y; its origin is not recorded",
  ]
  saved["babylm_mrpc.validation"]["initial_checkpoint"] = "s3://bucket/run/checkpoints/20"
  assert run.finetuned_tasks(saved, "/runs/gpt")[1][0].startswith("babylm_mrpc is left out: it was fine-tuned from s3:")
  assert "babylm_mrpc" in run.finetuned_tasks(saved, "s3://bucket/run/checkpoints/20")[0]


def test_ties_of_each_metric_are_counted(tmp_path):
  """Two tied pairs of contexts and one tied pair of targets; the table and the records have both numbers."""
  option = lambda prefix, text: ScoredText(prefix, text, 1)
  item = OptionItem(tuple(option(*pair) for pair in ("ac", "ad", "bc", "bd")), ("domain",), "a c")
  scores = iter([[-1.0, -2.0, -1.0, -1.5], [-1.0, -2.0, -3.0, -2.0], [-1.0, -1.0, -3.0, -0.5]])
  of_all = [TextScore(score, 1, 1, False) for row in scores for score in row]
  layout = TextLayout([], [1], 0, [ScoredWindow(0, 1, 0, 1)], 1, 0)
  scorer = type("Scorer", (), {"__call__": lambda *args, **kwargs: of_all, "layout": lambda self, text: layout})()
  scorer.tokens, scorer.pseudo_likelihood, scorer.max_tokens, scorer.stride = lambda text: ([], [1]), "", 0, 0
  suite_scoring = scoring.SuiteScoring(scorer, "sum", "", None)
  result = scoring.OptionSuite("ewok", [item] * 3, suite_scoring, contrasts=ewok.CONTRASTS).run({})
  assert result.metrics == pytest.approx({"accuracy": 100 * 2.5 / 3, "context_accuracy": 100 * 2.5 / 3})
  assert (result.tied, result.details["ties"]) == (1, {"context_accuracy": 2})
  assert [answer.example.get("tied_metrics") for answer in result.answers] == [["context_accuracy"]] * 2 + [None]
  console = rich.console.Console(width=100, record=True, file=io.StringIO())
  run.print_table([result], console)
  text = console.export_text()
  assert re.search(r"ewok +accuracy .* 3 +1 +0", text) and re.search(r"context accuracy .* 2 *\n", text)
