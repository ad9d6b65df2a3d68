"""The `t2t train` command end to end."""

import gzip
import itertools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys

from etils import epath
from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import __main__ as command
from t2t import sharding
from t2t.checkpoints import manager, pretrained
from t2t.configuration.loading import load_config, override, records
from t2t.configuration.schema import DataConfig
from t2t.data import pipeline
from t2t.data.vocabularies import training
from t2t.models import transformer
from t2t.param_tree import join_frozen
from t2t.reports import first_batches, history
from t2t.runtime import exit_codes, preemption, sync_point
from t2t.training import mesh_selection, metric_writers, optimizers, recipe, train_state, train_step

# A model and a corpus so small that Python takes most of the time.
SMALL = (
  "--config.model.vocab_size=384",
  "--config.model.embed_dim=16",
  "--config.model.num_heads=2",
  "--config.model.head_dim=8",
  "--config.model.mlp_dim=32",
  "--config.model.dtype=float32",
  "--config.model.dropout_rate=0.1",
  "--config.data.vocabulary=bytes",
  "--config.data.inputs_length=64",
  "--config.data.targets_length=32",
  "--config.data.num_streams=2",
  "--config.train.batch_size=8",
  "--config.train.steps=6",
  "--config.eval.batches=2",
  "--config.eval.every=3",
  "--config.checkpoint.save_interval_steps=3",
)
T5 = (
  "--config=t5_1_1_small",
  *SMALL,
  "--config.model.num_encoder_layers=2",
  "--config.model.num_decoder_layers=2",
)


def documents(number: int) -> list[str]:
  words = "the quick brown fox jumps over a lazy dog while seven wizards box with dire liquid jugs"
  rng = np.random.default_rng(0)
  return [" ".join(rng.choice(words.split(), size=60)) for _ in range(number)]


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> pathlib.Path:
  """A folder with train.jsonl.gz and validation.jsonl."""
  folder = tmp_path_factory.mktemp("text")
  lines = [json.dumps({"text": text}) for text in documents(200)]
  with gzip.open(folder / "train.jsonl.gz", "wt") as file:
    file.write("\n".join(lines[:160]) + "\n")
  (folder / "validation.jsonl").write_text("\n".join(lines[160:]) + "\n")
  return folder


def arguments(text: pathlib.Path, workdir: pathlib.Path, *overrides: str, model: tuple[str, ...] = T5) -> list[str]:
  files = (f"--config.data.files={text}/train.jsonl.gz", f"--config.data.eval_files={text}/validation.jsonl")
  return ["train", *model, *files, "--workdir", str(workdir), *overrides]


def losses(workdir: pathlib.Path, name: str = "train/loss") -> dict[int, float]:
  return metric_writers.read_metrics(workdir / "metrics.jsonl", name)


@pytest.mark.exhaustive
def test_a_run_writes_what_it_says(text, tmp_path, capsys, monkeypatch):
  """The files named in the summary exist, and the summary compares the losses."""
  monkeypatch.chdir(tmp_path)
  given = ("--config.eval.every=2", "--config.logging.tracker=mlflow")
  monkeypatch.setattr(sys, "path", [path for path in sys.path if not (pathlib.Path(path) / "mlflow").exists()])
  assert command.main(arguments(text, pathlib.Path("run"), *given)) == 0
  out, err = capsys.readouterr()
  assert err.count("config.logging.tracker=mlflow: not installed") == 1  # with no further message
  assert "held-out loss" in out and "unigram model" in out
  assert out.count("example ") == 3 and out.count("truth") == 3
  assert "(last 6, best by loss " in out
  workdir = tmp_path / "run"
  assert sorted(path.name for path in (workdir / "checkpoints").iterdir()) == ["3", "6"]
  assert list((workdir / "tensorboard").glob("events.out.tfevents.*"))
  assert (workdir / "loss.png").read_bytes().startswith(b"\x89PNG")
  assert json.loads((workdir / "config.json").read_text())["data"]["num_streams"] > 0
  assert list(losses(workdir)) == [1, 2, 3, 4, 5, 6]
  assert list(losses(workdir, "eval/loss")) == [2, 4, 6]
  samples = metric_writers.read_samples(workdir / "samples.jsonl")
  assert list(samples) == [2, 4, 6]
  inputs = [[lines[0] for lines in each] for each in samples.values()]
  assert inputs[0] == inputs[1] == inputs[2] and len(inputs[0]) == 3
  assert all(label in ("input", "prediction", "likeliest", "", "truth") for label, _ in samples[6][0])
  (given,) = first_batches.read(workdir)
  assert (given["step"], len(given["rows"])) == (0, 3) and "encoder_input_tokens" in given["rows"][0]
  report = (workdir / "report.html").read_text()
  assert "Predictions on the input of example 3" in report and "target of the decoder" in report
  # Step 3 was not evaluated: it must not have metrics of step 2.
  checkpoints = manager.Checkpoints(epath.Path(workdir), keep=2)
  assert checkpoints.metrics() == {3: None, 6: {"loss": pytest.approx(losses(workdir, "eval/loss")[6])}}
  checkpoints.close()
  assert all(line <= 80 for line in map(len, out.splitlines()) if "/" not in out)
  last = json.loads((workdir / "metrics.jsonl").read_text().splitlines()[-2])
  for name in (
    "accuracy",
    "grad_norm",
    "param_norm",
    "learning_rate",
    "tokens_per_second",
    "step_seconds",
    "input_wait",
    "host_memory",
  ):
    assert f"train/{name}" in last


