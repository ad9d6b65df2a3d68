"""Splash attention: Pallas kernels that JAX ships for TPUs."""

from typing import Any

import jax
import jax.numpy as jnp

from t2t import sharding
from t2t.models.kernels import blocks as blocks_lib
from t2t.models.masks import AttentionMask
from t2t.models.remat import SAVED

# Causal sequences of so many positions run in blocks of 1,024, if heads have no more features than every generation has
# the memory for: by `planning.schedules.CYCLES` these save more than they compute above the diagonal.
LONG, LARGEST_OF_LONG, WIDEST = 4_096, (1_024, 1_024), 128
# Backwards one kernel computes logits once where two would do it twice, and leaves a part of the queries' gradient for
# each block of keys, to be summed: of so many at most, for each has the size of the queries.
MOST_PARTS = 8
# Of 2,048 positions blocks compile here alone, and for heads of `WIDEST` features at most (libtpu 0.0.42).
_ROOMY, _LARGEST = ("TPU v6 lite",), 1_024


def bounds(
  requested: int,
  lengths: tuple[int, int],
  head_dim: int,
  dtype: jax.typing.DTypeLike,
  *,
  causal: bool,
  device_kind: str,
) -> tuple[int, int]:
  """Of a block of queries and one of keys, see `blocks.bounds`.

  Args:
    requested: of both, or 0; where a core has no room for so many, as many as it has.
    lengths: of queries and of keys.
    head_dim, dtype: of both.
    causal: nothing else hides any, so that it is known before which blocks are left out.
    device_kind: of the TPU.
  """
  is_small = head_dim <= WIDEST and jnp.dtype(dtype).itemsize == 2
  if not requested and causal and min(lengths) >= LONG and is_small:
    return LARGEST_OF_LONG
  if not (is_small and device_kind in _ROOMY):
    requested = min(requested, _LARGEST)
  return blocks_lib.bounds(requested, skips=True)


def goes_end_to_end(mask: AttentionMask, *, is_split: bool) -> bool:
  """Whether rows differ in what is hidden, so that they must lie end to end, see `attend`.

  A window's blocks are few, and known before.

  Args:
    mask: what it has matters, not the numbers in it.
    is_split: the queries are part of a sequence.
  """
  return not mask.window and (
    mask.query_segments is not None or (mask.causal and (mask.prefix is not None or is_split))
  )


def _blocks_that_run(
  reach: jax.Array | None,
  query_segments: jax.Array | None,
  key_segments: jax.Array | None,
  *,
  shape: tuple[int, int, int],
  blocks: tuple[int, int],
) -> jax.Array:
  """Where a query may see a key, by extremes of blocks: bool [batch, query blocks, key blocks], which is `shape`."""
  runs = jnp.ones(shape, bool)
  if reach is not None:
    farthest = reach.reshape(shape[0], -1, blocks[0]).max(axis=2)
    runs &= farthest[:, :, None] >= blocks[1] * jnp.arange(shape[2])
  if query_segments is not None and key_segments is not None:
    runs &= blocks_lib.segments_meet(query_segments, key_segments, blocks)
  # A query's softmax is over one block at least: over none it would divide by zero.
  return runs.at[:, :, 0].set(runs[:, :, 0] | ~runs.any(axis=2))


