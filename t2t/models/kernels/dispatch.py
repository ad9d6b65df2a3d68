"""Selects and calls fused attention kernels, which never store [query, key] arrays of logits.

On TPUs: splash attention, Pallas kernels from JAX; or the kernels of relative_bias_attention.py for a bias by distance
(T5), dropout of single probabilities, or row-specific masks. On NVIDIA GPUs: cuDNN's attention, or one in Triton if
requested. All compute the softmax in float32, block by block, and recompute logits in the backward pass (Dao et al.
2022).
"""

from collections.abc import Mapping
import dataclasses
import functools
import math

import jax
import jax.numpy as jnp

from t2t import UserError, sharding
from t2t.models.architecture import Batch, decoder_mask, is_padded, sides
from t2t.models.config import ATTENTION_KERNELS, TransformerConfig
from t2t.models.masks import AttentionMask, DistanceBias
from t2t.runtime.lazy_table import LazyTable

# kernel -> `sharding.platform` that supports it.
PLATFORMS = {"splash": "tpu", "distance": "tpu", "cudnn": "gpu", "triton": "gpu"}

# kernel -> its function of one device's arrays; "distance" has a separate function for a mesh.
_ATTEND = LazyTable(
  {
    "splash": "t2t.models.kernels.splash:attend",
    "cudnn": "t2t.models.kernels.gpu:attend_cudnn",
    "triton": "t2t.models.kernels.gpu:attend_triton",
  }
)

# Additions to the logits or transformations of them; and kinds of dropout: "rows" drops all probabilities of a key, as
# T5, by dropping rows of values, which works with any kernel; "each" drops single probabilities.
BIASES, DROPOUTS = ("", "distance", "array", "rows", "soft cap"), ("", "rows", "each")


@dataclasses.dataclass(frozen=True)
class Choice:
  """Selected attention kernel, one of `ATTENTION_KERNELS` ("plain": no kernel), and the reason."""

  kernel: str
  reason: str

  def __str__(self) -> str:
    return f"{self.kernel} ({self.reason})"


