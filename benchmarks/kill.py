"""Kills a command again and again at random moments, and compares what it leaves with what it leaves when left alone.

  python benchmarks/kill.py [COMMAND] [--kills 100] [--processes 2] [--bucket] [--seed 0] [--workdir FOLDER] [--json]
    [--config.KEY=VALUE ...]

COMMAND is train (the default), convert, vocab, eval, superglue, infer or cache (which needs Apache Beam).  Each run is
the real command on a tiny model, killed with SIGKILL a random time after its start until it has ended by itself; then
another is begun, until there were as many kills.  With --processes one of them is killed, at random, and the others
must end by themselves.  With --bucket the run's folder is on an emulator of Google Cloud Storage, and every other kill
is one of the emulator's, which is away for some seconds, with all connections cut.  benchmarks/killed.py says what
equal means.  With --json the last line is one JSON object.
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

# After which peers end that hear nothing of one that was killed, and after which they must have.
_LOST_SECONDS, _ENDED_SECONDS = 10, 120


@dataclasses.dataclass
class Attempt:
  """A command that runs in one or several processes until it ends or one of them is killed.

  argv: what stands behind `t2t`.
  """

  argv: Sequence[str]
  processes: int
  log: pathlib.Path
  environment: dict[str, str]

  def run(self, kill_after: float | None, victim: int = 0) -> tuple[list[int], float]:
    """The exit status of each process (-9: killed) and the seconds that it took.

    Raises:
      TimeoutExpired: a process whose peer was killed does not end.
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
    """The end of what each process wrote."""
    return "\n".join(self.log.with_suffix(f".{i}.log").read_text()[-2000:] for i in range(self.processes))


def _free_port() -> int:
  with socket.socket() as listener:
    listener.bind(("", 0))
    return listener.getsockname()[1]


def differences(actual: killed.Outcome, expected: killed.Outcome) -> list[str]:
  """What a killed command has left otherwise than one that was left alone."""
  missing, more = sorted(expected.keys() - actual.keys()), sorted(actual.keys() - expected.keys())
  changed = [name for name in expected if name in actual and not np.array_equal(expected[name], actual[name])]
  lines = [f"{name}: {_steps(actual[name], expected[name])}" for name in changed if name in ("metrics.jsonl", "events")]
  for kind, names in (("missing", missing), ("too many", more), ("other", changed)):
    if names:
      lines.append(f"{len(names)} of {len(expected)} {kind}, {names[0]} first")
  return lines


def _steps(actual: list[tuple[int, float]], expected: list[tuple[int, float]]) -> str:
  steps, wanted = [step for step, _ in actual], [step for step, _ in expected]
  if steps == wanted:
    return "other losses"
  twice = sorted({step for step in steps if steps.count(step) > 1})
  return f"steps {sorted(set(wanted) - set(steps))} are missing, {twice} are there more than once"


def main() -> int:
  """Kills, compares, prints; 0 if nothing differs."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("command", nargs="?", choices=killed.COMMANDS, default="train")
  parser.add_argument("--kills", type=int, default=100)
  parser.add_argument("--processes", type=int, default=1)
  parser.add_argument("--bucket", action="store_true", help="of train: its folder is on an emulator of gs://")
  parser.add_argument("--seed", type=int, default=0, help="of the moments")
  parser.add_argument("--workdir", help="where the runs are kept; default: a folder that goes afterwards")
  parser.add_argument("--json", action="store_true")
  arguments, overrides = parser.parse_known_args()
  if arguments.bucket and arguments.command != "train":
    parser.error("--bucket: train alone has its folder there")
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
  """The numbers that are printed at the end."""
  tested = killed.COMMANDS[arguments.command]
  killed.prepare(folder)
  environment = gcs.environment() if gcs else {}

  def attempt(name: str) -> Attempt:
    output = f"gs://bucket/{name}/out" if gcs else str(folder / name / "out")
    argv = [*tested.arguments(folder, output), *overrides]
    return Attempt(argv, arguments.processes, folder / name, environment)

  def outcome(name: str) -> killed.Outcome:
    if gcs:  # what was there when it was looked at before, and is gone
      shutil.rmtree(folder / name / "out", ignore_errors=True)
    for path in gcs.sizes(f"{name}/") if gcs else ():
      if path.endswith("/"):  # what TensorFlow takes for a folder
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
      # The first third of a run is start-up, where there is little to break.
      after = moments.uniform(0.3 * usual, 1.1 * usual) if kills < arguments.kills else None
      if gcs and after and kills % 2:
        seconds = moments.uniform(1, 20)
        statuses, _ = _run_without(gcs, killed_run, after, seconds)
        kills += 1
        what_happened = f"the bucket was away for {seconds:.1f} s after {after:.1f} s"
      else:
        statuses, seconds = killed_run.run(after, victim=moments.randrange(arguments.processes))
        # The first run compiled what the others find compiled, perhaps while the machine did something else.
        usual = min(usual, seconds) if not any(statuses) and fresh else usual
        kills += -9 in statuses
        what_happened = f"killed after {after:.1f} s" if after else "left alone"
      print(f"run {runs}, kill {kills}: {what_happened}, exit status {', '.join(map(str, statuses))}", flush=True)
      # What was killed between its last file and its end says that all is there already.
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
  """A run during which the bucket cuts all connections, and takes none for a while."""

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
