import bisect

from flax import nnx
from hypothesis import given, settings, strategies
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import sharding
from t2t.models import attention, cpu_ops
from t2t.models import positions as positions_lib
from t2t.models.masks import AttentionMask

# The first distance of each bucket in T5's tables, 32 buckets up to distance 128: exact ones, then ceil(8 * 16**(k/8))
# in each direction, or ceil(16 * 8**(k/16)) for the past only.
BIDIRECTIONAL_STARTS = [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]
CAUSAL_STARTS = [*range(16), 16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]


def bucket(position, *, bidirectional):
  return np.asarray(
    positions_lib.relative_position_bucket(
      np.asarray(position), bidirectional=bidirectional, num_buckets=32, max_distance=128
    )
  )


def normal(*shape, seed=0):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def softmax(x):
  e = np.exp(x - x.max(-1, keepdims=True))
  return e / e.sum(-1, keepdims=True)


def test_bidirectional_buckets_are_t5s():
  """Keys to the left have the buckets 0 to 15, keys to the right 16 to 31, wider with the distance."""
  distances = np.arange(300)
  expected = np.array([bisect.bisect_right(BIDIRECTIONAL_STARTS, d) - 1 for d in distances])
  np.testing.assert_array_equal(bucket(-distances, bidirectional=True), expected)
  np.testing.assert_array_equal(bucket(distances[1:], bidirectional=True), expected[1:] + 16)


def test_causal_buckets_are_t5s():
  """All 32 buckets are for the past; the masked future gets bucket 0."""
  distances = np.arange(300)
  expected = np.array([bisect.bisect_right(CAUSAL_STARTS, d) - 1 for d in distances])
  np.testing.assert_array_equal(bucket(-distances, bidirectional=False), expected)
  np.testing.assert_array_equal(bucket(distances, bidirectional=False), 0)


