"""Speed of the training step on this machine. `t2t plan` predicts it for TPUs without one.

  python benchmarks/train_step.py                                    # T5 1.1 small, 8 x 512/114 on a CPU
  python benchmarks/train_step.py --config t5_1_1_base --config.train.batch_size=128        # on an accelerator

The step is that of `t2t train`: forward, backward and update, including metrics, on a batch of random ids without
padding. The first two steps are not counted; later steps are timed separately. The best shows the program's speed, the
median that of this machine under load. On chips in accelerators.py, the result includes the step time that the plan
predicts for the program. benchmarks/results/ has earlier measurements.
"""

from collections.abc import Callable
import dataclasses
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import jax
import numpy as np

from t2t import UserError, accelerators, losses, sharding
from t2t.commands.options import config_parser, parse
from t2t.configuration.loading import records
from t2t.configuration.schema import Config
from t2t.models.kernels import dispatch
from t2t.planning import aot_compile as plans
from t2t.runtime import memory, xla_flags
from t2t.training import mesh_selection, recipe


def random_batch(config: Config) -> dict[str, np.ndarray]:
  """Returns random tokens, with as many predicted positions as in training."""
  rng = np.random.default_rng(0)
  share = recipe.share_predicted(config)
  batch = {}
  for name, feature in recipe.batch(config).items():
    rows, length = feature.shape
    if name.endswith("weights"):
      order = np.argsort(rng.random((rows, length)), axis=1)
      batch[name] = (order < round(share * length)).astype(np.float32)
    elif name.endswith("token_types"):
      batch[name] = np.zeros((rows, length), np.int32)
    elif name.endswith("causal_attention"):
      batch[name] = np.broadcast_to(np.arange(length) < config.data.inputs_length, (rows, length)).astype(np.int32)
    elif name.endswith("segment_ids"):
      batch[name] = np.ones((rows, length), np.int32)
    elif name.endswith("positions"):
      batch[name] = np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length))
    else:
      batch[name] = rng.integers(1, config.model.vocab_size, (rows, length), np.int32)
  return batch


def where_time_goes(run: Callable[[], object], *, steps: int) -> dict[str, tuple[float, float]]:
  """Returns milliseconds per step on the first device and number of runs, by HLO instruction, longest first."""
  durations: dict[str, list[float]] = {}
  with tempfile.TemporaryDirectory() as folder:
    with jax.profiler.trace(folder):
      for _ in range(steps):
        run()
    traces = sorted(pathlib.Path(folder).rglob("*.xplane.pb"))
    planes = jax.profiler.ProfileData.from_file(str(traces[0])).planes if traces else ()
    device = min((plane for plane in planes if plane.name.startswith("/device:")), key=lambda x: x.name, default=None)
    for line in device.lines if device else ():
      if line.name.startswith("Stream") or line.name == "XLA Ops":
        for event in line.events:
          name = str(dict(event.stats).get("hlo_op", event.name))
          name = event.name if name.startswith("command_buffer") else name  # a graph of kernels, which have names
          durations.setdefault(name, []).append(event.duration_ns / 1e6)
  times = {name: (sum(samples) / steps, len(samples) / steps) for name, samples in durations.items()}
  return dict(sorted(times.items(), key=lambda item: -item[1][0]))


@dataclasses.dataclass
class Running:
  """A compiled step, its state and its batch on this machine's devices."""

  made: recipe.Recipe
  mesh: jax.sharding.Mesh
  batch: dict
  state: object
  step: jax.stages.Compiled
  seconds: float  # of compilation
  key: jax.Array = dataclasses.field(default_factory=lambda: jax.random.key(1))

  def __call__(self) -> dict:
    """Runs a step and waits; returns its metrics."""
    self.state, values = self.step(self.state, self.batch, self.key)
    jax.block_until_ready((self.state, values))
    return values


def start(config: Config) -> Running:
  """Compiles the step of a config for random tokens."""
  mesh, _ = mesh_selection.make(config)
  training_recipe, batch = recipe.make(config), random_batch(config)
  with jax.set_mesh(mesh):
    program = training_recipe.build(mesh)
    batch = jax.device_put(batch, sharding.batch_sharding(mesh))
    started = time.perf_counter()
    state, key = program.init()(jax.random.key(0)), jax.random.key(1)
    step = program.train_step.lower(state, batch, key).compile()
  return Running(training_recipe, mesh, batch, state, step, time.perf_counter() - started)


