"""A block of logits of attention with a bias by distance, inside a kernel; and the bank that its bias is read from.

Logits are computed as [key, query], block by block, so that the softmax reduces over sublanes and its statistics are
rows. Queries, keys and values are [batch, length, heads * kv], as the projections return them. A block of 128 lanes has
a group of 128 / kv heads, and nothing is padded or transposed in memory.

A block's bias is a lane-aligned slice of a bank (see `make_bank`), which costs only its loads. Causal masks and windows
are part of the bank. The gradient of the bias is summed in the same slices.

Source: Dao et al. 2022 and Dao 2023 for the blocks and the backward pass; Raffel et al. 2020 for the bias.
"""

from collections.abc import Callable, Mapping
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

LANES = 128
# Far below all logits but finite: a sum of two is not -inf, and no difference is NaN.
HIDDEN = -0.7 * float(np.finfo(np.float32).max)
# Below all logits of float32 activations, above masked ones: the maximum of a query without visible keys.
FLOOR = -1e30

Index = jax.Array | int  # 0 if there is only one block
Refs = Mapping[str, jax.Ref]  # in a kernel, name -> reference

# Contracted dimensions of matrix products: a b^T, a b, and a^T b.
NT, NN, TN = (((1,), (1,)), ((), ())), (((1,), (0,)), ((), ())), (((0,), (0,)), ((), ()))


