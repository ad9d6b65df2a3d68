"""The commands `t2t eval` and `t2t superglue`, and task metrics between training steps."""

import dataclasses
import functools
import json
import re
import textwrap
import types
import zipfile

from etils import epath
import jax
import numpy as np
import pytest
import rich.console
import trained

from t2t import __main__ as command
from t2t.checkpoints import manifest, pretrained
from t2t.configuration.loading import load_config, override, records
from t2t.evaluation import evaluate, intervals, results
from t2t.training import metric_writers, train_logger
from t2t.training.callbacks import evaluation as callback

MODULE = """
  import functools
  import seqio
  import tensorflow as tf
  from t2t.evaluation import task_metrics
  from t2t.data import postprocessors, preprocessors

  LABELS = ("no", "yes")

  def records(split, shuffle_files, seed=None):
    number = {"train": 6, "validation": 5, "test": 3}[split]
    texts = [f"{split} {i} " + "word " * i for i in range(number)]
    labels = [-1 if split == "test" else i % 2 for i in range(number)]
    return tf.data.Dataset.from_tensor_slices({"text": texts, "label": labels, "idx": list(range(number))})

  def partly(split, shuffle_files, seed=None):
    return records(split, shuffle_files).map(
      lambda x: x | {"label": tf.where(x["idx"] % 3 == 0, tf.constant(-1, tf.int32), tf.cast(x["label"], tf.int32))}
    )

  def likelihood(targets, scores):
    return {"likelihood": sum(scores) / len(scores)}

  def add(name, metric_fns, records=records, **how):
    seqio.TaskRegistry.add(
      name,
      source=seqio.FunctionDataSource(records, splits=("train", "validation", "test"), num_input_examples={"train": 6}),
      preprocessors=preprocessors.text_to_text(
        functools.partial(preprocessors.labelled, prefix="odd", fields=("text",), labels=LABELS)
      ),
      output_features=preprocessors.t5_features(),
      postprocess_fn=postprocessors.label(LABELS),
      metric_fns=metric_fns,
      **how,
    )

  add("odd_label", [task_metrics.accuracy])
  add("odd_likelihood", [likelihood])
  add("odd_silent", [])
  add("odd_partly", [task_metrics.accuracy], records=partly)
  def broken(targets, predictions):
    return {"ratio": 1 / 0}
  add("odd_broken", [broken])
  seqio.MixtureRegistry.add("odd", [("odd_label", 1.0), ("odd_likelihood", 1.0)])

  def words(split, shuffle_files, seed=None):
    return tf.data.Dataset.from_tensor_slices({"words": [["Ann", "ran"]] * 4, "ner": [[1, 0]] * 4})

  NAMES = ("O", "B-PER", "I-PER")
  seqio.TaskRegistry.add(
    "odd_tags",
    source=seqio.FunctionDataSource(words, splits=("train", "validation"), num_input_examples={"train": 4}),
    preprocessors=preprocessors.text_to_text(
      preprocessors.tagged, words="words", tags="ner", names=NAMES, prefix="ner"
    ),
    output_features=preprocessors.t5_features(),
    postprocess_fn=postprocessors.tagged(NAMES),
    metric_fns=[task_metrics.entity_f1],
  )
"""
EVERY_STEP = ("--config.eval.every=1", "--config.checkpoint.save_interval_steps=1", "--config.checkpoint.max_to_keep=1")
ARCHITECTURES = ("encoder_decoder", "decoder_only", "encoder_only")


@functools.cache
def registering(folder):
  """Writes the file that registers the tasks; a single file, because a process registers a task once."""
  path = folder / "odd_tasks.py"
  path.write_text(textwrap.dedent(MODULE))
  return path


@pytest.fixture(scope="module")
def module(tmp_path_factory):
  folder = tmp_path_factory.getbasetemp() / "tasks"
  folder.mkdir(exist_ok=True)
  return registering(folder)


def options(module, mixture="odd_label"):
  return [
    f"--config.data.mixture={mixture}",
    f"--config.data.task_modules={module}",
    "--config.data.inputs_length=72",
    "--config.data.targets_length=6",
    "--config.train.batch_size=8",
  ]


