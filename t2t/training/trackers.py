"""Clients of experiment trackers, run in a separate process: `python -m t2t.training.trackers`.

Libraries are imported only in this process, so that their errors, hangs, output and leftovers cannot affect training.
`tracking.py` starts the process and writes JSON lines to its standard input: one for the run, one for each row of
metrics, and one for how the run ended. The process writes JSON lines with the opened run or with errors to its standard
output.
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

MISSING = "not installed"  # error for a missing library
BACKGROUND_SECONDS = 60.0  # for a library to send the rest after the run


class _Wandb:
  def __init__(self, settings: Mapping[str, Any], run_record: Mapping[str, str]):
    import wandb

    # Local workdirs also get the library's files; `wandb sync` uploads offline runs from there.
    folder = None if "://" in settings["workdir"] or os.environ.get("WANDB_DIR") else settings["workdir"]
    self.run_record = {"run": run_record.get("run") or uuid.uuid4().hex[:8]}
    self._run = wandb.init(
      project=settings["project"],
      id=self.run_record["run"],
      name=settings["name"],
      config=dict(settings["config"]),
      resume="allow",
      allow_val_change=True,  # a resumed run may have more steps
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
      self._run.mark_preempting()  # not failed: the same command resumes it
    self._run.finish(exit_code=0 if outcome == FINISHED else 1)


class _Trackio:
  def __init__(self, settings: Mapping[str, Any], run_record: Mapping[str, str]):
    import trackio

    # Trackio identifies runs by name alone; the suffix distinguishes two workdirs of the same name.
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
  # MLflow's name for each outcome.
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
      # MLflow parameters cannot change, so the config of a resumed run is only updated in the file.
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
    for begin in range(0, len(metrics), 1000):  # limit of a request
      self._client.log_batch(self._id, metrics=metrics[begin : begin + 1000], synchronous=True)

  def finish(self, outcome: str) -> None:
    self._client.set_tag(self._id, "outcome", outcome)
    self._client.set_terminated(self._id, self._STATUS[outcome])


# `config.logging.tracker` -> client.
TRACKERS = {"wandb": _Wandb, "trackio": _Trackio, "mlflow": _MLflow}
# Remedies for a tracker that cannot be opened.
REMEDIES = {
  "wandb": "run `wandb login`, or set WANDB_MODE=offline and run `wandb sync` later",
  "trackio": "make TRACKIO_DIR, or the Space of the project, writable",
  "mlflow": "set MLFLOW_TRACKING_URI to a server that answers, or to sqlite:///FILE",
}


def _flat(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
  for section, values in config.items():
    if isinstance(values, Mapping):
      yield from ((f"{section}.{key}", value) for key, value in values.items())
    else:
      yield section, values


def _lines(file: int) -> Iterator[list[Any]]:
  """Yields the JSON values of all complete lines received so far; a slow tracker gets more lines at a time."""
  tail = b""
  while content := os.read(file, 2**20):
    *complete, tail = (tail + content).split(b"\n")
    yield [json.loads(line) for line in complete if line]


def _end_with(parent: int) -> None:
  """Kills all of this program's processes some time after the run's process, because a library may wait forever."""
  while os.getppid() == parent:
    time.sleep(1.0)
  time.sleep(BACKGROUND_SECONDS)
  if hasattr(os, "killpg"):
    os.killpg(0, signal.SIGKILL)
  os._exit(1)  # Windows has no groups of processes


def main(source: int, output: TextIO) -> None:
  """Sends the rows of `source` to a tracker.

  Args:
    source: file descriptor to read from.
    output: receives messages for the run's process.
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
    if getattr(module, "__file__", None) is None:  # a folder that an uninstalled library left behind
      raise ModuleNotFoundError(settings["tracker"], name=settings["tracker"])
    tracker = TRACKERS[settings["tracker"]](settings, settings["place"])
    say(place=tracker.run_record, where=tracker.where)
    doing, outcome = "receive metrics", KILLED  # default if the run's process is gone without a message
    while True:
      if rows and isinstance(rows[-1], str):
        outcome = rows.pop()
      if rows:
        tracker.log(rows)
      rows = next(lines, None)
      if rows is None:
        break
    doing = "finish the run"
    tracker.finish(outcome)
    say(ended=True)
  except ModuleNotFoundError as error:
    say(error=MISSING if error.name == settings["tracker"] else f"{MISSING} completely ({error})")
  except BaseException as error:  # any error of a library, including SystemExit
    text = str(error).strip().splitlines()
    say(error=f"could not {doing}: {type(error).__name__}{f': {text[0]}' if text else ''}")


if __name__ == "__main__":
  _said = os.fdopen(os.dup(1), "w")
  os.dup2(2, 1)  # output of the library must not mix with messages
  main(0, _said)
  sys.stdout.flush()