@dataclasses.dataclass(frozen=True)
class Shape:
  """Static parameters of the kernels.

  batch, heads, head_dim: sizes on this device.
  shared: number of query heads per key head; more than one only if a head fills the lanes of a block.
  query_length, key_length: lengths in whole blocks.
  whole_query_length: length of the sequence that the queries are a part of.
  blocks: positions of a block of queries, and of keys.
  reach: distance from which the bias is constant, in either direction.
  learned: whether the bias has a gradient.
  dropout_rate: dropout of single probabilities.
  steps_of_rows: whether the blocks that run differ between rows.
  share: largest fraction of block pairs that run.
  memory: bytes of a core's vector memory that may be used.
  interpret: whether to use Pallas' interpreter, on a CPU.
  """

  batch: int
  heads: int
  shared: int
  head_dim: int
  query_length: int
  key_length: int
  whole_query_length: int
  blocks: tuple[int, int]
  reach: int
  learned: bool
  dropout_rate: float
  steps_of_rows: bool
  share: float
  memory: int
  interpret: bool

  @property
  def corners(self) -> tuple[int, int]:
    """Returns the smallest and largest key minus query at a corner of a block's bias; the bias is constant beyond."""
    query_block, _ = self.blocks
    reach = -(-self.reach // LANES) * LANES
    least = min(self.whole_query_length - query_block, reach + LANES)
    return -least, min(self.key_length - LANES, reach + query_block)

  @property
  def bank_length(self) -> int:
    """Returns the number of lanes of the bank."""
    low, high = self.corners
    return high - low + self.blocks[0]

  @property
  def group(self) -> int:
    """Returns the number of heads in the lanes of one block."""
    return max(1, LANES // self.head_dim)

  @property
  def num_blocks(self) -> tuple[int, int]:
    """Returns the number of blocks of queries, and of keys."""
    return self.query_length // self.blocks[0], self.key_length // self.blocks[1]

  def grid_position(
    self, program_id: Callable[[int], jax.Array], *, backward: bool
  ) -> tuple[Index, Index, Index, Index]:
    """Returns row, group of heads, query block and key block of a kernel call; 0 for a single block.

    The inner loop is over keys in the forward pass, and over queries in the backward pass.
    """
    group, row = program_id(0), program_id(1)
    i, j = (program_id(3), program_id(2)) if backward else (program_id(2), program_id(3))
    query_blocks, key_blocks = self.num_blocks
    return row, group, 0 if query_blocks == 1 else i, 0 if key_blocks == 1 else j

  def where_it_runs(self, refs: Refs, row: Index, i: Index, j: Index, function: Callable[[], None]) -> None:
    """Calls `function` unless all pairs of the block are masked."""
    from jax.experimental import pallas as pl

    if "steps" not in refs:
      function()
    else:
      query_blocks, key_blocks = self.num_blocks
      row = row if self.steps_of_rows else 0
      pl.when(refs["steps"][(row * query_blocks + i) * key_blocks + j] & 1)(function)

  def distances(self) -> np.ndarray:
    """Returns key minus query of a vector's entries, int [bank_length + 127], in descending order."""
    return self.corners[1] + LANES - 1 - np.arange(self.bank_length + LANES - 1)


def make_bank(vector: jax.Array) -> jax.Array:
  """Returns shifted copies of a vector, in which the bias of 128 keys and any queries is a lane-aligned slice.

  bank[:, r, x] = vector[:, x - r + 127]. Neither it nor its gradient gathers or scatters.

  Args:
    vector: float32 [heads, bank_length + 127], see `Shape.distances`.

  Returns:
    [heads, 128, bank_length].
  """
  heads, number = vector.shape
  length = number - (LANES - 1)
  # Repeated rows, reshaped to a width that is one less than theirs, shift by one from row to row.
  row = jnp.concatenate([vector[:, LANES - 1 :], vector[:, :1], vector[:, : LANES - 1]], axis=1)
  width = length + LANES
  return jnp.tile(row, (1, LANES))[:, : LANES * (width - 1)].reshape(heads, LANES, width - 1)[:, :, :length]


def keep(seed: jax.Array, keys: jax.Array, queries: jax.Array, rate: float) -> jax.Array:
  """Returns which probabilities dropout keeps: a hash of their positions, equal in every recomputation.

  Args:
    seed: int32, of a row and a head.
    keys, queries: int32, positions; all three broadcast.
    rate: fraction that is dropped.

  Returns:
    bool, of the broadcast shape.

  Source: the finalizer of MurmurHash3 (Appleby 2011).
  """
  shifted = jax.lax.shift_right_logical
  number = lambda bits: np.array(bits, np.uint32).view(np.int32)[()]
  bits = (keys * number(0x9E3779B1)) ^ (queries * number(0x85EBCA77) + seed)
  bits = (bits ^ shifted(bits, 16)) * number(0x85EBCA6B)
  bits = (bits ^ shifted(bits, 13)) * number(0xC2B2AE35)
  bits = bits ^ shifted(bits, 16)
  return shifted(bits, 8) >= round(rate * 2**24)


def dot(a: jax.Array, b: jax.Array, dims: jax.lax.DotDimensionNumbers) -> jax.Array:
  """Computes a matrix product in float32; for bfloat16 operands it is one pass of the matrix unit."""
  precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
  return jax.lax.dot_general(a, b, dims, preferred_element_type=jnp.float32, precision=precision)


# ---- Contents of a block ---------------------------------------------------------------------------------------------


def of_head(x: jax.Array, g: int, head_dim: int) -> jax.Array:
  """Returns `x`, [n, lanes], with zeros outside the lanes of the g-th head."""
  if head_dim >= LANES:
    return x
  lanes = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1)
  in_head = (lanes >= g * head_dim) & (lanes < (g + 1) * head_dim)
  return jnp.where(in_head, x.astype(jnp.float32), 0.0).astype(x.dtype)


def rows_of_head(g: int, head_dim: int) -> slice:
  """Returns the lanes of a group's g-th head."""
  return slice(g * head_dim, (g + 1) * head_dim) if head_dim < LANES else slice(None)


class Tile:
  """Logits of a block of keys and one of queries, inside a kernel: [key, query].

  refs: name -> reference, for the inputs that are present.
  """

  def __init__(self, shape: Shape, refs: Refs, b: Index, group: Index, i: Index, j: Index):
    self._shape, self._refs, self._b, self._group = shape, refs, b, group
    query_block, key_block = shape.blocks
    self._query_start, self._key_start = i * query_block, j * key_block
    if "offset" in refs:
      self._query_start = self._query_start + refs["offset"][0]
    self._allowed = self._seen()
    self.starts = self._starts()

  def _starts(self) -> list:
    """Returns the index in the bank of the bias of each 128 keys."""
    if "bank" not in self._refs:
      return []
    from jax.experimental import pallas as pl

    low, high = self._shape.corners
    tiles = range(self._shape.blocks[1] // LANES)
    corners = [self._key_start + a * LANES - self._query_start for a in tiles]
    if all(isinstance(x, int) for x in corners):
      return [high - min(max(x, low), high) for x in corners]
    return [pl.multiple_of(high - jnp.clip(x, low, high), LANES) for x in corners]

  def _seen(self) -> jax.Array | None:
    """Returns the mask by segments and ranks, bool [key, query]; None if they mask nothing."""
    query_block, key_block = self._shape.blocks
    spread = lambda ref: jnp.broadcast_to(ref[0], (key_block, query_block))
    upright = lambda ref: jnp.tile(
      jnp.transpose(jnp.broadcast_to(ref[0], (LANES, key_block))), (1, query_block // LANES)
    )
    refs, seen = self._refs, None
    if "query_segments" in refs:
      seen = upright(refs["key_segments"]) == spread(refs["query_segments"])
    if "query_ranks" in refs:
      before = upright(refs["key_ranks"]) <= spread(refs["query_ranks"])
      seen = before if seen is None else seen & before
    return seen

  def logits(self, query: jax.Array, keys: jax.Array, g: int) -> jax.Array:
    """Returns the logits of one head of the group; `keys` are zero in the other heads' lanes."""
    from jax.experimental import pallas as pl

    scores = dot(keys, query, NT)
    if self.starts:
      rows = [self._refs["bank"][g, :, pl.ds(at, self._shape.blocks[0])] for at in self.starts]
      scores = scores + jnp.concatenate(rows, axis=0)
    return scores if self._allowed is None else jnp.where(self._allowed, scores, HIDDEN)

  def dropped(self, x: jax.Array, g: int) -> jax.Array:
    """Applies dropout with scaling to `x`; repeated calls use the same mask."""
    rate = self._shape.dropout_rate
    if not rate:
      return x
    heads = self._shape.heads
    seed = self._refs["seeds"][self._b * heads + self._group * self._shape.group + g]
    keys = self._key_start + jax.lax.broadcasted_iota(jnp.int32, x.shape, 0)
    queries = self._query_start + jax.lax.broadcasted_iota(jnp.int32, x.shape, 1)
    return jnp.where(keep(seed, keys, queries, rate), x * (1.0 / (1.0 - rate)), 0.0)
