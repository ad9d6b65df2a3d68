"""Fused attention: kernels that never hold [query, key] arrays of logits, and the choice between them.

On TPUs these are splash attention, Pallas kernels that JAX ships, and where something is added to the logits by
distance (T5), single probabilities are dropped, or rows have masks of their own, those of distance.py; on NVIDIA GPUs
it is cuDNN's attention, or one in Triton where that is asked for.  All compute the softmax in float32, block by block,
and their backward passes compute the logits again (Dao et al. 2022).
"""

from collections.abc import Mapping
import dataclasses
import functools
import math

import jax
import jax.numpy as jnp

from t2t import sharding
from t2t.models.config import ATTENTION_KERNELS
from t2t.models.kernels import blocks, distance, gpu, splash
from t2t.models.kernels.blocks import SAVED, SMALLEST, positions_seen
from t2t.models.kernels.distance import DistanceBias
from t2t.models.masks import AttentionMask

__all__ = ["PLATFORMS", "SAVED", "Choice", "DistanceBias", "attend", "choose", "compute_capability", "described"]

# kernel -> `sharding.platform` that has it.
PLATFORMS = {"splash": "tpu", "distance": "tpu", "cudnn": "gpu", "triton": "gpu"}

# What may be added to the logits or done to them, and how probabilities may be dropped: "rows", all of a key's at once,
# as T5, which is to drop rows of values and any kernel's; or "each" by itself.
BIASES, DROPOUTS = ("", "distance", "array", "soft cap"), ("", "rows", "each")


@dataclasses.dataclass(frozen=True)
class Choice:
  """Which kernel attention runs on, of `ATTENTION_KERNELS` ("plain": none), and why."""

  kernel: str
  reason: str

  def __str__(self) -> str:
    return f"{self.kernel} ({self.reason})"


def described(chosen: Mapping[str, Choice | str]) -> str:
  """Which kernels were chosen, in a line, as a run and a plan of it say.

  Args:
    chosen: part of the model, such as "encoder" -> its choice.
  """
  return "attention: " + "; ".join(f"{part} {choice}" for part, choice in chosen.items())


