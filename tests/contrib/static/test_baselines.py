"""Baselines of GLUE and SuperGLUE: the most frequent class, and a classifier on the mean of static vectors (CBoW)."""

import collections
import io
import json
import pathlib
import types

import glue_files
import numpy as np
import pytest
import rich.console
import seqio
from test_word2vec_run import SMALL

from t2t.__main__ import main
from t2t.configuration.loading import load_config, override, records
from t2t.contrib.static import most_frequent
from t2t.data import pipeline
from t2t.data.head_examples import needs
from t2t.evaluation import results

SHARED = pathlib.Path(__file__).resolve().parents[4] / "shared" / "data"
GLUE = ("cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "mnli_mismatched", "qnli", "rte", "wnli")
SUPER_GLUE = ("boolq", "cb", "copa", "multirc", "record", "rte", "wic", "wsc")


def example(target, *options, **fields):
  return {"targets_pretokenized": target.encode(), "options": [option.encode() for option in options]} | fields


def chosen(train, of):
  return most_frequent.MajorityRule(train)(of)


# ---- The rule --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_a_class_is_the_most_frequent_of_training(seed):
  random = np.random.default_rng(seed)
  train = random.choice(["no", "yes", "perhaps"], 1 + 7 * seed).tolist()
  counts = {name: train.count(name) for name in train}
  assert counts[chosen([example(x, "no", "yes", "perhaps") for x in train], example("", "no", "yes"))] == max(
    counts.values()
  )
  without_options = [{"targets": x.encode()} for x in train]
  assert counts[chosen(without_options, {})] == max(counts.values())


def test_unlabelled_examples_do_not_count():
  train = [example("yes", "no", "yes", label=1), *[example("no", "no", "yes", label=-1)] * 3]
  assert chosen(train, example("", "no", "yes")) == "yes"
  with pytest.raises(most_frequent.NoLabelsError):
    most_frequent.MajorityRule(train[1:])


def test_options_of_each_example_are_chosen_by_place():
  train = [example("b", "a", "b"), example("c", "d", "c"), example("e", "e", "f")]
  assert chosen(train, example("x", "x", "y")) == "y"


def test_nouns_are_answered_by_the_most_frequent_label():
  """WSC: the text of the class differs for each example."""
  train = [example("dog", classes=[b"another", b"dog"], label=label) for label in (0, 1, 0)]
  asked = example("fox", classes=[b"another", b"fox"])
  assert chosen(train, asked) == "another"
  assert chosen([*train, *[train[1]] * 3], asked) == "fox"
  rule = most_frequent.MajorityRule(train)
  assert rule.fits(asked) and not rule.fits(example("fox", gold=b"fox"))


def test_entities_are_chosen_by_their_likeness_to_other_mentions():
  """ReCoRD: the rule of SuperGLUE's footnote 9, whatever the training examples."""
  train = [example("Ann", "Ann", "Bob"), example("Eve", "Ann", "Bob", "Eve")]
  asked = example("", "Ann", "Ann Lee", "Bob", passage=b"Bob met Ann Lee. Bob saw Ann.")
  # Ann: 1 + 2/3; Ann Lee: 2 x 2/3; Bob: 1.
  assert chosen(train, asked) == "Ann"
  assert chosen(train, asked | {"passage": b"Bob met Ann Lee. Bob, Bob and Bob."}) == "Bob"


# ---- The table -------------------------------------------------------------------------------------------------------


def result(task, baseline, **metrics):
  details = (
    {"most_frequent": {"metrics": baseline, "score": sum(baseline.values()) / len(baseline)}} if baseline else {}
  )
  return results.Result(task, "validation", metrics, [], tuple(metrics), details=details)


def table(*task_results, steps=None):
  console = rich.console.Console(file=io.StringIO(), width=80)
  results.print_table(task_results, console, steps=steps)
  return console.file.getvalue().splitlines()


def test_each_metric_and_the_mean_have_a_baseline():
  """Names are those of the longest tasks and metrics with training steps; no value is cut off."""
  qa = result("super_glue_multirc", {"f1a": 60.0, "exact_match": 100.0}, f1a=70.0, exact_match=20.0)
  nli = result("super_glue_rte", {"accuracy": 52.5}, accuracy=61.25)
  lines = table(qa, nli, steps={"super_glue_multirc": 262_144, "super_glue_rte": 5_000})
  assert max(map(len, lines)) <= 80 and lines[1].split()[-2:] == ["step", "baseline"]
  rows = [line.split() for line in lines]
  ends = [row[-2:] for row in rows if row[:1] in (["super_glue_multirc"], ["exact_match"], ["super_glue_rte"])]
  assert ends == [["60.00", "%"], ["100.00", "%"], ["52.50", "%"]]
  assert next(row for row in rows if row[:1] == ["mean"]) == ["mean", "of", "tasks", "53.12", "66.25"]
  assert "baseline: always the most frequent class of the training examples" in lines


def test_a_mean_without_all_baselines_has_none():
  lines = table(result("glue_rte", {"accuracy": 52.5}, accuracy=60.0), result("glue_cola", {}, accuracy=70.0))
  assert next(line.split() for line in lines if "mean" in line) == ["mean", "of", "tasks", "65.00"]
  assert next(line.split() for line in lines if "cola" in line)[-2:] == ["%", "0"]
  without = table(result("glue_rte", {}, accuracy=60.0))
  assert not any("baseline" in line for line in without)


# ---- Whole commands --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Returns a folder with word vectors and made-up files of GLUE and SuperGLUE."""
  folder = tmp_path_factory.mktemp("baselines")
  (folder / "text.txt").write_text("the good fox sees the old dog\nthe red house is bad and grey\n" * 60)
  words = ["vocab", "train", "--type", "word", "--input", str(folder / "text.txt"), "--output", str(folder / "words")]
  assert main(words) == 0
  files = [f"--config.data.files={folder / 'text.txt'}", f"--config.data.vocabulary={folder / 'words'}"]
  train = ["train", "--config", "word2vec_skip_gram", "--workdir", str(folder / "run"), *SMALL, *files]
  assert main([*train, "--config.train.steps=4", "--config.eval.every=4"]) == 0
  return folder


def data(folder, benchmark):
  """Returns the options that read the made-up files, with the labels, which are written first."""
  labels = getattr(glue_files, benchmark)(folder / benchmark)
  return labels, [f"--config.data.benchmark_dirs.{benchmark}={folder / benchmark}", "--config.eval.batch_size=8"]


def evaluated(folder, name, *options, checkpoint="run"):
  arguments = ["eval", "--checkpoint", str(folder / checkpoint), "--workdir", str(folder / name)]
  assert main([*arguments, *options]) == 0
  return json.loads((folder / name / "results.json").read_text())


def most_common(labels):
  return collections.Counter(labels).most_common(1)[0][0]


def f1(targets, prediction, positive):
  """Computes the F1 of a class if all predictions are equal, in percent."""
  share = np.mean([target == positive for target in targets])
  return 100 * 2 * share / (1 + share) if prediction == positive else 0.0


def expected_of(task, train, targets):
  """Computes the metrics of always answering with the most frequent label of training, from the labels alone."""
  if task == "multirc":
    answer = most_common([label for question in train for label in question])
    whole = 100 * np.mean([set(question) == {answer} for question in targets])
    return {"f1a": f1([label for question in targets for label in question], answer, 1), "exact_match": whole}
  answer = most_common(train)
  accuracy = 100 * np.mean([target == answer for target in targets])
  if task == "stsb":
    return {"pearson_correlation": 0.0, "spearman_correlation": 0.0}
  if task == "cola":
    return {"matthews_correlation": 0.0}
  if task in ("mrpc", "qqp"):
    return {"f1": f1(targets, answer, "1"), "accuracy": accuracy}
  if task == "cb":
    return {"f1": np.mean([f1(targets, answer, x) for x in glue_files.NLI]), "accuracy": accuracy}
  return {"accuracy": accuracy}


@pytest.mark.exhaustive
def test_every_task_of_glue(folder):
  """The metrics are those of counts of the labels as written; the checkpoint only gives the vocabulary."""
  labels, options = data(folder, "glue")
  options += ["--config", "finetune_glue", "--config.eval.method=most_frequent"]
  found = evaluated(folder, "glue_frequent", *options, f"--config.eval.tasks={','.join(GLUE)}")
  for task in GLUE:
    train = labels["mnli" if task == "mnli_mismatched" else task, "train"]
    expected = expected_of(task, train, labels[task, "validation"])
    assert found[f"glue_{task}.validation"]["metrics"] == pytest.approx(expected), task
  found = evaluated(folder, "glue_frequent", *options, "--config.eval.tasks=ax", "--config.data.eval_split=test")
  rows = (folder / "glue_frequent" / "predictions" / "glue_ax.test.jsonl").read_text().splitlines()
  assert {json.loads(row)["prediction"] for row in rows} == {most_common(labels["mnli", "train"])}


@pytest.mark.slow
def test_every_task_of_superglue(folder):
  labels, options = data(folder, "superglue")
  options += ["--config", "superglue", "--config.eval.method=most_frequent"]
  found = evaluated(folder, "super_frequent", *options, f"--config.eval.tasks={','.join((*SUPER_GLUE, 'axb', 'axg'))}")
  for task in set(SUPER_GLUE) - {"record"}:
    expected = expected_of(task, labels[task, "train"], labels[task, "validation"])
    assert found[f"super_glue_{task}.validation"]["metrics"] == pytest.approx(expected), task
  answer = most_common(labels["rte", "train"])
  accuracy = 100 * np.mean([label == answer for label in labels["axg", "test"]])
  assert found["super_glue_axb.test"]["metrics"] == {"matthews_correlation": 0.0}
  assert found["super_glue_axg.test"]["metrics"] == {"gender_parity": 100.0, "accuracy": accuracy}
  path = folder / "super_frequent" / "predictions" / "super_glue_record.validation.jsonl"
  answers = [json.loads(row)["prediction"] for row in path.read_text().splitlines()]
  assert all(x in mentions for x, (mentions, _) in zip(answers, labels["record", "validation"], strict=True))


@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "superglue").is_dir(), reason=f"SuperGLUE's files are not at {SHARED / 'superglue'}")
@pytest.mark.parametrize("released", ["CB", "COPA", "RTE", "WiC", "WSC"])
def test_the_class_of_the_released_files(released):
  """The share of right answers is that of the most frequent label of the lines, counted without t2t."""
  lines = {
    split: [json.loads(line)["label"] for line in (SHARED / "superglue" / released / f"{split}.jsonl").open()]
    for split in ("train", "val")
  }
  config = load_config("superglue")
  data = records(override(config, [f"--config.data.benchmark_dirs.superglue={SHARED / 'superglue'}"])).data
  (task,) = pipeline.find_tasks(data, "encoder_only", (released.lower(),))
  rule = most_frequent.rule_of(data, "encoder_only", most_frequent._trained_on(data, task), name=task.name)
  held_out = needs.formatted(task, task.source.get_dataset("validation", shuffle=False)).as_numpy_iterator()
  right = [task.postprocess_fn(rule(x), example=pretokenized(x)) == x["label"] for x in held_out]
  assert np.mean(right) == np.mean([label == most_common(lines["train"]) for label in lines["val"]])