def run(module, workdir, architecture="encoder_decoder", *others, mixture="odd_label"):
  checkpoint = f"--checkpoint={trained.workdir(architecture)}"
  return command.main(["eval", checkpoint, f"--workdir={workdir}", *options(module, mixture), *others])


@pytest.mark.exhaustive
def test_what_a_run_is_not_measured_by_is_refused_before_any_step(module, tmp_path, capsys):
  own = (
    "--config.eval.patience=1",
    "--config.eval.early_stopping_metric=odd_label/acuracy",
    "--config.data.vocabulary=bytes",
  )
  assert command.main(["train", "--config=tiny", f"--workdir={tmp_path}", *options(module), *own]) == 2
  assert "Give one of loss, odd_label/accuracy, odd_label/score; did you mean odd_label/accuracy?" in (
    err := capsys.readouterr().err
  ), err
  assert not (tmp_path / "checkpoints").exists() and not (tmp_path / "metrics.jsonl").exists()


def predictions(workdir, name):
  return [json.loads(line) for line in (workdir / "predictions" / f"{name}.jsonl").read_text().splitlines()]


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_answers(architecture, module, tmp_path, capsys):
  """There are a table and a file of answers in the order of the examples, and the metrics are those of the answers."""
  assert run(module, tmp_path, architecture) == 0
  rows = predictions(tmp_path, "odd_label.validation")
  assert [row["idx"] for row in rows] == [0, 1, 2, 3, 4]
  assert [row["target"] for row in rows] == [0, 1, 0, 1, 0]
  assert rows[2]["inputs"] == "odd text: validation 2 word word "
  found = json.loads((tmp_path / "results.json").read_text())["odd_label.validation"]
  right = [row["value"] == row["target"] for row in rows]
  assert found["metrics"] == {"accuracy": pytest.approx(100 * np.mean(right))}
  assert found["unparseable"] == sum(row["value"] == -1 for row in rows)
  assert found["examples"] == found["n"] == 5
  assert found["intervals"]["accuracy"] == intervals.exact(sum(right), 5).to_dict()
  assert found["classes"]["labels"] == ["no", "yes"] and found["classes"]["n"] == 5
  assert found["classes"]["accuracy"] == pytest.approx(100 * np.mean(right))
  assert found["classes"]["not_a_label"] == found["unparseable"]
  assert found["classes"]["majority"] == {"label": "no", "accuracy": 60.0}
  if architecture == "encoder_only":
    assert {row["prediction"] for row in rows} <= {"no", "yes"}
  out = capsys.readouterr().out
  assert "odd_label" in out and "accuracy" in out and f"{np.mean(right):.2%}"[:-1] in out
  assert (
    "confusion matrix (rows: gold, columns: predicted" in out
    and 'majority baseline 60.00 % of these (always "no")' in out
  )
  assert max(map(len, out.splitlines())) <= 80 or str(tmp_path) in out


@pytest.mark.exhaustive
def test_examples_without_a_gold_answer_are_left_out(module, tmp_path, capsys):
  """Every third label is -1: the metric leaves these out, and their number is printed."""
  assert run(module, tmp_path, mixture="odd_partly") == 0
  rows = predictions(tmp_path, "odd_partly.validation")
  right = [row["value"] == row["target"] for row in rows if row["target"] != -1]
  found = json.loads((tmp_path / "results.json").read_text())["odd_partly.validation"]
  assert len(right) == 3 and found["metrics"] == {"accuracy": pytest.approx(100 * np.mean(right))}
  assert (found["examples"], found["without_gold"], found["classes"]["n"]) == (5, 2, 3)
  assert "odd_partly: 2 of 5 examples have no gold answer" in capsys.readouterr().out


def evaluation(module, architecture, mixture="odd_label", **settings):
  config = override(load_config("superglue"), options(module, mixture))
  config.eval.update(settings)
  source = pretrained.read_source(str(trained.workdir(architecture)))
  found = evaluate.prepare(records(config), source, tasks=(), split="validation")
  return found, pretrained.load(source, found.mesh).params


