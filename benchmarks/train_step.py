"""Speed of the training step on this machine, or its memory on a TPU that is not there.

  python benchmarks/train_step.py                                    # T5 1.1 small, 8 x 512/114, float32 on a CPU
  python benchmarks/train_step.py --config t5_1_1_base --config.train.batch_size=128        # on an accelerator
  python benchmarks/train_step.py --config t5_1_1_xl --topology v5e:16x16 --config.train.batch_size=1024 \
    --config.mesh.fsdp=64 --config.mesh.tensor=4 --config.optimizer.name=sgd                # needs the [tpu] extra

The step is the one that `t2t train` runs: forward, backward and update, metrics included; the batch is random ids
without padding.  Steps are timed one by one after two that are not counted: the best says what the program can do, the
median what this machine gave it.
"""

import json
import os
import statistics
import sys
import time

from flax import nnx
import jax
import jax.numpy as jnp
from ml_collections import ConfigDict
import numpy as np

from t2t import UserError, command_line, losses, metrics, optimizers, sharding, train_state
from t2t.models import cpu, transformer
from t2t.models.config import TransformerConfig


def lengths(config: ConfigDict) -> dict[str, int]:
  """Positions of the encoder and of the decoder; a decoder alone is given a language model's batches."""
  inputs, targets = config.data.inputs_length, config.data.targets_length
  both = {"encoder": inputs, "decoder": targets}
  return {side: both[side] for side in both if config.model[f"num_{side}_layers"]}


def batch_shapes(config: ConfigDict) -> dict[str, tuple[int, int]]:
  """Shape of each feature of a batch; the last stack has targets."""
  sides = lengths(config)
  found = {f"{side}_input_tokens": length for side, length in sides.items()}
  last, length = list(sides.items())[-1]
  found |= {f"{last}_target_tokens": length, f"{last}_loss_weights": length}
  return {name: (config.train.batch_size, length) for name, length in found.items()}


def random_batch(config: ConfigDict) -> dict[str, np.ndarray]:
  """Random tokens; of an encoder alone 15 % of the positions are to be predicted, of others all."""
  rng = np.random.default_rng(0)
  share = 0.15 if config.model.architecture == "encoder_only" else 1.0
  batch = {}
  for name, (rows, length) in batch_shapes(config).items():
    if name.endswith("weights"):
      order = np.argsort(rng.random((rows, length)), axis=1)
      batch[name] = (order < round(share * length)).astype(np.int32)
    else:
      batch[name] = rng.integers(1, config.model.vocab_size, (rows, length), np.int32)
  return batch


def build(config: ConfigDict, mesh: jax.sharding.Mesh):
  """The compiled-on-demand step, the abstract state and the function that makes it."""
  model_config = TransformerConfig(**config.model)
  tx, _ = optimizers.make_optimizer(optimizers.OptimizerConfig(**config.optimizer), config.train.steps)
  graphdef, state, make = train_state.abstract_train_state(
    lambda key: transformer.build(model_config, nnx.Rngs(key)), tx, mesh, freeze=config.train.freeze
  )
  shardings = jax.tree.map(lambda x: x.sharding, state)
  loss = losses.CrossEntropyConfig(config.train.z_loss, config.train.label_smoothing, config.train.chunk_tokens)
  step = train_state.make_train_step(
    graphdef, losses.make_loss_fn(loss), tx, shardings, num_microbatches=config.train.microbatches
  )
  return step, state, jax.jit(make, out_shardings=shardings)


def measure(config: ConfigDict, *, steps: int) -> dict:
  """Times the step on the devices that are here."""
  mesh = sharding.make_mesh(config.mesh)
  batch = random_batch(config)
  share = losses.share_of_weights([batch])
  with jax.set_mesh(mesh):
    step, _, make = build(config, mesh)
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
  tokens = config.train.batch_size * sum(lengths(config).values())
  flops = metrics.model_flops(
    TransformerConfig(**config.model), batch_size=config.train.batch_size, lengths=lengths(config), predicted=share
  )
  device = jax.devices()[0]
  peak = metrics.PEAK_FLOPS.get(device.device_kind)
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


def compile_for(config: ConfigDict, topology: str, *, hlo: str | None) -> dict:
  """Compiles the step for TPUs that are not there and reads what each chip needs."""
  os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
  jax.config.update("jax_platforms", "cpu")
  from jax.experimental import topologies

  try:
    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
  except Exception as error:  # libtpu raises several kinds, all of them about the name or about libtpu itself
    raise UserError(
      f"--topology {topology}: {error}; examples: v4:2x2x4, v5e:4x4, v5p:8x8x16; needs t2t[tpu]"
    ) from error
  mesh = sharding.make_mesh(config.mesh, devices=devices)
  with jax.set_mesh(mesh):
    step, state, _ = build(config, mesh)
    batch = {
      name: jax.ShapeDtypeStruct(shape, jnp.int32, sharding=sharding.batch_sharding(mesh))
      for name, shape in batch_shapes(config).items()
    }
    key = jax.eval_shape(lambda: jax.random.key(0))
    started = time.perf_counter()
    compiled = step.lower(state, batch, key).compile()
  memory, cost = compiled.memory_analysis(), compiled.cost_analysis()
  if hlo:
    with open(hlo, "w") as file:
      file.write(compiled.as_text())
  return {
    "device": f"{len(devices)} x {devices[0].device_kind}",
    "compile_seconds": time.perf_counter() - started,
    "temporaries_gb_per_chip": memory.temp_size_in_bytes / 1e9,
    "arguments_gb_per_chip": memory.argument_size_in_bytes / 1e9,
    "flops_loops_once": cost["flops"],
    "bytes_loops_once": cost["bytes accessed"],
  }


def main(argv: list[str]) -> None:
  """The command."""
  parser = command_line.config_parser("python benchmarks/train_step.py", __doc__)
  parser.set_defaults(config="t5_1_1_small")
  parser.add_argument("--steps", type=int, default=5, help="steps that are timed")
  parser.add_argument("--topology", help="compile for this TPU instead of running: v5e:4x4, v5e:16x16, v5p:8x8x16, ...")
  parser.add_argument("--hlo", help="with --topology: write the optimised program to this file")
  parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
  options, config = command_line.parse(parser, argv)
  given = " ".join(argv)
  cpu.keep_freed_memory()
  if not options.topology and jax.default_backend() == "cpu":
    # What a CPU can do in an afternoon, and the size that others were measured at.
    if "config.model.dtype" not in given:
      config.model.dtype = "float32"
    if "config.train.batch_size" not in given:
      config.train.batch_size = 8
    if "config.train.chunk_tokens" not in given and config.model.architecture != "encoder_only":
      config.train.chunk_tokens = 1_024
  if options.topology:
    result = compile_for(config, options.topology, hlo=options.hlo)
  else:
    result = measure(config, steps=options.steps)
  result = {"config": options.config, "batch_size": config.train.batch_size} | result
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