def shown(out: str) -> list[dict[str, str]]:
  """Returns the examples of a summary: input, prediction, guesses and truth of each."""
  found: list[dict[str, str]] = []
  label = ""
  for line in out.partition("\ncheckpoints ")[0].splitlines():
    if line.startswith("example "):
      found.append(dict.fromkeys(("input", "prediction", "likeliest", "truth"), ""))
    elif found and line:
      label = line[2:15].strip() or label
      found[-1][label] += f" {line[15:]}"
  return found


def letters(text: str) -> str:
  """Keeps words only, because a space or a separator of lines may be masked."""
  return re.sub("[^a-z]", "", text.replace('{"text": ', ""))


# Every architecture with its own objective and its family's typical parts.
FAMILIES = {
  "masked_lm": ("--config=tiny_bert", *SMALL, "--config.model.num_encoder_layers=2", "--config.model.max_length=64"),
  "causal_lm": ("--config=tiny_gpt", *SMALL, "--config.model.num_decoder_layers=2", "--config.model.max_length=32"),
  "prefix_lm": ("--config=tiny_prefix_lm", *SMALL, "--config.model.num_decoder_layers=2"),
  "ul2": (
    "--config=tiny_modern_t5",
    *SMALL,
    "--config.model.num_encoder_layers=2",
    "--config.model.num_decoder_layers=2",
    "--config.model.num_kv_heads=1",
    "--config.data.targets_length=64",
  ),
}


def family(objective: str) -> tuple[str, ...]:
  """Returns arguments for a run with a loss that falls within a few steps."""
  schedule = ("--config.optimizer.schedule=constant", "--config.optimizer.warmup_steps=0")
  return (*FAMILIES[objective], f"--config.data.objective={objective}", *schedule)


@pytest.mark.exhaustive
def test_a_finished_run_keeps_its_config(text, tmp_path, capsys):
  """Another setting trains no step and is not saved; with more steps it is."""
  workdir = tmp_path / "run"
  assert command.main(arguments(text, workdir)) == 0
  config = (workdir / "config.json").read_bytes()
  assert command.main(arguments(text, workdir, "--config.train.log_every=2")) == 0
  assert "training already finished at step" in capsys.readouterr().err
  assert (workdir / "config.json").read_bytes() == config
  assert command.main(arguments(text, workdir, "--config.train.log_every=2", "--config.train.steps=7")) == 0
  assert json.loads((workdir / "config.json").read_text())["train"]["log_every"] == 2


