"""Multilingual benchmarks: released files, mixtures of all languages, and the table of results by language."""

import json
import math

from etils import epath
import pytest
import rich.console
import seqio
import test_tasks
import trained

from t2t import UserError
from t2t import __main__ as command
from t2t.data import registry, task_resolution
from t2t.data.sources import benchmark_files
from t2t.evaluation import languages, results

registry.load("t2t.tasks.multilingual")


def article(*ids, text="Ann won in Rome."):
  """Returns an article in the format of SQuAD files."""
  answer = {"text": "Rome", "answer_start": 11}
  questions = [{"id": name, "question": f"Where {name}?", "answers": [answer]} for name in ids]
  return {"data": [{"title": "t", "paragraphs": [{"context": text, "qas": questions}]}], "version": "1.1"}


# ---- Tasks -----------------------------------------------------------------------------------------------------------


def test_each_language_has_a_task_and_a_mixture_has_all():
  """Tasks have the names of TFDS and of the papers; each version of MasakhaNER has its own folder."""
  numbers = {"xnli": 15, "paws_x_wiki": 7, "xquad": 11, "tydiqa_goldp": 9, "wikiann": 40}
  numbers |= {"masakhaner": 10, "masakhaner2": 20}
  for name, number in numbers.items():
    tasks = seqio.MixtureRegistry.get(name).tasks
    assert len(tasks) == number, name
    assert {task.name.removeprefix(f"{name.removesuffix('2')}_") for task in tasks} <= set(
      benchmark_files.LANGUAGES[name.removesuffix("2")]
    )
    assert {task.source.folder_key for task in tasks} == {name.removesuffix("2")}


@pytest.mark.slow
def test_questions_of_each_language(tmp_path):
  """XQuAD has a file for each language; TyDi QA has one file, and its ids begin with the language."""
  test_tasks.write(tmp_path, {f"xquad.{name}.json": json.dumps(article(f"{name}1")) for name in ("en", "ar")})
  both = article("swahili-1-0", "finnish-2-0", "swahili-3-1")
  test_tasks.write(tmp_path, {f"tydiqa-goldp-v1.1-{split}.json": json.dumps(both) for split in ("train", "dev")})
  (found,) = test_tasks.examples(test_tasks.released("xquad_ar", tmp_path), "test")
  assert found["id"] == b"ar1" and found["targets_pretokenized"] == b"Rome"
  task = test_tasks.released("tydiqa_goldp_sw", tmp_path)
  for split in ("train", "validation"):
    assert task.source.num_input_examples(split) == 2
    found = test_tasks.examples(task, split)
    assert [each["id"] for each in found] == [b"swahili-1-0", b"swahili-3-1"]
    right = [task.postprocess_fn("?", example=each, is_target=True) for each in found]
    assert task.metric_fns[0](right, ["Rome", "Oslo"]) == {"exact_match": 50.0, "f1": 50.0}
  with pytest.raises(UserError, match=r"config.data.benchmark_dirs.tydiqa_goldp: .*-dev.json contains no record"):
    test_tasks.released("tydiqa_goldp_te", tmp_path).source.num_input_examples("validation")


def test_what_tfds_has_not_is_said():
  """MasakhaNER can only be read from files."""
  source = seqio.TaskRegistry.get("masakhaner_yor").source
  for ask in (source.list_shards, source.num_input_examples, source.get_dataset):
    with pytest.raises(UserError, match="config.data.benchmark_dirs.masakhaner is empty, and TensorFlow Datasets"):
      ask("train")
  assert str(source) == "config.data.benchmark_dirs.masakhaner"


def test_a_language_that_there_is_not():
  with pytest.raises(UserError, match=r"config.eval.tasks: sv is not a task. Choose from xnli_ar"):
    task_resolution.select(seqio.MixtureRegistry.get("xnli"), ["sv"])


# ---- Table of results ------------------------------------------------------------------------------------------------


def result(task, split="test", **metrics):
  answers = [results.Answer({}, "", "", "", 0.0)] * 3
  return results.Result(task, split, metrics, answers)


FOUND = [
  *(result("tydiqa_goldp_sw", exact_match=40.0, f1=50.0), result("tydiqa_goldp_te", exact_match=20.0, f1=25.0)),
  *(result("xnli_sw", accuracy=60.0), result("docs_match", accuracy=1.0), result("xnli_ur", accuracy=50.0)),
  *(result("tydiqa_goldp_fi", "validation", exact_match=1.0), result("wikiann_sw"), result("wikiann_yo")),
]


def test_results_by_language():
  """Only benchmarks with labels in several languages are grouped; other results are unchanged."""
  found = languages.parted(FOUND)
  assert {key: list(each) for key, each in found.items()} == {
    ("tydiqa_goldp", "test"): ["sw", "te"],
    ("xnli", "test"): ["sw", "ur"],
  }
  assert languages.means(found["tydiqa_goldp", "test"]) == {"exact_match": 30.0, "f1": 37.5}
  assert languages.record(FOUND, about={"shots": 0})["xnli.test"] == {
    "languages": {"sw": {"accuracy": 60.0}, "ur": {"accuracy": 50.0}},
    "mean": {"accuracy": 55.0},
    "n": {"sw": 3, "ur": 3},
    "intervals": {"sw": {}, "ur": {}},
    "shots": 0,
  }