def described(chosen: Mapping[str, Choice | str]) -> str:
  """Returns one line with the selected kernels, for logs of runs and plans.

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
  requested: str = "",
  batch_shards: int = 1,
  head_shards: int = 1,
  length_shards: int = 1,
) -> Choice:
  """Selects the kernel for an attention of these shapes, from information available before compilation.

  Args:
    query_shape, key_shape: [batch, heads, query, kv] and [batch, kv heads, key, kv], over all devices.
    dtype: dtype of queries, keys and values.
    mask: only its structure matters, not its values.
    platform: "cpu", "gpu" or "tpu", see `sharding.platform`.
    bias: one of `BIASES`.
    reach: reach of a bias by distance, see `DistanceBias.reach`.
    dropout: one of `DROPOUTS`.
    device_kind: `jax.Device.device_kind` of a TPU, which determines the memory for kernels.
    compute_capability: of the GPU, "9.0" for an H100; see `compute_capability`.
    requested: the requested kernel, if there is a choice.
    batch_shards, head_shards, length_shards: number of shards of these axes on the mesh, see `sharding.num_shards`; for
      lengths, of the queries only.
  """
  batch, heads, query_length, head_dim = query_shape
  key_length = key_shape[2]
  mask = mask.without_idle_window(query_length, key_length)
  dtype = jnp.dtype(dtype).name
  refusals = [
    (requested == "plain", "set by config.model.attention_kernel"),
    (platform not in ("tpu", "gpu"), platform.upper()),
    (bias == "soft cap", "soft cap on the logits"),
    (mask.front, "learned prefix keys"),
    (mask.streams > 1, "two streams"),
    (mask.memory, "memory"),
    (bias == "rows", "bias per row"),
    (batch % batch_shards, f"{batch} rows over {batch_shards} devices"),
    (heads % head_shards, f"{heads} heads over {head_shards} devices"),
    (query_length % length_shards, f"{query_length} positions over {length_shards} devices"),
  ]
  known = {"bias": bias, "dropout": dropout, "requested": requested, "length_shards": length_shards}
  if platform == "tpu":
    kernel, why, more = _on_tpu(query_shape, key_length, dtype, mask, reach=reach, device_kind=device_kind, **known)
  else:
    kernel, why, more = _on_gpu(query_shape, key_length, dtype, mask, compute_capability=compute_capability, **known)
  for refused, reason in (*refusals, *more):
    if refused:
      return Choice("plain", reason)
  return Choice(kernel, why)


def _on_tpu(
  query_shape: tuple[int, ...],
  key_length: int,
  dtype: str,
  mask: AttentionMask,
  *,
  bias: str,
  dropout: str,
  requested: str,
  length_shards: int,
  reach: int,
  device_kind: str,
) -> tuple[str, str, list[tuple[object, str]]]:
  """Returns a TPU's kernel, the reason, and conditions that exclude it; see `choose`."""
  from t2t.models.kernels import blocks, relative_bias_attention, splash

  _, _, query_length, head_dim = query_shape
  kernel, why = "splash", "TPU, no bias"
  part = query_length // length_shards
  shortest = min(part, key_length)
  farther = max(reach, mask.window + 1)
  bounds = relative_bias_attention.bounds_for(part, key_length, head_dim, dtype, reach=farther, device_kind=device_kind)
  in_lanes = relative_bias_attention.LANES % head_dim == 0 or head_dim % relative_bias_attention.LANES == 0
  in_blocks = length_shards == 1 or part % blocks.SMALLEST == 0
  # Splash processes all such rows as one sequence, and twice in the backward pass.
  apart = splash.goes_end_to_end(mask, is_split=length_shards > 1)
  faster = apart and bounds == blocks.LARGEST and in_lanes and in_blocks
  for needed, reason in (
    (requested == "distance", "set by config.model.attention_kernel"),
    (bias, "bias by distance"),
    (dropout == "each", "dropout of probabilities"),
    (mask.ranks is not None, "ranks"),
    (mask.window and mask.causal and mask.prefix is not None, "window and prefix"),
    (mask.window and query_length != key_length, "window in cross-attention"),
    (mask.window and length_shards > 1, "window over a sharded sequence"),
    (relative_bias_attention.SHORTEST <= shortest < blocks.SMALLEST, f"length {shortest}"),
    (faster and requested != "splash", "row-specific masks"),
  ):
    if needed and kernel == "splash":
      kernel, why = "distance", f"TPU, {reason}"
  least = relative_bias_attention.SHORTEST if kernel == "distance" else blocks.SMALLEST
  refusals: list[tuple[object, str]] = [
    (bias == "array", "bias on the logits"),
    (dtype not in ("bfloat16", "float32"), dtype),
    (shortest < least, f"length {shortest}, shorter than a block of {blocks.SMALLEST}"),
  ]
  if kernel == "distance":
    farthest = relative_bias_attention.FARTHEST
    refusals += [
      (mask.ranks is not None and mask.causal and mask.prefix is not None, f"ranks and prefix, {why}"),
      (not in_lanes, f"head_dim {head_dim}, {why}"),
      (not in_blocks, f"sequence shards that are not whole blocks, {why}"),
      (mask.window >= farthest, f"window {mask.window}, not below {farthest}, {why}"),
      (reach > farthest, f"bias with reach {reach}, above {farthest}, {why}"),
      (bounds is None, f"length {part}, too large for a core's memory, {why}"),
    ]
  return kernel, why, refusals


def _on_gpu(
  query_shape: tuple[int, ...],
  key_length: int,
  dtype: str,
  mask: AttentionMask,
  *,
  bias: str,
  dropout: str,
  requested: str,
  length_shards: int,
  compute_capability: str,
) -> tuple[str, str, list[tuple[object, str]]]:
  """Returns a GPU's kernel, the reason, and conditions that exclude it; see `choose`."""
  from t2t.models.kernels import gpu

  _, _, query_length, head_dim = query_shape
  kernel, why = "cudnn", "GPU, bias by distance" if bias else "GPU, no bias"
  if requested == "triton":
    kernel, why = requested, "GPU, set by config.model.attention_kernel"
  version, _, minor = compute_capability.partition(".")
  version = int(version) if version.isdecimal() and minor.isdecimal() else 0
  largest = 256 if version >= 9 else 128
  odd = query_length % 2 or key_length % 2
  refusals: list[tuple[object, str]] = [
    (dropout == "each", "dropout of probabilities"),
    (version < 8, f"compute capability {compute_capability or 'unknown'}, below 8.0"),
    (query_length == 1, "one query"),
    (length_shards > 1, "split sequence"),
  ]
  if kernel == "triton":
    from t2t.runtime import versions

    refusals += [
      (not gpu.has_triton(), f"Tokamax is not installed: {versions.install_command('tokamax')}"),
      (dtype not in ("bfloat16", "float16", "float32"), dtype),
    ]
  else:
    refusals += [
      (dtype not in ("bfloat16", "float16"), dtype),
      (head_dim % 8 or head_dim > largest, f"head_dim {head_dim}, cuDNN supports multiples of 8 up to {largest}"),
      (odd and bias, "odd length with a bias"),
      (odd and not gpu.is_structure(mask), "odd length with a mask"),
    ]
  return kernel, why, refusals


