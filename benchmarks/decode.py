"""Speed of text generation on this machine.

  python benchmarks/decode.py                                  # T5 1.1 small, 16 x 128 inputs, 64 new tokens, greedy
  python benchmarks/decode.py --num_beams=4
  python benchmarks/decode.py --config gpt2_small --batch_size=1 --beside_int8   # and `--weights int8`, alternating
  python benchmarks/decode.py --config t5_1_1_base --batch_size=128 --new_tokens=128              # on an accelerator

The model has random weights. It reads random ids without padding, as the prompt if it is decoder-only. EOS is disabled,
so every sequence gets all its tokens. The first run compiles and is not counted; later runs are timed separately. The
best shows the program's speed, the median that of this machine under load. A step is one new token of every sequence,
including its share of reading the inputs. With beams, only tokens of the best beam count.
"""

from collections.abc import Callable, Mapping
import json
import statistics
import sys
import time

from flax import nnx
import jax
import numpy as np

from t2t import UserError, sharding
from t2t.commands.options import config_parser, parse
from t2t.configuration.loading import records
from t2t.configuration.schema import Config
from t2t.inference import decoding
from t2t.models import int8_matrix, transformer
from t2t.models.config import TransformerConfig
from t2t.runtime import memory, numeric
from t2t.training import mesh_selection


def random_batch(model_config: TransformerConfig, *, batch_size: int, inputs_length: int) -> dict[str, np.ndarray]:
  """Returns random input tokens."""
  tokens = np.random.default_rng(0).integers(2, model_config.vocab_size, (batch_size, inputs_length), np.int32)
  if model_config.architecture == "encoder_decoder":
    return {"encoder_input_tokens": tokens}
  return {"decoder_input_tokens": tokens, "decoder_causal_attention": np.ones_like(tokens)}


def start(
  config: Config, decode_config: decoding.DecodeConfig, *, batch_size: int, inputs_length: int, int8: bool = False
):
  """Compiles the decoding of random inputs, with matrices in int8 on request.

  Returns:
    A function that decodes, waits and returns `decoding.Decoded`; and the seconds of compilation.
  """
  model_config = config.model
  decoding.check_positions(model_config, inputs_length, decode_config.max_length)
  mesh, _ = mesh_selection.make(config)
  build = lambda key: transformer.build(model_config, nnx.Rngs(key))
  make = (lambda key: int8_matrix.weight_only(build(key))) if int8 else build
  key = jax.random.key(0)
  graphdef, shapes = nnx.split(jax.eval_shape(make, key), graph=False)
  with jax.set_mesh(mesh):
    params = jax.jit(
      lambda key: nnx.to_pure_dict(nnx.split(make(key), graph=False)[1]),
      out_shardings=sharding.param_shardings(shapes, mesh),
    )(key)
    batch = random_batch(model_config, batch_size=batch_size, inputs_length=inputs_length)
    batch = jax.device_put(batch, sharding.batch_sharding(mesh))
    started = time.perf_counter()
    write = decoding.make_decode(graphdef, decode_config, eos_id=-1).lower(params, batch, key).compile()
  return lambda: jax.block_until_ready(write(params, batch, key)), time.perf_counter() - started


def measure(writes: Mapping[str, Callable], *, steps: int, runs: int) -> dict[str, dict[str, float | str]]:
  """Times functions of `start` in turn, each `runs` times after a first call.

  Args:
    writes: name -> function.
    steps: new tokens of each sequence.
    runs: timed calls of each.

  Returns:
    Name -> figures.
  """
  seconds: dict[str, list[float]] = {name: [] for name in writes}
  decoded = {}
  for _ in range(runs + 1):
    for name, write in writes.items():
      started = time.perf_counter()
      decoded[name] = write()
      seconds[name].append(time.perf_counter() - started)
  figures = {}
  for name, out in decoded.items():
    best, median = min(seconds[name][1:]), statistics.median(seconds[name][1:])
    tokens = len(out.scores) * steps
    figures[name] = {
      "device": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
      "best_step_seconds": best / steps,
      "median_step_seconds": median / steps,
      "new_tokens": tokens,
      "tokens_per_second": tokens / best,
      "median_tokens_per_second": tokens / median,
      "mean_score": float(out.scores[:, 0].mean()),
    } | {name: float(x.sum()) for name, x in out.counts.items()}
  return figures


def main(argv: list[str]) -> None:
  """Runs the benchmark."""
  parser = config_parser("python benchmarks/decode.py", __doc__)
  parser.set_defaults(config="t5_1_1_small")
  parser.add_argument("--batch_size", type=int, default=16, help="sequences")
  parser.add_argument("--inputs_length", type=int, default=128, help="input tokens of each sequence")
  parser.add_argument("--new_tokens", type=int, default=64, help="new tokens of each sequence")
  parser.add_argument("--num_beams", type=int, default=1, help="1: greedy")
  parser.add_argument("--temperature", type=numeric.number(0), default=0.0, help="above 0: sampling")
  parser.add_argument("--top_k", type=int, default=0, help="sample from the k likeliest tokens; 0: all")
  parser.add_argument(
    "--top_p",
    type=numeric.number(0, 1, above=True),
    default=1.0,
    help="sample from the likeliest tokens with this total probability",
  )
  parser.add_argument("--runs", type=int, default=5, help="number of timed runs")
  parser.add_argument("--beside_int8", action="store_true", help="also time the model with `--weights int8`")
  parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
  options, config = parse(parser, argv)
  memory.keep_freed_memory()
  decode_config = decoding.DecodeConfig(
    options.new_tokens,
    num_beams=options.num_beams,
    temperature=options.temperature,
    top_k=options.top_k,
    top_p=options.top_p,
  )
  sizes = {"batch_size": options.batch_size, "inputs_length": options.inputs_length}
  ways = {"as loaded": False} | ({"int8": True} if options.beside_int8 else {})
  writes, compiled = {}, {}
  for name, int8 in ways.items():
    writes[name], compiled[name] = start(records(config), decode_config, int8=int8, **sizes)
  figures = measure(writes, steps=options.new_tokens, runs=options.runs)
  result = {"config": options.config, "num_beams": options.num_beams} | sizes
  result |= {"compile_seconds": compiled["as loaded"]} | figures["as loaded"]
  if options.beside_int8:
    result["int8_median_tokens_per_second"] = figures["int8"]["median_tokens_per_second"]
    result["int8_ratio"] = figures["as loaded"]["median_step_seconds"] / figures["int8"]["median_step_seconds"]
  for name, value in result.items():
    print(f"{name:<32}{value:,.4g}" if isinstance(value, float) else f"{name:<32}{value}")
  if options.json:
    print(json.dumps(result))


if __name__ == "__main__":
  try:
    main(sys.argv[1:])
  except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