@pytest.mark.exhaustive
@pytest.mark.parametrize("objective", FAMILIES)
def test_every_architecture_trains(objective, text, tmp_path, capsys):
  """The held-out loss falls, and the summary shows predictions on three held-out texts."""
  more = ("--config.train.steps=12", "--config.eval.every=4", "--config.checkpoint.save_interval_steps=12")
  workdir = tmp_path / "run"
  assert command.main(arguments(text, workdir, *more, model=family(objective))) == 0
  held_out = losses(workdir, "eval/loss")
  assert list(held_out) == [4, 8, 12]
  assert held_out[12] < held_out[4] - 0.1
  captured = capsys.readouterr()
  architecture = json.loads((workdir / "config.json").read_text())["model"]["architecture"]
  parts = {"encoder_only": ["encoder"], "decoder_only": ["decoder"]}.get(architecture, ["encoder", "decoder", "cross"])
  assert "attention: " + "; ".join(f"{part} plain (CPU)" for part in parts) in captured.err
  found = shown(captured.out)
  assert len(found) == 3
  for example in found:
    given, _, truth = (example[label] for label in ("input", "prediction", "truth"))
    spans = dict(re.findall(r"\[(\d+)\] ([^\[]*)", truth))
    whole = re.sub(r"\[(\d+)\]", lambda blank, spans=spans: spans[blank[1]], given) + ("" if spans else truth)
    assert bool(spans) == (objective in ("masked_lm", "ul2"))
    guesses = re.findall(r"\[\d\](?: \S+ (?:<1|[1-9]\d*)%,?){5}", example["likeliest"])
    assert len(guesses) == min(len(spans), 3) or not letters(truth)
    assert len(letters(whole)) > 20
    assert letters(whole) in letters((text / "validation.jsonl").read_text())


@pytest.mark.slow
def test_resumed_run_equals_uninterrupted_run(text, tmp_path):
  """Stopped, resumed and stopped again: losses equal an uninterrupted run's bit for bit, with dropout and data.

  The second resume checks that a checkpoint after a resume has the right data position, too.
  """
  model = (*T5, "--config.eval.num_logged_samples=0")
  whole, parts = tmp_path / "whole", tmp_path / "parts"
  assert command.main(arguments(text, whole, model=model)) == 0
  for steps in (3, 4, 6):
    assert command.main(arguments(text, parts, f"--config.train.steps={steps}", model=model)) == 0
  assert losses(parts) == losses(whole)
  # Each command also evaluates its last step.
  assert losses(parts, "eval/loss").items() >= losses(whole, "eval/loss").items()


