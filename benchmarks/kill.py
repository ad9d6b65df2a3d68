"""Kills a command repeatedly at random moments, and compares its final output with that of an uninterrupted run.

  python benchmarks/kill.py [COMMAND] [--kills 100] [--processes 2] [--bucket] [--seed 0] [--workdir FOLDER] [--json]
    [--config.KEY=VALUE ...]

COMMAND is train (the default), convert, vocab, eval, superglue, infer or cache (which needs Apache Beam). Each run is
the real command on a tiny model. SIGKILL ends it after a random time, and it is restarted until it completes; then the
next run starts, until the number of kills is reached. With --processes a random process is killed, and the others must
end without help. With --bucket the workdir is on an emulator of Google Cloud Storage; every other kill is an outage of
the emulator for some seconds, with all connections cut. benchmarks/killed.py defines equality. With --json the last
line is one JSON object.
"""

import argparse
from collections.abc import Sequence
import contextlib
import dataclasses
import json
import os
import pathlib
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

_ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(_ROOT / "tests"))

import killed  # noqa: E402

# Timeouts of peers of a killed process: to detect it, and to end.
_LOST_SECONDS, _ENDED_SECONDS = 10, 120


@dataclasses.dataclass
class Attempt:
  """A command that runs in one or several processes until it ends or one of them is killed.

  argv: arguments of `t2t`.
  """

  argv: Sequence[str]
  processes: int
  log: pathlib.Path
  environment: dict[str, str]

  def run(self, kill_after: float | None, victim: int = 0) -> tuple[list[int], float]:
    """Returns the exit status of each process (-9: killed) and the elapsed seconds.

    Raises:
      TimeoutExpired: a process does not end after its peer was killed.
    """
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(_ROOT)} | self.environment
    where: list[list[str]] = [[]]
    if self.processes > 1:
      all_of_them = [f"--coordinator=localhost:{_free_port()}", f"--num_processes={self.processes}"]
      all_of_them.append(f"--lost_seconds={_LOST_SECONDS}")
      where = [[*all_of_them, f"--process_id={index}"] for index in range(self.processes)]
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
      children = []
      for index, process_options in enumerate(where):
        output = stack.enter_context(self.log.with_suffix(f".{index}.log").open("ab"))
        argv = [sys.executable, "-m", "t2t", *self.argv, *process_options]
        children.append(subprocess.Popen(argv, env=environment, stdout=output, stderr=output))
        stack.callback(children[-1].kill)
      try:
        children[victim].wait(kill_after)
      except subprocess.TimeoutExpired:
        children[victim].kill()
      statuses = [child.wait(_ENDED_SECONDS) for child in children]
    return statuses, time.monotonic() - started

  def said(self) -> str:
    """Returns the end of each process's output."""
    return "\n".join(self.log.with_suffix(f".{i}.log").read_text()[-2000:] for i in range(self.processes))


def _free_port() -> int:
  with socket.socket() as listener:
    listener.bind(("", 0))
    return listener.getsockname()[1]


def differences(actual: killed.Outcome, expected: killed.Outcome) -> list[str]:
  """Returns the differences between an interrupted and an uninterrupted run."""
  missing, more = sorted(expected.keys() - actual.keys()), sorted(actual.keys() - expected.keys())
  changed = [name for name in expected if name in actual and not np.array_equal(expected[name], actual[name])]
  lines = [f"{name}: {_steps(actual[name], expected[name])}" for name in changed if name in ("metrics.jsonl", "events")]
  for kind, names in (("missing", missing), ("too many", more), ("other", changed)):
    if names:
      lines.append(f"{len(names)} of {len(expected)} {kind}, first {names[0]}")
  return lines


def _steps(actual: list[tuple[int, float]], expected: list[tuple[int, float]]) -> str:
  steps, wanted = [step for step, _ in actual], [step for step, _ in expected]
  if steps == wanted:
    return "other losses"
  twice = sorted({step for step in steps if steps.count(step) > 1})
  return f"steps {sorted(set(wanted) - set(steps))} are missing, {twice} are duplicated"


