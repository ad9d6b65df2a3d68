"""Attention with a bias by distance: converts the model's arrays for the kernels in relative_bias_kernels.py."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from t2t import sharding
from t2t.models.kernels import blocks as blocks_lib
from t2t.models.kernels import relative_bias_kernels
from t2t.models.kernels.relative_bias_tiles import HIDDEN, LANES, Shape
from t2t.models.masks import AttentionMask, DistanceBias

# Bytes of a core's vector memory that a kernel may use, by `jax.Device.device_kind`; on other TPUs `_MOST_MEMORY`,
# which is half or all of it.
_MEMORY = {"TPU v2": 16 * 2**20, "TPU v3": 16 * 2**20, "TPU v4": 16 * 2**20}
_MOST_MEMORY = 63 * 2**20
SHORTEST = 64  # shortest sequence that is padded to a block; for shorter ones, arrays of all pairs are small
FARTHEST = 2_048  # largest reach of a bias or a window: a larger bank does not fit into a core's memory
# Segments of padding and of block filling: unused and above all others, so that segments of a row are sorted.
_PADDING, _FILLING_QUERY, _FILLING_KEY = (np.iinfo(np.int32).max - i for i in (2, 1, 0))


def bounds_for(
  query_length: int,
  key_length: int,
  head_dim: int,
  dtype: jax.typing.DTypeLike,
  *,
  reach: int,
  device_kind: str,
  largest: tuple[int, int] = blocks_lib.LARGEST,
) -> tuple[int, int] | None:
  """Returns the largest query and key blocks that fit into a core's memory; None if no block fits.

  Args:
    query_length, key_length: lengths on one device.
    head_dim: see `attend`.
    dtype: dtype of queries, keys and values.
    reach: reach of the bias and the window.
    device_kind: kind of the TPU.
    largest: upper limits of both.
  """
  lanes, group, itemsize = max(head_dim, LANES), max(1, LANES // head_dim), jnp.dtype(dtype).itemsize
  while min(largest) >= blocks_lib.SMALLEST:
    query_block, key_block = map(blocks_lib.block, (query_length, key_length), largest)
    corners = min(2 * max(query_length, key_length), 2 * (-(-reach // LANES) * LANES) + LANES + query_block)
    bank = group * LANES * (corners + query_block) * 4
    # Inputs and outputs are double-buffered: one is computed while the other is fetched.
    fetched = 2 * (2 * bank + lanes * itemsize * (3 * query_block + 4 * key_block + query_length))
    sums = 4 * lanes * (2 * key_block + query_length)
    # Additional memory of libtpu 0.0.42, with segments and dropout; a single block computes several heads at once.
    logits = 4 * query_block * key_block * (3 if itemsize == 2 else 6)
    kept_bytes = logits * (2 if query_block >= query_length and key_block >= key_length else 1) + 2**19
    if fetched + sums + kept_bytes <= _MEMORY.get(device_kind, _MOST_MEMORY):
      return largest
    queries, keys = largest
    largest = (queries if keys > queries else queries // 2, keys // 2)
  return None


def blocks_for(
  query_length: int,
  key_length: int,
  head_dim: int,
  dtype: jax.typing.DTypeLike,
  *,
  reach: int,
  device_kind: str,
  largest: tuple[int, int] = blocks_lib.LARGEST,
) -> tuple[int, int] | None:
  """Returns the sizes of query and key blocks within `bounds_for` with the same arguments."""
  bounds = bounds_for(
    *(query_length, key_length, head_dim, dtype), reach=reach, device_kind=device_kind, largest=largest
  )
  if bounds is None:
    return None
  return blocks_lib.block(query_length, bounds[0]), blocks_lib.block(key_length, bounds[1])


def attend(
  query: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  mask: AttentionMask,
  *,
  bias: DistanceBias | None = None,
  dropout_rate: float = 0.0,
  seeds: jax.Array | None = None,
  ranks: tuple[jax.Array, jax.Array] | None = None,
  first_query: jax.Array | None = None,
  whole_query_length: int | None = None,
  largest_block: int = 0,
) -> jax.Array:
  """Computes softmax(query keys^T + bias) values on one device, see `dispatch.attend`.

  Args:
    query: [batch, heads, query, kv].
    keys, values: [batch, kv heads, key, kv]: kv heads equals heads, or divides it if a head fills 128 lanes.
    mask: causal, window and segments; ranks, and a prefix as ranks, are separate arguments.
    bias: None: no bias.
    dropout_rate: dropout of single probabilities.
    seeds: int32 [batch, heads], seeds of dropout.
    ranks: int32 [batch, query] and [batch, key]: a query attends to keys of its own and lower ranks if `mask` allows.
    first_query: int32 [], position of the first query in its sequence; a multiple of 128.
    whole_query_length: length of that sequence.
    largest_block: positions of queries and of keys, a power of two from 128; 0: see `blocks.largest`.

  Returns:
    [batch, heads, query, kv]; zeros for a query without visible keys.
  """
  batch, heads, query_length, head_dim = query.shape
  spare = -heads % max(1, LANES // head_dim)
  if spare:
    # Blocks contain whole groups of heads; the last group is filled with zero heads.
    fill = lambda x, axis: blocks_lib.pad(x, heads + spare, axis=axis)
    filled = attend(
      *(fill(query, 1), fill(keys, 1), fill(values, 1), mask),
      bias=None if bias is None else DistanceBias(fill(bias.values, 0)),
      dropout_rate=dropout_rate,
      seeds=None if seeds is None else fill(seeds, 1),
      ranks=ranks,
      first_query=first_query,
      whole_query_length=whole_query_length,
      largest_block=largest_block,
    )
    return filled[:, :heads]
  key_length, device_kind = keys.shape[2], sharding.device_kind()
  causal = mask.causal
  hides = causal or bool(mask.window)
  if bias is None and hides:
    bias, learned = DistanceBias(jnp.zeros((heads, 3), jnp.float32)), False
  else:
    learned = bias is not None
  reach = max(1, bias.reach if bias is not None else 1, mask.window + 1 if mask.window else 1)
  blocks = blocks_for(
    *(query_length, key_length, head_dim, query.dtype),
    reach=reach,
    device_kind=device_kind,
    largest=blocks_lib.largest(mask, largest_block, has_ranks=ranks is not None),
  )
  if blocks is None:
    raise ValueError(
      f"config.model.attention_kernel=distance: queries of {query.shape} do not fit into the memory of a core of "
      f"{device_kind or 'a TPU'}"
    )
  lengths = tuple(-(-length // block) * block for length, block in zip((query_length, key_length), blocks, strict=True))
  integers = {}
  if first_query is not None:
    integers["offset"] = jnp.reshape(first_query, (1,)).astype(jnp.int32)
  if dropout_rate:
    assert seeds is not None
    integers["seeds"] = jnp.ravel(seeds)
  pair = None
  if mask.query_segments is not None:
    assert mask.key_segments is not None
    pair = [jnp.where(x == 0, _PADDING, x.astype(jnp.int32)) for x in (mask.query_segments, mask.key_segments)]
  elif key_length % blocks[1] and ranks is None and not (causal and first_query is None and query_length <= key_length):
    pair = [jnp.zeros((batch, length), jnp.int32) for length in (query_length, key_length)]
  for names, arrays, filling in (
    (("query_segments", "key_segments"), pair, (_FILLING_QUERY, _FILLING_KEY)),
    (("query_ranks", "key_ranks"), ranks, (-1, np.iinfo(np.int32).max)),
  ):
    if arrays is not None:
      filled = (
        blocks_lib.pad(x, block, axis=1, value=value) for x, block, value in zip(arrays, blocks, filling, strict=True)
      )
      integers |= dict(zip(names, filled, strict=True))

  runs = _runs(integers, blocks, lengths, causal=causal, window=mask.window)
  if runs is not None:
    fetched = (blocks_lib.to_fetch(runs, 2), blocks_lib.to_fetch(runs, 1))
    names = ("forward_steps", "backward_steps")
    integers |= {
      name: jnp.ravel(2 * fetch + runs).astype(jnp.int32) for name, fetch in zip(names, fetched, strict=True)
    }
  shape = Shape(
    batch,
    heads,
    heads // keys.shape[1],
    head_dim,
    *lengths,
    # Up to the end of the blocks of its last part.
    whole_query_length=-(-((whole_query_length or query_length) + lengths[0] - query_length) // LANES) * LANES,
    blocks=blocks,
    reach=reach,
    learned=learned,
    dropout_rate=dropout_rate,
    steps_of_rows=runs is not None and runs.shape[0] > 1,
    share=share_by_place(blocks, (whole_query_length or lengths[0], lengths[1]), causal=causal, window=mask.window),
    memory=_MEMORY.get(device_kind, _MOST_MEMORY),
    interpret=sharding.platform() == "cpu",
  )
  vector = None
  if bias is not None:
    distances = shape.distances()
    hidden = np.zeros(distances.shape, bool)
    hidden |= (distances > 0) if causal else False
    hidden |= (abs(distances) > mask.window) if mask.window else False
    vector = jnp.where(hidden, HIDDEN, bias.at(distances))
    vector = vector if learned else jax.lax.stop_gradient(vector)
  join = lambda x, block: blocks_lib.pad(jnp.swapaxes(x, 1, 2).reshape(batch, x.shape[2], -1), block, axis=1)
  out = relative_bias_kernels.attend(
    shape, join(query, blocks[0]), join(keys, blocks[1]), join(values, blocks[1]), vector, integers
  )
  return jnp.swapaxes(out[:, :query_length].reshape(batch, query_length, heads, head_dim), 1, 2)


def attend_on_mesh(
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
  """See `dispatch.attend`; heads that do not fill the lanes of a block have separate keys."""
  batch, heads, whole_length, _ = query.shape
  ranks, key_ranks = mask.ranks, mask.ranks
  seeds = starts = None
  has_prefix = mask.causal and mask.prefix is not None
  if has_prefix:
    if ranks is not None:
      raise ValueError(
        "config.model.attention_kernel=distance: the kernel does not support ranks together with a prefix"
      )
    ranks = blocks_lib.positions_seen(mask, batch, whole_length)
  if dropout_rate:
    assert dropout_key is not None
    seeds = jax.lax.bitcast_convert_type(jax.random.bits(dropout_key, (batch, heads)), jnp.int32)
  if sharding.num_shards("length") > 1:
    starts = jnp.arange(whole_length, dtype=jnp.int32)

  def part(query, keys, values, query_segments, key_segments, ranks, key_ranks, by_distance, seeds, starts):
    if has_prefix:  # ranks of keys are their positions
      key_ranks = jnp.broadcast_to(jnp.arange(keys.shape[2], dtype=jnp.int32), (len(keys), keys.shape[2]))
    local_fields = {"query_segments": query_segments, "key_segments": key_segments, "prefix": None, "ranks": None}
    return attend(
      *(query, keys, values),
      dataclasses.replace(mask, **local_fields, causal=mask.causal and not has_prefix, query_offset=0),
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


def _by_place(queries, keys, blocks: tuple[int, int], *, causal: bool, window: int):
  """Returns which pairs of blocks at `queries` and `keys` may be visible under the causal mask and the window."""
  sees = (np if isinstance(queries, np.ndarray) else jnp).ones(jnp.broadcast_shapes(queries.shape, keys.shape), bool)
  if causal:
    sees = sees & (keys <= queries + blocks[0] - 1)
  if window:
    sees = sees & (keys + blocks[1] - 1 >= queries - window) & (keys <= queries + blocks[0] - 1 + window)
  return sees


def share_by_place(blocks: tuple[int, int], lengths: tuple[int, int], *, causal: bool, window: int) -> float:
  """Returns the fraction of block pairs under the causal mask and the window; for sequence shards, the mean."""
  queries, keys = (np.arange(0, length, block) for length, block in zip(lengths, blocks, strict=True))
  return float(_by_place(queries[:, None], keys[None, :], blocks, causal=causal, window=window).mean())


def _runs(integers: dict, blocks, lengths, *, causal: bool, window: int):
  """Returns which blocks may contain visible keys, bool [batch or 1, query blocks, key blocks]; None: all blocks."""
  starts = [np.arange(0, length, block) for length, block in zip(lengths, blocks, strict=True)]
  queries, keys = starts[0][:, None], starts[1][None, :]
  if "offset" in integers:
    queries = queries + integers["offset"][0]
  runs = _by_place(queries, keys, blocks, causal=causal, window=window)[None]
  split = lambda name, block: integers[name].reshape(integers[name].shape[0], -1, block)
  if "query_ranks" in integers:
    highest, lowest = split("query_ranks", blocks[0]).max(2), split("key_ranks", blocks[1]).min(2)
    runs = runs & (lowest[:, None, :] <= highest[:, :, None])
  if "query_segments" in integers:
    runs = runs & blocks_lib.segments_meet(integers["query_segments"], integers["key_segments"], blocks)
  if lengths == tuple(blocks) or (isinstance(runs, np.ndarray) and runs.all()):
    return None  # skipping a single block gains nothing
  return jnp.asarray(runs)
