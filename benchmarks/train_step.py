"""Speed of the training step on this machine.  `t2t plan` says what it takes on a TPU that is not there.

  python benchmarks/train_step.py                                    # T5 1.1 small, 8 x 512/114, float32 on a CPU
  python benchmarks/train_step.py --config t5_1_1_base --config.train.batch_size=128        # on an accelerator

The step is the one that `t2t train` runs: forward, backward and update, metrics included; the batch is random ids
without padding.  Steps are timed one by one after two that are not counted: the best says what the program can do, the
median what this machine gave it.
"""

import json
import statistics
import sys
import time

import jax
import numpy as np

from t2t import UserError, chips, losses, sharding
from t2t.commands.options import config_parser, parse
from t2t.runtime import memory
from t2t.sections import Config
from t2t.settings import records
from t2t.training import meshes, recipe


def random_batch(config: Config) -> dict[str, np.ndarray]:
  """Random tokens, of which as many are to be predicted as in training."""
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


def measure(config: Config, *, steps: int) -> dict:
  """Times the step on the devices that are here."""
  mesh, _ = meshes.make(config)
  batch = random_batch(config)
  share = losses.share_of_weights([batch])
  made = recipe.make(config)
  with jax.set_mesh(mesh):
    program = made.on(mesh)
    step, make = program.train_step, program.fresh()
    batch = jax.device_put(batch, sharding.batch_sharding(mesh))
    started = time.perf_counter()
    state = make(jax.random.key(0))
    seconds = []
    for number in range(steps + 2):
      if number == 2:
        compiled = time.perf_counter() - started
      start = time.perf_counter()
      state, values = step(state, batch, jax.random.key(1))
      jax.block_until_ready((state, values))
      seconds.append(time.perf_counter() - start)
  seconds = seconds[2:]
  tokens = config.train.batch_size * sum(recipe.lengths(config).values())
  flops = made.flops(predicted=share)
  device = jax.devices()[0]
  peak = chips.PEAK_FLOPS.get(device.device_kind)
  best, median = min(seconds), statistics.median(seconds)
  return {
    "device": f"{jax.device_count()} x {device.device_kind}",
    "start_seconds": compiled,
    "best_step_seconds": best,
    "median_step_seconds": median,
    "tokens_per_step": tokens,
    "tokens_per_second": tokens / best,
    "median_tokens_per_second": tokens / median,
    "model_flops_per_step": flops,
    "model_flops_per_second": flops / best,
    "mfu": None if peak is None else flops / best / (peak * jax.device_count()),
    "loss": float(values["loss"].value()),
  }


def main(argv: list[str]) -> None:
  """The command."""
  parser = config_parser("python benchmarks/train_step.py", __doc__)
  parser.set_defaults(config="t5_1_1_small")
  parser.add_argument("--steps", type=int, default=5, help="steps that are timed")
  parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
  options, config = parse(parser, argv)
  given = " ".join(argv)
  memory.keep_freed_memory()
  if jax.default_backend() == "cpu":
    # What a CPU can do in an afternoon, and the size that others were measured at.
    if "config.model.dtype" not in given:
      config.model.dtype = "float32"
    if "config.train.batch_size" not in given:
      config.train.batch_size = 8
    if "config.train.chunk_tokens" not in given and config.model.architecture != "encoder_only":
      config.train.chunk_tokens = 1_024
  result = {"config": options.config, "batch_size": config.train.batch_size}
  result |= measure(records(config), steps=options.steps)
  for name, value in result.items():
    print(f"{name:<26}{value:,.4g}" if isinstance(value, float) else f"{name:<26}{value}")
  if options.json:
    print(json.dumps(result))


if __name__ == "__main__":
  try:
    main(sys.argv[1:])
  except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