def choose(
  query_shape: tuple[int, ...],
  key_shape: tuple[int, ...],
  dtype: jax.typing.DTypeLike,
  mask: AttentionMask,
  *,
  platform: str,
  bias: str = "",
  reach: int = 0,
  dropout: str = "",
  device_kind: str = "",
  compute_capability: str = "",
  asked: str = "",
  batch_shards: int = 1,
  head_shards: int = 1,
  length_shards: int = 1,
) -> Choice:
  """The kernel for an attention of these shapes; decided from what is known before anything is compiled.

  Args:
    query_shape, key_shape: [batch, heads, query, kv] and [batch, kv heads, key, kv], over all devices.
    dtype: of queries, keys and values.
    mask: what it has matters, not the numbers in it.
    platform: "cpu", "gpu" or "tpu", see `sharding.platform`.
    bias: one of `BIASES`.
    reach: of a bias by distance, see `DistanceBias.reach`.
    dropout: one of `DROPOUTS`.
    device_kind: `jax.Device.device_kind` of a TPU, whose memory it may be that a kernel does not fit into.
    compute_capability: of the GPU, "9.0" for an H100; see `compute_capability`.
    asked: the kernel that is wanted, where there are several.
    batch_shards, head_shards, length_shards: in how many parts the mesh splits these axes, see `sharding.num_shards`;
      of the lengths the queries' alone.
  """
  batch, heads, query_length, head_dim = query_shape
  key_length = key_shape[2]
  mask = mask.without_idle_window(query_length, key_length)
  dtype = jnp.dtype(dtype).name
  refusals = [
    (asked == "plain", "as config.model.attention_kernel says"),
    (platform not in ("tpu", "gpu"), platform.upper()),
    (bias == "soft cap", "soft cap on the logits"),
    (mask.front, "learned keys in front"),
    (batch % batch_shards, f"{batch} rows over {batch_shards} devices"),
    (heads % head_shards, f"{heads} heads over {head_shards} devices"),
    (query_length % length_shards, f"{query_length} positions over {length_shards} devices"),
  ]
  if platform == "tpu":
    kernel, why = "splash", "TPU, no bias"
    part = query_length // length_shards
    shortest = min(part, key_length)
    farther = max(reach, mask.window + 1)
    bounds = distance.bounds_for(part, key_length, head_dim, dtype, reach=farther, device_kind=device_kind)
    in_lanes = distance.LANES % head_dim == 0 or head_dim % distance.LANES == 0
    in_blocks = length_shards == 1 or part % SMALLEST == 0
    # Splash goes through all such rows as one, and twice backwards.
    apart = splash.goes_end_to_end(mask, is_split=length_shards > 1)
    faster = apart and bounds == blocks.LARGEST and in_lanes and in_blocks
    for needed, reason in (
      (asked == "distance", "as config.model.attention_kernel says"),
      (bias, "bias by distance"),
      (dropout == "each", "dropout of probabilities"),
      (mask.ranks is not None, "ranks"),
      (mask.window and mask.causal and mask.prefix is not None, "window and prefix"),
      (mask.window and query_length != key_length, "window over another sequence"),
      (mask.window and length_shards > 1, "window over a split sequence"),
      (distance.SHORTEST <= shortest < SMALLEST, f"length {shortest}"),
      (faster and asked != "splash", "rows with masks of their own"),
    ):
      if needed and kernel == "splash":
        kernel, why = "distance", f"TPU, {reason}"
    least = distance.SHORTEST if kernel == "distance" else SMALLEST
    refusals += [
      (bias == "array", "bias on the logits"),
      (dtype not in ("bfloat16", "float32"), dtype),
      (shortest < least, f"length {shortest}, a block has {SMALLEST}"),
    ]
    if kernel == "distance":
      farthest = distance.FARTHEST
      refusals += [
        (mask.ranks is not None and mask.causal and mask.prefix is not None, f"ranks and prefix, {why}"),
        (not in_lanes, f"head_dim {head_dim}, {why}"),
        (not in_blocks, f"parts of a sequence that are no blocks, {why}"),
        (mask.window >= farthest, f"window {mask.window}, less than {farthest} {why}"),
        (reach > farthest, f"bias that changes up to distance {reach}, {farthest} {why}"),
        (bounds is None, f"length {part}, too much for a core's memory, {why}"),
      ]
  else:
    kernel, why = "cudnn", "GPU, bias by distance" if bias else "GPU, no bias"
    if asked == "triton":
      kernel, why = asked, "GPU, as config.model.attention_kernel says"
    version, _, minor = compute_capability.partition(".")
    version = int(version) if version.isdecimal() and minor.isdecimal() else 0
    largest = 256 if version >= 9 else 128
    odd = query_length % 2 or key_length % 2
    refusals += [
      (dropout == "each", "dropout of probabilities"),
      (version < 8, f"compute capability {compute_capability or 'unknown'}, less than 8.0"),
      (query_length == 1, "one query"),
      (length_shards > 1, "split sequence"),
    ]
    if kernel == "triton":
      refusals += [
        (not gpu.has_triton(), "Tokamax is not installed: pip install 't2t-jax[tokamax]'"),
        (dtype not in ("bfloat16", "float16", "float32"), dtype),
      ]
    else:
      refusals += [
        (dtype not in ("bfloat16", "float16"), dtype),
        (head_dim % 8 or head_dim > largest, f"head_dim {head_dim}, cuDNN takes multiples of 8 up to {largest}"),
        (odd and bias, "odd length with a bias"),
        (odd and not gpu.is_structure(mask), "odd length with a mask"),
      ]
  for refused, reason in refusals:
    if refused:
      return Choice("plain", reason)
  return Choice(kernel, why)


def compute_capability() -> str:
  """What `choose` asks of the GPU that is here, such as "9.0"; empty on other platforms."""
  return str(getattr(jax.devices()[0], "compute_capability", ""))


