"""Experiment trackers: fake ones, the real ones if installed, and failures that must not end a run."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import time
import types

from etils import epath
import jax
import pytest

from t2t import UserError
from t2t.configuration.loading import load_config, records
from t2t.training import config_checks, trackers, tracking
from t2t.training.callbacks import tracker

CONFIG = {"train": {"steps": 4}, "stages": [{"name": "a"}]}
# A fake library that records calls, and misbehaves in one place.
FAKE = """
import json, os, time
def note(*what):
  with open(os.environ["NOTES"], "a") as file:
    file.write(json.dumps(what) + "\\n")
  print("what a library prints")
  if what[0] == os.environ.get("AT"):
    {misbehaves}
class Settings:
  def __init__(self, **given): pass
class Run:
  url, dir, summary = "https://example.org/run", "", {{}}
  def log(self, values, step): note("log", step, values)
  def mark_preempting(self): note("preempting")
  def finish(self, exit_code): note("finish", exit_code, self.summary)
def init(**given):
  given.pop("settings")
  note("init", given)
  return Run()
"""


@pytest.fixture
def notes(tmp_path, monkeypatch):
  """Installs a fake wandb, and returns a reader of its recorded calls."""

  def install(misbehaves="pass", at=""):
    (tmp_path / "library").mkdir(exist_ok=True)
    (tmp_path / "library" / "wandb.py").write_text(FAKE.format(misbehaves=misbehaves))
    monkeypatch.setenv("AT", at)
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    monkeypatch.syspath_prepend(tmp_path / "library")
    return lambda: [json.loads(line) for line in (tmp_path / "notes").read_text().splitlines()]

  return install


def tracked(workdir, outcome, rows, *, tracker="wandb"):
  """Returns the log lines of a run with a number of rows."""
  said: list[str] = []
  found = tracking.Tracking(tracker, "project", CONFIG, epath.Path(workdir), said.append)
  for step in rows:
    found.write(step, {"train/loss": step / 2, "eval/glue_rte/f1": 50.0})
  found.finish(outcome)
  return said


def test_a_resumed_run_goes_on_in_the_same_place(notes, tmp_path, monkeypatch):
  """With the config, the workdir's name, each row once, and the outcome."""
  found = notes()
  monkeypatch.setattr(tracking, "_STOPPED_SECONDS", 100.0)
  monkeypatch.setattr(tracking, "_LAST_SECONDS", 100.0)
  assert tracked(tmp_path / "run", trackers.STOPPED, (1, 2)) == ["wandb: https://example.org/run"]
  assert tracked(tmp_path / "run", trackers.FINISHED, (3,)) == ["wandb: https://example.org/run"]
  (_, first), *middle, (_, second), third, end = found()
  assert first == second and first["id"] and first["dir"] == str(tmp_path / "run")
  assert (first["project"], first["name"], first["config"], first["resume"]) == ("project", "run", CONFIG, "allow")
  row = lambda step: ["log", step, {"train/loss": step / 2, "eval/glue_rte/f1": 50.0}]
  assert middle == [row(1), row(2), ["preempting"], ["finish", 1, {"outcome": "stopped"}]]
  assert (third, end) == (row(3), ["finish", 0, {"outcome": "finished"}])
  other = tracked(tmp_path / "other", trackers.FAILED, ())
  assert other == ["wandb: https://example.org/run"] and found()[-2][1]["id"] != first["id"]
  assert found()[-1] == ["finish", 1, {"outcome": "failed"}]


WRONG = {
  "raises": ("raise RuntimeError('no way to the server')", "RuntimeError: no way to the server"),
  "exits": ("raise SystemExit(3)", "SystemExit: 3"),
  "dies": ("os._exit(9)", "its process ended with exit status 9"),
  "hangs": ("time.sleep(600)", "more in the background"),
}