def tokens_per_step(config: Config) -> int:
  """Returns the number of input and target tokens of a batch."""
  return config.train.batch_size * sum(recipe.lengths(config).values())


def measure(config: Config, *, steps: int, profile: str = "") -> dict:
  """Times the step on this machine's devices; `profile` is a file for the time of each instruction."""
  running = start(config)
  share = losses.share_of_weights([jax.device_get(running.batch)])
  device = jax.devices()[0]
  peak = accelerators.peak_flops(device.device_kind)
  seconds = []
  for _ in range(steps + 2):
    started = time.perf_counter()
    values = running()
    seconds.append(time.perf_counter() - started)
  if profile:
    pathlib.Path(profile).write_text(json.dumps(where_time_goes(running, steps=3), indent=1))
    pathlib.Path(profile).with_suffix(".hlo").write_text(running.step.as_text())
  with jax.set_mesh(running.mesh):
    attention = dispatch.described(recipe.attention_kernels(config, running.batch)).removeprefix("attention: ")
  seconds = seconds[2:]
  tokens = tokens_per_step(config)
  flops = running.made.flops(predicted=share)
  best, median = min(seconds), statistics.median(seconds)
  predicted = None
  if device.device_kind in accelerators.CHIPS and peak:
    counted = plans.counted(running.step.as_text(), config, running.mesh)
    predicted = float(plans.predicted(counted, config, running.mesh).predicted)
  return {
    "device": f"{jax.device_count()} x {device.device_kind}",
    "attention": attention,
    "start_seconds": running.seconds,
    "best_step_seconds": best,
    "median_step_seconds": median,
    "predicted_step_seconds": predicted,
    "tokens_per_step": tokens,
    "tokens_per_second": tokens / best,
    "median_tokens_per_second": tokens / median,
    "model_flops_per_step": flops,
    "model_flops_per_second": flops / best,
    "mfu": None if peak is None else flops / best / (peak * jax.device_count()),
    "peak_gigabytes": (device.memory_stats() or {}).get("peak_bytes_in_use", 0) / 1e9 or None,
    "loss": float(values["loss"].value()),
  }


def provenance(argv: list[str]) -> dict:
  """Returns the command, the commit and the versions, which make a result reproducible."""
  root = pathlib.Path(__file__).resolve().parent.parent
  commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
  return {
    "command": " ".join(["python", "benchmarks/train_step.py", *argv]),
    "commit": commit.stdout.strip() or None,
    "jax": jax.__version__,
    "runtime": jax.devices()[0].client.platform_version.splitlines()[0],
  }


def main(argv: list[str]) -> None:
  """Runs the benchmark."""
  parser = config_parser("python benchmarks/train_step.py", __doc__)
  parser.set_defaults(config="t5_1_1_small")
  parser.add_argument("--steps", type=int, default=5, help="number of timed steps")
  parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
  parser.add_argument(
    "--profile",
    metavar="FILE",
    default="",
    help="file for the time of each instruction; the program is written beside it",
  )
  parser.add_argument(
    "--append", metavar="FILE", help="append the result to this file, with command, commit and versions"
  )
  options, config = parse(parser, argv)
  typed = " ".join(argv)
  memory.keep_freed_memory()
  if config.train.xla_flags:
    xla_flags.apply()
  if jax.default_backend() == "cpu":
    # Sizes that a CPU handles, and that other frameworks were measured with.
    if "config.train.batch_size" not in typed:
      config.train.batch_size = 8
    if "config.train.logits_chunk_tokens" not in typed and config.model.architecture != "encoder_only":
      config.train.logits_chunk_tokens = 1_024
  result = {"config": options.config, "batch_size": config.train.batch_size}
  result |= measure(records(config), steps=options.steps, profile=options.profile)
  for name, value in result.items():
    print(f"{name:<26}{value:,.4g}" if isinstance(value, float) else f"{name:<26}{value}")
  if options.json:
    print(json.dumps(result))
  if options.append:
    with open(options.append, "a") as file:
      file.write(json.dumps(result | provenance(argv)) + "\n")


if __name__ == "__main__":
  try:
    main(sys.argv[1:])
  except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