def pretokenized(example):
  return example | {"targets_pretokenized": example["targets"]}


@pytest.mark.slow
def test_tasks_without_training_examples_are_refused(folder, capsys):
  _, options = data(folder, "superglue")
  (folder / "superglue" / "BoolQ" / "train.jsonl").unlink()
  arguments = ["eval", "--config", "superglue", "--checkpoint", str(folder / "run"), "--workdir", str(folder / "no")]
  assert main([*arguments, *options, "--config.eval.method=most_frequent", "--config.eval.tasks=boolq"]) != 0
  assert "super_glue_boolq has no training examples" in capsys.readouterr().err


CBOW = (
  *("--config.train.freeze=^embed/", "--config.optimizer.name=adamw", "--config.optimizer.scale_by_parameter=False"),
  *("--config.optimizer.learning_rate=0.01", "--config.train.batch_size=8", "--config.data.inputs_length=32"),
  *("--config.train.epochs=0.0", "--config.data.num_streams=1"),
)


@pytest.mark.exhaustive
@pytest.mark.parametrize("benchmark", ["glue", "superglue"])
def test_a_classifier_on_the_mean_of_vectors_stands_beside_the_baseline(folder, benchmark, capsys):
  """CBoW answers every task, and its table has the same baseline as the evaluation of the baseline."""
  labels, options = data(folder, benchmark)
  tasks = GLUE if benchmark == "glue" else SUPER_GLUE
  prefix = "glue_" if benchmark == "glue" else "super_glue_"
  trained = ",".join(f"{prefix}{task}" for task in tasks if task != "mnli_mismatched")
  steps = ["--config.train.steps=3", "--config.eval.every=3", "--config.checkpoint.save_interval_steps=3"]
  run = [f"--config.init.checkpoint={folder / 'run'}", f"--config.data.mixture={trained}", *steps]
  arguments = ["train", "--config", f"finetune_{benchmark}", "--workdir", str(folder / f"cbow_{benchmark}")]
  assert main([*arguments, *options, *CBOW, *run]) == 0
  capsys.readouterr()
  config = "superglue" if benchmark == "superglue" else "finetune_glue"
  options += ["--config", config, f"--config.eval.tasks={','.join(tasks)}"]
  found = evaluated(folder, f"{benchmark}_beside", *options, checkpoint=f"cbow_{benchmark}")
  table = capsys.readouterr().out.splitlines()
  assert "baseline" in table[1] and max(map(len, table[: 4 + 2 * len(tasks)])) <= 80
  alone = evaluated(folder, f"{benchmark}_alone", *options, "--config.eval.method=most_frequent")
  for task in tasks:
    record = found[f"{prefix}{task}.validation"]
    assert record["most_frequent"]["metrics"] == pytest.approx(alone[f"{prefix}{task}.validation"]["metrics"])
    assert set(record["metrics"]) == set(record["most_frequent"]["metrics"])
    assert record["method"] == "head"


@pytest.mark.parametrize("fails", ["rule", "metric"])
def test_results_outlive_a_baseline_that_fails(fails, monkeypatch, capsys):
  """A source or a metric may raise anything; the results of the model are published without the baseline."""
  task = seqio.Task(
    "t",
    seqio.FunctionDataSource(lambda split, shuffle_files: None, splits=()),
    {},
    metric_fns=[lambda targets, predictions: {}],
  )

  def broken(*_):
    raise KeyError("sentence")

  rule = most_frequent.MajorityRule([example("a", "a", "b")])
  monkeypatch.setattr(most_frequent, "_local_rule", broken if fails == "rule" else lambda *_: rule)
  evaluation = types.SimpleNamespace(examples={task: [example("a", "a", "b")]}, of_texts=broken)
  found = [results.Result("t", "validation", {"accuracy": 50.0}, []) for _ in range(2)]
  assert most_frequent.beside(evaluation, None, "encoder_only", found) == found
  assert capsys.readouterr().err.count("no baseline for t: KeyError: 'sentence'") == 1
