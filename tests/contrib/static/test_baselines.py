"""Baselines of GLUE and SuperGLUE: the most frequent class, and a classifier on the mean of static vectors (CBoW)."""

import json

import pytest
from test_word2vec_run import SMALL

from t2t import UserError
from t2t.__main__ import main
from t2t.contrib.static import most_frequent


def example(target, *options, text=""):
  return {"targets_pretokenized": target.encode(), "inputs_pretokenized": text.encode()} | (
    {"options": [option.encode() for option in options]} if options else {}
  )


def test_a_class_is_the_most_frequent_of_training():
  train = [example(x, "no", "yes") for x in ("yes", "no", "yes")]
  assert most_frequent.choose(train, example("no", "no", "yes")) == "yes"
  assert most_frequent.choose([example("2.5"), example("1.0"), example("1.0")], example("4.0")) == "1.0"


def test_options_of_each_example_are_chosen_by_place():
  train = [example("b", "a", "b"), example("c", "d", "c"), example("e", "e", "f")]
  assert most_frequent.choose(train, example("x", "x", "y")) == "y"


def test_entities_are_chosen_by_their_number_in_the_text():
  train = [example("Ann", "Ann", "Bob"), example("Eve", "Ann", "Bob", "Eve")]
  asked = example("Bob", "Ann", "Bob", "Eve", text="Ann met Bob. Bob left. Eve stayed.")
  assert most_frequent.choose(train, asked) == "Bob"


def write(path, rows):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Returns a folder with word vectors and SuperGLUE's CB, RTE and AX-b, in which a word decides."""
  folder = tmp_path_factory.mktemp("baselines")
  sides = {"entailment": "good fine", "contradiction": "bad poor", "neutral": "grey dull"}
  kinds = [*sides, "contradiction"]
  for name, labels in (("CB", kinds), ("RTE", ["entailment", "not_entailment", "not_entailment"])):
    for split, number in (("train", 24), ("val", 8), ("test", 4)):
      rows = []
      for i in range(number):
        label = labels[i % len(labels)]
        words = sides.get(label, "bad poor")
        rows.append({"premise": f"it was {words} here", "hypothesis": "we saw it", "idx": i, "label": label})
        if split == "test":
          del rows[-1]["label"]
      write(folder / "SuperGLUE" / name / f"{split}.jsonl", rows)
  axb = [{"sentence1": "a", "sentence2": "b", "idx": i, "label": "entailment", "logic": ""} for i in range(3)]
  write(folder / "SuperGLUE" / "AX-b" / "AX-b.jsonl", axb)
  # Words of one class are each other's context, so that the classes have different vectors.
  (folder / "text.txt").write_text("".join(f"it was here we saw it\n{f'{x} ' * 4}\n" for x in sides.values()) * 40)
  words = ["vocab", "train", "--type", "word", "--input", str(folder / "text.txt"), "--output", str(folder / "words")]
  assert main(words) == 0
  files = [f"--config.data.files={folder / 'text.txt'}", f"--config.data.vocabulary={folder / 'words'}"]
  train = ["train", "--config", "word2vec_skip_gram", "--workdir", str(folder / "run"), *SMALL, *files]
  assert main([*train, "--config.train.steps=60", "--config.eval.every=60"]) == 0
  return folder


def evaluated(folder, name, *extra):
  arguments = ["eval", "--config", "superglue", "--checkpoint", str(folder / "run"), "--workdir", str(folder / name)]
  data = [f"--config.data.benchmark_dirs.superglue={folder / 'SuperGLUE'}", "--config.eval.batch_size=8"]
  assert main([*arguments, *data, *extra]) == 0
  return json.loads((folder / name / "results.json").read_text())


@pytest.mark.slow
def test_the_most_frequent_class_is_a_row_of_the_table(folder, capsys):
  """The checkpoint only gives the vocabulary; AX-b has the class of RTE."""
  options = ["--config.eval.method=most_frequent", "--config.eval.tasks=cb,rte"]
  options += ["--config.data.mixture=super_glue_cb,super_glue_rte,super_glue_axb"]
  found = evaluated(folder, "most_frequent", *options)
  assert found["super_glue_cb.validation"]["metrics"]["accuracy"] == 50.0
  assert found["super_glue_rte.validation"]["metrics"]["accuracy"] == 62.5
  assert found["super_glue_cb.validation"]["method"] == "most_frequent"
  assert "super_glue_cb" in capsys.readouterr().out


@pytest.mark.exhaustive
def test_a_classifier_on_the_mean_of_vectors_learns_the_task(folder):
  """CBoW: the vectors stay as they are, and the head reads the mean of all words."""
  arguments = ["train", "--config", "finetune_superglue", "--workdir", str(folder / "cbow")]
  arguments += [f"--config.init.checkpoint={folder / 'run'}", "--config.data.mixture=super_glue_cb"]
  arguments += [f"--config.data.benchmark_dirs.superglue={folder / 'SuperGLUE'}", "--config.train.freeze=^embed/"]
  arguments += ["--config.train.steps=40", "--config.train.batch_size=8", "--config.data.inputs_length=32"]
  arguments += ["--config.train.epochs=0.0", "--config.eval.every=40", "--config.checkpoint.save_interval_steps=40"]
  arguments += ["--config.optimizer.name=adamw", "--config.optimizer.scale_by_parameter=False"]
  arguments += ["--config.optimizer.learning_rate=0.1", "--config.data.num_streams=1"]
  assert main(arguments) == 0
  config = json.loads((folder / "cbow" / "config.json").read_text())
  (head,) = config["model"]["heads"]
  assert head["reads"] == "mean" and config["model"]["block"] == "none"
  command = ["eval", "--config", "superglue", "--checkpoint", str(folder / "cbow"), "--workdir", str(folder / "score")]
  command += [f"--config.data.benchmark_dirs.superglue={folder / 'SuperGLUE'}", "--config.data.mixture=super_glue_cb"]
  assert main([*command, "--config.eval.batch_size=8"]) == 0
  found = json.loads((folder / "score" / "results.json").read_text())
  assert found["super_glue_cb.validation"]["metrics"]["accuracy"] == 100.0


def test_tasks_without_training_examples_name_another():
  with pytest.raises(UserError, match="has no training examples"):
    most_frequent.MostFrequent._trained_as(type("Task", (), {"name": "x"})())