@pytest.mark.exhaustive
def test_ranking_takes_the_likeliest_option(module):
  """The chosen option of "no" and "yes" has the higher teacher-forced log-probability, and its sum is the score."""
  ranked, params = evaluation(module, "encoder_decoder", method="rank")
  (result,) = ranked.run(params)
  scored, _ = evaluation(module, "encoder_decoder", mixture="odd_likelihood")
  (forced,) = scored.run(params)
  for answer, score in zip(result.answers, forced.answers, strict=True):
    is_right = answer.value == answer.target
    assert answer.score >= score.score - 1e-4
    assert is_right == pytest.approx(abs(answer.score - score.score) < 1e-3)
  assert forced.metrics["likelihood"] == pytest.approx(np.mean([answer.score for answer in forced.answers]))
  assert forced.unparseable == 0


@pytest.mark.exhaustive
def test_what_is_known_to_be_a_percentage_is_told_as_one(module, tmp_path, capfd):
  """Metrics of t2t are marked as percentages; user-defined metrics are not."""
  both, params = evaluation(module, "encoder_decoder", mixture="odd")
  logger = train_logger.TrainLogger(epath.Path(tmp_path), num_steps=1, start=0, unwritten={})
  run = types.SimpleNamespace(logger=logger, workdir=epath.Path(tmp_path), step=1)
  capfd.readouterr()  # output of the fixture that trains the model
  callback._log_tasks(run, both.run(params), {})
  logger.close()
  said = "".join(capfd.readouterr())
  assert re.search(r"odd_label accuracy [0-9.]+ %", said) and re.search(r"odd_likelihood likelihood -[0-9.]+\s", said)
  assert said.count("%") == 1


@pytest.mark.exhaustive
def test_shots_stand_in_front_of_each_input(module):
  """Prompts become longer and answers change; no prompt exceeds the model's input length."""
  plain, params = evaluation(module, "encoder_decoder")
  shown, _ = evaluation(module, "encoder_decoder", num_shots=1)
  (before,), (after,) = plain.run(params), shown.run(params)
  for first, second in zip(before.answers, after.answers, strict=True):
    assert len(first.example["inputs"]) <= len(second.example["inputs"]) <= 72
  assert sum(answer.example["num_shots"] for answer in after.answers) > 0


@pytest.mark.exhaustive
def test_a_decoder_is_asked_as_it_was_trained(module):
  """EOS ends the prompts, within the length, only if the objective of the checkpoint did so."""

  def prompts(objective):
    config = override(load_config("superglue"), options(module, "odd_label"))
    config.data.inputs_length = 30
    source = pretrained.read_source(str(trained.workdir("decoder_only")))
    source = dataclasses.replace(source, run={"data": source.run["data"] | {"objective": objective}})
    found = evaluate.prepare(records(config), source, tasks=(), split="validation")
    return [example["inputs"] for example in found._examples["odd_label"]]

  continued, ended = prompts("causal_lm"), prompts("prefix_lm")
  assert [[*tokens[:29], 1] for tokens in continued] == ended
  assert max(map(len, continued)) == max(map(len, ended)) == 30
  assert not any(1 in tokens for tokens in continued)


@pytest.mark.slow
def test_sets_without_labels_are_answered(module, tmp_path, capsys):
  """Answers are written, without metrics."""
  assert run(module, tmp_path, "encoder_decoder", "--config.data.eval_split=test") == 0
  assert [row["target"] for row in predictions(tmp_path, "odd_label.test")] == [None] * 3
  assert json.loads((tmp_path / "results.json").read_text())["odd_label.test"]["score"] is None
  assert "no labels" in capsys.readouterr().out


@pytest.mark.exhaustive
def test_results_of_other_splits_stay(module, tmp_path):
  """A folder collects the results of successive evaluations."""
  assert run(module, tmp_path) == 0
  assert run(module, tmp_path, "encoder_decoder", "--config.data.eval_split=train", "--config.eval.max_examples=2") == 0
  found = json.loads((tmp_path / "results.json").read_text())
  assert {name: record["examples"] for name, record in found.items()} == {
    "odd_label.validation": 5,
    "odd_label.train": 2,
  }


