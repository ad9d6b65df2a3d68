"""Attention with a bias that depends on distance alone (T5's), on TPUs: one Pallas kernel forward, one backward.

Source: Dao et al. 2022 and Dao 2023 for the blocks and the backward pass; Raffel et al. 2020 for the bias.
"""

from collections.abc import Mapping
import functools
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
import jax.numpy as jnp
import numpy as np

from t2t.models.kernels import relative_bias_tiles as tiles
from t2t.models.remat import SAVED


def _forward_kernel(shape: tiles.Shape, refs: dict, scratch: tuple):
  from jax.experimental import pallas as pl

  row, group, i, j = shape.grid_position(pl.program_id, backward=False)
  number, head_dim = shape.key_length // shape.blocks[1], shape.head_dim
  heads = range(shape.group)
  out, lse = refs["out"], refs["lse"]

  if number == 1 and "steps" not in refs:
    tile = tiles.Tile(shape, refs, row, group, i, j)
    query, keys, values = (refs[name][0] for name in ("query", "keys", "values"))
    parts = []
    for g in heads:
      logits = tile.logits(query, tiles.of_head(keys, g, head_dim), g)
      most = jnp.maximum(jnp.max(logits, axis=0, keepdims=True), tiles.FLOOR)
      exponentials = jnp.exp(logits - most)
      total = jnp.sum(exponentials, axis=0, keepdims=True)
      total = jnp.where(total == 0.0, 1.0, total)
      dropped = tile.dropped(exponentials, g).astype(values.dtype)
      parts.append(tiles.dot(values[:, tiles.rows_of_head(g, head_dim)], dropped, tiles.TN) / total)  # [kv, query]
      lse[0, 0, g : g + 1] = most + jnp.log(total)
    out[0] = jnp.transpose(jnp.concatenate(parts, axis=0)).astype(out.dtype)
    return

  most_ref, total_ref, sum_ref = scratch

  @pl.when(j == 0)
  def begin():
    most_ref[...] = jnp.full_like(most_ref, tiles.FLOOR)
    total_ref[...] = jnp.zeros_like(total_ref)
    sum_ref[...] = jnp.zeros_like(sum_ref)

  def add():
    tile = tiles.Tile(shape, refs, row, group, i, j)
    query, keys, values = (refs[name][0] for name in ("query", "keys", "values"))
    for g in heads:
      logits = tile.logits(query, tiles.of_head(keys, g, head_dim), g)
      before = most_ref[g : g + 1]
      most = jnp.maximum(before, jnp.max(logits, axis=0, keepdims=True))
      exponentials = jnp.exp(logits - most)
      shrunk = jnp.exp(before - most)
      most_ref[g : g + 1] = most
      total_ref[g : g + 1] = shrunk * total_ref[g : g + 1] + jnp.sum(exponentials, axis=0, keepdims=True)
      rows = tiles.rows_of_head(g, head_dim)
      # The product covers all lanes of the values; rows of other heads are not used.
      product = tiles.dot(values, tile.dropped(exponentials, g).astype(values.dtype), tiles.TN)
      sum_ref[rows] = shrunk * sum_ref[rows] + product[rows]

  shape.where_it_runs(refs, row, i, j, add)

  @pl.when(j == number - 1)
  def end():
    for g in heads:
      rows, total = tiles.rows_of_head(g, head_dim), total_ref[g : g + 1]
      sum_ref[rows] = sum_ref[rows] / jnp.where(total == 0.0, 1.0, total)
    out[0] = jnp.transpose(sum_ref[...]).astype(out.dtype)
    total = total_ref[...]
    lse[0, 0] = most_ref[...] + jnp.log(jnp.where(total == 0.0, 1.0, total))


