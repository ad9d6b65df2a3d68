"""Splash attention: Pallas kernels that JAX ships for TPUs."""

from typing import Any

import jax
import jax.numpy as jnp

from t2t import sharding
from t2t.models.kernels import blocks as blocks_lib
from t2t.models.masks import AttentionMask
from t2t.models.remat import SAVED

# Causal sequences from this length run in blocks of 1,024, if the head dimension fits every TPU generation's memory. By
# `planning.kernel_cycles.CYCLES` larger blocks save more than they compute above the diagonal.
LONG, LARGEST_OF_LONG, WIDEST = 4_096, (1_024, 1_024), 128
# The fused backward kernel computes logits once instead of twice, and writes a partial query gradient for each block of
# keys, which are then summed. Each part has the size of the queries, so their number is limited.
MOST_PARTS = 8
# Blocks of 2,048 positions compile only on this TPU, for heads of at most `WIDEST` features (libtpu 0.0.42).
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
  """Returns the largest sizes of query and key blocks, see `blocks.bounds`.

  Args:
    requested: size of both, or 0; reduced to what a core's memory allows.
    lengths: lengths of queries and keys.
    head_dim, dtype: head dimension and dtype of both.
    causal: whether the mask is only causal, so that skipped blocks are known at compile time.
    device_kind: kind of the TPU.
  """
  is_small = head_dim <= WIDEST and jnp.dtype(dtype).itemsize == 2
  if not requested and causal and min(lengths) >= LONG and is_small:
    return LARGEST_OF_LONG
  if not (is_small and device_kind in _ROOMY):
    requested = min(requested, _LARGEST)
  return blocks_lib.bounds(requested, skips=True)


def goes_end_to_end(mask: AttentionMask, *, is_split: bool) -> bool:
  """Returns True if masks differ between rows, so that rows must be concatenated into one sequence, see `attend`.

  A window has few blocks, which are known at compile time.

  Args:
    mask: only its structure matters, not its values.
    is_split: whether the queries are part of a sequence.
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
  """Returns which blocks may contain visible keys, by their extremes: bool [batch, query blocks, key blocks]."""
  runs = jnp.ones(shape, bool)
  if reach is not None:
    farthest = reach.reshape(shape[0], -1, blocks[0]).max(axis=2)
    runs &= farthest[:, :, None] >= blocks[1] * jnp.arange(shape[2])
  if query_segments is not None and key_segments is not None:
    runs &= blocks_lib.segments_meet(query_segments, key_segments, blocks)
  # A query's softmax needs at least one block; with none it would divide by zero.
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
  """Computes splash attention on one device; `reach`: of `blocks.positions_seen`, if the sequence is sharded.

  If the mask is the same in all rows (causal, window), the blocks to skip are known at compile time, and the batch is
  an axis of the grid. If it differs (segments, prefix), the kernel reads the blocks to run from arrays. These arrays
  cannot have a batch axis, so the rows are concatenated into one sequence, and no block runs across rows.
  """
  query_length, key_length = query.shape[2], keys.shape[2]
  has_prefix = mask.causal and mask.prefix is not None
  if mask.ranks is not None:
    raise ValueError("config.model.attention_kernel=splash: splash attention does not support ranks")
  if has_prefix and mask.window:
    raise ValueError("config.model.attention_kernel=splash: splash attention does not support a window with a prefix")
  end_to_end = goes_end_to_end(mask, is_split=reach is not None)
  alone = mask.causal and not mask.window and not end_to_end
  sizes, kind = (query_length, key_length), sharding.device_kind()
  largest = bounds(largest_block, sizes, query.shape[3], query.dtype, causal=alone, device_kind=kind)
  query_block, key_block = blocks_lib.block(query_length, largest[0]), blocks_lib.block(key_length, largest[1])
  blocks = query_block, key_block
  query = blocks_lib.pad(query, query_block, axis=2)
  keys, values = blocks_lib.pad(keys, key_block, axis=2), blocks_lib.pad(values, key_block, axis=2)
  lengths = query.shape[2], keys.shape[2]
  # With concatenated rows, or a window, most partial gradients would be zero.
  fused = not end_to_end and not mask.window and lengths[1] // key_block <= MOST_PARTS
  # JAX finds blocks to skip element by element, which takes minutes at 131,072 positions; block arrays avoid the
  # search.
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
  """Returns JAX's kernel for the part of a mask that all rows share.

  Args:
    mask, blocks, heads: properties of the attention.
    shape: shape of the mask that the kernel inspects.
    fused: whether the backward pass is one kernel instead of two, for queries and for keys and values.
  """
  # Imported here, because it takes a tenth of a second and other platforms do not need it.
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
  """Returns the segments of queries and keys, [batch, whole blocks]; None if segments mask nothing."""
  from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel

  query_length, key_length = lengths
  if mask.query_segments is not None:
    assert mask.key_segments is not None
    pair = (
      jnp.where(x == 0, blocks_lib.PADDING, x.astype(jnp.int32)) for x in (mask.query_segments, mask.key_segments)
    )
  elif key_length % blocks[1] and not (mask.causal and query_length <= key_length):
    # Padding of the last block of keys must be masked; with causal attention it is already to the right of all queries.
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
  """Runs the rows of a batch as one sequence; arrays tell the kernel which blocks to run.

  Args:
    kernel: a kernel of one block.
    query, keys, values: [batch, heads, whole blocks, kv].
    segments: result of `_splash_segments`.
    reach: result of `blocks.positions_seen`, padded to whole blocks, for causal attention.
    blocks: block sizes of queries and of keys.
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
  # The causal kernel compares key positions with these numbers, which may differ from the queries' own positions.
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
