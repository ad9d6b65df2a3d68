"""`t2t pet`: an ensemble of templates, soft labels and a classifier; generations, resuming, and refused settings."""

import json
import textwrap

import pytest
import trained

from t2t import UserError
from t2t import __main__ as command
from t2t.commands import pet

MODULE = """
  import functools
  import seqio
  import tensorflow as tf
  from t2t.data import postprocessors, preprocessors
  from t2t.evaluation import task_metrics

  LABELS = ("no", "yes")

  def records(split, shuffle_files, seed=None):
    number = {"train": 8, "validation": 4, "test": 12}[split]
    texts = [("fox " if i % 2 else "dog ") * 3 for i in range(number)]
    labels = [-1 if split == "test" else i % 2 for i in range(number)]
    return tf.data.Dataset.from_tensor_slices({"text": texts, "label": labels})

  seqio.TaskRegistry.add(
    "foxes",
    source=seqio.FunctionDataSource(records, splits=("train", "validation", "test"), num_input_examples={"train": 8}),
    preprocessors=preprocessors.text_to_text(
      functools.partial(preprocessors.labelled, prefix="foxes", fields=("text",), labels=LABELS)
    ),
    output_features=preprocessors.t5_features(),
    postprocess_fn=postprocessors.label(LABELS),
    metric_fns=[task_metrics.accuracy],
  )

  def animals(dataset):
    options = tf.constant(["red fox", "old dog"])
    return dataset.map(lambda x: {"text": x["text"], "inputs": x["text"], "targets": options[0], "options": options})

  seqio.TaskRegistry.add(
    "animals",
    source=seqio.FunctionDataSource(records, splits=("train", "validation"), num_input_examples={"train": 8}),
    preprocessors=preprocessors.text_to_text(animals),
    output_features=preprocessors.t5_features(),
    postprocess_fn=postprocessors.text(),
    metric_fns=[task_metrics.accuracy],
  )
"""
TEMPLATES = """
[foxes.front]
text = "{blank}: {text}"
words = {no = "n", yes = ["y", "f"]}
[foxes.behind]
text = "{text} {blank}"
words = {no = "n", yes = ["y", "f"]}
[animals.front]
text = "{blank}: {text}"
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory):
  """Returns a file that registers the tasks; a process imports it once."""
  path = tmp_path_factory.mktemp("tasks") / "foxes.py"
  path.write_text(textwrap.dedent(MODULE))
  return path


def arguments(module, folder, *options):
  (folder / "foxes.toml").write_text(TEMPLATES)
  return [
    *("pet", "--config=finetune_docs_match", f"--config.init.checkpoint={trained.workdir('encoder_only')}"),
    *("--config.data.mixture=foxes", f"--config.data.task_modules={module}"),
    *(f"--config.data.templates={folder / 'foxes.toml'}", "--config.data.inputs_length=40"),
    *("--config.data.num_streams=1", "--config.train.batch_size=8", "--config.train.steps=2", "--config.eval.every=2"),
    *("--config.checkpoint.save_interval_steps=2", "--config.eval.num_logged_samples=1", "--config.eval.batches=1"),
    *(f"--workdir={folder / 'pet'}", *options),
  ]


@pytest.mark.exhaustive
def test_an_ensemble_labels_and_a_classifier_learns(module, tmp_path):
  """Each template has a model in each generation; the classifier learns soft labels of all records of the split."""
  assert command.main(arguments(module, tmp_path, "--generations=1")) == 0
  folder = tmp_path / "pet"
  models = {f"generation-{g}/{name}-seed0" for g in (0, 1) for name in ("front", "behind")}
  assert {str(path.relative_to(folder)) for path in folder.glob("generation-*/*-seed0")} == models
  rows = [json.loads(line) for line in (folder / "soft_labels.jsonl").read_text().splitlines()]
  assert [(row["split"], row["index"]) for row in rows] == [("test", i) for i in range(12)]
  assert all(len(row["logits"]) == 2 for row in rows)
  grown = [json.loads(line) for line in (folder / "generation-1/front-seed0.jsonl").read_text().splitlines()]
  assert [row["label"] for row in grown[:8]] == [0, 1] * 4 and {row["split"] for row in grown[8:]} == {"test"}
  saved = json.loads((folder / "classifier" / "config.json").read_text())
  assert saved["train"]["loss"] == "distillation" and saved["data"]["templates"] == ""
  heads = [json.loads((folder / name / "config.json").read_text())["model"]["heads"] for name in sorted(models)]
  assert {head["kind"] for rows in heads for head in rows} == {"cloze"}
  assert heads[0][0]["words"] == [[113], [124, 105]]
  assert "foxes" in json.dumps(json.loads((folder / "eval" / "results.json").read_text()))


@pytest.mark.exhaustive
def test_options_of_several_tokens_are_ranked_by_an_ensemble(module, tmp_path):
  """Models learn the tokens of the right option, and the mean of their log-probabilities ranks; no classifier."""
  options = ["--config.data.mixture=animals", "--seeds=2"]
  assert command.main(arguments(module, tmp_path, *options)) == 0
  folder = tmp_path / "pet"
  assert {path.name for path in folder.iterdir()} == {"generation-0", "eval"}
  for seed in (0, 1):
    saved = json.loads((folder / "generation-0" / f"front-seed{seed}" / "config.json").read_text())
    assert saved["train"]["loss"] == "cross_entropy" and not saved["model"]["heads"]
  found = json.loads((folder / "eval" / "results.json").read_text())["animals.validation"]
  assert found["ensemble"] == 2 and found["n"] == 4
  predicted = (folder / "eval" / "predictions" / "animals.validation.jsonl").read_text().splitlines()
  assert {json.loads(line)["value"] for line in predicted} <= {"red fox", "old dog"}


def test_generations_need_classes(module, tmp_path, capsys):
  options = ["--config.data.mixture=animals", "--seeds=2", "--generations=1"]
  assert command.main(arguments(module, tmp_path, *options)) == 2
  assert "--generations 1:" in (error := capsys.readouterr().err) and "[animals.front] has other words" in error
  assert not (tmp_path / "pet").exists()


@pytest.mark.parametrize(
  ("option", "message"),
  [
    ("--seeds=0", "--seeds 0 must be at least 1"),
    ("--config.data.templates=", "config.data.templates is empty"),
    ("--config.data.templates=none.toml", "config.data.templates=none.toml: no such file"),
    ("--workdir=", "--workdir is missing"),
  ],
)
def test_refused_options(option, message, tmp_path):
  with pytest.raises(UserError, match=message):
    pet.main(["--config=finetune_docs_match", f"--workdir={tmp_path}", "--config.data.templates=pet_superglue", option])