def _backward_kernel(shape: tiles.Shape, refs: dict, scratch: tuple):
  from jax.experimental import pallas as pl

  position: Any = shape.grid_position(pl.program_id, backward=True)
  row, group, i, j = position
  query_blocks, key_blocks = shape.num_blocks
  head_dim, heads = shape.head_dim, range(shape.group)
  query_sum, key_sum, value_sum = scratch
  at = 0 if query_blocks == 1 else pl.multiple_of(i * shape.blocks[0], tiles.LANES)
  query_rows = pl.ds(at, shape.blocks[0])

  if shape.learned:

    @pl.when((row == 0) & (i == 0) & (j == 0))
    def begin_bank():
      refs["d_bank"][...] = jnp.zeros_like(refs["d_bank"])

  @pl.when(i == 0)
  def begin_keys():
    key_sum[...] = jnp.zeros_like(key_sum)
    value_sum[...] = jnp.zeros_like(value_sum)

  @pl.when(j == 0)
  def begin_queries():
    query_sum[query_rows] = jnp.zeros_like(query_sum[query_rows])

  def add():
    tile = tiles.Tile(shape, refs, row, group, i, j)
    query, keys, values, d_out = (refs[name][0] for name in ("query", "keys", "values", "d_out"))
    upright = lambda x: jnp.transpose(x.astype(jnp.float32)).astype(x.dtype)
    weighted = jnp.transpose(d_out.astype(jnp.float32) * refs["out"][0].astype(jnp.float32))  # [lanes, query]
    d_out_upright, query_upright, keys_upright = upright(d_out), upright(query), upright(keys)
    d_query = []
    for g in heads:
      rows = tiles.rows_of_head(g, head_dim)
      logits = tile.logits(query, tiles.of_head(keys, g, head_dim), g)
      probabilities = jnp.exp(logits - refs["lse"][0, 0, g : g + 1])
      mean = jnp.sum(weighted[rows], axis=0, keepdims=True)  # sum over keys of probability times its gradient
      change = tile.dropped(tiles.dot(tiles.of_head(values, g, head_dim), d_out, tiles.NT), g)
      d_logits = probabilities * (change - mean)
      if shape.learned:
        for a, start in enumerate(tile.starts):
          refs["d_bank"][g, :, pl.ds(start, shape.blocks[0])] += d_logits[a * tiles.LANES : (a + 1) * tiles.LANES]
      dropped = tile.dropped(probabilities, g).astype(d_out.dtype)
      d_logits = d_logits.astype(query.dtype)
      value_sum[rows] += tiles.dot(d_out_upright[rows], dropped, tiles.NT)  # [kv, key]
      key_sum[rows] += tiles.dot(query_upright[rows], d_logits, tiles.NT)
      d_query.append(tiles.dot(keys_upright[rows], d_logits, tiles.NN))  # [kv, query]
    query_sum[query_rows] += jnp.transpose(jnp.concatenate(d_query, axis=0))

  shape.where_it_runs(refs, row, i, j, add)

  @pl.when(j == key_blocks - 1)
  def end_queries():
    refs["d_query"][0, query_rows] = query_sum[query_rows].astype(refs["d_query"].dtype)

  @pl.when(i == query_blocks - 1)
  def end_keys():
    refs["d_keys"][0] = jnp.transpose(key_sum[...]).astype(refs["d_keys"].dtype)
    refs["d_values"][0] = jnp.transpose(value_sum[...]).astype(refs["d_values"].dtype)


_SCALARS = ("offset", "steps", "seeds")
_OF_QUERIES, _OF_KEYS = ("query_segments", "query_ranks"), ("key_segments", "key_ranks")