@pytest.mark.slow
@settings(deadline=None, max_examples=50)
@given(
  num_buckets=strategies.sampled_from([8, 16, 32, 64]),
  factor=strategies.integers(2, 20),
  bidirectional=strategies.booleans(),
)
def test_buckets_are_used_in_order(num_buckets, factor, bidirectional):
  """Farther keys never have a lower bucket, every bucket is in range, and the last is reached and kept."""
  max_distance = num_buckets * factor
  positions = -np.arange(2_000)
  arguments = dict(bidirectional=bidirectional, num_buckets=num_buckets, max_distance=max_distance)
  left = np.asarray(positions_lib.relative_position_bucket(positions, **arguments))
  last = (num_buckets // 2 if bidirectional else num_buckets) - 1
  assert np.all(np.diff(left) >= 0)
  assert np.all(left[max_distance:] == last)
  assert left[0] == 0
  assert left[1] == 1
  right = np.asarray(positions_lib.relative_position_bucket(-positions[1:], **arguments))
  np.testing.assert_array_equal(right, left[1:] + num_buckets // 2 if bidirectional else np.zeros_like(right))


@pytest.mark.parametrize(
  ("num_heads", "halvings"),
  [(1, [8]), (2, [4, 8]), (8, [1, 2, 3, 4, 5, 6, 7, 8]), (3, [4, 8, 2]), (6, [2, 4, 6, 8, 1, 3]), (5, [2, 4, 6, 8, 1])],
)
def test_slopes_of_alibi_are_the_published(num_heads, halvings):
  """The logits of a head fall by a power of two with each position, in both directions."""
  np.testing.assert_allclose(positions_lib.alibi_slopes(num_heads), 0.5 ** np.array(halvings), rtol=1e-6)
  found = positions_lib.alibi(num_heads, 2).at(np.array([-2, 0, 1]))
  np.testing.assert_allclose(found, np.outer(0.5 ** np.array(halvings), [-2, 0, -1]), rtol=1e-6)


@pytest.fixture(params=["cpu", "tpu"])
def platform(request, monkeypatch):
  """Also tests the formulas of accelerators, because a CPU uses another order of operations."""
  monkeypatch.setattr(sharding, "platform", lambda: request.param)


# A mask that hides nothing.
NO_MASK = AttentionMask()


def segments(*rows):
  return jnp.array(rows, jnp.int32)


def test_attend_is_its_formula(platform):
  """softmax(query keys^T + bias) values; T5 does not divide by sqrt(head_dim)."""
  query, keys, values = normal(2, 3, 4, 5), normal(2, 3, 6, 5, seed=1), normal(2, 3, 6, 5, seed=2)
  bias = normal(1, 3, 4, 6)
  expected = softmax(query @ keys.swapaxes(2, 3) + bias) @ values
  np.testing.assert_allclose(attention.attend(query, keys, values, mask=NO_MASK, bias=bias), expected, atol=1e-5)


def test_heads_in_a_row_share_keys_and_values(platform):
  """Grouped queries: with 6 heads and 2 key heads, the first three heads use the first."""
  query, keys, values = normal(2, 6, 4, 5), normal(2, 2, 7, 5, seed=1), normal(2, 2, 7, 5, seed=2)
  bias, mask = normal(1, 6, 4, 7), AttentionMask(causal=True, query_offset=3)
  wide = lambda x: x[:, [0, 0, 0, 1, 1, 1]]
  expected = attention.attend(query, wide(keys), wide(values), mask=mask, bias=bias)
  np.testing.assert_allclose(attention.attend(query, keys, values, mask=mask, bias=bias), expected, atol=1e-6)


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@settings(deadline=None, max_examples=20)
@given(
  data=strategies.data(),
  length=strategies.integers(1, 9),
  packed=strategies.booleans(),
  window=strategies.integers(0, 4),
)
@pytest.mark.parametrize("causal", [False, True])
def test_a_query_sees_keys_of_its_rank_and_lower_ones(data, length, packed, window, causal):
  """Pair by pair for any ranks, within segments, window and causality."""
  draw = lambda low, high: np.array(
    data.draw(strategies.lists(strategies.integers(low, high), min_size=length, max_size=length))
  )
  ranks, ids = draw(-3, 2**31 - 2), draw(0, 2) if packed else None
  rows = None if ids is None else jnp.asarray(ids[None], jnp.int32)
  mask = AttentionMask(rows, rows, ranks=jnp.asarray(ranks[None], jnp.int32), causal=causal, window=window)
  found = np.asarray(mask.allowed(length, length))[0, 0]
  for q in range(length):
    for k in range(length):
      near = (not window or abs(q - k) <= window) and (not causal or k <= q)
      assert found[q, k] == (ranks[k] <= ranks[q] and near and (ids is None or ids[q] == ids[k]))


def test_causality_and_a_prefix_are_ranks():
  """Ranks 0, 1, 2, ...; and 0 for all of a prefix."""
  length, prefix = 7, np.array([[1, 1, 1, 0, 0, 0, 0]], np.int32)
  for one, ranks in (
    (AttentionMask(causal=True), np.arange(length)[None]),
    (AttentionMask(causal=True, prefix=prefix), np.where(prefix, 0, np.arange(length))),
  ):
    np.testing.assert_array_equal(
      one.allowed(length, length)[0, 0], AttentionMask(ranks=ranks).allowed(length, length)[0, 0]
    )


@pytest.mark.slow
def test_no_gradient_comes_from_a_higher_rank(platform):
  """A query's output depends on all keys and values that it attends to, and on no others."""
  ranks = np.random.default_rng(3).permutation(6).astype(np.int32)[None]
  query, keys, values = normal(1, 1, 6, 5), normal(1, 1, 6, 5, seed=1), normal(1, 1, 6, 5, seed=2)
  of = lambda keys, values: attention.attend(query, keys, values, mask=AttentionMask(ranks=ranks)).sum((0, 1, 3))
  seen = ranks[0][:, None] >= ranks[0][None, :]
  by_keys, by_values = (np.abs(each).sum((1, 2, 4)) > 0 for each in jax.jacobian(of, argnums=(0, 1))(keys, values))
  np.testing.assert_array_equal(by_values, seen)
  # the probability of a single key is constant
  np.testing.assert_array_equal(by_keys, seen & (seen.sum(1, keepdims=True) > 1))


def test_ranks_are_of_a_sequence_and_itself():
  """Ranks require as many queries as keys."""
  with pytest.raises(ValueError, match="do not match 1 queries and 4 keys"):
    AttentionMask(ranks=np.zeros((1, 4), np.int32)).allowed(1, 4)


def test_what_is_not_allowed_has_no_weight(platform):
  """Masked keys equal absent keys."""
  query, keys, values = normal(2, 3, 4, 5), normal(2, 3, 6, 5, seed=1), normal(2, 3, 6, 5, seed=2)
  mask = AttentionMask(segments(*[[1] * 4] * 2), segments(*[[1] * 4 + [0] * 2] * 2))
  masked = attention.attend(query, keys, values, mask=mask)
  expected = attention.attend(query, keys[:, :, :4], values[:, :, :4], mask=NO_MASK)
  np.testing.assert_allclose(masked, expected, atol=1e-6)


def test_a_query_that_may_see_nothing_sees_everything_alike(platform):
  """Padding has a finite result: the mean of all values."""
  query, keys, values = normal(1, 1, 2, 5), normal(1, 1, 6, 5, seed=1), normal(1, 1, 6, 5, seed=2)
  mask = AttentionMask(segments([1, 1]), segments([0] * 6))
  out = attention.attend(query, keys, values, mask=mask)
  np.testing.assert_allclose(out[0, 0], np.tile(values.mean(2)[0], (2, 1)), atol=1e-6)


@pytest.mark.exhaustive_from(8)
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("masked", ["nothing", "some", "all-of-a-query"])
def test_gradients_of_attend_are_those_of_its_formula(platform, masked, kv_heads):
  """With respect to queries, keys, values and bias."""
  arrays = normal(2, 4, 4, 5), normal(2, kv_heads, 6, 5, seed=1), normal(2, kv_heads, 6, 5, seed=2)
  arrays += (normal(1, 4, 4, 6, seed=3),)
  read_out = normal(2, 4, 4, 5, seed=4)
  seen_by = segments([1, 1, 1, 1], [1, 1, 2, 1]), segments([1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1])
  if masked == "some":
    seen_by = seen_by[0].at[1, 2].set(1), seen_by[1]
  mask = NO_MASK if masked == "nothing" else AttentionMask(*seen_by)
  allowed = np.ones((2, 1, 4, 6), bool)
  allowed[0, 0, :, 4:] = masked == "nothing"
  allowed[1, 0, 2] = masked != "all-of-a-query"

  def formula(query, keys, values, bias):
    keys, values = (jnp.repeat(x, 4 // kv_heads, axis=1) for x in (keys, values))
    logits = jnp.where(allowed, jnp.einsum("bhqk,bhsk->bhqs", query, keys) + bias, jnp.finfo(jnp.float32).min)
    return jnp.sum(read_out * jnp.einsum("bhqs,bhsk->bhqk", jax.nn.softmax(logits, axis=-1), values))

  def ours(query, keys, values, bias):
    return jnp.sum(read_out * attention.attend(query, keys, values, bias=bias, mask=mask))

  expected = jax.jit(jax.grad(formula, argnums=(0, 1, 2, 3)))(*arrays)
  found = jax.jit(jax.grad(ours, argnums=(0, 1, 2, 3)))(*arrays)
  for name, one, other in zip(("query", "keys", "values", "bias"), found, expected, strict=True):
    np.testing.assert_allclose(one, other, atol=1e-5, err_msg=name)


def causal_arrays(length):
  """Returns queries, keys, values, a bias, and the causal mask of rows with several sequences and padding."""
  ids = np.minimum(np.arange(length)[None] * 5 // length + 1, [[9], [2]])
  ids[1, length - length // 7 :] = 0
  allowed = AttentionMask(segments(*ids), segments(*ids), causal=True).allowed(length, length)
  return tuple(normal(2, 2, length, 4, seed=seed) for seed in range(3)) + (
    normal(1, 2, length, length, seed=3),
    allowed,
  )


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("length", [1, 127, 128, 129, 300])
def test_causal_blocks_are_the_whole(length):
  """Same result and gradients with and without a bias, whether or not blocks divide the length."""
  *arrays, bias, allowed = causal_arrays(length)
  read_out = normal(2, 2, length, 4, seed=4)
  for arguments in ((*arrays, bias), (*arrays, None)):
    found, expected = (
      jax.jit(jax.value_and_grad(lambda x, attend=attend: jnp.sum(read_out * attend(*x, allowed))))(arguments)
      for attend in (cpu_ops.attend_causally, cpu_ops.attend)
    )
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-4)
    for name, one, other in zip(("query", "keys", "values", "bias"), found[1], expected[1], strict=True):
      if other is not None:
        np.testing.assert_allclose(one, other, atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_causal_blocks_do_not_touch_the_keys_behind_them():
  """Keys that are masked for a whole block are not read, instead of multiplied by zero."""
  query, keys, values, bias, allowed = causal_arrays(300)
  values[:, :, 256:] = np.nan
  attended = np.asarray(cpu_ops.attend_causally(query, keys, values, bias, allowed))
  assert np.all(np.isfinite(attended[:, :, :256]))
  assert np.all(np.isnan(attended[:, :, 256:]))


def test_attention_logits_and_softmax_are_float32():
  """With bfloat16 inputs only the probabilities and the result are rounded, not the logits."""
  query, keys, values = (jnp.asarray(8 * normal(1, 1, 4, 5, seed=s), jnp.bfloat16) for s in range(3))
  out = attention.attend(query, keys, values, mask=NO_MASK)
  wide = lambda x: np.asarray(x, np.float32)
  probabilities = jnp.asarray(softmax(wide(query) @ wide(keys).swapaxes(2, 3)), jnp.bfloat16)
  assert out.dtype == jnp.bfloat16
  np.testing.assert_allclose(wide(out), wide(probabilities) @ wide(values), rtol=2**-6, atol=2**-6)


@pytest.mark.slow
def test_attention_dropout_is_shared_by_the_queries():
  """T5 shares one mask among all queries of a head; heads, and queries of other models, have separate masks."""
  query, keys, values = np.zeros((1, 8, 4, 5), np.float32), normal(1, 4, 6, 5), normal(1, 4, 6, 5, seed=1)
  how = dict(mask=NO_MASK, dropout_rate=0.5, dropout_key=jax.random.key(0))
  out = np.asarray(attention.attend(query, keys, values, **how))
  np.testing.assert_allclose(out, np.broadcast_to(out[:, :, :1], out.shape), rtol=1e-6)
  weights = np.einsum("hk,hks->hs", out[0, :, 0], np.linalg.pinv(values[0, [0, 0, 1, 1, 2, 2, 3, 3]]))
  assert np.any(np.abs(weights[0] - weights[1]) > 0.1)
  others = np.asarray(attention.attend(query, keys, values, broadcast_dropout=False, **how))
  assert np.any(np.abs(others - others[:, :, :1]) > 0.1)


def test_mask_is_causal_within_segments():
  """A query attends to keys of its segment that are not to its right; padding is a separate segment."""
  segments = jnp.array([[1, 1, 2, 2, 0]])
  mask = AttentionMask(segments, segments, causal=True)
  expected = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 0, 1]]
  np.testing.assert_array_equal(mask.allowed(5, 5)[0, 0], np.array(expected, bool))


def allowed(length, **fields):
  return AttentionMask(**fields).allowed(length, length)[0, 0].astype(int).tolist()


def test_a_prefix_sees_itself_in_both_directions():
  """Attention after the prefix is causal, and no position of the prefix attends to it."""
  assert allowed(4, causal=True, prefix=segments([1, 1, 0, 0])) == [
    [1, 1, 0, 0],
    [1, 1, 0, 0],
    [1, 1, 1, 0],
    [1, 1, 1, 1],
  ]


def test_packed_prefixes_do_not_see_each_other():
  """Two examples in a row, each with a prefix of two."""
  ids = segments([1, 1, 1, 2, 2, 2])
  assert allowed(6, causal=True, prefix=segments([1, 1, 0, 1, 1, 0]), query_segments=ids, key_segments=ids) == [
    [1, 1, 0, 0, 0, 0],
    [1, 1, 0, 0, 0, 0],
    [1, 1, 1, 0, 0, 0],
    [0, 0, 0, 1, 1, 0],
    [0, 0, 0, 1, 1, 0],
    [0, 0, 0, 1, 1, 1],
  ]


def test_a_window_is_so_many_positions_to_each_side():
  """With window 1 a query attends to its neighbours, within a causal mask or a prefix."""
  assert allowed(4, window=1) == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
  assert allowed(4, window=1, causal=True) == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
  prefix = segments([1, 1, 1, 0])
  assert allowed(4, window=1, causal=True, prefix=prefix) == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 0], [0, 0, 1, 1]]


def test_a_window_counts_from_the_offset():
  """Windows in decoding."""
  found = AttentionMask(causal=True, window=1, query_offset=jnp.array(3)).allowed(1, 6)
  np.testing.assert_array_equal(found[0, 0], [[False, False, True, True, False, False]])


def test_a_mask_without_structure_is_none():
  """Without masking, no mask is computed."""
  assert AttentionMask().allowed(3, 4) is None


def test_causal_mask_counts_from_the_offset():
  """In decoding, the single query is at `query_offset` among the keys."""
  allowed = AttentionMask(causal=True, query_offset=jnp.array(2)).allowed(1, 5)
  np.testing.assert_array_equal(allowed[0, 0], [[True, True, True, False, False]])


def test_cache_is_written_at_its_position():
  """The other positions are unchanged."""
  empty = jnp.zeros((1, 1, 4, 2))
  cache = attention.KVCache(empty, empty).write(jnp.ones((1, 1, 1, 2)), 2 * jnp.ones((1, 1, 1, 2)), jnp.array(1))
  np.testing.assert_array_equal(cache.keys[0, 0, :, 0], [0, 1, 0, 0])
  np.testing.assert_array_equal(cache.values[0, 0, :, 1], [0, 2, 0, 0])


@pytest.mark.slow
@pytest.mark.parametrize("bidirectional", [True, False])
def test_position_bias_of_one_query_is_a_row_of_the_whole(bidirectional):
  """Decoding computes one row of the bias that training computes for all positions."""
  bias = positions_lib.RelativePositionBias(toy.config(), nnx.Rngs(0), bidirectional=bidirectional)
  whole = positions_lib.bias_of(bias(), NO_MASK, 7, 7)
  assert whole.shape == (1, 4, 7, 7)
  decoding = AttentionMask(query_offset=jnp.array(4))
  np.testing.assert_array_equal(positions_lib.bias_of(bias(), decoding, 1, 7)[:, :, 0], whole[:, :, 4])


def test_position_bias_depends_on_the_distance_alone():
  """Entry (query, key) is the table's row for the bucket of key - query."""
  bias = positions_lib.RelativePositionBias(toy.config(), nnx.Rngs(0), bidirectional=True)
  table, whole = np.asarray(bias.table[...]), np.asarray(positions_lib.bias_of(bias(), NO_MASK, 4, 6))
  np.testing.assert_array_equal(whole[0, :, 2, 2], table[0])
  np.testing.assert_array_equal(whole[0, :, 3, 2], table[1])
  np.testing.assert_array_equal(whole[0, :, 2, 3], table[5])
  np.testing.assert_array_equal(whole[0, :, 1:, 1:], whole[0, :, :-1, :-1])


@pytest.mark.slow
def test_position_bias_is_the_same_from_its_largest_distance_on():
  """The bias by distance equals that of pairs: the last of T5's 32 buckets begins before 128 positions."""
  bias = positions_lib.RelativePositionBias(
    toy.config(relative_position_buckets=32, relative_position_max_distance=128), nnx.Rngs(0), bidirectional=True
  )
  distances = np.arange(-300, 301)
  buckets = positions_lib.relative_position_bucket(distances, bidirectional=True, num_buckets=32, max_distance=128)
  np.testing.assert_array_equal(bias().at(distances), np.asarray(bias.table[...]).T[:, buckets])
  assert bias().reach == 128


def test_rotary_angles_are_those_of_their_docstring():
  """Position times base ** -(2 i / head_dim), counted from the offset."""
  expected = np.array([[0, 0], [1, 0.1], [2, 0.2]])
  cos, sin = toy.rotary_angles(3, 4, 100.0)
  np.testing.assert_allclose(cos, np.cos(expected), atol=1e-6)
  np.testing.assert_allclose(sin, np.sin(expected), atol=1e-6)
  for whole, one in zip((cos, sin), toy.rotary_angles(1, 4, 100.0, jnp.array(2)), strict=True):
    np.testing.assert_array_equal(one, whole[2:])


def test_rotation_is_a_multiplication_of_complex_numbers():
  """Features i and i + head_dim / 2 are the real and imaginary part of a number."""
  x, (cos, sin) = normal(2, 3, 5, 6), toy.rotary_angles(5, 6, 50.0)
  turned = (x[..., :3] + 1j * x[..., 3:]) * (np.asarray(cos) + 1j * np.asarray(sin))
  expected = np.concatenate([turned.real, turned.imag], axis=-1)
  np.testing.assert_allclose(positions_lib.rotate(x, (cos, sin)), expected, atol=1e-5)


def test_rotated_products_depend_on_the_distance_alone():
  """Moving query and key by three positions gives the same logit."""
  query, key = normal(1, 1, 1, 8), normal(1, 1, 1, 8, seed=1)

  def logit(query_position, key_position):
    turned = [
      positions_lib.rotate(x, toy.rotary_angles(1, 8, 100.0, p))
      for x, p in ((query, query_position), (key, key_position))
    ]
    return np.sum(turned[0] * turned[1])

  np.testing.assert_allclose(logit(5, 2), logit(8, 5), rtol=1e-4)
  assert abs(logit(5, 2) - logit(2, 5)) > 0.01


def test_rotation_of_bfloat16_is_computed_in_float32():
  """bfloat16 angles of far positions would have no digits left."""
  x, angles = jnp.asarray(normal(1, 1, 4, 6), jnp.bfloat16), toy.rotary_angles(4, 6, 1e4, 10_000)
  out = positions_lib.rotate(x, angles)
  assert out.dtype == jnp.bfloat16
  np.testing.assert_array_equal(out, positions_lib.rotate(x.astype(jnp.float32), angles).astype(jnp.bfloat16))


def attention_layer(**fields):
  config = toy.config(**fields)
  return attention.Attention(config, nnx.Rngs(0)), normal(2, 5, 16)


@pytest.mark.slow
def test_scaled_attention_divides_by_the_root_of_head_dim():
  """Otherwise the layers are equal."""
  plain, x = attention_layer()
  scaled, _ = attention_layer(scale_attention=True)
  for name in ("query", "key", "value", "out"):
    setattr(scaled, name, getattr(plain, name))
  plain.query = nnx.Param(plain.query[...] / 6**0.5)
  outputs = [layer(x, *layer.keys_and_values(x), mask=NO_MASK) for layer in (plain, scaled)]
  np.testing.assert_allclose(*outputs, atol=1e-6)


def test_queries_and_keys_are_normed_head_by_head():
  """QK-norm removes lengths: projections a thousand times larger give the same result."""
  layer, x = attention_layer(qk_norm=True, num_kv_heads=2, norm_epsilon=1e-12)
  expected = layer(x, *layer.keys_and_values(x), mask=NO_MASK)
  keys, _ = layer.keys_and_values(x)
  assert keys.shape == (2, 2, 5, 6)
  np.testing.assert_allclose(np.mean(np.square(keys), axis=-1), 1.0, rtol=1e-4)
  layer.query, layer.key = (nnx.Param(1e3 * kernel[...]) for kernel in (layer.query, layer.key))
  np.testing.assert_allclose(layer(x, *layer.keys_and_values(x), mask=NO_MASK), expected, atol=1e-4)
