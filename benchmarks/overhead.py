"""What it costs that a run cannot be lost: the guards of each step, and a save with its checksums.

  python benchmarks/overhead.py                                                  # tiny: the guards of each step
  python benchmarks/overhead.py --saves --config t5_1_1_small --config.optimizer.name=adamw --config.train.batch_size=8

Guards are what watches each step: the gradient's squares by place instead of its norm alone (compiled both ways), the
watch over losses, the watchdog, and, on a bucket's emulator, the lease's renewals.  Blocks of steps with and without
alternate in one process; each pair gives a ratio, and the median of the pairs is told, with its quartiles; what the
compiled programs differ by no other work on the machine can spoil.

--saves: blocks of which the first step is followed by a save, against blocks without.  The stall is what the loop's
thread waits (finite values checked, arrays copied, files begun); the rest happens beside the steps that follow, and
costs them what the machine has no cores for.  Then the checkpoint is verified and restored.
"""

import contextlib
import dataclasses
import pathlib
import statistics
import sys
import tempfile
import time
from typing import Any
from unittest import mock

from etils import epath
import jax
import numpy as np
import optax

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))

import train_step as step_benchmark  # noqa: E402

from t2t import UserError, sharding  # noqa: E402
from t2t.checkpoints import manager, manifest, verify  # noqa: E402
from t2t.commands.options import config_parser, parse  # noqa: E402
from t2t.configuration.loading import records  # noqa: E402
from t2t.configuration.schema import Config  # noqa: E402
from t2t.runtime import memory, watchdog  # noqa: E402
from t2t.storage import lease  # noqa: E402
from t2t.training import grad_stats, mesh_selection, recipe  # noqa: E402
from t2t.training.callbacks import (
  checkpointing,  # noqa: E402
  nan_policy,  # noqa: E402
)

_CALLS = 5_000  # of what takes microseconds


@dataclasses.dataclass
class Training:
  """A state, and a batch that it is trained on."""

  state: Any
  batch: Any

  def block(self, step: Any, steps: int) -> float:
    """Seconds that so many steps take."""
    started = time.perf_counter()
    for _ in range(steps):
      self.state, self.metrics = step(self.state, self.batch, jax.random.key(1))
    jax.block_until_ready(self.state)
    return time.perf_counter() - started


def _told(name: str, ratios: list[float]) -> None:
  low, middle, high = statistics.quantiles(ratios, n=4)
  print(f"{name:<44}{100 * (middle - 1):>8.2f} %   quartiles {100 * (low - 1):.2f} to {100 * (high - 1):.2f} %")


def _cost(step: Any, training: Training) -> dict[str, float]:
  """XLA's count of a program's work."""
  return step.lower(training.state, training.batch, jax.random.key(1)).compile().cost_analysis()


def _each(call: Any) -> float:
  """Seconds of all threads of this process that one of many calls takes."""
  started = time.process_time()
  for number in range(_CALLS):
    call(number)
  return (time.process_time() - started) / _CALLS


def guards(config: Config, mesh: jax.sharding.Mesh, *, pairs: int, steps: int) -> None:
  """Prints what is paid at every step, as a share of a step."""
  program = recipe.make(config).build(mesh)
  batch = jax.device_put(step_benchmark.random_batch(config), sharding.batch_sharding(mesh))
  guarded = program.train_step
  training = Training(program.init()(jax.random.key(0)), batch)
  warm = training.block(guarded, 2)
  squares = np.asarray(training.metrics["grad_squares"].total)
  with mock.patch.object(grad_stats, "squares", lambda grads: optax.global_norm(grads)[None] ** 2):
    plain = recipe.make(config).build(mesh).train_step
    training.block(plain, 2)
  print(f"{'start':<44}{warm:>8.2f} s")
  seconds = {guarded: [], plain: []}
  for number in range(pairs):
    for step_function in (guarded, plain) if number % 2 else (plain, guarded):
      seconds[step_function].append(training.block(step_function, steps) / steps)
  step = min(seconds[plain])
  print(f"{'a step':<44}{1e3 * step:>8.1f} ms  at best")
  _told("squares by place instead of the norm", [a / b for a, b in zip(seconds[guarded], seconds[plain], strict=True)])
  for quantity in ("flops", "bytes accessed"):
    more = _cost(guarded, training)[quantity] / _cost(plain, training)[quantity] - 1
    print(f"{'the same, ' + quantity + ' of the program':<44}{100 * more:>8.3f} %")

  watch = nan_policy.Watch(
    dataclasses.replace(config, numbers=dataclasses.replace(config.nan_policy, spike_deviations=1e6, spike_window=128)),
    epath.Path(tempfile.gettempdir()),
    program.state.params,
    {},
  )
  values = {"loss": 1.0, "grad_norm": 1.0}
  _share("the watch, with a window of 128 losses", _each(lambda n: watch.judge(n, values, squares, {})), step)
  with watchdog.Watchdog(10.0).running() as watched:
    _share("the watchdog, its thread included", _each(lambda n: watched.step()), step)
  _share("the lease, of a bucket", *_renewal())