def compute_capability() -> str:
  """Returns the compute capability of the attached GPU for `choose`, such as "9.0"; empty on other platforms."""
  return str(getattr(jax.devices()[0], "compute_capability", ""))


def choose_here(
  query: jax.Array | jax.ShapeDtypeStruct,
  keys: jax.Array | jax.ShapeDtypeStruct,
  mask: AttentionMask,
  *,
  bias: str,
  dropout: str,
  reach: int = 0,
  kernel: str = "",
) -> Choice:
  """Returns the kernel that `attention.attend` uses on the current mesh; arrays or their shapes.

  Args:
    query, keys: see `attention.attend`.
    mask: only its structure matters, not its values.
    bias, dropout: see `BIASES` and `DROPOUTS`.
    reach: reach of a bias by distance.
    kernel: the requested kernel; "": the fastest available.

  Raises:
    UserError: the requested kernel is unavailable; the message contains the reason.
  """
  chosen = choose(
    query.shape,
    keys.shape,
    query.dtype,
    mask,
    platform=sharding.platform(),
    bias=bias,
    reach=reach,
    dropout=dropout,
    device_kind=sharding.device_kind(),
    compute_capability=compute_capability(),
    batch_shards=sharding.num_shards("batch"),
    head_shards=sharding.num_shards("heads"),
    length_shards=sharding.num_shards("length"),
    requested=kernel,
  )
  if kernel and chosen.kernel != kernel:
    needed, here = PLATFORMS.get(kernel), sharding.platform()
    if needed is not None and needed != here:
      raise UserError(
        f"config.model.attention_kernel={kernel} needs a {needed.upper()}, but the device is a {here.upper()}. Set "
        "--config.model.attention_kernel='' to select an available kernel automatically."
      )
    raise UserError(
      f"config.model.attention_kernel={kernel} does not support queries of {list(query.shape)} and keys of "
      f"{list(keys.shape)}. These use {chosen}. Set --config.model.attention_kernel='' to select an "
      "available kernel automatically."
    )
  return chosen


def choose_for_config(
  config: TransformerConfig,
  batch: int,
  query_length: int,
  key_length: int,
  mask: AttentionMask,
  *,
  biased: bool,
  drops: bool = True,
) -> Choice:
  """Returns `choose_here` for one kind of attention of this config's layers.

  Args:
    config: the model's config.
    batch, query_length, key_length: sizes of queries and keys.
    mask: with the window of these layers.
    biased: whether a bias by distance is added.
    drops: whether dropout is applied, as in training.
  """
  shape = lambda heads, length: jax.ShapeDtypeStruct((batch, heads, length, config.head_dim), config.dtype)
  return choose_here(
    shape(config.num_heads, query_length),
    shape(config.kv_heads, key_length),
    mask,
    bias="soft cap" if config.attention_softcap else config.position_scheme.bias if biased else "",
    reach=config.bias_reach(key_length) if biased else 0,
    dropout=config.attention_dropout if drops else "",
    kernel=config.attention_kernel,
  )


