"""What each experiment tracker is told, in a process of its own: `python -m t2t.training.trackers`.

Each library is loaded here and nowhere else, so that nothing it does, hangs in, prints or leaves behind is training's:
`tracking.py` starts this program, and writes to its standard input a line of JSON for the run, one for each row of
metrics, and one for how it ended.  The program says on its standard output, a line of JSON each, what it has opened or
what went wrong.
"""

from collections.abc import Iterator, Mapping, Sequence
import importlib
import json
import os
import re
import signal
import sys
import threading
import time
from typing import Any, TextIO
import uuid

Row = tuple[int, Mapping[str, float]]  # step, name -> value
FINISHED, STOPPED, FAILED, KILLED = "finished", "stopped", "failed", "killed"  # how a run ends

MISSING = "not installed"  # what is said of a library that is not there
BACKGROUND_SECONDS = 60.0  # that a library has to send the rest when the run is over


class _Wandb:
  """Weights & Biases."""

  def __init__(self, settings: Mapping[str, Any], run_record: Mapping[str, str]):
    import wandb

    # Its files lie with the run's, where those are on a disk; what was logged offline is `wandb sync`ed from there.
    folder = None if "://" in settings["workdir"] or os.environ.get("WANDB_DIR") else settings["workdir"]
    self.run_record = {"run": run_record.get("run") or uuid.uuid4().hex[:8]}
    self._run = wandb.init(
      project=settings["project"],
      id=self.run_record["run"],
      name=settings["name"],
      config=dict(settings["config"]),
      resume="allow",
      allow_val_change=True,  # of a resumed run whose command has more steps
      dir=folder,
      settings=wandb.Settings(console="off", x_stats_pid=settings["process"]),
    )
    self.where = self._run.url or self._run.dir

  def log(self, rows: Sequence[Row]) -> None:
    for step, values in rows:
      self._run.log(dict(values), step=step)

  def finish(self, outcome: str) -> None:
    self._run.summary["outcome"] = outcome
    if outcome == STOPPED:
      self._run.mark_preempting()  # not failed: the same command goes on
    self._run.finish(exit_code=0 if outcome == FINISHED else 1)


class _Trackio:
  """Trackio."""

  def __init__(self, settings: Mapping[str, Any], run_record: Mapping[str, str]):
    import trackio

    # It finds runs by name alone, and of two workdirs of one name the later: what is added tells them apart.
    name = run_record.get("run") or f"{settings['name']}-{uuid.uuid4().hex[:4]}"
    self.run_record = {"run": name}
    self._trackio = trackio
    resume = "allow" if run_record else "never"
    trackio.init(project=settings["project"], name=name, config=dict(settings["config"]), resume=resume, embed=False)
    self.where = f"run {name}, `trackio show --project {settings['project']}`"

  def log(self, rows: Sequence[Row]) -> None:
    for step, values in rows:
      self._trackio.log(dict(values), step=step)

  def finish(self, outcome: str) -> None:
    level = self._trackio.AlertLevel.INFO if outcome in (FINISHED, STOPPED) else self._trackio.AlertLevel.ERROR
    self._trackio.alert(f"the run has {outcome}" if outcome == FINISHED else f"the run was {outcome}", level=level)
    self._trackio.finish()