def _call(kernel, shape: tiles.Shape, inputs: dict, outs: dict, scratch: list, *, backward: bool) -> dict:
  """Runs a kernel.

  Args:
    kernel: takes the references by name, and its scratch memory.
    shape: see `Shape`.
    inputs: name -> array; scalars first, in the order of `_SCALARS`.
    outs: name -> (shape and dtype).
    scratch: sizes of memory that persists from block to block.
    backward: whether the grid is the backward one, see `Shape.grid_position`.
  """
  from jax.experimental import pallas as pl
  from jax.experimental.pallas import tpu as pltpu

  query_block, key_block = shape.blocks
  query_blocks, key_blocks = shape.num_blocks
  lanes = max(shape.head_dim, tiles.LANES)
  scalars = [name for name in _SCALARS if name in inputs]

  def block(of: str):
    """Returns the index map of "queries" or "keys" blocks; a step that does not run gets the next running step's block,
    so that nothing is fetched for it.
    """

    def index(row, first, second, references):
      i, j = (second, first) if backward else (first, second)
      if "steps" in scalars and of == ("queries" if backward else "keys"):
        row = row if shape.steps_of_rows else 0
        return references[scalars.index("steps")][(row * query_blocks + i) * key_blocks + j] >> 1
      return i if of == "queries" else j

    return index

  def spec(name: str):
    of = "queries" if name in ("query", "out", "d_out", "lse", *_OF_QUERIES) else "keys"
    length, number = (query_block if of == "queries" else key_block), block(of)
    if name in ("bank", "d_bank"):
      return pl.BlockSpec((shape.group, tiles.LANES, shape.bank_length), lambda h, *_: (h, 0, 0))
    if name == "d_query":
      return pl.BlockSpec((1, shape.query_length, lanes), lambda h, b, *_: (b, 0, h))
    if name in (*_OF_QUERIES, *_OF_KEYS):
      return pl.BlockSpec((1, 1, length), lambda h, b, x, y, *references: (b, 0, number(b, x, y, references)))
    if name == "lse":
      rows = (1, 1, shape.group, length)
      return pl.BlockSpec(rows, lambda h, b, x, y, *references: (b, h, 0, number(b, x, y, references)))
    sharing = shape.shared if name in ("keys", "values") else 1
    at = (lambda h: jax.lax.div(h, np.int32(sharing))) if sharing > 1 else (lambda h: h)
    return pl.BlockSpec((1, length, lanes), lambda h, b, x, y, *references: (b, number(b, x, y, references), at(h)))

  arrays = [name for name in inputs if name not in _SCALARS]

  def run(*references):
    names = [*scalars, *arrays, *outs]
    kernel(shape, dict(zip(names, references, strict=False)), references[len(names) :])

  inner = (key_blocks, query_blocks) if backward else (query_blocks, key_blocks)
  pairs = int(shape.batch * shape.heads * shape.query_length * shape.key_length * shape.share)
  operands = sum(x.size * x.dtype.itemsize for x in inputs.values()) + sum(
    x.size * x.dtype.itemsize for x in outs.values()
  )
  results = pl.pallas_call(
    run,
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=len(scalars),
      grid=(shape.heads // shape.group, shape.batch, *inner),
      in_specs=[spec(name) for name in arrays],
      out_specs=[spec(name) for name in outs],
      scratch_shapes=[pltpu.VMEM(size, jnp.float32) for size in scratch],
    ),
    out_shape=list(outs.values()),
    compiler_params=pltpu.CompilerParams(
      # Gradients of the bias are summed over rows and blocks.
      dimension_semantics=("parallel", "arbitrary", "arbitrary", "arbitrary"),
      vmem_limit_bytes=shape.memory,
    ),
    cost_estimate=pl.CostEstimate(
      flops=2 * (5 if backward else 2) * pairs * shape.head_dim, transcendentals=pairs, bytes_accessed=operands
    ),
    interpret=shape.interpret,
    name=f"distance_attention_{'backward' if backward else 'forward'}",
  )(*(inputs[name] for name in (*scalars, *arrays)))
  return dict(zip(outs, results, strict=True))