@pytest.mark.parametrize("at", ["init", "log", "finish"])
@pytest.mark.parametrize("how", WRONG)
def test_a_tracker_that_fails_costs_one_line(how, at, notes, tmp_path, monkeypatch):
  """In any place: the run continues, waits briefly at its end, and leaves no process behind."""
  monkeypatch.setattr(tracking, "_LAST_SECONDS", 1.0 if how == "hangs" else 100.0)
  monkeypatch.setattr(trackers, "BACKGROUND_SECONDS", 0.1)
  misbehaves, expected = WRONG[how]
  notes(misbehaves, at)
  found: list[str] = []
  tracker = tracking.Tracking("wandb", "project", CONFIG, epath.Path(tmp_path / "run"), found.append)
  tracker.write(1, {"train/loss": 1.0})
  while at != "init" and not found:  # logged when the tracker has opened
    time.sleep(0.01)
  tracker.finish(trackers.FINISHED)
  wrong = [line for line in found if "https://" not in line]
  assert len(wrong) == 1 and expected in wrong[0] and wrong[0].startswith("config.logging.tracker=wandb: ")
  assert wrong[0].endswith("; metrics.jsonl has all metrics")
  assert ("wandb login" in wrong[0]) == (how != "dies" and (at == "init" or how != "hangs"))
  tracker.write(2, {"train/loss": 1.0})
  tracker._child.wait(timeout=30)


def test_a_run_that_is_gone_there_is_told_how_to_begin_another(notes, tmp_path):
  """The remedy for a resumed run names the file with the id of the tracker's run."""
  (tmp_path / "run").mkdir()
  (tmp_path / "run" / tracking.NAME).write_text('{"wandb": {"project": {"run": "gone"}}}')
  found = notes("raise RuntimeError('no such run')", "init")
  (said,) = tracked(tmp_path / "run", trackers.FINISHED, ())
  assert found()[0][1]["id"] == "gone" and f"or remove {tmp_path / 'run' / tracking.NAME}" in said


def test_a_library_that_is_not_there_is_told_with_its_remedy(tmp_path, monkeypatch):
  """A folder that an uninstalled library left behind does not count."""
  (tmp_path / "mlflow").mkdir()
  monkeypatch.setattr(sys, "path", [str(tmp_path), str(pathlib.Path(tracking.__file__).parents[2])])
  (said,) = tracked(tmp_path / "run", trackers.FINISHED, (1,), tracker="mlflow")
  assert "not installed" in said and "pip install" in said and "[mlflow]" in said


def test_rows_that_come_too_fast_are_left_out_and_it_is_said_once(notes, tmp_path, monkeypatch):
  monkeypatch.setattr(tracking, "_LAST_SECONDS", 0.1)
  monkeypatch.setattr(trackers, "BACKGROUND_SECONDS", 0.1)
  notes("time.sleep(600)", "init")
  said: list[str] = []
  found = tracking.Tracking("wandb", "project", CONFIG, epath.Path(tmp_path / "run"), said.append)
  values = {f"train/{number}": 1.0 for number in range(100)}
  for step in range(5_000):
    found.write(step, values)
  found.finish(trackers.FINISHED)
  assert ["some are missing from step" in line for line in said] == [True, False]
  found._child.wait(timeout=30)


def test_a_run_that_is_killed_is_told_of(notes, tmp_path):
  """Without an outcome the tracker's process takes the end of its input as a kill."""
  found = notes()
  told = {"tracker": "wandb", "place": {}, "project": "p", "name": "n", "workdir": "w", "config": {}, "process": 0}
  told["process"] = os.getpid()
  lines = "".join(json.dumps(what) + "\n" for what in (told, [1, {"train/loss": 1.0}]))
  environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
  done = subprocess.run(
    [sys.executable, "-m", trackers.__name__], input=lines, env=environment, capture_output=True, text=True, check=True
  )
  assert [*map(json.loads, done.stdout.splitlines())][-1] == {"ended": True}  # without output of the library
  assert found()[-1] == ["finish", 1, {"outcome": "killed"}]


@pytest.mark.parametrize(
  ("values", "message"),
  [
    ({"tracker": "wandbb"}, "did you mean wandb?"),
    ({"tracker": "mlflow", "project": ""}, "config.logging.project is empty"),
    ({"histograms": -1}, "Give the number of steps between histograms"),
  ],
)
def test_what_there_is_not_is_refused(values, message):
  config = records(load_config("tiny")).with_(logging=values)
  with pytest.raises(UserError) as error:
    config_checks.check_logging(config.logging)
  assert message in str(error.value)