def _share(name: str, seconds: float, of: float) -> None:
  print(f"{name:<44}{100 * seconds / of:>8.3f} %   {1e6 * seconds:.0f} us of the machine's time")


def _renewal() -> tuple[float, float]:
  """Seconds of this process that a renewal takes, the emulator's among them, and the seconds between two."""
  import fake_gcs

  with contextlib.ExitStack() as stack:
    folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
    gcs = stack.enter_context(fake_gcs.Gcs(folder))
    stack.enter_context(mock.patch.dict("os.environ", gcs.environment()))
    between = lease.RENEW_SECONDS
    stack.enter_context(mock.patch.object(lease, "RENEW_SECONDS", 0.0))
    started = time.process_time()
    held = stack.enter_context(lease.held(epath.Path("gs://bucket/run/.lock"), on_lost=print))
    time.sleep(2.0)
    return (time.process_time() - started) / max(1, held._own.times), between


def saves(config: Config, mesh: jax.sharding.Mesh, *, pairs: int, steps: int) -> None:
  """Prints what a save costs the loop, and what it takes to verify and restore it."""
  program = recipe.make(config).build(mesh)
  batch = jax.device_put(step_benchmark.random_batch(config), sharding.batch_sharding(mesh))
  training = Training(program.init()(jax.random.key(0)), batch)
  training.block(program.train_step, 2)
  with tempfile.TemporaryDirectory() as folder:
    workdir = epath.Path(folder)
    checkpoints = manager.Checkpoints(workdir, keep=2)
    stalls, with_save, without, ends = [], [], [], []
    for number in range(pairs):
      for saving in (number % 2, 1 - number % 2):
        if not saving:
          without.append(training.block(program.train_step, steps))
          continue
        first = training.block(program.train_step, 1)
        started = time.perf_counter()
        step = int(training.state.step)
        checkpointing.check_finite(training.state, step=step)
        checkpoints.save(step, training.state, {}, {}, metrics={"loss": 0.0})
        stalls.append(time.perf_counter() - started)
        with_save.append(first + stalls[-1] + training.block(program.train_step, steps - 1))
        checkpoints.wait()
        ends.append(time.perf_counter() - started)
    path = checkpoints.directory / str(step)
    size = manifest.size(path)
    step_seconds = statistics.median(without) / steps
    extra = [(a - b) / step_seconds for a, b in zip(with_save, without, strict=True)]
    print(f"{'a step':<44}{step_seconds:>8.2f} s   median of {len(without)} blocks of {steps}")
    print(f"{'the checkpoint':<44}{size / 1e9:>8.2f} GB")
    stall = statistics.median(stalls)
    print(f"{'the loop waits for a save':<44}{stall:>8.2f} s   {stall / step_seconds:.2f} steps")
    lost = statistics.median(extra)
    print(f"{'a block is longer with a save':<44}{lost:>8.2f} steps")
    every = config.checkpoint.save_interval_steps
    print(f"{'of a run, at config.checkpoint.save_interval_steps=' + str(every):<44}{100 * lost / every:>8.2f} %")
    print(f"{'until it is whole, verified and durable':<44}{statistics.median(ends):>8.2f} s")
    started = time.perf_counter()
    hashed = manifest._checksums(path, manifest._sizes(path))
    seconds = time.perf_counter() - started
    print(f"{'its checksums alone':<44}{seconds:>8.2f} s   {len(hashed)} files")
    started = time.perf_counter()
    verify.check(path)
    checked = time.perf_counter()
    checkpoints.restore(step, program.state, ())
    print(f"{'verify':<44}{checked - started:>8.2f} s")
    print(f"{'restore':<44}{time.perf_counter() - checked:>8.2f} s")
    checkpoints.close()


def main(argv: list[str]) -> None:
  """The command."""
  parser = config_parser("python benchmarks/overhead.py", __doc__)
  parser.set_defaults(config="tiny")
  parser.add_argument("--saves", action="store_true", help="measure saves instead of the guards of each step")
  parser.add_argument("--pairs", type=int, default=20, help="blocks with, and as many without")
  parser.add_argument("--steps", type=int, default=10, help="of each block")
  options, config = parse(parser, argv)
  memory.keep_freed_memory()
  config = records(config)
  mesh, _ = mesh_selection.make(config)
  with jax.set_mesh(mesh):
    (saves if options.saves else guards)(config, mesh, pairs=options.pairs, steps=options.steps)


if __name__ == "__main__":
  try:
    main(sys.argv[1:])
  except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
