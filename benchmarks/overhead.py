"""Overhead of fault tolerance: the guards of each step, and a save with its checksums.

  python benchmarks/overhead.py                                                  # tiny: the guards of each step
  python benchmarks/overhead.py --saves --config t5_1_1_small --config.optimizer.name=adamw --config.train.batch_size=8

Guards run at each step: squared gradient norms by parameter group instead of the total norm (compiled both ways), the
loss watch, the watchdog, the clock of goodput with its records, a look for a profile request, and, on a bucket's
emulator, renewals of the lease. Blocks of steps with and without guards
alternate in one process. Each pair gives a ratio; the median and quartiles of the pairs are printed. The difference of
the compiled programs does not depend on other work on the machine.

--saves compares blocks in which a save follows the first step with blocks without a save. The stall is the time that
the training loop waits (check for finite values, copy of the arrays, start of the files). The rest runs in the
background, and slows the next steps if the machine has no free cores. Then the checkpoint is verified and restored.
"""

import contextlib
import dataclasses
import pathlib
import statistics
import sys
import tempfile
import time
import types
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
from t2t.training import grad_stats, mesh_selection, recipe, session_clock  # noqa: E402
from t2t.training.callbacks import checkpointing, goodput, nan_policy, profile_requests  # noqa: E402

_CALLS = 5_000  # for calls that take microseconds


@dataclasses.dataclass
class Training:
  """A training state and its batch."""

  state: Any
  batch: Any

  def block(self, step: Any, steps: int) -> float:
    """Returns the seconds of several steps."""
    started = time.perf_counter()
    for _ in range(steps):
      self.state, self.metrics = step(self.state, self.batch, jax.random.key(1))
    jax.block_until_ready(self.state)
    return time.perf_counter() - started


def _told(name: str, ratios: list[float]) -> None:
  low, middle, high = statistics.quantiles(ratios, n=4)
  print(f"{name:<44}{100 * (middle - 1):>8.2f} %   quartiles {100 * (low - 1):.2f} to {100 * (high - 1):.2f} %")


def _cost(step: Any, training: Training) -> dict[str, float]:
  """Returns XLA's cost analysis of a program."""
  return step.lower(training.state, training.batch, jax.random.key(1)).compile().cost_analysis()


def _each(call: Any) -> float:
  """Returns the CPU seconds of one call, over all threads of this process."""
  started = time.process_time()
  for number in range(_CALLS):
    call(number)
  return (time.process_time() - started) / _CALLS


def guards(config: Config, mesh: jax.sharding.Mesh, *, pairs: int, steps: int) -> None:
  """Prints the cost of the guards, as a share of a step."""
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
  _told(
    "squared norms by group, not the total norm", [a / b for a, b in zip(seconds[guarded], seconds[plain], strict=True)]
  )
  for quantity in ("flops", "bytes accessed"):
    more = _cost(guarded, training)[quantity] / _cost(plain, training)[quantity] - 1
    print(f"{'the same, ' + quantity + ' of the program':<44}{100 * more:>8.3f} %")

  watch = nan_policy.Watch(
    dataclasses.replace(
      config, nan_policy=dataclasses.replace(config.nan_policy, spike_deviations=1e6, spike_window=128)
    ),
    epath.Path(tempfile.gettempdir()),
    program.state.params,
    {},
  )
  values = {"loss": 1.0, "grad_norm": 1.0}
  _share("the loss watch, with a window of 128", _each(lambda n: watch.judge(n, values, squares, {})), step)
  with watchdog.Watchdog(10.0).running() as watched:
    _share("the watchdog, including its thread", _each(lambda n: watched.step()), step)
  _share("the clock of goodput", _hooks(goodput.Goodput()), step)
  _share("records of goodput, one a second", *_record())
  _share("a look for a profile request, at each step", _hooks(profile_requests.ProfileRequests()), step)
  _share("the lease of a bucket", *_renewal())


def _share(name: str, seconds: float, of: float) -> None:
  print(f"{name:<44}{100 * seconds / of:>8.3f} %   {1e6 * seconds:.0f} us of CPU time")


def _hooks(callback: Any) -> float:
  """Returns the CPU seconds of a callback's hooks in a step."""
  metrics = {"loss": types.SimpleNamespace(total=jax.numpy.zeros(()))}
  with tempfile.TemporaryDirectory() as folder:
    run: Any = types.SimpleNamespace(
      clock=session_clock.SessionClock(),
      step=1,
      config=types.SimpleNamespace(train=types.SimpleNamespace(log_every=1, steps=_CALLS + 2)),
      workdir=epath.Path(folder),
      batches=types.SimpleNamespace(wait_seconds=1e-6),
      dispatched=types.SimpleNamespace(metrics=metrics),
    )

    def step(number: int) -> None:
      run.step = number + 1
      callback.on_batch(run, {})
      callback.on_step(run)
      callback.on_step_end(run)

    step(0)
    return _each(step)


def _record() -> tuple[float, float]:
  """Returns the CPU seconds of a record on this disk, and the shortest time between two records."""
  with tempfile.TemporaryDirectory() as folder:
    clock = session_clock.SessionClock(epath.Path(folder) / session_clock.NAME)
    started = time.process_time()
    for _ in range(100):
      clock.record()
    return (time.process_time() - started) / 100, session_clock._LEAST


def _renewal() -> tuple[float, float]:
  """Returns the CPU seconds of a renewal, including the emulator, and the seconds between two renewals."""
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
  """Prints the cost of a save for the training loop, and the times to verify and restore it."""
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
    print(f"{'stall of the training loop by a save':<44}{stall:>8.2f} s   {stall / step_seconds:.2f} steps")
    lost = statistics.median(extra)
    print(f"{'a block is longer with a save':<44}{lost:>8.2f} steps")
    every = config.checkpoint.save_interval_steps
    print(f"{'of a run, at config.checkpoint.save_interval_steps=' + str(every):<44}{100 * lost / every:>8.2f} %")
    print(f"{'until it is whole, verified and durable':<44}{statistics.median(ends):>8.2f} s")
    started = time.perf_counter()
    hashed = manifest._checksums(path, manifest._sizes(path))
    seconds = time.perf_counter() - started
    print(f"{'checksums only':<44}{seconds:>8.2f} s   {len(hashed)} files")
    started = time.perf_counter()
    verify.check(path)
    checked = time.perf_counter()
    checkpoints.restore(step, program.state, ())
    print(f"{'verify':<44}{checked - started:>8.2f} s")
    print(f"{'restore':<44}{time.perf_counter() - checked:>8.2f} s")
    checkpoints.close()


def main(argv: list[str]) -> None:
  """Runs the benchmark."""
  parser = config_parser("python benchmarks/overhead.py", __doc__)
  parser.set_defaults(config="tiny")
  parser.add_argument("--saves", action="store_true", help="measure saves instead of the guards of each step")
  parser.add_argument("--pairs", type=int, default=20, help="number of blocks with, and as many without")
  parser.add_argument("--steps", type=int, default=10, help="steps of each block")
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