def test_the_names_of_trackers_are_known_without_their_module():
  assert (*trackers.TRACKERS,) == config_checks.TRACKERS


def test_the_first_process_alone_has_a_tracker(monkeypatch, tmp_path):
  monkeypatch.setattr(tracking, "Tracking", lambda *given: pytest.fail("a second process has opened one"))
  monkeypatch.setattr(jax, "process_index", lambda: 1)
  config = records(load_config("tiny")).with_(logging={"tracker": "wandb"})
  run = types.SimpleNamespace(config=config, resolved=[{}], workdir=epath.Path(tmp_path))
  callback = tracker.Tracker()
  callback.on_start(run)
  callback.on_close(run)


def test_a_tracker_that_was_given_up_leaves_no_thread(tmp_path):
  """With many runs in one process, as in a search."""
  told = []
  found = tracking.Tracking("wandb", "project", {"no": "such"}, epath.Path(tmp_path), told.append)
  found._give_up("says the test")
  found.write(1, {"train/loss": 2.0})
  found.finish("finished")
  found._ended.wait(30)
  assert found._ended.is_set()
  deadline = time.monotonic() + 5
  while found._child.stdin is None or not found._child.stdin.closed:
    assert time.monotonic() < deadline, "the pipe is still open"
    time.sleep(0.05)


# ---- Real libraries --------------------------------------------------------------------------------------------------


def of_wandb(workdir, place):
  """A single run after several starts, with its metrics in the files for `wandb sync`."""
  files = sorted((workdir / "wandb").glob(f"offline-run-*/run-{place['run']}.wandb"))
  assert len(files) == 2 and all(b"train/loss" in file.read_bytes() for file in files)


def of_trackio(workdir, place):
  from trackio.sqlite_storage import SQLiteStorage

  found = SQLiteStorage.get_logs("project", place["run"])
  assert [(row["step"], row["train/loss"]) for row in found if "train/loss" in row] == [(1, 0.5), (2, 1.0), (3, 1.5)]
  assert len(SQLiteStorage.get_runs("project")) == 1


def of_mlflow(workdir, place):
  import mlflow

  client = mlflow.MlflowClient()
  run = client.get_run(place["run"])
  assert (run.info.run_name, run.info.status, run.data.tags["outcome"]) == ("run", "FINISHED", "finished")
  assert run.data.params["train.steps"] == "4"
  history = client.get_metric_history(place["run"], "train/loss")
  assert sorted((each.step, each.value) for each in history) == [(1, 0.5), (2, 1.0), (3, 1.5)]
  assert len(client.search_runs([run.info.experiment_id])) == 1


REAL = {"wandb": of_wandb, "trackio": of_trackio, "mlflow": of_mlflow}


@pytest.mark.parametrize("name", REAL)
def test_what_a_library_has_is_what_was_measured(name, tmp_path, monkeypatch):
  """Without a network: a run in two parts is one run in the tracker, with each metric once."""
  if importlib.util.find_spec(name) is None:
    pytest.skip(f"{name} is not installed")
  monkeypatch.setattr(tracking, "_LAST_SECONDS", 300.0)
  monkeypatch.setattr(tracking, "_STOPPED_SECONDS", 300.0)
  monkeypatch.chdir(tmp_path)
  for variable in ("WANDB_DIR", "MLFLOW_EXPERIMENT_NAME", "TRACKIO_SPACE_ID"):
    monkeypatch.delenv(variable, raising=False)
  monkeypatch.setenv("WANDB_MODE", "offline")
  monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
  monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
  said = []
  for outcome, rows in ((trackers.STOPPED, (1, 2)), (trackers.FINISHED, (3,))):
    said += tracked(tmp_path / "run", outcome, rows, tracker=name)
  assert len(said) == 2 and all(line.startswith(f"{name}: ") for line in said)
  place = json.loads((tmp_path / "run" / tracking.NAME).read_text())[name]["project"]
  REAL[name](tmp_path / "run", place)
