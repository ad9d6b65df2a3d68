"""Fused attention: kernels that never hold [query, key] arrays of logits, and the choice between them.

On TPUs this is splash attention, Pallas kernels that JAX ships; on NVIDIA GPUs it is cuDNN's attention.  Both compute
the softmax in float32, block by block, and their backward passes compute the logits again (Dao et al. 2022).
"""

import dataclasses
import functools
import math
import typing

import jax
import jax.numpy as jnp
import numpy as np

from t2t import sharding
from t2t.models.masks import AttentionMask

if typing.TYPE_CHECKING:
  pass

# What a checkpoint policy can save by name, so that the backward pass does not run the kernel forward again.
SAVED = "attention"

# Splash's smallest block, and the length up to which one block covers a sequence.
_SMALLEST_BLOCK, _LARGEST_BLOCK = 128, 512

# Inside `_splash` the segment of padding, and that of what fills the last block, are above all others: so segments of a
# packed row never fall, and a block's lowest and highest tell well what it holds.
_PADDING, _FILLING = np.iinfo(np.int32).max - 1, np.iinfo(np.int32).max


@dataclasses.dataclass(frozen=True)
class Choice:
  """Which kernel attention runs on, "splash", "cudnn" or "plain" (none), and why."""

  kernel: str
  reason: str

  def __str__(self) -> str:
    return f"{self.kernel} ({self.reason})"