@pytest.mark.exhaustive_from(2)
@pytest.mark.parametrize(
  ("others", "message"),
  [
    (
      ["--config.data.mixture=odd_silent"],
      "odd_silent: no metrics, so there is nothing to evaluate. Register",
    ),
    (
      ["--config.data.mixture=odd_tags", "--config.eval.method=rank"],
      "odd_tags: config.eval.method=rank cannot predict a tag for each word",
    ),
    (["--config.data.mixture=odd_broken"], r"odd_broken: metric broken raised ZeroDivisionError \("),
    (["--config.eval.tasks=labell"], r"config.eval.tasks: labell is not a task"),
    (["--config.eval.method=guess"], "config.eval.method=guess: unknown value. Known values: generate, rank, head"),
    (["--config.eval.normalize=avg"], "config.eval.normalize=avg: unknown value"),
    (
      ["--config.eval.method=rank", "--config.eval.normalize=byte"],
      "normalize=byte: unknown value.*did you mean bytes",
    ),
    (["--config.eval.pseudo_likelihood=pll"], "pseudo_likelihood=pll: only encoders have pseudo-log-likelihoods"),
    (["--config.data.eval_split=tset"], "odd_label has no split 'tset'; did you mean test"),
    (["--config.data.eval_split=dev"], r"odd_label has no split 'dev'\. Known splits: train, validation, test"),
    (["--config.data.vocabulary=bytes", "--config.data.extra_ids=3"], "was trained with another vocabulary"),
    (["--config.eval.num_beams=0"], "num_beams=0 must be at least 1"),
    (["--config.eval.num_shots=9"], r"config.eval.num_shots=9: the training split has only 6 example\(s\)"),
    # --shots=0 overrides the config, so the next error is reported.
    (["--shots=0", "--config.eval.num_shots=9", "--config.eval.num_beams=0"], "num_beams=0 must be at least 1"),
    (["--config.data.mixture=oddd"], "oddd: no task or mixture has this name"),
    (["--checkpoint=nowhere"], "--checkpoint nowhere: no checkpoint in"),
  ],
)
def test_what_cannot_be_evaluated(others, message, module, tmp_path, capsys):
  """The error is one line with the fault and the remedy."""
  assert run(module, tmp_path, "encoder_decoder", *others) == 2
  assert re.search(message, capsys.readouterr().err)
  assert not (tmp_path / "results.json").exists()


def test_a_missing_checkpoint_is_named_before_keys_of_files(tmp_path, capsys):
  """Without --config, whose default depends on the checkpoint."""
  arguments = ["--checkpoint=nowhere", f"--workdir={tmp_path}", "--config.data.eval_files=x.tsv"]
  assert command.main(["eval", *arguments]) == 2
  assert "--checkpoint nowhere: no checkpoint in" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_training_measures_its_tasks_and_keeps_the_best(module, tmp_path, capsys):
  """Metrics are logged at every evaluation, on the terminal and in files; the best step by each metric is kept."""
  arguments = ["train", "--config=finetune_superglue", f"--config.init.checkpoint={trained.workdir('encoder_decoder')}"]
  arguments += [
    *options(module, "odd"),
    "--config.train.steps=4",
    "--config.eval.every=1",
    "--config.checkpoint.save_interval_steps=1",
  ]
  assert command.main([*arguments, "--config.checkpoint.max_to_keep=1", f"--workdir={tmp_path}"]) == 0
  measured = {
    name: metric_writers.read_metrics(tmp_path / "metrics.jsonl", f"eval/{name}")
    for name in ("loss", "odd_label/accuracy", "odd_likelihood/likelihood", "odd_label/score")
  }
  assert all(list(values) == [1, 2, 3, 4] for values in measured.values())
  best = {min(measured["loss"], key=measured["loss"].get), 3, 4}  # and the last two steps
  best |= {max(measured[name], key=measured[name].get) for name in measured if name != "loss"}
  assert {int(path.name) for path in (tmp_path / "checkpoints").iterdir()} == best
  out = capsys.readouterr()
  assert "best odd_likelihood/likelihood" in out.out
  assert "odd_label accuracy" in out.err
  # `t2t eval` of the checkpoint gives the metrics of training.
  assert (
    command.main(["eval", f"--checkpoint={tmp_path}", f"--workdir={tmp_path / 'eval'}", *options(module, "odd")]) == 0
  )
  found = json.loads((tmp_path / "eval" / "results.json").read_text())
  assert found["odd_likelihood.validation"]["metrics"]["likelihood"] == pytest.approx(
    measured["odd_likelihood/likelihood"][4], rel=1e-4
  )


