"""Effect of block sizes on TPU attention kernels, by libtpu's schedules."""

from collections.abc import Mapping

from t2t.configuration.schema import Config
from t2t.models.architecture import is_padded
from t2t.models.kernels import blocks, dispatch, relative_bias_attention, splash
from t2t.planning import roofline
from t2t.training import recipe

# Cycles of forward and backward kernels for each 512 x 512 pairs of the heads that fill 128 lanes, in bfloat16: kernel
# and heads -> `jax.Device.device_kind` -> blocks of queries and of keys. Counted by benchmarks/schedules.py (libtpu
# 0.0.42): relative_bias_attention.py without a mask; splash, with kernels of one head at a time and a causal mask.
CYCLES: Mapping[tuple[str, int], Mapping[str, Mapping[tuple[int, int], int]]] = {
  ("distance", 2): {
    "TPU v4": {(256, 256): 14_752, (512, 512): 10_963, (512, 1024): 10_229},
    "TPU v5 lite": {(256, 256): 11_680, (512, 512): 7_747, (512, 1024): 7_229, (1024, 1024): 7_378},
    "TPU v5": {(256, 256): 13_732, (512, 512): 8_089, (512, 1024): 7_334, (1024, 1024): 7_479},
    "TPU v6 lite": {(256, 256): 8_384, (512, 512): 5_305, (512, 1024): 4_635, (1024, 1024): 4_506},
    "TPU7x": {(256, 256): 9_744, (512, 512): 5_318, (512, 1024): 4_641, (1024, 1024): 4_598},
  },
  ("distance", 1): {
    "TPU v4": {(256, 256): 11_108, (512, 512): 6_963, (512, 1024): 6_082},
    "TPU v5 lite": {(256, 256): 8_504, (512, 512): 5_282, (512, 1024): 4_630, (1024, 1024): 4_460},
    "TPU v5": {(256, 256): 9_472, (512, 512): 5_605, (512, 1024): 4_968, (1024, 1024): 4_730},
    "TPU v6 lite": {(256, 256): 5_932, (512, 512): 3_358, (512, 1024): 2_762, (1024, 1024): 2_545},
    "TPU7x": {(256, 256): 7_208, (512, 512): 3_488, (512, 1024): 2_887, (1024, 1024): 2_580},
  },
  ("splash", 1): {
    "TPU v4": {(256, 256): 11_720, (512, 512): 6_785, (1024, 1024): 5_420},
    "TPU v5 lite": {(256, 256): 9_048, (512, 512): 4_932, (1024, 1024): 4_184},
    "TPU v5": {(256, 256): 10_624, (512, 512): 5_307, (1024, 1024): 4_258},
    "TPU v6 lite": {(256, 256): 7_908, (512, 512): 3_307, (1024, 1024): 2_609},
    "TPU7x": {(256, 256): 7_096, (512, 512): 3_131, (1024, 1024): 2_501},
  },
}

# Multiply-adds per cycle of a core's matrix units: its peak divided by its clock rate.
_MULTIPLY_ADDS = {"TPU v4": 2**16, "TPU v5 lite": 2**16, "TPU v5": 2**16, "TPU v6 lite": 2**18, "TPU7x": 2**18}
# Multiply-adds of a block and a head with 128 features: two products forward and five backward.
_PRODUCTS = 7 * 512 * 512 * 128

# Block sizes that a search tries.
SIZES = (256, 512, 1024)


def _longest(config: Config) -> tuple[str, int]:
  """Returns the longest side and its number of positions."""
  lengths = recipe.positions(config)
  side = max(lengths, key=lengths.get)
  return side, lengths[side]


def _bounds(config: Config, side: str, length: int, kernel: str, device_kind: str) -> tuple[int, int]:
  """Returns the largest query and key blocks of a side's self-attention."""
  model = config.model.of_stack(side)
  # Of alternating layers, the slowest: those without a window.
  window = min(model.windows(length))
  if kernel == "splash":
    apart = config.data.pack or model.bidirectional_prefix or config.mesh.sequence != 1
    causal = side == "decoder" and not window and not apart
    sizes = (length, length), model.head_dim, model.dtype
    return splash.bounds(model.attention_block, *sizes, causal=causal, device_kind=device_kind)
  skips = side == "decoder" or window > 0 or not is_padded(recipe.batch(config))
  largest = blocks.bounds(model.attention_block, skips=skips)
  if kernel != "distance":
    return largest
  reach = max(model.bias_reach(length) if model.biased else 1, window + 1)
  sizes = (length, length, model.head_dim, model.dtype)
  return relative_bias_attention.bounds_for(*sizes, reach=reach, device_kind=device_kind, largest=largest) or largest


def share(config: Config, device_kind: str, chosen: Mapping[str, dispatch.Choice]) -> float:
  """Returns the fraction of peak FLOP/s that a TPU's attention kernel reaches on the longest side.

  It follows from the cycles that libtpu schedules for its blocks; without a count, matmuls' fraction is used. FLOPs of
  narrow heads count as of full-width heads.

  Args:
    config: config of the step.
    device_kind: `jax.Device.device_kind`.
    chosen: result of `recipe.attention_kernels`.
  """
  side, length = _longest(config)
  kernel = chosen[side].kernel
  is_narrow = config.model.of_stack(side).head_dim < relative_bias_attention.LANES
  heads = 2 if kernel == "distance" and is_narrow else 1
  cycles = CYCLES.get((kernel, heads), {}).get(device_kind)
  if cycles is None:
    return roofline.MATMUL_SHARE
  bounds = _bounds(config, side, length, kernel, device_kind)
  if length <= min(bounds) or bounds not in cycles:
    bounds = blocks.LARGEST
  return heads * _PRODUCTS / (cycles[bounds] * _MULTIPLY_ADDS[device_kind])


def saved(config: Config, device_kind: str, chosen: Mapping[str, dispatch.Choice], seconds: float) -> dict[int, float]:
  """Returns `config.model.attention_block` -> predicted seconds saved per step, for blocks that save time.

  Larger blocks are faster, but fewer of them can be skipped. Skipping by causality is counted. Nothing is predicted for
  packed rows, because segments are unknown in advance, and for windows, with which larger blocks are never faster.

  Args:
    config, device_kind, chosen: see `share`.
    seconds: seconds of the step's attention kernels.
  """
  side, length = _longest(config)
  if config.data.pack or any(config.model.of_stack(side).windows(length)):
    return {}

  bounds = lambda of: _bounds(of, side, length, chosen[side].kernel, device_kind)

  def cost(of: Config) -> float:
    sizes = tuple(blocks.block(length, bound) for bound in bounds(of))
    visible = relative_bias_attention.share_by_place(sizes, (length, length), causal=side == "decoder", window=0)
    return visible / share(of, device_kind, chosen)

  current_cost = cost(config)
  variants = {size: config.with_(model={"attention_block": size}) for size in SIZES}
  its = {size: cost(variant) for size, variant in variants.items() if size in bounds(variant)}
  return {
    size: seconds * (1 - variant_cost / current_cost)
    for size, variant_cost in its.items()
    if variant_cost < current_cost
  }