class _MLflow:
  """MLflow."""

  # What a run that has ended is called there.
  _STATUS = {FINISHED: "FINISHED", STOPPED: "KILLED", FAILED: "FAILED", KILLED: "KILLED"}

  def __init__(self, settings: Mapping[str, Any], run_record: Mapping[str, str]):
    import mlflow
    from mlflow import entities

    self._entities = entities
    self._client = mlflow.MlflowClient()
    if run_record:
      self._id = run_record["run"]
      self._client.update_run(self._id, status="RUNNING")
    else:
      existing = self._client.get_experiment_by_name(settings["project"])
      experiment = self._client.create_experiment(settings["project"]) if existing is None else existing.experiment_id
      self._id = self._client.create_run(experiment, run_name=settings["name"]).info.run_id
      # A parameter is set once there: of a resumed run the config, which may have more steps, is a file alone.
      params = [entities.Param(key, str(value)[:6000]) for key, value in _flat(settings["config"])]
      for begin in range(0, len(params), 100):
        self._client.log_batch(self._id, params=params[begin : begin + 100])
    self.run_record = {"run": self._id}
    self.where = f"run {self._id}, {mlflow.get_tracking_uri()}"
    self._client.log_dict(self._id, dict(settings["config"]), "config.json")

  def log(self, rows: Sequence[Row]) -> None:
    now = int(1000 * time.time())
    metrics = [
      self._entities.Metric(re.sub(r"[^\w\-./ ]", "_", name), value, now, step)
      for step, values in rows
      for name, value in values.items()
    ]
    for begin in range(0, len(metrics), 1000):  # as many as a request may have
      self._client.log_batch(self._id, metrics=metrics[begin : begin + 1000], synchronous=True)

  def finish(self, outcome: str) -> None:
    self._client.set_tag(self._id, "outcome", outcome)
    self._client.set_terminated(self._id, self._STATUS[outcome])


# `config.logging.tracker` -> what it is told through.
TRACKERS = {"wandb": _Wandb, "trackio": _Trackio, "mlflow": _MLflow}
# What to do where one cannot be opened.
REMEDIES = {
  "wandb": "`wandb login`, or WANDB_MODE=offline and `wandb sync` later",
  "trackio": "see that TRACKIO_DIR, or the Space that it is to go to, can be written",
  "mlflow": "set MLFLOW_TRACKING_URI to a server that answers, or to sqlite:///FILE",
}


def _flat(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
  for section, values in config.items():
    if isinstance(values, Mapping):
      yield from ((f"{section}.{key}", value) for key, value in values.items())
    else:
      yield section, values


def _lines(file: int) -> Iterator[list[Any]]:
  """What stands on the lines that have come, as many at a time as there are; whoever is slow has more at a time."""
  tail = b""
  while content := os.read(file, 2**20):
    *complete, tail = (tail + content).split(b"\n")
    yield [json.loads(line) for line in complete if line]


def _end_with(parent: int) -> None:
  """Ends all of this program's processes a while after the run's own: a library may wait for a server for ever."""
  while os.getppid() == parent:
    time.sleep(1.0)
  time.sleep(BACKGROUND_SECONDS)
  os.killpg(0, signal.SIGKILL)


def main(source: int, output: TextIO) -> None:
  """Does what it is told.

  Args:
    source: file to read from.
    output: what is written to for the run's process.
  """
  say = lambda **message: print(json.dumps(message), file=output, flush=True)
  lines = _lines(source)
  opening: Any = next(lines, [None])
  settings, *rows = opening
  if settings is None:
    return
  threading.Thread(target=_end_with, args=(settings["process"],), daemon=True).start()
  doing = "be opened"
  try:
    module = importlib.import_module(settings["tracker"])
    if getattr(module, "__file__", None) is None:  # a folder that the library has left behind
      raise ModuleNotFoundError(settings["tracker"], name=settings["tracker"])
    tracker = TRACKERS[settings["tracker"]](settings, settings["place"])
    say(place=tracker.run_record, where=tracker.where)
    doing, outcome = "take what was measured", KILLED  # unless it says otherwise: its process is gone
    while True:
      if rows and isinstance(rows[-1], str):
        outcome = rows.pop()
      if rows:
        tracker.log(rows)
      rows = next(lines, None)
      if rows is None:
        break
    doing = "be told the end"
    tracker.finish(outcome)
    say(ended=True)
  except ModuleNotFoundError as error:
    say(error=MISSING if error.name == settings["tracker"] else f"{MISSING} as a whole ({error})")
  except BaseException as error:  # whatever a library does, down to SystemExit
    text = str(error).strip().splitlines()
    say(error=f"could not {doing}: {type(error).__name__}{f': {text[0]}' if text else ''}")


if __name__ == "__main__":
  _said = os.fdopen(os.dup(1), "w")
  os.dup2(2, 1)  # what the library prints is no word of this program's
  main(0, _said)
  sys.stdout.flush()
