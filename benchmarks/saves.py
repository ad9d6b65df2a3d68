"""Continuous saves: the gap between two, the stall of each, and the host memory, with and without a limit.

  python benchmarks/saves.py --config t5_1_1_small --config.optimizer.name=adamw --config.train.batch_size=2
  python benchmarks/saves.py --bucket --latency 0.2 --config tiny --limit_gb 0.0001

Trains on random batches and saves whenever the last save has ended, as config.checkpoint.continuous does. Each row of
the table is a process of its own: without a limit, and with --limit_gb. --bucket also saves to an emulator of Google
Cloud Storage in the first process, which answers each request after --latency seconds.

The stall is the time that the training loop waits for a save to begin, with a limit until the state is copied. The gap
is the time between the starts of two saves. Memory is the peak of the resident set during a save, minus its size
before the first one, and includes buffers of TensorStore.
"""

import argparse
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from etils import epath
import jax

_ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(_ROOT / "tests"))

import overhead  # noqa: E402
import train_step as step_benchmark  # noqa: E402

from t2t import UserError, sharding  # noqa: E402
from t2t.checkpoints import host_memory, manager, manifest  # noqa: E402
from t2t.commands.options import config_parser, parse  # noqa: E402
from t2t.configuration.loading import records  # noqa: E402
from t2t.configuration.schema import Config  # noqa: E402
from t2t.runtime import memory, numeric  # noqa: E402
from t2t.training import mesh_selection, recipe  # noqa: E402
from t2t.training.callbacks import checkpointing  # noqa: E402


def _resident(name: str) -> int:
  """Returns a line of /proc/self/status in bytes: VmRSS, or the peak VmHWM."""
  [line] = [line for line in pathlib.Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:")]
  return int(line.split()[1]) * 1024


def measure(config: Config, workdir: str, *, saves: int) -> dict[str, float]:
  """Returns medians of several saves in a row; the first one, which starts threads, is left out."""
  mesh, _ = mesh_selection.make(config)
  with jax.set_mesh(mesh):
    program = recipe.make(config).build(mesh)
    batch = jax.device_put(step_benchmark.random_batch(config), sharding.batch_sharding(mesh))
    training = overhead.Training(program.init()(jax.random.key(0)), batch)
    step_seconds = min(training.block(program.train_step, 1) for _ in range(5))
    limit = host_memory.limit_bytes(config.checkpoint.host_memory_gb)
    checkpoints = manager.Checkpoints(epath.Path(workdir), keep=2, host_memory_limit=limit)
    begun, stalls, peaks = [], [], []
    before = _resident("VmRSS")
    while len(begun) <= saves:
      pathlib.Path("/proc/self/clear_refs").write_text("5")  # resets the peak
      started = time.perf_counter()
      begun.append(started)
      step = int(training.state.step)
      checkpointing.check_finite(training.state, step=step)
      checkpoints.save(step, training.state, {}, {}, metrics=None)
      stalls.append(time.perf_counter() - started)
      while not checkpoints.is_idle:
        training.block(program.train_step, 1)
        checkpoints.overdue()
      peaks.append(_resident("VmHWM") - before)
    size = manifest.size(checkpoints.directory / str(step))
    checkpoints.close()
  gaps = [later - earlier for earlier, later in zip(begun, begun[1:], strict=False)]
  middle = lambda values: sorted(values)[len(values) // 2]
  copied = host_memory.of_state(program.state, mesh, limit)
  figures = {"step": step_seconds, "size": size, "gap": middle(gaps[1:]), "stall": middle(stalls[1:])}
  return figures | {"peak": max(peaks), "copied": copied}


def main(argv: list[str]) -> None:
  """Runs the benchmark."""
  parser = config_parser("python benchmarks/saves.py", __doc__)
  parser.set_defaults(config="tiny")
  parser.add_argument("--saves", type=int, default=5, help="saves of each process, after the first one")
  parser.add_argument(
    "--limit_gb",
    type=numeric.number(0, above=True),
    default=0.2,
    help="config.checkpoint.host_memory_gb of the second row",
  )
  parser.add_argument("--bucket", action="store_true", help="also save to an emulator of gs://")
  parser.add_argument("--latency", type=numeric.number(0), default=0.2, help="seconds before the emulator answers")
  parser.add_argument("--into", help=argparse.SUPPRESS)
  options, config = parse(parser, argv)
  if options.into:
    memory.keep_freed_memory()
    print(json.dumps(measure(records(config), options.into, saves=options.saves)))
    return
  print(f"{'':<30}{'gap':>9}{'stall':>9}{'step':>9}{'peak':>10}{'planned':>10}")
  with contextlib.ExitStack() as stack:
    folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
    places = {"disk": (str(folder), {})}
    if options.bucket:
      import fake_gcs  # needs the extra `test`

      gcs = stack.enter_context(fake_gcs.Gcs(folder))
      gcs.faults.append(fake_gcs.Fault("", times=10**9, slow=options.latency))
      places[f"bucket, {options.latency:g} s"] = ("gs://bucket", gcs.environment())
    for place, (workdir, environment) in places.items():
      for limit in (0.0, options.limit_gb):
        child = [sys.executable, __file__, *argv, f"--config.checkpoint.host_memory_gb={limit}"]
        child.append(f"--into={workdir}/limit_{limit:g}")
        ran = subprocess.run(child, env=os.environ | environment, stdout=subprocess.PIPE, text=True, check=False)
        if ran.returncode:
          sys.exit(ran.returncode)
        row = json.loads(ran.stdout.splitlines()[-1])
        name = f"{place}, {f'limit {limit:g} GB' if limit else 'no limit'}"
        print(
          f"{name:<30}{row['gap']:>7.2f} s{row['stall']:>7.2f} s{row['step']:>7.2f} s{row['peak'] / 1e9:>7.2f} GB"
          f"{row['copied'] / 1e9:>7.2f} GB",
          flush=True,
        )
    print(f"the checkpoint has {row['size'] / 1e9:.2f} GB")


if __name__ == "__main__":
  try:
    main(sys.argv[1:])
  except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