def attend(
  query: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  mask: AttentionMask,
  *,
  largest_block: int,
  reach: jax.Array | None = None,
) -> jax.Array:
  """Splash attention of one device; `reach` is that of `blocks.positions_seen`, if the queries are part of a sequence.

  Where the mask is the same in all rows (causal, window), the kernel knows from compilation which blocks to skip, and
  the batch is an axis of its grid.  Where it differs (segments, prefix), the kernel finds in arrays which blocks to
  run, and those arrays can have no batch axis: so the rows lie end to end, as one sequence, of which no block meets
  another row's.
  """
  query_length, key_length = query.shape[2], keys.shape[2]
  has_prefix = mask.causal and mask.prefix is not None
  if mask.ranks is not None:
    raise ValueError("splash attention has no ranks")
  if has_prefix and mask.window:
    raise ValueError("splash attention has no window with a prefix")
  end_to_end = goes_end_to_end(mask, is_split=reach is not None)
  alone = mask.causal and not mask.window and not end_to_end
  sizes, kind = (query_length, key_length), sharding.device_kind()
  largest = bounds(largest_block, sizes, query.shape[3], query.dtype, causal=alone, device_kind=kind)
  query_block, key_block = blocks_lib.block(query_length, largest[0]), blocks_lib.block(key_length, largest[1])
  blocks = query_block, key_block
  query = blocks_lib.pad(query, query_block, axis=2)
  keys, values = blocks_lib.pad(keys, key_block, axis=2), blocks_lib.pad(values, key_block, axis=2)
  lengths = query.shape[2], keys.shape[2]
  # Of rows that lie end to end, and of a window's blocks, most parts would be zeros.
  fused = not end_to_end and not mask.window and lengths[1] // key_block <= MOST_PARTS
  # JAX looks for what to skip element by element, in minutes at 131,072 positions; found in arrays it needs no look.
  shape = blocks if end_to_end else lengths
  kernel = _make_splash(mask, shape, blocks=blocks, heads=query.shape[1], fused=fused)
  segments = _splash_segments(mask, query.shape[0], (query_length, key_length), blocks=blocks)
  if end_to_end:
    if mask.causal:
      reach = blocks_lib.positions_seen(mask, query.shape[0], query_length) if reach is None else reach
      reach = blocks_lib.pad(reach, query_block, axis=1, value=query_length - 1)
    attended = _rows_end_to_end(kernel, query, keys, values, segments, reach, blocks=blocks)
  else:
    attended = jax.vmap(kernel)(query, keys, values, segments)
  return attended[:, :, :query_length]


def _make_splash(
  mask: AttentionMask, shape: tuple[int, int], *, blocks: tuple[int, int], heads: int, fused: bool
) -> Any:
  """JAX's kernel, for what all rows have in common of a mask.

  Args:
    mask, blocks, heads: of the attention.
    shape: how much of the mask the kernel looks at.
    fused: there is one kernel backwards, not one for the queries and one for keys and values.
  """
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
      use_fused_bwd_kernel=fused,
      block_q_dq=None if fused else query_block,
      block_kv_dq=None if fused else key_block,
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
    assert mask.key_segments is not None
    pair = (
      jnp.where(x == 0, blocks_lib.PADDING, x.astype(jnp.int32)) for x in (mask.query_segments, mask.key_segments)
    )
  elif key_length % blocks[1] and not (mask.causal and query_length <= key_length):
    # What fills the last block of keys is to be hidden; it lies to the right of all queries if attention is causal.
    pair = (jnp.zeros((batch, length), jnp.int32) for length in lengths)
  else:
    return None
  queries, keys = (
    blocks_lib.pad(x, block, axis=1, value=blocks_lib.FILLING) for x, block in zip(pair, blocks, strict=True)
  )
  return splash_attention_kernel.SegmentIds(queries, keys)


def _rows_end_to_end(
  kernel, query: jax.Array, keys: jax.Array, values: jax.Array, segments, reach: jax.Array | None, *, blocks
) -> jax.Array:
  """The rows of a batch as one sequence; the kernel is told in arrays which blocks to run.

  Args:
    kernel: of one block.
    query, keys, values: [batch, heads, whole blocks, kv].
    segments: of `_splash_segments`.
    reach: of `blocks.positions_seen`, in whole blocks, if attention is causal.
    blocks: of queries and of keys, in positions.
  """
  batch, key_length = query.shape[0], keys.shape[2]
  num_blocks = query.shape[2] // blocks[0], key_length // blocks[1]
  runs = _blocks_that_run(reach, *(segments or (None, None)), shape=(batch, *num_blocks), blocks=blocks)
  rows = jnp.arange(batch, dtype=jnp.int32)[:, None, None]
  # [1, batch * query blocks, key blocks], and [1, query blocks, batch * key blocks] for the gradient of keys and values
  by_queries = lambda x: x.reshape(1, -1, num_blocks[1]).astype(jnp.int32)
  by_keys = lambda x: jnp.swapaxes(x, 0, 1).reshape(1, num_blocks[0], -1).astype(jnp.int32)
  next_keys = by_queries(blocks_lib.to_fetch(runs, 2) + rows * num_blocks[1])
  next_queries = by_keys(blocks_lib.to_fetch(runs, 1) + rows * num_blocks[0])
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