def write_lines(path, records):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture(scope="module")
def superglue_folder(tmp_path_factory):
  """Returns a folder with two tasks and a diagnostic set, in the released format."""
  folder = tmp_path_factory.mktemp("SuperGLUE")
  for split, number in (("train", 12), ("val", 5), ("test", 4)):
    pairs = [{"premise": f"it rains {i}", "hypothesis": f"it is wet {i}", "idx": i} for i in range(number)]
    named = lambda i, *labels, split=split: {} if split == "test" else {"label": labels[i % len(labels)]}
    write_lines(
      folder / "CB" / f"{split}.jsonl",
      [pair | named(i, "entailment", "contradiction", "neutral") for i, pair in enumerate(pairs)],
    )
    write_lines(
      folder / "RTE" / f"{split}.jsonl",
      [pair | named(i, "entailment", "not_entailment") for i, pair in enumerate(pairs)],
    )
  axb = [{"sentence1": "a b", "sentence2": "b a", "idx": i, "label": "entailment", "logic": ""} for i in range(3)]
  write_lines(folder / "AX-b" / "AX-b.jsonl", axb)
  return folder


@pytest.mark.exhaustive
def test_superglue_from_a_checkpoint_to_the_leaderboard(superglue_folder, tmp_path, capsys):
  """The step with the best validation score predicts each test set; the same command resumes."""
  arguments = ["superglue", f"--checkpoint={trained.workdir('encoder_decoder')}", f"--workdir={tmp_path}"]
  arguments += [f"--config.data.benchmark_dirs.superglue={superglue_folder}", "--config.eval.tasks=cb,rte,axb"]
  arguments += ["--config.data.inputs_length=40", "--config.data.targets_length=16", "--config.train.batch_size=8"]
  arguments += [
    "--config.train.steps=3",
    "--config.eval.every=1",
    "--config.checkpoint.save_interval_steps=1",
    "--config.checkpoint.max_to_keep=1",
  ]
  assert command.main(arguments) == 0
  out = capsys.readouterr().out
  with zipfile.ZipFile(tmp_path / "super_glue.zip") as archive:
    lines = {name: [json.loads(line) for line in archive.read(name).splitlines()] for name in archive.namelist()}
  assert {name: [line["idx"] for line in rows] for name, rows in lines.items()} == {
    "CB.jsonl": [0, 1, 2, 3],
    "RTE.jsonl": [0, 1, 2, 3],
    "AX-b.jsonl": [0, 1, 2],
  }
  found = json.loads((tmp_path / "results.json").read_text())
  table = out.partition("task (validation)")[2].partition("task (test)")[0]
  for task in ("super_glue_cb", "super_glue_rte"):
    scores = metric_writers.read_metrics(tmp_path / "finetune" / "metrics.jsonl", f"eval/{task}/score")
    step = max(scores, key=scores.get)
    assert found[f"{task}.validation"]["score"] == pytest.approx(scores[step], abs=1e-3)
    assert any(task in line and str(step) in line.split() for line in table.splitlines())
  assert "super_glue_axb" in out and "leaderboard" in out
  assert command.main(arguments) == 0
  # The checkpoint that a record names gives the metrics of the record, and is not always the last one.
  capsys.readouterr()
  for task in ("cb", "rte"):
    record = found[f"super_glue_{task}.validation"]
    assert record["checkpoint"] in out
    # `t2t babylm` leaves out tasks that were fine-tuned from another checkpoint.
    assert record["initial_checkpoint"].startswith(str(trained.workdir("encoder_decoder")))
    again = ["eval", "--config=superglue", f"--checkpoint={record['checkpoint']}", f"--workdir={tmp_path / task}"]
    again += [f"--config.data.benchmark_dirs.superglue={superglue_folder}", f"--config.eval.tasks={task}"]
    assert command.main([*again, "--config.data.inputs_length=40", "--config.data.targets_length=16"]) == 0
    evaluated = json.loads((tmp_path / task / "results.json").read_text())[f"super_glue_{task}.validation"]
    assert evaluated["metrics"] == pytest.approx(record["metrics"])
    assert evaluated["checkpoint"] == record["checkpoint"]