def attend(
  query: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  mask: AttentionMask,
  *,
  kernel: str,
  bias: DistanceBias | jax.Array | None = None,
  dropout_rate: float = 0.0,
  dropout_key: jax.Array | None = None,
  largest_block: int = 0,
) -> jax.Array:
  """softmax(query keys^T + bias) values on a kernel, without scaling; every device of a mesh does its rows and heads.

  On a CPU the kernels run too, slowly: those of TPUs in Pallas' interpreter, and for those of GPUs formulas of JAX and
  Tokamax.

  Args:
    query: [batch, heads, query, kv].
    keys, values: [batch, kv heads, key, kv]; a divisor of `heads`: so many heads in a row share one.
    mask: its `query_offset` is taken as 0; a segment's prefix must be one run of positions.
    kernel: "splash", "distance", "cudnn" or "triton", as `choose` has it.
    bias: by distance for the kernel of that name, float32 [1, heads, query, key] on GPUs; splash takes none.
    dropout_rate, dropout_key: of each probability by itself, with the kernel "distance".
    largest_block: of TPUs, in positions, a power of two from 128 on; lengths are padded to whole blocks. 0: the
      kernel's own.

  Returns:
    [batch, heads, query, kv] in the dtype of `query`; zeros where no key has a query's segment.
  """
  # Every device needs a whole number of key heads: with too few, heads that one device shares are on others, too.
  parts = sharding.num_shards("heads")
  copies = parts // math.gcd(keys.shape[1], parts)
  if kernel == "distance" and query.shape[3] < distance.LANES:
    copies = query.shape[1] // keys.shape[1]  # several heads lie in the lanes of one block
  if copies > 1:
    keys, values = (jnp.repeat(x, copies, axis=1) for x in (keys, values))
  if kernel == "distance":
    return _on_distance(query, keys, values, mask, bias, dropout_rate, dropout_key, largest_block=largest_block)
  if kernel == "splash":
    function = functools.partial(splash.attend, largest_block=largest_block)
  elif kernel in ("cudnn", "triton"):
    function = gpu.attend_cudnn if kernel == "cudnn" else gpu.attend_triton
  else:
    raise ValueError(f"kernel is {kernel!r}; there are {', '.join(ATTENTION_KERNELS[:-1])}")
  # Of a split sequence every device has its part of the queries and all keys, and must be told where its part lies.
  reach = None
  if mask.causal and not mask.window and sharding.num_shards("length") > 1:
    reach = positions_seen(mask, query.shape[0], query.shape[2])

  def part(query, keys, values, query_segments, key_segments, prefix, ranks, reach, bias):
    own = {"query_segments": query_segments, "key_segments": key_segments, "prefix": prefix, "ranks": ranks}
    local = dataclasses.replace(mask, **own, query_offset=0)
    given = {"reach": reach, "bias": bias}
    return function(query, keys, values, local, **{name: x for name, x in given.items() if x is not None})

  queries, memory = ("batch", "heads", "length", "kv"), ("batch", "heads", None, "kv")
  ids, all_ids, pairs = ("batch", "length"), ("batch", None), (None, "heads", "length", None)
  run = sharding.per_device(
    part, in_axes=(queries, memory, memory, ids, all_ids, ids, ids, ids, pairs), out_axes=queries
  )
  attended = run(query, keys, values, mask.query_segments, mask.key_segments, mask.prefix, mask.ranks, reach, bias)
  if mask.key_segments is None or (mask.padded and kernel == "cudnn"):
    return attended
  # For such queries the kernels' probabilities do not sum to one in the backward pass.
  sees = jnp.any(mask.query_segments[:, :, None] == mask.key_segments[:, None, :], axis=-1)
  return jnp.where(sees[:, None, :, None], attended, 0)


def _on_distance(
  query: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  mask: AttentionMask,
  bias: DistanceBias | None,
  dropout_rate: float,
  dropout_key: jax.Array | None,
  *,
  largest_block: int,
) -> jax.Array:
  """See `attend`; heads that do not fill the lanes of a block have keys of their own."""
  batch, heads, whole_length, _ = query.shape
  ranks, key_ranks = mask.ranks, mask.ranks
  seeds = starts = None
  has_prefix = mask.causal and mask.prefix is not None
  if has_prefix:
    if ranks is not None:
      raise ValueError("the kernel takes ranks, or a prefix, which it makes ranks of")
    ranks = positions_seen(mask, batch, whole_length)
  if dropout_rate:
    seeds = jax.lax.bitcast_convert_type(jax.random.bits(dropout_key, (batch, heads)), jnp.int32)
  if sharding.num_shards("length") > 1:
    starts = jnp.arange(whole_length, dtype=jnp.int32)

  def part(query, keys, values, query_segments, key_segments, ranks, key_ranks, by_distance, seeds, starts):
    if has_prefix:  # of keys, where they are
      key_ranks = jnp.broadcast_to(jnp.arange(keys.shape[2], dtype=jnp.int32), (len(keys), keys.shape[2]))
    own = {"query_segments": query_segments, "key_segments": key_segments, "prefix": None, "ranks": None}
    return distance.attend(
      *(query, keys, values),
      dataclasses.replace(mask, **own, causal=mask.causal and not has_prefix, query_offset=0),
      bias=None if by_distance is None else DistanceBias(by_distance),
      dropout_rate=dropout_rate,
      seeds=seeds,
      ranks=None if ranks is None else (ranks, key_ranks),
      first_query=None if starts is None else starts[0],
      whole_query_length=whole_length,
      largest_block=largest_block,
    )

  queries, memory = ("batch", "heads", "length", "kv"), ("batch", "heads", None, "kv")
  ids, all_ids = ("batch", "length"), ("batch", None)
  axes = (queries, memory, memory, ids, all_ids, ids, all_ids, ("heads", None), ("batch", "heads"), ("length",))
  run = sharding.per_device(part, in_axes=axes, out_axes=queries)
  by_distance = None if bias is None else bias.values
  segments = mask.query_segments, mask.key_segments
  return run(query, keys, values, *segments, ranks, key_ranks, by_distance, seeds, starts)
