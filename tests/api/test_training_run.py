"""Training in Python: the run of the command, row by row, which ends when the caller stops reading."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

import jax
import numpy as np
import pytest

import t2t
from t2t import UserError
from t2t.api import training_run
from t2t.checkpoints import manager
from t2t.commands import train as command
from t2t.configuration.loading import records

SMALL = {
  "model.vocab_size": 384,
  "model.embed_dim": 16,
  "model.num_heads": 2,
  "model.head_dim": 8,
  "model.mlp_dim": 32,
  "model.num_encoder_layers": 1,
  "model.num_decoder_layers": 1,
  "model.dtype": "float32",
  "data.vocabulary": "bytes",
  "data.inputs_length": 48,
  "data.targets_length": 24,
  "data.num_streams": 2,
  "train.batch_size": 8,
  "train.steps": 6,
  "train.log_every": 1,
  "eval.batches": 2,
  "eval.every": 3,
  "checkpoint.save_interval_steps": 3,
}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
  """Returns a file with a few hundred lines of words."""
  path = tmp_path_factory.mktemp("text") / "text.txt"
  rng = np.random.default_rng(0)
  words = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "seven", "wizards"]
  path.write_text("\n".join(" ".join(rng.choice(words, size=40)) for _ in range(300)))
  return path


def small(text, **sections):
  return t2t.config("t5_1_1_small", SMALL | {"data.files": str(text)}, **sections)


def written(workdir):
  return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def losses(rows):
  return {(row["step"], name): row[name] for row in rows for name in row if name.endswith("loss")}


def globals_of_the_process():
  signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
  flags = {name: getattr(jax.config, name) for name in ("jax_compilation_cache_dir", "jax_enable_x64", "jax_platforms")}
  # TensorFlow sets some variables when it is imported.
  environment = {
    name: x for name, x in os.environ.items() if name.startswith(("JAX", "XLA", "LIBTPU", "OMP", "MALLOC"))
  }
  return signals, flags, environment, jax.sharding.get_mesh()


def test_changes_are_those_of_the_command_line():
  found = t2t.config("tiny", {"train.steps": 7, "optimizer.name": "adamw"}, model={"dropout_rate": 0.25})
  assert (found.train.steps, found.optimizer.name, found.model.dropout_rate) == (7, "adamw", 0.25)
  found.train.steps = 9
  assert records(found).train.steps == 9
  staged = t2t.config("tiny", {"stages": ({"name": "a", "fraction": 0.5}, {"name": "b"})})
  assert [stage["name"] for stage in staged.stages] == ["a", "b"]


@pytest.mark.parametrize(
  ("ask", "message"),
  [
    (lambda: t2t.config("tyni"), r"^config tyni: no such config; nearest: tiny"),
    (lambda: t2t.config("tiny", {"train.stepz": 3}), r"config\.train\.stepz.*steps"),
    (lambda: t2t.config("tiny", train={"steps": "many"}), r"config\.train\.steps"),
    (
      lambda: t2t.config("tiny", train=3),
      r"^train=3 is not a dict; give the keys of this section: train=\{'key': 3\}$",
    ),
    (lambda: t2t.train("tiny", "runs/x"), r"^'config' has type str; give the result of t2t\.config\(name\)$"),
    (lambda: t2t.train(t2t.config("tiny"), ""), r"^workdir='' is empty: give a folder"),
  ],
)
def test_what_cannot_be_is_said_at_once(ask, message):
  with pytest.raises(UserError, match=message) as found:
    ask()
  assert "--" not in re.sub("`t2t train --help( all)?`", "", str(found.value)).splitlines()[0]


def test_a_run_that_nobody_goes_through_is_told(text, tmp_path):
  run = t2t.train(small(text), str(tmp_path / "run"))
  with pytest.warns(RuntimeWarning, match=r"\.run\(\)$"):
    del run
  assert not (tmp_path / "run").exists()


@pytest.mark.exhaustive
def test_rows_are_what_the_command_writes(text, tmp_path, capsys):
  """Losses are bit-identical to the command's; the run changes nothing in the process."""
  before = globals_of_the_process()
  rows = []
  for row in t2t.train(small(text), str(tmp_path / "here")):
    rows.append(row)
    assert globals_of_the_process() == before
  assert globals_of_the_process() == before
  assert rows == written(tmp_path / "here")
  keys = [f"--config.{key}={value}" for key, value in SMALL.items()]
  command.main(["--config=t5_1_1_small", f"--config.data.files={text}", f"--workdir={tmp_path / 'there'}", *keys])
  assert losses(rows) == losses(written(tmp_path / "there"))
  assert [row["step"] for row in rows if "eval/loss" in row] == [3, 6]
  assert "held-out loss" in capsys.readouterr().out