TEMPLATES = """
[super_glue_cb.front]
text = "{blank}: {premise} {hypothesis}"
words = {entailment = "yes", contradiction = "no", neutral = "maybe"}
[super_glue_cb.behind]
text = "{premise} {hypothesis}? {blank}"
words = {entailment = "yes", contradiction = "no", neutral = "maybe"}
[super_glue_cb.bare]
text = "{hypothesis} {blank}"
words = {entailment = "yes", contradiction = "no", neutral = "maybe"}
[super_glue_rte.only]
text = "{premise} {hypothesis}? {blank}"
words = {entailment = "yes", not_entailment = "no"}
"""


@pytest.mark.exhaustive
def test_superglue_with_several_templates(superglue_folder, tmp_path, capsys):
  """The mean over templates selects the step, each template is evaluated, and the majority is submitted."""
  (tmp_path / "templates.toml").write_text(TEMPLATES)
  arguments = ["superglue", f"--checkpoint={trained.workdir('decoder_only')}", f"--workdir={tmp_path}"]
  arguments += [f"--config.data.benchmark_dirs.superglue={superglue_folder}", "--config.data.mixture=super_glue_cb"]
  arguments += [f"--config.data.templates={tmp_path / 'templates.toml'}", "--config.eval.method=rank"]
  arguments += ["--config.data.inputs_length=56", "--config.data.targets_length=24", "--config.train.batch_size=8"]
  arguments += ["--config.data.num_streams=1", "--config.eval.batches=1", "--config.eval.num_logged_samples=0"]
  arguments += ["--config.train.steps=2", "--config.eval.every=1", "--config.checkpoint.save_interval_steps=1"]
  assert command.main(arguments) == 0
  out = capsys.readouterr().out
  metrics = tmp_path / "finetune" / "metrics.jsonl"
  names = [f"super_glue_cb.{name}" for name in ("front", "behind", "bare")]
  of_templates = [metric_writers.read_metrics(metrics, f"eval/{name}/score") for name in names]
  means = metric_writers.read_metrics(metrics, "eval/super_glue_cb/score")
  assert means == pytest.approx({step: np.mean([scores[step] for scores in of_templates]) for step in (1, 2)})
  best = max(means, key=means.get)  # the first of equal scores
  found = json.loads((tmp_path / "results.json").read_text())
  spread = found["super_glue_cb.validation"]
  assert spread["variants"] == names and spread["score"] == pytest.approx(means[best], abs=1e-3)
  assert spread["checkpoint"] == found[f"{names[0]}.validation"]["checkpoint"]
  assert spread["checkpoint"].endswith(f"/{best}")
  values = [found[f"{name}.validation"]["metrics"]["accuracy"] for name in names]
  assert spread["standard_deviations"]["accuracy"] == pytest.approx(np.std(values, ddof=1))
  assert f"sd {np.std(values, ddof=1):.2f}" in out and "majority       super_glue_cb." in out
  predicted = [
    [json.loads(line)["value"] for line in (tmp_path / "predictions" / f"{name}.test.jsonl").read_text().splitlines()]
    for name in names
  ]
  with zipfile.ZipFile(tmp_path / "super_glue.zip") as archive:
    submitted = [json.loads(line)["label"] for line in archive.read("CB.jsonl").splitlines()]
  labels = ("entailment", "contradiction", "neutral")
  for of_example, label in zip(zip(*predicted, strict=True), submitted, strict=True):
    votes = [of_example.count(labels.index(label)), max(map(of_example.count, of_example))]
    assert votes[0] == votes[1]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_a_majority_decides_and_the_best_template_breaks_ties(order, tmp_path):
  """Votes do not depend on the order of templates; between equal numbers the highest validation score decides."""
  values = ([1, 0, {"a": 1}], [1, 1, {"a": 2}], [0, 2, {"a": 2}])
  scores = (10.0, 30.0, 20.0)
  answer = lambda value: results.Answer({}, "", value, None, 0.0)
  made = [
    results.Result(f"t.{i}", split, metrics, [answer(x) for x in values[i]], base="t")
    for i in order
    for split, metrics in (("validation", {"accuracy": scores[i]}), ("test", {}))
  ]
  of_task = results.by_task(made)["t"]
  assert [result.task for result in of_task] == ["t.1", "t.2", "t.0"]
  assert [x.value for x in results.majority(of_task)] == [1, 1, {"a": 2}]