@pytest.mark.exhaustive
def test_an_evaluation_that_a_signal_broke_off_is_made_up_for(text, tmp_path, monkeypatch):
  """Stopped in the evaluation and in its repetition: finally all rows of an uninterrupted run exist."""
  model = (*T5, "--config.eval.num_logged_samples=0")
  whole, parts = tmp_path / "whole", tmp_path / "parts"
  assert command.main(arguments(text, whole, model=model)) == 0
  reached = preemption.Steps.reached

  def asked_between_batches(steps, doing="the step"):
    if doing != "the step":
      steps.ask(sync_point.SyncRequest(sync_point.STOP, signal.SIGTERM, "the test"))
    return reached(steps, doing)

  with monkeypatch.context() as patch:
    patch.setattr(preemption.Steps, "reached", asked_between_batches)
    for _ in range(2):
      assert command.main(arguments(text, parts, model=model)) == exit_codes.TERMINATED
      assert list(losses(parts)) == [1, 2, 3] and not losses(parts, "eval/loss")
  assert command.main(arguments(text, parts, model=model)) == 0
  rows = lambda workdir: [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
  names = lambda row: [row["step"], *(value for name, value in row.items() if name.endswith("loss"))]
  assert list(map(names, rows(parts))) == list(map(names, rows(whole)))


@pytest.mark.exhaustive
def test_the_result_is_the_plain_loss_of_the_last_step(text, tmp_path, capsys, monkeypatch):
  """Without label smoothing, also if a stop comes with the last step."""

  reached, times = preemption.Steps.reached, itertools.count(1)

  def asked_at_the_second_step(steps, doing="the step"):
    if doing == "the step" and next(times) == 2:
      steps.ask(sync_point.SyncRequest(sync_point.STOP, signal.SIGTERM, "the test"))
    return reached(steps, doing)

  more = ("--config.train.steps=2", "--config.eval.every=1", "--config.eval.num_logged_samples=0")
  again = arguments(text, tmp_path, *more, "--config.train.label_smoothing=0.3")
  with monkeypatch.context() as patch:
    patch.setattr(preemption.Steps, "reached", asked_at_the_second_step)
    assert command.main(again) == exit_codes.TERMINATED
  assert "stopped after step 2 of 2" in capsys.readouterr().out
  assert command.main(again) == 0
  source = pretrained.read_source(str(tmp_path))
  assert source.path.name == "2"
  model = pretrained.load(source, sharding.make_mesh({"data": 1}, devices=jax.devices()[:1]))
  data = DataConfig(**source.run["data"])
  total = np.zeros(2)
  for batch in pipeline.eval_rows(data, "encoder_decoder", batch_size=8, max_batches=2):
    log_p = jax.nn.log_softmax(toy.logits(nnx.merge(model.graphdef, model.params), batch))
    chosen = np.take_along_axis(log_p, batch["decoder_target_tokens"][..., None], -1)[..., 0]
    total += [-np.sum(chosen * batch["decoder_loss_weights"]), np.sum(batch["decoder_loss_weights"])]
  assert f"held-out loss  {total[0] / total[1]:.4f}" in capsys.readouterr().out
  assert list(losses(tmp_path, "eval/loss")) == [1, 2]


@pytest.mark.slow
def test_terminated_run_is_saved_and_goes_on(text, tmp_path):
  """SIGTERM saves the current step, and the same command finishes the run."""
  workdir = tmp_path / "run"
  long = arguments(text, workdir, "--config.train.steps=100000", "--config.eval.every=100000")
  process = subprocess.Popen([sys.executable, "-m", "t2t", *long], stderr=subprocess.PIPE, text=True)
  for line in process.stderr:
    if line.startswith("step "):
      process.send_signal(signal.SIGTERM)
      break
  process.stderr.read()
  assert process.wait() == exit_codes.TERMINATED
  reached = max(int(path.name) for path in (workdir / "checkpoints").iterdir())
  assert 0 < reached < 100_000
  assert [note["event"] for note in history.read(epath.Path(workdir))] == ["start", "end"]
  assert "stopped" in (workdir / "report.html").read_text()
  again = arguments(text, workdir, f"--config.train.steps={reached + 2}")
  # The previous run saw one device; this process has more.
  assert command.main([*again, "--config.mesh.fsdp=1", "--config.mesh.data=-1"]) == 0
  assert max(losses(workdir)) == reached + 2


@pytest.mark.exhaustive
def test_a_run_on_stages_resumes_bit_for_bit_and_on_other_meshes(text, tmp_path):
  """A stopped pipeline equals an unbroken one; checkpoints hold the layers in order, so that any mesh reads them."""
  layers = ("--config.model.num_encoder_layers=4", "--config.model.num_decoder_layers=4")
  often = ("--config.eval.every=2", "--config.checkpoint.save_interval_steps=2")

  def run(name, steps, stages):
    mesh = (f"--config.mesh.stage={stages}", "--config.mesh.fsdp=2", "--config.mesh.data=-1")
    return command.main(arguments(text, tmp_path / name, *layers, *often, *mesh, f"--config.train.steps={steps}"))

  assert [run("whole", 4, 4), run("stopped", 2, 4), run("stopped", 4, 4)] == [0, 0, 0]
  for name in ("train/loss", "eval/loss"):
    assert losses(tmp_path / "stopped", name) == losses(tmp_path / "whole", name)
  source = pretrained.read_source(str(tmp_path / "whole"))
  load = lambda sizes, number: pretrained.load(source, sharding.make_mesh(sizes, devices=jax.devices()[:number])).params
  toy.assert_trees_close(load({"stage": 4, "fsdp": 2}, 8), load({"data": 1}, 1), atol=0, rtol=0)
  assert [run("whole", 6, 1), run("whole", 8, 2)] == [0, 0]
  assert max(losses(tmp_path / "whole")) == 8


@pytest.mark.exhaustive
def test_second_run_in_a_workdir_is_refused(text, tmp_path, capsys):
  """While a run writes to a workdir, a second run gets an error, and the first is not affected."""
  workdir = tmp_path / "run"
  long = arguments(text, workdir, "--config.train.steps=100000", "--config.eval.every=100000")
  process = subprocess.Popen([sys.executable, "-m", "t2t", *long], stderr=subprocess.PIPE, text=True)
  for line in process.stderr:
    if line.startswith("step "):
      break
  assert command.main(arguments(text, workdir)) == 2
  error = capsys.readouterr().err
  assert str(workdir) in error and f"process {process.pid}" in error
  process.send_signal(signal.SIGINT)
  process.stderr.read()
  assert process.wait() == exit_codes.INTERRUPTED


@pytest.mark.exhaustive
def test_warm_start_takes_parameters_alone(text, tmp_path):
  """A run from another's checkpoint starts at step 0 with a lower loss than a fresh one."""
  assert command.main(arguments(text, tmp_path / "first", "--config.train.steps=30", "--config.eval.every=30")) == 0
  warm = arguments(text, tmp_path / "second", f"--config.init.checkpoint={tmp_path}/first", "--config.train.steps=1")
  assert command.main([*warm, "--config.optimizer.name=adamw", "--config.optimizer.learning_rate=0.001"]) == 0
  assert losses(tmp_path / "second")[1] < losses(tmp_path / "first")[1] - 0.5


@pytest.mark.slow
def test_loss_that_is_not_finite_stops_the_run_and_keeps_what_was_saved(text, tmp_path, capsys):
  """A run that diverges ends with an error, and its last good checkpoint remains."""
  workdir = tmp_path / "run"
  assert command.main(arguments(text, workdir, "--config.train.steps=3")) == 0
  capsys.readouterr()
  wild = (
    "--config.optimizer.name=sgd",
    "--config.optimizer.learning_rate=1e30",
    "--config.optimizer.schedule=constant",
    "--config.optimizer.warmup_steps=0",
  )
  diverging = arguments(text, tmp_path / "wild", *wild, "--config.checkpoint.save_interval_steps=1")
  assert command.main(diverging) == 2
  assert "not finite" in capsys.readouterr().err
  saved = [int(path.name) for path in (tmp_path / "wild" / "checkpoints").iterdir() if path.name.isdigit()]
  assert all(np.isfinite(losses(tmp_path / "wild")[step]) for step in saved)


@pytest.mark.slow
def test_a_state_that_is_not_finite_is_not_saved(text, tmp_path, capsys):
  """Although the loss was finite: a NaN learning rate makes the updated parameters NaN."""
  rate = (
    "--config.optimizer.learning_rate=1e39",
    "--config.optimizer.schedule=constant",
    "--config.optimizer.warmup_steps=0",
    "--config.optimizer.name=sgd",
  )
  assert command.main(arguments(text, tmp_path, *rate, "--config.checkpoint.save_interval_steps=1")) == 2
  assert re.search("step 1: params/.* not finite after this update. The step was not saved", capsys.readouterr().err)
  assert not any(path.name.isdigit() for path in (tmp_path / "checkpoints").iterdir())


def broken_file(folder: pathlib.Path, name: str, content: bytes) -> str:
  (folder / name).write_bytes(content)
  return f"--config.data.files={folder / name}"


GOOD = b'{"text": "' + b"a few words of text " * 20 + b'"}\n'

BAD_INPUT = {
  "unmatched glob": (lambda t: ["--config.data.files=/nowhere/*.jsonl"], ["config.data.files", "/nowhere"]),
  "truncated gzip": (
    lambda t: [broken_file(t, "a.jsonl.gz", gzip.compress(os.urandom(4_000) + GOOD * 50)[:-2_000])],
    ["a.jsonl.gz"],
  ),
  "not JSON": (lambda t: [broken_file(t, "b.jsonl", GOOD + b"{oops\n")], ["b.jsonl", "line 2"]),
  "missing field": (lambda t: [broken_file(t, "c.jsonl", GOOD + b'{"body": "x"}\n')], ["c.jsonl", "line 2", "body"]),
  "invalid UTF-8": (lambda t: [broken_file(t, "d.txt", b"fine\nalso fine\n\xff\xfe\n")], ["d.txt", "line 3"]),
  "empty corpus": (lambda t: [broken_file(t, "e.txt", b"\n\n")], ["config.data.files"]),
  "smaller than a batch": (lambda t: [broken_file(t, "f.txt", b"one line of text\n")], ["batch"]),
  "unknown key": (lambda t: ["--config.train.stepz=1"], ["config.train.stepz", "train.steps"]),
  "unknown config": (lambda t: ["--config=t5_1_1_smal"], ["t5_1_1_small"]),
  "mesh": (lambda t: ["--config.mesh.tensor=3"], ["config.mesh", "3"]),
  "heads": (lambda t: ["--config.mesh.tensor=4"], ["config.mesh.tensor=4", "num_heads=2"]),
  "batch": (lambda t: ["--config.train.batch_size=9"], ["config.train.batch_size=9", "8 or 16"]),
  "microbatches": (lambda t: ["--config.train.microbatches=3"], ["config.train.batch_size=8", "24"]),
  "float16": (lambda t: ["--config.model.dtype=float16"], ["float16", "bfloat16"]),
  "vocabulary beyond the embedding": (lambda t: ["--config.model.vocab_size=256"], ["vocab_size=256", "384"]),
  "optimizer": (lambda t: ["--config.optimizer.name=adafactro"], ["adafactor"]),
  "warm start from nowhere": (lambda t: [f"--config.init.checkpoint={t}/none"], ["config.init.checkpoint"]),
  "no vocabulary": (lambda t: ["--config.data.vocabulary="], ["config.data.vocabulary"]),
  "unknown config of a family": (lambda t: ["--config=bert_bse"], ["bert_bse", "nearest", "bert_base"]),
  "heads that do not share keys": (
    lambda t: ["--config.model.num_kv_heads=3"],
    ["config.model.num_kv_heads=3", "num_heads=2", "[1, 2]"],
  ),
  "objective of another architecture": (
    lambda t: ["--config.data.objective=masked_lm"],
    ["config.data.objective=masked_lm", "architecture=encoder_decoder", "span_corruption", "causal_lm"],
  ),
  "inputs longer than learned positions": (
    lambda t: ["--config.model.positions=learned", "--config.model.max_length=63"],
    ["config.data.inputs_length", "sequences of 64 tokens in the encoder", "config.model.max_length=63"],
  ),
  "targets longer than learned positions": (
    lambda t: ["--config.model.positions=learned", "--config.model.max_length=64", "--config.data.targets_length=65"],
    ["config.data.targets_length", "sequences of 65 tokens in the decoder", "config.model.max_length=64"],
  ),
  "inputs and targets longer than learned positions": (
    lambda t: [
      *("--config.model.architecture=decoder_only", "--config.model.num_encoder_layers=0"),
      *("--config.model.positions=learned", "--config.model.max_length=95"),
    ],
    ["config.data.inputs_length + config.data.targets_length", "sequences of 96 tokens in the decoder"],
  ),
  "no mask": (
    lambda t: [
      *(f"--config.data.vocabulary={sentencepiece(t)}", "--config.data.extra_ids=0"),
      "--config.data.objective=text_infilling",
    ],
    ["config.data.vocabulary", "[MASK]", "config.data.extra_ids=1"],
  ),
}


def sentencepiece(folder: pathlib.Path) -> pathlib.Path:
  """Trains a SentencePiece model without a mask or sentinels."""
  return training.train_sentencepiece(documents(50), size=40, output_dir=folder / "pieces")


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_one_clear_error(name, text, tmp_path, capsys):
  """Exit code 2, place and remedy in the message, no traceback, nothing trained."""
  overrides, expected = BAD_INPUT[name]
  assert command.main(arguments(text, tmp_path / "run", *overrides(tmp_path))) == 2
  error = capsys.readouterr().err
  assert "Traceback" not in error
  assert len([line for line in error.splitlines() if "error:" in line]) == 1
  for part in expected:
    assert part in error
  assert not (tmp_path / "run" / "metrics.jsonl").exists()
  # Errors about checkpoints are only found after the workdir was created.
  assert (tmp_path / "run").exists() == (name == "warm start from nowhere")


@pytest.mark.exhaustive
def test_checkpoint_of_other_shapes_names_the_parameters(text, tmp_path, capsys):
  """Resuming with other shapes is an error with their names, and the checkpoint does not change."""
  workdir = tmp_path / "run"
  assert command.main(arguments(text, workdir, "--config.train.steps=3")) == 0
  before = sorted(path.name for path in (workdir / "checkpoints").rglob("*"))
  capsys.readouterr()
  assert command.main(arguments(text, workdir, "--config.model.mlp_dim=48")) == 2
  error = capsys.readouterr().err
  assert "decoder/layers/mlp/down" in error and "(2, 32, 16)" in error and "(2, 48, 16)" in error
  assert sorted(path.name for path in (workdir / "checkpoints").rglob("*")) == before
  # Changed settings are only reported if the run resumes.
  assert "resuming" not in error
  keys = (
    "train.steps=4",
    "train.log_every=2",
    "train.hang_timeout_factor=9",
    "train.stall_seconds=99",
    "checkpoint.max_to_keep=5",
  )
  keys += ("checkpoint.retry_seconds=9", "eval.max_examples=3")
  assert command.main(arguments(text, workdir, *(f"--config.{key}" for key in keys))) == 0
  told = capsys.readouterr().err
  assert "resuming from step 3\n  changed config." in told and told.count("\n  changed config.") == 5
  assert "  and 2 more changed keys\n" in told
  # The run resumes from its own parameters, so another model needs no further steps.
  assert command.main(arguments(text, workdir, "--config.train.steps=4", f"--config.init.checkpoint={tmp_path}")) == 0
  told = capsys.readouterr().err
  assert f"\n  ignoring config.init.checkpoint={tmp_path}: a resumed run has its own parameters" in told
  assert "changed config.init" not in told
  assert command.main(arguments(text, workdir, "--config.train.steps=2", "--config.model.embed_dim=32")) == 2
  error = capsys.readouterr().err
  assert "(of another model: embed_dim=16), beyond config.train.steps=2. Give another workdir" in error


@pytest.mark.exhaustive
def test_debug_shows_the_traceback(text, tmp_path):
  result = subprocess.run(
    [sys.executable, "-m", "t2t", *arguments(text, tmp_path, "--config.model.dtype=float16"), "--debug"],
    capture_output=True,
    text=True,
    check=False,
  )
  assert result.returncode == 2
  assert "Traceback" in result.stderr and "float16" in result.stderr


@pytest.mark.exhaustive
def test_a_warm_start_has_the_memory_of_what_it_starts_from():
  """The program takes the parameters as donated arguments, not as constants, so they are in memory once."""
  tx, _ = optimizers.make_optimizer(toy.optimizer_config(name="adamw"), 10)
  mesh = sharding.make_mesh({"fsdp": 4, "tensor": 2})
  model_fn = lambda key: transformer.build(toy.config(), nnx.Rngs(key))
  graphdef, abstract, make_state = train_state.abstract_train_state(model_fn, tx, mesh, freeze=("encoder",))
  shardings = jax.tree.map(lambda x: x.sharding, abstract)
  wanted = join_frozen(abstract.params, abstract.frozen_params)
  numbers = lambda x: jnp.arange(float(x.size)).reshape(x.shape)
  params = jax.tree.map(lambda x: jax.device_put(numbers(x), x.sharding), wanted)
  start = recipe.Program(
    graphdef, graphdef, abstract, shardings, make_state, None, None, ("encoder",)
  ).init_from_params()
  size = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(params))
  program = start.lower(params, toy.key())
  assert not re.search(r"dense_resource|dense<\"0x", program.as_text())
  assert program.compile().memory_analysis().alias_size_in_bytes == size
  state = start(params, toy.key())
  assert all(x.is_deleted() for x in jax.tree.leaves(params))
  assert int(state.step) == 0
  toy.assert_trees_close(state.params, jax.tree.map(numbers, abstract.params), atol=0, rtol=0)


@pytest.mark.exhaustive
def test_what_is_planned_is_what_is_trained(text, tmp_path, monkeypatch):
  """`t2t plan` and training compile the same program for a mesh, to the letter."""
  programs, make = [], train_step.make_train_step

  def recorded(*args, **options):
    step = make(*args, **options)

    def run(*arguments):
      raise AssertionError("compiled again, for other shapes than were planned")

    def lower(*arguments):
      programs.append(step.lower(*arguments))
      return programs[-1]

    run.lower = lower
    return run

  monkeypatch.setattr(train_state, "make_train_step", recorded)
  options = arguments(text, tmp_path, "--config.train.steps=1", "--config.mesh.fsdp=4", "--config.mesh.tensor=2")
  assert command.main(options) == 0
  config = records(override(load_config("t5_1_1_small"), [word for word in options if word.startswith("--config.")]))
  mesh, _ = mesh_selection.make(config)
  with jax.set_mesh(mesh):
    program = recipe.make(config).build(mesh)
    program.train_step.lower(program.state, *recipe.arguments(config, mesh))
  trained, planned = (program.as_text() for program in programs)
  assert planned == trained