def choose(
  query_shape: tuple[int, ...],
  key_shape: tuple[int, ...],
  dtype: jax.typing.DTypeLike,
  mask: AttentionMask,
  *,
  platform: str,
  bias: bool,
  dropout: bool,
  compute_capability: str = "",
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
    bias: something is added to the logits.
    dropout: probabilities are dropped.
    compute_capability: of the GPU, "9.0" for an H100; see `compute_capability`.
    batch_shards, head_shards, length_shards: in how many parts the mesh splits these axes, see `sharding.num_shards`;
      of the lengths the queries' alone.
  """
  batch, heads, query_length, head_dim = query_shape
  key_length = key_shape[2]
  dtype = jnp.dtype(dtype).name
  refusals = [
    (platform not in ("tpu", "gpu"), platform.upper()),
    (bias, "bias on the logits"),
    (dropout, "dropout of probabilities"),
    (batch % batch_shards, f"{batch} rows over {batch_shards} devices"),
    (heads % head_shards, f"{heads} heads over {head_shards} devices"),
    (query_length % length_shards, f"{query_length} positions over {length_shards} devices"),
  ]
  if platform == "tpu":
    kernel, why = "splash", "TPU, no bias"
    shortest = min(query_length // length_shards, key_length)
    refusals += [
      (dtype not in ("bfloat16", "float32"), dtype),
      (shortest < _SMALLEST_BLOCK, f"length {shortest}, a block has {_SMALLEST_BLOCK}"),
      (mask.window and mask.causal and mask.prefix is not None, "window and prefix"),
      (mask.window and query_length != key_length, "window over another sequence"),
      (mask.window and length_shards > 1, "window over a split sequence"),
    ]
  else:
    kernel, why = "cudnn", "GPU, no bias"
    version, _, minor = compute_capability.partition(".")
    version = int(version) if version.isdecimal() and minor.isdecimal() else 0
    largest = 256 if version >= 9 else 128
    odd = query_length % 2 or key_length % 2
    refusals += [
      (version < 8, f"compute capability {compute_capability or 'unknown'}, cuDNN needs 8.0"),
      (dtype not in ("bfloat16", "float16"), dtype),
      (head_dim % 8 or head_dim > largest, f"head_dim {head_dim}, cuDNN takes multiples of 8 up to {largest}"),
      (query_length == 1, "one query"),
      (odd and not _is_structure(mask), "odd length with a mask"),
      (length_shards > 1, "split sequence"),
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
  largest_block: int = _LARGEST_BLOCK,
) -> jax.Array:
  """softmax(query keys^T) values on a kernel, without scaling; under a mesh every device does its rows and heads.

  On a CPU the kernels run too, slowly: splash in Pallas' interpreter, and for cuDNN JAX's own formula.

  Args:
    query: [batch, heads, query, kv].
    keys, values: [batch, kv heads, key, kv]; a divisor of `heads`: so many heads in a row share one.
    mask: its `query_offset` is taken as 0; a segment's prefix must be one run of positions.
    kernel: "splash" or "cudnn", as `choose` has it.
    largest_block: of splash, in positions, a multiple of 128; lengths are padded to whole blocks.

  Returns:
    [batch, heads, query, kv] in the dtype of `query`; zeros where no key has a query's segment.
  """
  # Every device needs a whole number of key heads: with too few, heads that one device shares are on others, too.
  parts = sharding.num_shards("heads")
  copies = parts // math.gcd(keys.shape[1], parts)
  if copies > 1:
    keys, values = (jnp.repeat(x, copies, axis=1) for x in (keys, values))
  if kernel == "splash":
    function = functools.partial(_splash, largest_block=largest_block)
  elif kernel == "cudnn":
    function = _cudnn
  else:
    raise ValueError(f"kernel is {kernel!r}; there are splash and cudnn")

  # Of a split sequence every device has its part of the queries and all keys, and must be told where its part lies.
  reach = None
  if mask.causal and not mask.window and sharding.num_shards("length") > 1:
    reach = _positions_seen(mask, query.shape[0], query.shape[2])

  def part(query, keys, values, query_segments, key_segments, prefix, reach):
    local = dataclasses.replace(
      mask, query_segments=query_segments, key_segments=key_segments, prefix=prefix, query_offset=0
    )
    return function(query, keys, values, local, **({} if reach is None else {"reach": reach}))

  queries, memory = ("batch", "heads", "length", "kv"), ("batch", "heads", None, "kv")
  ids, all_ids = ("batch", "length"), ("batch", None)
  run = sharding.per_device(part, in_axes=(queries, memory, memory, ids, all_ids, ids, ids), out_axes=queries)
  attended = run(query, keys, values, mask.query_segments, mask.key_segments, mask.prefix, reach)
  if mask.key_segments is None:
    return attended
  # For such queries the kernels' probabilities do not sum to one in the backward pass.
  sees = jnp.any(mask.query_segments[:, :, None] == mask.key_segments[:, None, :], axis=-1)
  return jnp.where(sees[:, None, :, None], attended, 0)


# ---- TPU -------------------------------------------------------------------------------------------------------------


def _block(length: int, largest: int) -> int:
  """The block that covers `length` in as few blocks as `largest` does, with the least padding."""
  share = -(-length // -(-length // largest))
  return -(-share // _SMALLEST_BLOCK) * _SMALLEST_BLOCK


def _pad(x: jax.Array | None, block: int, *, axis: int, value: int = 0) -> jax.Array | None:
  """`x` with `value` behind it, up to a whole number of blocks."""
  if x is None:
    return None
  widths = [(0, -x.shape[i] % block if i == axis else 0) for i in range(x.ndim)]
  return jnp.pad(x, widths, constant_values=value)


def _reach(prefix: jax.Array, segments: jax.Array | None) -> jax.Array:
  """The last position that each one sees: itself, or in a prefix the prefix's end; int32 [batch, length].

  prefix [[1, 1, 1, 0, 0, 1, 1, 0]], segments [[1, 1, 1, 1, 1, 2, 2, 2]] -> [[2, 2, 2, 3, 4, 6, 6, 7]]
  """
  length = prefix.shape[1]
  positions = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), prefix.shape)
  inside = prefix > 0
  goes_on = inside[:, :-1] & inside[:, 1:]
  if segments is not None:
    goes_on &= segments[:, :-1] == segments[:, 1:]
  ends = jnp.where(jnp.pad(goes_on, ((0, 0), (0, 1))), length, positions)
  return jnp.where(inside, jax.lax.cummin(ends, axis=1, reverse=True), positions)


def _positions_seen(mask: AttentionMask, batch: int, length: int) -> jax.Array:
  """The last position that each query of a causal mask sees, int32 [batch, length]."""
  if mask.prefix is not None:
    return _reach(mask.prefix, mask.query_segments)
  return jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), (batch, length))


def _blocks_that_run(
  reach: jax.Array | None,
  query_segments: jax.Array | None,
  key_segments: jax.Array | None,
  *,
  shape: tuple[int, int, int],
  blocks: tuple[int, int],
) -> jax.Array:
  """Where a query may see a key, by extremes of blocks: bool [batch, query blocks, key blocks], which is `shape`."""
  split = lambda x, block: x.reshape(shape[0], -1, block)
  runs = jnp.ones(shape, bool)
  if reach is not None:
    farthest = split(reach, blocks[0]).max(axis=2)
    runs &= farthest[:, :, None] >= blocks[1] * jnp.arange(shape[2])
  if query_segments is not None:
    queries, keys = split(query_segments, blocks[0])[:, :, None], split(key_segments, blocks[1])[:, None]
    runs &= (queries.min(axis=3) <= keys.max(axis=3)) & (queries.max(axis=3) >= keys.min(axis=3))
  # A query's softmax is over one block at least: over none it would divide by zero.
  return runs.at[:, :, 0].set(runs[:, :, 0] | ~runs.any(axis=2))


def _to_fetch(runs: jax.Array, axis: int) -> jax.Array:
  """Which block to have in memory at each step along `axis`: the next that runs; after the last of them, the first.

  So nothing is fetched for the steps between.  [0, 1, 0, 1, 0] -> [1, 1, 3, 3, 1]
  """
  number = runs.shape[axis]
  steps = jax.lax.broadcasted_iota(jnp.int32, runs.shape, axis)
  following = jax.lax.cummin(jnp.where(runs, steps, number), axis=axis, reverse=True)
  return jnp.where(following < number, following, jnp.argmax(runs, axis=axis, keepdims=True).astype(jnp.int32))


def _splash(
  query: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  mask: AttentionMask,
  *,
  largest_block: int,
  reach: jax.Array | None = None,
) -> jax.Array:
  """Splash attention of one device; `reach` is that of `_positions_seen`, if the queries are part of a sequence.

  Where the mask is the same in all rows (causal, window), the kernel knows from compilation which blocks to skip, and
  the batch is an axis of its grid.  Where it differs (segments, prefix), the kernel finds in arrays which blocks to
  run, and those arrays can have no batch axis: so the rows lie end to end, as one sequence, of which no block meets
  another row's.
  """
  query_length, key_length = query.shape[2], keys.shape[2]
  blocks = query_block, key_block = _block(query_length, largest_block), _block(key_length, largest_block)
  query = _pad(query, query_block, axis=2)
  keys, values = _pad(keys, key_block, axis=2), _pad(values, key_block, axis=2)
  lengths = query.shape[2], keys.shape[2]

  has_prefix = mask.causal and mask.prefix is not None
  if has_prefix and mask.window:
    raise ValueError("splash attention has no window with a prefix")
  # A window's blocks are few, and known before.
  end_to_end = not mask.window and (mask.query_segments is not None or has_prefix or reach is not None)
  # JAX looks for what to skip element by element, in minutes at 131,072 positions; found in arrays it needs no look.
  kernel = _make_splash(mask, blocks if end_to_end else lengths, blocks=blocks, heads=query.shape[1])
  segments = _splash_segments(mask, query.shape[0], (query_length, key_length), blocks=blocks)
  if end_to_end:
    if mask.causal:
      reach = _positions_seen(mask, query.shape[0], query_length) if reach is None else reach
      reach = _pad(reach, query_block, axis=1, value=query_length - 1)
    attended = _rows_end_to_end(kernel, query, keys, values, segments, reach, blocks=blocks)
  else:
    attended = jax.vmap(kernel)(query, keys, values, segments)
  return attended[:, :, :query_length]


def _make_splash(mask: AttentionMask, shape: tuple[int, int], *, blocks: tuple[int, int], heads: int):
  """JAX's kernel, for what all rows have in common of a mask; `shape` is how much of it the kernel looks at."""
  # A tenth of a second to import, which other platforms need not pay.
  from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel, splash_attention_mask

  if mask.window:
    structure = splash_attention_mask.LocalMask(shape, (mask.window, 0 if mask.causal else mask.window), offset=0)
  elif mask.causal:
    structure = splash_attention_mask.CausalMask(shape)
  else:
    structure = splash_attention_mask.FullMask(shape)
  query_block, key_block = blocks
  return splash_attention_kernel.make_splash_mha(
    splash_attention_mask.MultiHeadMask([structure] * heads),
    block_sizes=splash_attention_kernel.BlockSizes(
      block_q=query_block,
      block_kv=key_block,
      block_q_dkv=query_block,
      block_kv_dkv=key_block,
      block_q_dq=query_block,
      block_kv_dq=key_block,
    ),
    head_shards=1,
    q_seq_shards=1,
    residual_checkpoint_name=SAVED,
    interpret=sharding.platform() == "cpu",
  )


def _splash_segments(mask: AttentionMask, batch: int, lengths: tuple[int, int], *, blocks: tuple[int, int]):
  """Segments of queries and keys, [batch, whole blocks]; None where nothing has to be hidden by them."""
  from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel

  query_length, key_length = lengths
  if mask.query_segments is not None:
    pair = (jnp.where(x == 0, _PADDING, x.astype(jnp.int32)) for x in (mask.query_segments, mask.key_segments))
  elif key_length % blocks[1] and not (mask.causal and query_length <= key_length):
    # What fills the last block of keys is to be hidden; it lies to the right of all queries if attention is causal.
    pair = (jnp.zeros((batch, length), jnp.int32) for length in lengths)
  else:
    return None
  return splash_attention_kernel.SegmentIds(
    *(_pad(x, block, axis=1, value=_FILLING) for x, block in zip(pair, blocks, strict=True))
  )


def _rows_end_to_end(
  kernel, query: jax.Array, keys: jax.Array, values: jax.Array, segments, reach: jax.Array | None, *, blocks
) -> jax.Array:
  """The rows of a batch as one sequence; the kernel is told in arrays which blocks to run.

  Args:
    kernel: of one block.
    query, keys, values: [batch, heads, whole blocks, kv].
    segments: of `_splash_segments`.
    reach: of `_positions_seen`, in whole blocks, if attention is causal.
    blocks: of queries and of keys, in positions.
  """
  batch, key_length = query.shape[0], keys.shape[2]
  num_blocks = query.shape[2] // blocks[0], key_length // blocks[1]
  runs = _blocks_that_run(reach, *(segments or (None, None)), shape=(batch, *num_blocks), blocks=blocks)
  rows = jnp.arange(batch, dtype=jnp.int32)[:, None, None]
  # [1, batch * query blocks, key blocks], and [1, query blocks, batch * key blocks] for the gradient of keys and values
  by_queries = lambda x: x.reshape(1, -1, num_blocks[1]).astype(jnp.int32)
  by_keys = lambda x: jnp.swapaxes(x, 0, 1).reshape(1, num_blocks[0], -1).astype(jnp.int32)
  next_keys = by_queries(_to_fetch(runs, 2) + rows * num_blocks[1])
  next_queries = by_keys(_to_fetch(runs, 1) + rows * num_blocks[0])
  # The causal kernel compares the positions of keys with these numbers, which need not be the queries' own positions.
  changes = {} if reach is None else {"q_sequence": (reach + rows[:, 0] * key_length).reshape(-1)}
  for name, data_next, block_mask in (
    ("fwd_mask_info", next_keys, by_queries(runs)),
    ("dq_mask_info", next_keys, by_queries(runs)),
    ("dkv_mask_info", next_queries, by_keys(runs)),
  ):
    info = getattr(kernel, name)._replace(data_next=data_next, block_mask=block_mask, **changes)
    setattr(kernel, name, info)
  join = lambda x: jnp.swapaxes(x, 0, 1).reshape(x.shape[1], -1, x.shape[3])
  attended = kernel(join(query), join(keys), join(values), jax.tree.map(jnp.ravel, segments))
  return jnp.swapaxes(attended.reshape(query.shape[1], batch, query.shape[2], -1), 0, 1)


# ---- GPU -------------------------------------------------------------------------------------------------------------


def _is_structure(mask: AttentionMask) -> bool:
  """Whether cuDNN knows this mask by its name: causal or none, with a window only if it is causal."""
  return mask.key_segments is None and (mask.prefix is None if mask.causal else not mask.window)


def _cudnn(query: jax.Array, keys: jax.Array, values: jax.Array, mask: AttentionMask) -> jax.Array:
  """cuDNN's attention of one device; what it has no name for is a mask of [batch, 1, query, key]."""
  causal = mask.causal and mask.prefix is None
  rest = dataclasses.replace(mask, causal=False, window=0) if causal else mask
  allowed = rest.allowed(query.shape[2], keys.shape[2])
  attended = jax.nn.dot_product_attention(
    *(jnp.swapaxes(x, 1, 2) for x in (query, keys, values)),
    mask=allowed,
    scale=1.0,
    is_causal=causal,
    local_window_size=(mask.window, 0) if causal and mask.window else None,
    implementation="cudnn" if sharding.platform() == "gpu" else "xla",
  )
  return jnp.swapaxes(attended, 1, 2)