@pytest.mark.exhaustive
def test_whoever_leaves_goes_on_later(text, tmp_path):
  """`break` saves the run, and the same call reaches the end of an unbroken run."""
  whole = t2t.train(small(text), str(tmp_path / "whole")).run()
  for row in t2t.train(small(text), str(tmp_path / "run")):
    if row["step"] == 2:
      break
  saved = manager.Checkpoints(tmp_path / "run", keep=1).latest_step()
  assert 2 <= saved < 6  # steps in progress
  rest = t2t.train(small(text), str(tmp_path / "run")).run()
  assert rest["step"] == 6
  for name in ("train/loss", "eval/loss"):
    assert rest[name] == whole[name]


@pytest.mark.exhaustive
def test_an_interruption_saves_and_is_passed_on(text, tmp_path):
  """The interruption arrives while the caller waits for the next row."""
  config = small(text, train={"steps": 100_000, "log_every": 100_000}, eval={"every": 100_000})
  config.checkpoint.save_interval_steps = 100_000
  run = t2t.train(config, str(tmp_path / "run"))

  def interrupts():
    while not (tmp_path / "run" / "config.json").exists():  # training begins
      time.sleep(0.1)
    time.sleep(1)
    signal.raise_signal(signal.SIGINT)

  # a shell makes its background processes ignore the signal
  before = signal.signal(signal.SIGINT, signal.default_int_handler)
  threading.Thread(target=interrupts, daemon=True).start()
  try:
    with pytest.raises(KeyboardInterrupt):
      next(run)
  finally:
    signal.signal(signal.SIGINT, before)
  assert manager.Checkpoints(tmp_path / "run", keep=1).latest_step() > 0
  with pytest.raises(StopIteration):
    next(run)


def test_what_is_wrong_with_the_data_is_raised(tmp_path):
  config = t2t.config("t5_1_1_small", SMALL | {"data.files": str(tmp_path / "none.txt")})
  with pytest.raises(UserError, match=r"none\.txt"):
    t2t.train(config, str(tmp_path / "run")).run()


def test_messages_of_a_run_call_keys_as_python_does():
  def train(run):
    raise UserError("give --config.train.steps")

  with pytest.raises(UserError, match=r"^give config\.train\.steps$"):
    next(training_run.Training(training_run._Rows(train)))


@pytest.mark.exhaustive
def test_runs_follow_each_other(text, tmp_path):
  """Several runs in one process, each in its own folder, as in a search."""
  found = []
  for rate in (0.01, 0.02):
    config = small(text, optimizer={"learning_rate": rate}, train={"steps": 2}, eval={"every": 2})
    found.append(t2t.train(config, str(tmp_path / f"{rate}")).run()["train/loss"])
  assert found[0] != found[1]


@pytest.mark.parametrize(
  ("key", "value", "expected"),
  [
    ("optimizer.learning_rate", np.float64(0.1), 0.1),
    ("train.steps", np.int64(5), 5),
    ("model.tied_logits", np.bool_(True), True),
    ("data.files", pathlib.Path("/a b/c,d.txt"), "/a b/c,d.txt"),
    ("data.files", "--a, 'b'", "--a, 'b'"),
  ],
)
def test_values_of_numpy_and_paths_are_what_they_say(key, value, expected):
  section, name = key.split(".")
  found = t2t.config("tiny", {key: value})[section][name]
  assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize("value", [None, ["a.txt", "b.txt"], ("a.txt",), {"a": "b"}])
def test_what_is_no_text_is_not_spelled_out_as_one(value):
  with pytest.raises(UserError, match=r"config\.data\.files=.* must be a string"):
    t2t.config("tiny", {"data.files": value})


@pytest.mark.exhaustive
def test_a_run_has_its_config_as_it_was_given(text, tmp_path):
  """The config is changed between two runs that have not started."""
  config, runs = small(text, eval={"every": 10}), []
  for steps in (1, 2):
    config.train.steps = steps
    runs.append(t2t.train(config, str(tmp_path / f"{steps}")))
  assert [run.run()["step"] for run in runs] == [1, 2]


@pytest.mark.exhaustive
def test_python_ends_with_what_was_reached_saved(text, tmp_path):
  """A variable still holds the run."""
  script = (
    "import pathlib, sys, t2t\n"
    f"config = t2t.config('t5_1_1_small', {SMALL | {'data.files': str(text), 'train.steps': 1_000}!r})\n"
    f"run = t2t.train(config, {str(tmp_path / 'run')!r})\n"
    "next(run), next(run)\n"
  )
  ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
  assert ended.returncode == 0, ended.stderr
  assert "Traceback" not in ended.stderr
  assert "stopped after step" in ended.stdout
  assert manager.Checkpoints(tmp_path / "run", keep=1).latest_step() >= 2


@pytest.mark.exhaustive
def test_python_ends_in_peace_where_the_data_was_wanting(tmp_path):
  """Python ends during the compilation: with the error, without an abort."""
  script = (
    "import t2t\n"
    f"config = t2t.config('t5_1_1_small', {SMALL | {'data.files': str(tmp_path / 'none.txt')}!r})\n"
    f"t2t.train(config, {str(tmp_path / 'run')!r}).run()\n"
  )
  ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
  assert ended.returncode == 1 and "UserError" in ended.stderr, ended.stderr
  assert "FATAL" not in ended.stderr