def _given(shape: tiles.Shape, integers: dict, *, backward: bool) -> dict:
  """Returns the integer inputs in the order of the kernels' arguments."""
  steps = {"steps": integers["backward_steps" if backward else "forward_steps"]} if "forward_steps" in integers else {}
  ordered = {name: integers[name] for name in ("offset", "seeds") if name in integers} | steps
  return ordered | {name: integers[name][:, None] for name in (*_OF_QUERIES, *_OF_KEYS) if name in integers}


def _forward(shape: tiles.Shape, query, keys, values, vector, integers):
  inputs = _given(shape, integers, backward=False) | {"query": query, "keys": keys, "values": values}
  if vector is not None:
    inputs["bank"] = tiles.make_bank(vector)
  groups = shape.heads // shape.group
  outs = {
    "out": jax.ShapeDtypeStruct(query.shape, query.dtype),
    "lse": jax.ShapeDtypeStruct((shape.batch, groups, shape.group, shape.query_length), jnp.float32),
  }
  lanes, query_block = max(shape.head_dim, tiles.LANES), shape.blocks[0]
  scratch = [(shape.group, query_block), (shape.group, query_block), (lanes, query_block)]
  results = _call(_forward_kernel, shape, inputs, outs, scratch, backward=False)
  return checkpoint_name(results["out"], SAVED), checkpoint_name(results["lse"], SAVED)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(
  shape: tiles.Shape,
  query: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  vector: jax.Array | None,
  integers: Mapping[str, jax.Array],
) -> jax.Array:
  """Computes attention on one device.

  Args:
    shape: static parameters of the kernels.
    query, keys, values: [batch, length, heads * kv], in whole blocks; of `keys` and `values` heads / `shape.shared`.
    vector: float32 [heads, entries], see `Shape.distances`; None: no bias.
    integers: name -> other inputs: `offset`, `seeds`, segments, ranks, and which blocks run.

  Returns:
    an array of the shape of `query`.
  """
  return _forward(shape, query, keys, values, vector, integers)[0]


def _attend_forward(shape: tiles.Shape, query, keys, values, vector, integers):
  out, lse = _forward(shape, query, keys, values, vector, integers)
  return out, (query, keys, values, vector, integers, out, lse)


def _attend_backward(shape: tiles.Shape, residuals, d_out):
  query, keys, values, vector, integers, out, lse = residuals
  inputs = _given(shape, integers, backward=True) | {"query": query, "keys": keys, "values": values}
  inputs |= {"out": out, "lse": lse, "d_out": d_out.astype(query.dtype)}
  outs = {  # gradients for every head
    name: jax.ShapeDtypeStruct((*x.shape[:2], query.shape[2]), x.dtype)
    for name, x in (("d_query", query), ("d_keys", keys), ("d_values", values))
  }
  if vector is not None:
    inputs["bank"] = bank = tiles.make_bank(vector)
    if shape.learned:
      outs["d_bank"] = jax.ShapeDtypeStruct(bank.shape, jnp.float32)
  lanes = max(shape.head_dim, tiles.LANES)
  scratch = [(shape.query_length, lanes), (lanes, shape.blocks[1]), (lanes, shape.blocks[1])]
  results = _call(_backward_kernel, shape, inputs, outs, scratch, backward=True)
  d_vector = None
  if vector is not None:
    d_vector = jnp.zeros_like(vector)
    if shape.learned:
      (d_vector,) = jax.linear_transpose(tiles.make_bank, jax.ShapeDtypeStruct(vector.shape, vector.dtype))(
        results["d_bank"]
      )
  if shape.shared > 1:
    apart = (*keys.shape[:2], -1, shape.shared, shape.head_dim)
    results |= {name: results[name].reshape(apart).sum(axis=3).reshape(keys.shape) for name in ("d_keys", "d_values")}
  no_gradient = jax.tree.map(lambda x: np.zeros(x.shape, jax.dtypes.float0), integers)
  return results["d_query"], results["d_keys"], results["d_values"], d_vector, no_gradient


attend.defvjp(_attend_forward, _attend_backward)
