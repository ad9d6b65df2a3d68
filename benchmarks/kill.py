"""Kills a training run again and again at random moments, and compares what comes out with a run that was left alone.

  python benchmarks/kill.py [--kills 100] [--seed 0] [--workdir FOLDER] [--json] [--config.KEY=VALUE ...]

Each run is the real command on a tiny model, killed with SIGKILL a random time after its start until it has ended by
itself; then another is begun, until there were as many kills.  Equal means: every array of the last checkpoint bit for
bit, every step of metrics.jsonl and of the event files once, and each loss the same.  With --json the last line is one
JSON object.
"""

import argparse
import io
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np
import orbax.checkpoint as ocp
from tensorboardX.proto import event_pb2

from t2t.storage import records

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_TOY = (
  "--config=t5_1_1_small",
  "--config.model.vocab_size=384",
  "--config.model.embed_dim=16",
  "--config.model.num_heads=2",
  "--config.model.head_dim=8",
  "--config.model.mlp_dim=32",
  "--config.model.num_encoder_layers=1",
  "--config.model.num_decoder_layers=1",
  "--config.model.dtype=float32",
  "--config.data.vocabulary=bytes",
  "--config.data.inputs_length=64",
  "--config.data.targets_length=18",
  "--config.train.batch_size=8",
  "--config.train.steps=40",
  "--config.eval.every=20",
  "--config.eval.batches=1",
  "--config.eval.examples=0",
  "--config.checkpoint.every=3",
)


def command(text: pathlib.Path, workdir: pathlib.Path, overrides: list[str]) -> list[str]:
  """The training run; the same command resumes it."""
  return [
    *(sys.executable, "-m", "t2t", "train", *_TOY, f"--config.data.files={text}", f"--workdir={workdir}"),
    *overrides,
  ]


def run(argv: list[str], log: pathlib.Path, *, kill_after: float | None) -> tuple[int, float]:
  """The exit status (-9: killed) and the seconds that it took."""
  environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(_ROOT)}
  started = time.monotonic()
  with log.open("ab") as output:
    process = subprocess.Popen(argv, env=environment, stdout=output, stderr=output)
    try:
      process.wait(kill_after)
    except subprocess.TimeoutExpired:
      process.kill()
      process.wait()
  return process.returncode, time.monotonic() - started


def outcome(workdir: pathlib.Path) -> tuple[dict[str, np.ndarray], list[tuple[int, float]], list[tuple[int, float]]]:
  """Arrays of the last checkpoint by name; (step, loss) of each line of metrics.jsonl, and of each event."""
  last = max(
    (child for child in (workdir / "checkpoints").iterdir() if child.name.isdigit()), key=lambda x: int(x.name)
  )
  with ocp.PyTreeCheckpointer() as checkpointer:
    state = checkpointer.restore(last / "state")
  arrays: dict[str, np.ndarray] = {}

  def note(prefix: str, tree) -> None:
    if isinstance(tree, dict):
      for key, value in tree.items():
        note(f"{prefix}/{key}", value)
    elif isinstance(tree, list | tuple):
      for number, value in enumerate(tree):
        note(f"{prefix}/{number}", value)
    elif tree is not None:
      arrays[prefix] = np.asarray(tree)

  note("", state)
  rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
  losses = [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row]
  events = [
    (event.step, value.simple_value)
    for path in sorted((workdir / "tensorboard").iterdir())
    for event in map(event_pb2.Event.FromString, records.read(io.BytesIO(path.read_bytes())))
    for value in event.summary.value
    if value.tag == "train/loss"
  ]
  return arrays, losses, events


def differences(found, expected) -> list[str]:
  """What a killed run has otherwise than one that was left alone."""
  arrays, losses, events = found
  wanted, all_losses, all_events = expected
  differing = [name for name in wanted if not np.array_equal(wanted[name], arrays.get(name))]
  said = [f"{len(differing)} of {len(wanted)} arrays differ, {differing[0]} first"] if differing else []
  if losses != all_losses:
    said.append(f"metrics.jsonl: {_steps(losses, all_losses)}")
  if events != all_events:
    said.append(f"events: {_steps(events, all_events)}")
  return said


def _steps(found: list[tuple[int, float]], expected: list[tuple[int, float]]) -> str:
  steps, wanted = [step for step, _ in found], [step for step, _ in expected]
  if steps == wanted:
    return "other losses"
  twice = sorted({step for step in steps if steps.count(step) > 1})
  return f"steps {sorted(set(wanted) - set(steps))} are missing, {twice} are there more than once"


def main() -> int:
  """Kills, compares, prints; 0 if nothing differs."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--kills", type=int, default=100)
  parser.add_argument("--seed", type=int, default=0, help="of the moments")
  parser.add_argument("--workdir", help="where the runs are kept; default: a folder that goes afterwards")
  parser.add_argument("--json", action="store_true")
  arguments, overrides = parser.parse_known_args()
  folder = pathlib.Path(arguments.workdir or tempfile.mkdtemp(prefix="t2t_kill_"))
  folder.mkdir(parents=True, exist_ok=True)
  text = folder / "text.txt"
  words = np.random.default_rng(0)
  text.write_text("\n".join(" ".join(f"w{n}" for n in words.integers(0, 999, 40)) for _ in range(400)))

  status, usual = run(command(text, folder / "whole", overrides), folder / "whole.log", kill_after=None)
  if status:
    print((folder / "whole.log").read_text()[-2000:], file=sys.stderr)
    return 2
  expected = outcome(folder / "whole")
  moments = random.Random(arguments.seed)
  kills = crashes = runs = different = 0
  while kills < arguments.kills:
    workdir, log = folder / f"run_{runs}", folder / f"run_{runs}.log"
    runs += 1
    while True:
      # The first third of a run is start-up, where there is little to break.
      after = moments.uniform(0.3 * usual, 1.1 * usual) if kills < arguments.kills else None
      status, _ = run(command(text, workdir, overrides), log, kill_after=after)
      if status == 0:
        break
      kills += status == -9
      crashes += status != -9
      print(f"run {runs}, kill {kills} after {after or 0:.1f} s (status {status})", flush=True)
      if status != -9:
        print(log.read_text()[-2000:], file=sys.stderr)
        break
    if status == 0 and (said := differences(outcome(workdir), expected)):
      different += 1
      print(f"run {runs}: " + "; ".join(said), flush=True)
    elif status == 0:
      shutil.rmtree(workdir)
  result = {"benchmark": "kill", "kills": kills, "runs": runs, "different": different, "crashes": crashes}
  print(
    json.dumps(result) if arguments.json else f"{kills} kills in {runs} runs: {different} differ, {crashes} crashes"
  )
  if not arguments.workdir:
    shutil.rmtree(folder)
  return int(bool(different or crashes))


if __name__ == "__main__":
  sys.exit(main())