def test_unparseable_answers_have_no_vote():
  answer = lambda value, parseable: results.Answer({}, "", value, None, 0.0, parseable=parseable)
  rows = [
    [answer(-1, False), answer(-1, False)],
    [answer(-1, False), answer(-1, False)],
    [answer(1, True), answer(-1, False)],
  ]
  chosen = results.majority([results.Result(f"t.{i}", "test", {}, row) for i, row in enumerate(rows)])
  assert [x.value for x in chosen] == [1, -1]


@pytest.mark.exhaustive
def test_a_run_from_before_folders_had_names_goes_on(superglue_folder, tmp_path, capsys):
  """A run with the old key superglue_dir resumes on the same data, and can be evaluated."""
  folder = f"--config.data.benchmark_dirs.superglue={superglue_folder}"
  train = ["train", "--config=finetune_superglue", f"--workdir={tmp_path}", "--config.data.mixture=super_glue_cb"]
  train += ["--config.data.inputs_length=40", "--config.data.targets_length=16", "--config.train.batch_size=8"]
  train += [f"--config.init.checkpoint={trained.workdir('encoder_decoder')}", "--config.eval.every=9"]
  assert command.main([*train, folder, "--config.train.steps=1"]) == 0
  saved = tmp_path / "checkpoints" / "1"
  (config,) = (saved / "config").glob("metadata")
  (saved / manifest.NAME).unlink()
  assert json.loads(config.read_text())["data"]["benchmark_dirs"] == {"superglue": str(superglue_folder)}
  for path in (config, *(saved / "streams").glob("stream-*")):
    older = re.sub(
      r'"benchmark_dirs": \{"superglue": ("[^"]*")\}', r'"superglue_dir": \1, "glue_dir": ""', path.read_text()
    )
    path.write_text(older.replace("data.benchmark_dirs.superglue", "data.superglue_dir"))
    assert "superglue_dir" in path.read_text() and "benchmark_dirs" not in path.read_text()
  capsys.readouterr()
  other = tmp_path / "Other"
  other.symlink_to(superglue_folder)
  assert command.main([*train, f"--config.data.benchmark_dirs.superglue={other}", "--config.train.steps=2"]) == 2
  message = (
    f"config.data.benchmark_dirs.superglue is 'Other', but the checkpoint's data position belongs to"
    f" {superglue_folder.name!r}"
  )
  assert message in capsys.readouterr().err
  assert command.main([*train, folder, "--config.train.steps=2"]) == 0
  error = capsys.readouterr().err
  assert "resuming from step 1" in error and "changed config.data" not in error
  evaluated = ["eval", f"--checkpoint={saved}", f"--workdir={tmp_path / 'eval'}", folder, "--config.eval.tasks=cb"]
  assert command.main([*evaluated, "--config.data.inputs_length=40", "--config.data.targets_length=16"]) == 0
  typo = ["eval", f"--checkpoint={saved}", f"--workdir={tmp_path / 'eval'}", "--config.data.benchmark_dirs.superglu=x"]
  assert command.main(typo) == 2
  assert "did you mean superglue?" in capsys.readouterr().err


def test_a_step_can_be_chosen_only_where_it_was_saved(superglue_folder, tmp_path, capsys):
  """Evaluations and checkpoints must be at the same steps."""
  arguments = ["superglue", f"--checkpoint={trained.workdir('encoder_decoder')}", f"--workdir={tmp_path}"]
  assert command.main([*arguments, "--config.eval.every=10"]) == 2
  assert "Set both keys to the same number" in capsys.readouterr().err


def test_a_set_that_is_not_there_is_named(superglue_folder, tmp_path, capsys):
  """The config names all of SuperGLUE, but the folder has only two tasks."""
  arguments = ["superglue", f"--checkpoint={trained.workdir('encoder_decoder')}", f"--workdir={tmp_path}"]
  assert command.main([*arguments, f"--config.data.benchmark_dirs.superglue={superglue_folder}"]) == 2
  error = capsys.readouterr().err
  assert "BoolQ" in error and "--config.eval.tasks" in error
  assert not (tmp_path / "finetune").exists()


