"""Baselines of GLUE and SuperGLUE: the most frequent class, and a classifier on the mean of static vectors (CBoW)."""

import collections
import json
import pathlib

import glue_files
import numpy as np
import pytest
from test_word2vec_run import SMALL

from t2t.__main__ import main
from t2t.contrib.static import most_frequent

SHARED = pathlib.Path(__file__).resolve().parents[4] / "shared" / "data"
GLUE = ("cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "mnli_mismatched", "qnli", "rte", "wnli")
SUPER_GLUE = ("boolq", "cb", "copa", "multirc", "record", "rte", "wic", "wsc")


def example(target, *options, **fields):
  return {"targets_pretokenized": target.encode(), "options": [option.encode() for option in options]} | fields


def chosen(train, of):
  return most_frequent.Rule(train)(of)


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
  with pytest.raises(ValueError):
    most_frequent.Rule(train[1:])


def test_options_of_each_example_are_chosen_by_place():
  train = [example("b", "a", "b"), example("c", "d", "c"), example("e", "e", "f")]
  assert chosen(train, example("x", "x", "y")) == "y"


def test_nouns_are_answered_by_the_most_frequent_label():
  """WSC: the text of the class differs for each example."""
  train = [example("dog", classes=[b"another", b"dog"], label=label) for label in (0, 1, 0)]
  asked = example("fox", classes=[b"another", b"fox"])
  assert chosen(train, asked) == "another"
  assert chosen([*train, *[train[1]] * 3], asked) == "fox"


def test_entities_are_chosen_by_their_likeness_to_other_mentions():
  """ReCoRD: the rule of SuperGLUE's footnote 9, whatever the training examples."""
  train = [example("Ann", "Ann", "Bob"), example("Eve", "Ann", "Bob", "Eve")]
  asked = example("", "Ann", "Ann Lee", "Bob", passage=b"Bob met Ann Lee. Bob saw Ann.")
  # Ann: 1 + 2/3; Ann Lee: 2 x 2/3; Bob: 1.
  assert chosen(train, asked) == "Ann"
  assert chosen(train, asked | {"passage": b"Bob met Ann Lee. Bob, Bob and Bob."}) == "Bob"


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


@pytest.mark.slow
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