def test_the_table_fits_80_columns(tmp_path, capsys):
  """The table is printed with the others, and earlier results stay in the file."""
  (tmp_path / "languages.json").write_text('{"xquad.test": 1, "xnli.test": 2}')
  results.publish(FOUND, epath.Path(tmp_path), about={})
  lines = capsys.readouterr().out.splitlines()
  assert all(len(line.rstrip()) <= 80 for line in lines if str(tmp_path) not in line)
  rows = [line.split() for line in lines]
  assert ["te", "20.00", "25.00", "3"] in rows and ["mean", "of", "2", "30.00", "37.50"] in rows
  assert any(row[:1] == ["docs_match"] for row in rows) and not any("xnli_sw" in row for row in rows)
  found = json.loads((tmp_path / "languages.json").read_text())
  assert list(found) == ["xquad.test", "xnli.test", "tydiqa_goldp.test"]
  assert found["xnli.test"]["mean"] == {"accuracy": 55.0}
  long = languages.parted([result(f"wikiann_{name}", precision=1.0, recall=2.0, f1=3.0) for name in ("sw", "yo")])
  console = rich.console.Console(width=80)
  for (benchmark, split), by_language in long.items():
    languages.print_table(benchmark, split, by_language, console)
  assert "…" not in capsys.readouterr().out


@pytest.mark.exhaustive
def test_trained_in_one_language_and_asked_in_all(tmp_path, capsys):
  """The commands train the head of an encoder on English and evaluate it in seven languages."""
  header = "id\tsentence1\tsentence2\tlabel"
  rows = lambda word: "\n".join([header, *(f"{i}\t{word} {i}\t{word}\t{i % 2}" for i in range(8))])
  for language in benchmark_files.LANGUAGES["paws_x_wiki"]:
    files = {f"{language}/{name}.tsv": rows(language) for name in ("translated_train", "dev_2k", "test_2k")}
    test_tasks.write(tmp_path / "files", files)
  typed = ["--config.data.task_modules=t2t.tasks.multilingual"]
  typed += [f"--config.data.benchmark_dirs.paws_x_wiki={tmp_path}/files"]
  typed += ["--config=finetune_glue", "--config.data.inputs_length=32", "--config.data.targets_length=32"]
  tuning = [f"--config.init.checkpoint={trained.workdir('encoder_only')}", "--config.data.mixture=paws_x_wiki_en"]
  tuning += ["--config.train.batch_size=8", "--config.train.steps=2", "--config.eval.every=2"]
  assert command.main(["train", "--workdir", f"{tmp_path}/en", *typed, *tuning]) == 0
  capsys.readouterr()
  asked = ["--config.data.mixture=paws_x_wiki", "--config.data.eval_split=test", "--config.train.batch_size=8"]
  assert command.main(["eval", "--checkpoint", f"{tmp_path}/en", "--workdir", f"{tmp_path}/all", *typed, *asked]) == 0
  out = capsys.readouterr().out
  assert "mean of 7" in out and f"languages      {tmp_path}/all/languages.json" in out
  found = json.loads((tmp_path / "all/languages.json").read_text())["paws_x_wiki.test"]
  assert list(found["languages"]) == sorted(benchmark_files.LANGUAGES["paws_x_wiki"])
  accuracies = [each["accuracy"] for each in found["languages"].values()]
  assert math.isclose(found["mean"]["accuracy"], sum(accuracies) / 7)


@pytest.mark.exhaustive
def test_xnli_is_asked_of_who_has_learned_mnli(tmp_path, capsys):
  """The head of the English benchmark is evaluated in fifteen languages."""
  labels = ("entailment", "neutral", "contradiction")
  header = "promptID\tgold_label\tsentence1\tsentence2"
  english = "\n".join([header, *(f"{i}\t{labels[i % 3]}\tthe {i}\ta {i}" for i in range(12))])
  test_tasks.write(tmp_path / "glue", {f"MNLI/{name}.tsv": english for name in ("train", "dev_matched")})
  every = [(language, i) for language in benchmark_files.LANGUAGES["xnli"] for i in range(3)]
  rows = ["language\tgold_label\tsentence1\tsentence2", *(f"{x}\t{labels[i]}\t{x} {i}\t{x}" for x, i in every)]
  test_tasks.write(tmp_path / "xnli", {f"xnli.{name}.tsv": "\n".join(rows) for name in ("dev", "test")})
  typed = ["--config=finetune_glue", "--config.data.inputs_length=48", "--config.data.targets_length=32"]
  typed += ["--config.train.batch_size=8"]
  tuning = [f"--config.init.checkpoint={trained.workdir('encoder_only')}", "--config.data.mixture=glue_mnli"]
  tuning += [f"--config.data.benchmark_dirs.glue={tmp_path}/glue"]
  tuning += ["--config.train.steps=2", "--config.eval.every=2", "--workdir", f"{tmp_path}/en"]
  assert command.main(["train", *typed, *tuning]) == 0
  asked = ["--config.data.task_modules=t2t.tasks.multilingual", "--config.data.mixture=xnli"]
  asked += [f"--config.data.benchmark_dirs.xnli={tmp_path}/xnli", "--config.data.eval_split=test"]
  asked += ["--checkpoint", f"{tmp_path}/en", "--workdir", f"{tmp_path}/all"]
  capsys.readouterr()
  assert command.main(["eval", *typed, *asked]) == 0
  assert "mean of 15" in capsys.readouterr().out
  found = json.loads((tmp_path / "all/languages.json").read_text())["xnli.test"]
  assert set(found["languages"]) == set(benchmark_files.LANGUAGES["xnli"])