def answers_of(texts, targets):
  made = [
    results.Answer({"idx": i}, text, text, target, -1.0)
    for i, (text, target) in enumerate(zip(texts, targets, strict=True))
  ]
  return results.Result("some_task", "validation", {"accuracy": 50.0, "f1": 25.0}, made)


def test_a_score_is_the_mean_of_the_metrics():
  """GLUE and SuperGLUE average the metrics of a task."""
  assert answers_of(["a"], ["a"]).score == 37.5
  assert results.Result("t", "test", {}, []).score is None


@pytest.mark.parametrize("whole", [True, False])
def test_leaderboards_get_no_part_of_a_test_set(whole, tmp_path):
  """Leaderboards refuse incomplete predictions, so no zip is written unless all examples were evaluated."""
  answers = [results.Answer({"idx": np.int32(i)}, "True", 1, None, -0.5) for i in range(3)]
  found = [results.Result("super_glue_boolq", "test", {}, answers)]
  results.publish(found, epath.Path(tmp_path), about={}, whole=whole)
  assert (tmp_path / "super_glue.zip").exists() == whole
  assert (tmp_path / "results.json").exists()


@pytest.mark.exhaustive
def test_evaluations_say_how_far_they_are(module):
  """Progress counts every example once, for any number of options."""
  for architecture in ("encoder_decoder", "encoder_only"):
    asked, params = evaluation(module, architecture)
    counted = []
    asked.run(params, on_batch=lambda task, number, tokens, counted=counted: counted.append(number))
    assert sum(counted) == pytest.approx(asked.num_examples) == 5


@pytest.mark.exhaustive
def test_meshes_give_the_same_answers(module):
  """Eight devices in another mesh shape give the same answers."""
  found, params = evaluation(module, "encoder_decoder")
  config = override(load_config("superglue"), options(module))
  config.mesh.update(fsdp=4, tensor=2)
  source = pretrained.read_source(str(trained.workdir("encoder_decoder")))
  other = evaluate.prepare(records(config), source, tasks=(), split="validation")
  assert other.mesh.shape["tensor"] == 2 and jax.device_count() == 8
  texts = lambda asked, params: [answer.text for answer in asked.run(params)[0].answers]
  assert texts(found, params) == texts(other, pretrained.load(source, other.mesh).params)


@pytest.mark.parametrize(
  ("example", "unlabelled"),
  [
    ({"label": np.int64(-1)}, True),
    ({"label": np.int64(0)}, False),
    ({"label": np.float32("nan")}, True),
    ({"label": np.float32(-1)}, False),  # a regular number
    ({"answers": np.array([], object)}, True),
    ({"answers": np.array([], object), "no_answer": b"none"}, False),
    ({}, False),
  ],
)
def test_what_has_no_label(example, unlabelled):
  """Examples of test sets are unlabelled; a question marked as unanswerable is labelled."""
  assert evaluate._is_unlabelled(example) is unlabelled


def test_no_name_of_a_table_is_cut_off(capsys):
  """The longest names of GLUE and SuperGLUE and the steps fit into 80 columns; longer names are wrapped."""
  tasks = {"glue_mnli_mismatched": "accuracy", "super_glue_cb": "mean_3class_f1", "x" * 60: "accuracy"}
  found = [results.Result(task, "validation", {metric: 50.0}, [], (metric,)) for task, metric in tasks.items()]
  results.print_table(found[:2], rich.console.Console(width=80), steps=dict.fromkeys(tasks, 262_144))
  lines = capsys.readouterr().out.splitlines()
  assert any(line.split() == ["glue_mnli_mismatched", "accuracy", "50.00", "%", "0", "262,144"] for line in lines)
  assert any("mean_3class_f1" in line for line in lines) and any("task (validation)" in line for line in lines)
  results.print_table(found[2:], rich.console.Console(width=80))
  out = capsys.readouterr().out
  assert out.count("x") == 60 and max(map(len, out.splitlines())) <= 80
