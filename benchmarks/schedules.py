"""Cycles of TPU attention kernels by block size, from libtpu's schedules; needs no TPU.

  .venv-tpu/bin/python benchmarks/schedules.py                                  # T5's attention on every generation
  .venv-tpu/bin/python benchmarks/schedules.py splash --chips v5e v6e --head_dim 128
  .venv-tpu/bin/python benchmarks/schedules.py distance --chips v5e --blocks 512x512 512x1024 --causal

A kernel for one block of queries and one of keys is a straight sequence of instruction bundles, one per cycle if its
inputs arrive in time. Each row has the bundles of the forward kernel, of all backward kernels, and of both per 512 x
512 pairs, for the features that fill 128 lanes. A mask that skips whole blocks skips more of small ones.
"""

import argparse
import os
import pathlib
import re
import shutil
import sys
import tempfile
import time

# libtpu reads this when it is loaded.
_DUMPS = pathlib.Path(tempfile.mkdtemp(prefix="schedules"))
os.environ["LIBTPU_INIT_ARGS"] = f"--xla_jf_dump_to={_DUMPS} --xla_jf_dump_llo_text=true"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from t2t.models.kernels import relative_bias_attention, splash  # noqa: E402
from t2t.models.masks import AttentionMask, DistanceBias  # noqa: E402
from t2t.planning import aot_compile  # noqa: E402

_CHIPS = {"v4": "v4:2x2x1", "v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2", "tpu7x": "tpu7x:2x2x1"}
_BLOCKS = ("256x256", "512x512", "512x1024", "1024x512", "1024x1024")
_LANES = 128
_PAIRS = 512 * 512


def bundles(kernel: str, device: jax.Device, block: tuple[int, int], options: argparse.Namespace) -> tuple[int, int]:
  """Returns the bundles of a block, forward and backward; lengths are chosen for several blocks of each."""
  for path in _DUMPS.iterdir():
    path.unlink()
  where = jax.sharding.NamedSharding(jax.sharding.Mesh(np.array([device]), ("data",)), jax.sharding.PartitionSpec())
  heads, head_dim = max(1, _LANES // options.head_dim), options.head_dim
  array = lambda *shape, dtype=jnp.bfloat16: jax.ShapeDtypeStruct(shape, dtype, sharding=where)
  arrays = [array(1, heads, 2 * length, head_dim) for length in (block[0], block[1], block[1])]
  mask = AttentionMask(causal=options.causal)

  def summed(query, keys, values, bias, read_out):
    if kernel == "splash":
      attended = splash.attend(query, keys, values, mask, largest_block=0)
    else:
      attended = relative_bias_attention.attend(query, keys, values, mask, bias=DistanceBias(bias))
    return jnp.sum(attended.astype(jnp.float32) * read_out)

  read_out, bias = array(*arrays[0].shape, dtype=jnp.float32), array(heads, 257, dtype=jnp.float32)
  grad = jax.grad(summed, argnums=(0, 1, 2, 3) if kernel == "distance" else (0, 1, 2))
  with jax.set_mesh(where.mesh):
    jax.jit(grad).lower(*arrays, bias, read_out).compile()
  forward = backward = 0
  for path in _DUMPS.glob("*schedule-analysis_final_bundles.txt"):
    if "attention" in path.name or "splash" in path.name:
      number = int(re.search(r"total scheduled bundles:\s+(\d+)", path.read_text())[1])
      is_forward = "forward" in path.name or "fwd" in path.name
      forward, backward = forward + number * is_forward, backward + number * (not is_forward)
  return forward, backward


def main(argv: list[str]) -> None:
  """Runs the benchmark."""
  kind = argparse.RawDescriptionHelpFormatter
  parser = argparse.ArgumentParser("python benchmarks/schedules.py", description=__doc__, formatter_class=kind)
  parser.add_argument("kernel", nargs="?", choices=("distance", "splash"), default="distance")
  parser.add_argument("--chips", nargs="+", choices=tuple(_CHIPS), default=tuple(_CHIPS), help="generations")
  parser.add_argument("--blocks", nargs="+", default=_BLOCKS, metavar="QUERIESxKEYS", help="default: %(default)s")
  parser.add_argument("--head_dim", type=int, default=64, help="features of a head; default: %(default)s")
  parser.add_argument("--causal", action="store_true", help="causal mask")
  options = parser.parse_args(argv)
  columns = f"{'chip':<8}{'block':<12}{'forward':>9}{'backward':>10}{'per 512 x 512':>15}{'compiling':>11}"
  print(columns, flush=True)
  for chip in options.chips:
    device = aot_compile.devices(_CHIPS[chip])[0]
    for text in options.blocks:
      block = tuple(map(int, text.split("x")))
      started = time.monotonic()
      # Overrides t2t's choice of block sizes.
      splash.bounds = relative_bias_attention.blocks_for = lambda *_, block=block, **__: block
      try:
        forward, backward = bundles(options.kernel, device, block, options)
      except Exception as error:  # of the compiler, usually out of memory
        print(f"{chip:<8}{text:<12}{str(error).splitlines()[0][:58]}", flush=True)
        continue
      total_cycles = (forward + backward) * _PAIRS / (block[0] * block[1])
      took = f"{time.monotonic() - started:.0f} s"
      print(f"{chip:<8}{text:<12}{forward:>9,}{backward:>10,}{total_cycles:>15,.0f}{took:>11}", flush=True)


if __name__ == "__main__":
  try:
    main(sys.argv[1:])
  finally:
    shutil.rmtree(_DUMPS)