def main() -> int:
  """Runs the benchmark; returns 0 if nothing differs."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("command", nargs="?", choices=killed.COMMANDS, default="train")
  parser.add_argument("--kills", type=int, default=100)
  parser.add_argument("--processes", type=int, default=1)
  parser.add_argument("--bucket", action="store_true", help="put the workdir on an emulator of gs:// (only for train)")
  parser.add_argument("--seed", type=int, default=0, help="seed of the random moments")
  parser.add_argument("--workdir", help="folder that keeps the runs; default: a temporary folder")
  parser.add_argument("--json", action="store_true")
  arguments, overrides = parser.parse_known_args()
  if arguments.bucket and arguments.command != "train":
    parser.error(f"--bucket: only for train, not {arguments.command}; leave it out")
  if arguments.command == "cache":
    killed.need_beam()
  folder = pathlib.Path(arguments.workdir or tempfile.mkdtemp(prefix="t2t_kill_"))
  folder.mkdir(parents=True, exist_ok=True)
  with contextlib.ExitStack() as stack:
    gcs = None
    if arguments.bucket:
      import fake_gcs  # needs the extra `test`

      gcs = stack.enter_context(fake_gcs.Gcs(folder))
    result = _kill(arguments, overrides, folder, gcs)
  print(
    json.dumps(result)
    if arguments.json
    else f"{result['kills']} kills in {result['runs']} runs: {result['different']} differ, {result['crashes']} crashes"
  )
  if not arguments.workdir:
    shutil.rmtree(folder)
  return int(bool(result["different"] or result["crashes"]))


def _kill(arguments: argparse.Namespace, overrides: list[str], folder: pathlib.Path, gcs) -> dict[str, object]:
  """Runs the commands; returns the numbers printed at the end."""
  tested = killed.COMMANDS[arguments.command]
  killed.prepare(folder)
  environment = gcs.environment() if gcs else {}

  def attempt(name: str) -> Attempt:
    output = f"gs://bucket/{name}/out" if gcs else str(folder / name / "out")
    argv = [*tested.arguments(folder, output), *overrides]
    return Attempt(argv, arguments.processes, folder / name, environment)

  def outcome(name: str) -> killed.Outcome:
    if gcs:  # removes the copy of an earlier state
      shutil.rmtree(folder / name / "out", ignore_errors=True)
    for path in gcs.sizes(f"{name}/") if gcs else ():
      if path.endswith("/"):  # folder marker of TensorFlow
        continue
      local = folder / path
      local.parent.mkdir(parents=True, exist_ok=True)
      local.write_bytes(gcs.read(path))
    return tested.outcome(folder / name / "out")

  if tested.trains:
    first = Attempt(killed.model(folder), 1, folder / "model", {})
    if any(first.run(None)[0]):
      sys.exit(first.said())
  uninterrupted = attempt("whole")
  statuses, usual = uninterrupted.run(None)
  if any(statuses):
    sys.exit(uninterrupted.said())
  expected = outcome("whole")

  moments = random.Random(arguments.seed)
  kills = crashes = runs = different = 0
  while kills < arguments.kills:
    name = f"run_{runs}"
    runs += 1
    killed_run, fresh = attempt(name), True
    while True:
      # The first third of a run is start-up, with little to break.
      after = moments.uniform(0.3 * usual, 1.1 * usual) if kills < arguments.kills else None
      if gcs and after and kills % 2:
        seconds = moments.uniform(1, 20)
        statuses, _ = _run_without(gcs, killed_run, after, seconds)
        kills += 1
        what_happened = f"the bucket was unavailable for {seconds:.1f} s after {after:.1f} s"
      else:
        statuses, seconds = killed_run.run(after, victim=moments.randrange(arguments.processes))
        # The first run is slower, because it fills the compilation cache; other work on the machine may slow it, too.
        usual = min(usual, seconds) if not any(statuses) and fresh else usual
        kills += -9 in statuses
        what_happened = f"killed after {after:.1f} s" if after else "left alone"
      print(f"run {runs}, kill {kills}: {what_happened}, exit status {', '.join(map(str, statuses))}", flush=True)
      # A command killed after its last file reports that everything exists already.
      ended = all(status == 0 for status in statuses)
      ended = ended or (all(status == 2 for status in statuses) and not differences(outcome(name), expected))
      went_on = -9 in statuses or (gcs and all(status in (0, 2, 75) for status in statuses))
      if ended or not went_on:
        break
      fresh = False
    if not ended:
      crashes += 1
      print(killed_run.said(), file=sys.stderr, flush=True)
    elif problems := differences(outcome(name), expected):
      different += 1
      print(f"run {runs}: " + "; ".join(problems), flush=True)
    else:
      shutil.rmtree(folder / name)
  command = {"command": arguments.command, "processes": arguments.processes, "bucket": arguments.bucket}
  numbers = {"kills": kills, "runs": runs, "different": different, "crashes": crashes, "usual_seconds": round(usual, 1)}
  return {"benchmark": "kill"} | command | numbers


def _run_without(gcs, attempt: Attempt, after: float, seconds: float) -> tuple[list[int], float]:
  """Runs with an outage of the bucket: connections are cut, and refused for a while."""

  def away() -> None:
    gcs.away_until = time.monotonic() + seconds

  timer = threading.Timer(after, away)
  timer.start()
  try:
    return attempt.run(None)
  finally:
    timer.cancel()
    gcs.away_until = 0.0


if __name__ == "__main__":
  sys.exit(main())