def attention_kernels(
  config: TransformerConfig, batch: Batch, *, prompt: int = 0, prefix: Mapping[str, int] | None = None
) -> dict[str, Choice]:
  """Returns the kernel of each kind of attention in training on the current mesh.

  Keys are "encoder", "decoder" and "cross". "encoder window" and "decoder window" are present if layers with a window
  alternate with others and use another kernel; "encoder" and "decoder" are then the layers without a window.

  Args:
    config: the model's config.
    batch: model features, or their shapes.
    prompt: number of prompt vectors before the text of the input side.
    prefix: side -> number of learned prefix keys; None: no prefix keys.
  """
  tokens = {side: batch[f"{side}_input_tokens"] for side in sides(batch)}
  added = {config.kind.answers: prompt}
  length = lambda side: tokens[side].shape[1] + added.get(side, 0)

  def choose_for_stacks(queries: str, keys: str, mask: AttentionMask, window: int = 0) -> Choice:
    front = (prefix or {}).get(keys, 0) if queries == keys else 0
    mask = dataclasses.replace(mask, window=window, front=front)
    if queries == keys and config.attention != "full":
      return Choice("plain", f"config.model.attention={config.attention}")
    biased, rows = config.biased and queries == keys, tokens[queries].shape[0]
    return choose_for_config(config.of_stack(queries), rows, length(queries), length(keys), mask, biased=biased)

  def choose_for_layers(side: str, mask: AttentionMask) -> dict[str, Choice]:
    windows = config.of_stack(side).windows(length(side))
    first, *other_choices = (choose_for_stacks(side, side, mask, window) for window in windows)
    # Layers with a window that alternate with others and use another kernel.
    return {side: first} | {f"{side} window": choice for choice in other_choices if str(choice) != str(first)}

  kernels = {}
  # The encoder's mask needs segments of any value here.
  reading = functools.partial(AttentionMask, key_segments=tokens.get("encoder"), padded=is_padded(batch))
  if "encoder" in tokens:
    mask = reading(tokens["encoder"], ranks=batch.get("encoder_ranks"))
    if config.block_length:  # only the structure matters
      mask = dataclasses.replace(mask, ranks=tokens["encoder"], streams=2 if "encoder_noise_levels" in batch else 1)
    kernels |= choose_for_layers("encoder", mask)
  if "decoder" in tokens:
    kernels |= choose_for_layers("decoder", decoder_mask(batch, bidirectional_prefix=config.bidirectional_prefix))
  if len(tokens) == 2:
    kernels["cross"] = choose_for_stacks("decoder", "encoder", reading(tokens["decoder"]))
  return kernels


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
  """Computes softmax(query keys^T + bias) values on a kernel, without scaling; each device computes its rows and heads.

  Kernels also run on a CPU, slowly: TPU kernels in Pallas' interpreter, and GPU kernels as formulas of JAX and Tokamax.

  Args:
    query: [batch, heads, query, kv].
    keys, values: [batch, kv heads, key, kv]; kv heads divides heads, and consecutive query heads share a kv head.
    mask: its `query_offset` is ignored; a segment's prefix must be contiguous.
    kernel: "splash", "distance", "cudnn" or "triton", as selected by `choose`.
    bias: by distance for kernel "distance", float32 [1, heads, query, key] on GPUs; splash takes none.
    dropout_rate, dropout_key: dropout of single probabilities, with kernel "distance".
    largest_block: block size on TPUs in positions, a power of two from 128; lengths are padded to whole blocks. 0: the
      kernel's default.

  Returns:
    [batch, heads, query, kv] in the dtype of `query`; zeros for queries without a key of their segment.
  """
  # Each device needs a whole number of key heads; with too few, key heads are repeated on several devices.
  parts = sharding.num_shards("heads")
  copies = parts // math.gcd(keys.shape[1], parts)
  if kernel == "distance":
    from t2t.models.kernels import relative_bias_attention

    if query.shape[3] < relative_bias_attention.LANES:
      copies = query.shape[1] // keys.shape[1]  # several heads share the lanes of one block
  if copies > 1:
    keys, values = (jnp.repeat(x, copies, axis=1) for x in (keys, values))
  if kernel == "distance":
    from t2t.models.kernels import relative_bias_attention

    assert bias is None or isinstance(bias, DistanceBias)
    return relative_bias_attention.attend_on_mesh(
      *(query, keys, values, mask, bias, dropout_rate, dropout_key), largest_block=largest_block
    )
  if kernel not in _ATTEND:
    raise ValueError(f"kernel={kernel!r}: unknown kernel. Known values: {', '.join(ATTENTION_KERNELS[:-1])}")
  function = _ATTEND[kernel]
  if kernel == "splash":
    function = functools.partial(function, largest_block=largest_block)
  # On a sharded sequence each device has its part of the queries and all keys, and needs the positions of its part.
  reach = None
  if mask.causal and not mask.window and sharding.num_shards("length") > 1:
    from t2t.models.kernels.blocks import positions_seen

    reach = positions_seen(mask, query.shape[0], query.shape[2])

  def part(query, keys, values, query_segments, key_segments, prefix, ranks, reach, bias):
    local_fields = {"query_segments": query_segments, "key_segments": key_segments, "prefix": prefix, "ranks": ranks}
    local = dataclasses.replace(mask, **local_fields, query_offset=0)
    optional = {"reach": reach, "bias": bias}
    return function(query, keys, values, local, **{name: x for name, x in optional.items() if x is not None})

  queries, memory = ("batch", "heads", "length", "kv"), ("batch", "heads", None, "kv")
  ids, all_ids, pairs = ("batch", "length"), ("batch", None), (None, "heads", "length", None)
  run = sharding.per_device(
    part, in_axes=(queries, memory, memory, ids, all_ids, ids, ids, ids, pairs), out_axes=queries
  )
  attended = run(query, keys, values, mask.query_segments, mask.key_segments, mask.prefix, mask.ranks, reach, bias)
  if mask.key_segments is None or (mask.padded and kernel == "cudnn"):
    return attended
  # For such queries the kernels' probabilities do not sum to one in the backward pass.
  assert mask.query_segments is not None
  sees = jnp.any(mask.query_segments[:, :, None] == mask.key_segments[:, None, :], axis=-1)
  return jnp.where(sees[:, None, :, None], attended, 0)
