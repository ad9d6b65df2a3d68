"""Fused attention equals its formula: splash in Pallas' interpreter, and cuDNN's calls in JAX's own implementation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t import sharding
from t2t.models import remat
from t2t.models.kernels import blocks, dispatch, gpu, splash
from t2t.models.masks import AttentionMask

# Two rows of 300 positions, three blocks of 128: packed and padded, with different amounts of padding.
LENGTH = 300
SEGMENTS = np.array(
  [
    np.repeat([1, 2, 3, 0], [140, 20, 100, 40]),
    np.repeat([1, 2, 3, 0], [30, 100, 169, 1]),
  ],
  np.int32,
)
# 1 at the first positions of each segment: none, some or all of them.
PREFIX = np.array(
  [
    np.repeat([1, 0, 1, 1, 0, 0], [130, 10, 20, 60, 40, 40]),
    np.repeat([0, 1, 0, 1, 0, 0], [30, 1, 99, 150, 19, 1]),
  ],
  np.int32,
)
# Few values, so that many positions share one, in no order.
RANKS = np.random.default_rng(2).integers(0, 20, (2, LENGTH)).astype(np.int32)
UNPACKED = (np.arange(LENGTH) < [[270], [LENGTH]]).astype(np.int32)
UNPACKED_PREFIX = (np.arange(LENGTH) < [[200], [1]]).astype(np.int32)


def mask(segments=None, key_segments=None, **fields):
  key_segments = segments if key_segments is None else key_segments
  return AttentionMask(query_segments=segments, key_segments=key_segments, **fields)


MASKS = {
  "bidirectional": mask(),
  "causal": mask(causal=True),
  "padded": mask(UNPACKED),
  "packed": mask(SEGMENTS),
  "packed causal": mask(SEGMENTS, causal=True),
  "prefix": mask(causal=True, prefix=UNPACKED_PREFIX),
  "padded prefix": mask(UNPACKED, causal=True, prefix=UNPACKED_PREFIX),
  "packed prefix": mask(SEGMENTS, causal=True, prefix=PREFIX),
  "window": mask(window=40),
  "causal window": mask(causal=True, window=40),
  "packed window": mask(SEGMENTS, window=150),
  "packed causal window": mask(SEGMENTS, causal=True, window=150),
}
# Masks that splash does not support.
CUDNN_MASKS = MASKS | {
  "packed prefix window": mask(SEGMENTS, causal=True, prefix=PREFIX, window=40),
  "ranks": mask(ranks=RANKS),
  "packed causal ranks window": mask(SEGMENTS, causal=True, ranks=RANKS, window=150),
}


def seen(mask, query_length, key_length):
  """Returns bool [1 or batch, query, key], pair by pair from the mask's definition."""
  q, k = np.arange(query_length)[:, None], np.arange(key_length)[None, :]
  pairs = np.ones((1, query_length, key_length), bool)
  if mask.causal:
    pairs = pairs & (k <= q)
    if mask.prefix is not None:
      pairs = pairs | ((mask.prefix[:, :, None] == 1) & (mask.prefix[:, None, :] == 1))
  if mask.ranks is not None:
    pairs = pairs & (mask.ranks[:, None, :] <= mask.ranks[:, :, None])
  if mask.window:
    pairs = pairs & (abs(q - k) <= mask.window)
  if mask.query_segments is not None:
    pairs = pairs & (mask.query_segments[:, :, None] == mask.key_segments[:, None, :])
  return pairs


def formula(query, keys, values, pairs):
  """Computes softmax(query keys^T) values in float32, pair by pair; zeros for queries without visible keys."""
  groups = query.shape[1] // keys.shape[1]
  query, keys, values = (x.astype(jnp.float32) for x in (query, keys, values))
  keys, values = (jnp.repeat(x, groups, axis=1) for x in (keys, values))
  pairs = pairs[:, None]
  logits = jnp.where(pairs, query @ jnp.swapaxes(keys, -1, -2), -1e30)
  exponentials = jnp.where(pairs, jnp.exp(logits - logits.max(-1, keepdims=True)), 0.0)
  return exponentials @ values / jnp.maximum(exponentials.sum(-1, keepdims=True), 1e-30)


def operands(*, heads=2, kv_heads=2, head_dim=16, batch=2, query_length=LENGTH, key_length=None, dtype=jnp.float32):
  """Returns queries, keys, values, and weights of the differentiated sum."""
  key_length = query_length if key_length is None else key_length
  rng = np.random.default_rng(0)
  shapes = [(heads, query_length), (kv_heads, key_length), (kv_heads, key_length), (heads, query_length)]
  arrays = [jnp.asarray(rng.normal(size=(batch, *shape, head_dim)), dtype) for shape in shapes]
  return arrays[0] / 2, *arrays[1:]


def value_and_grads(function, query, keys, values, weights):
  """Returns the result of `function`, and gradients of queries, keys and values."""

  def total(query, keys, values):
    result = function(query, keys, values)
    return jnp.sum(result.astype(jnp.float32) * weights.astype(jnp.float32)), result

  (_, result), gradients = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True))(query, keys, values)
  return result, *gradients


def assert_is_formula(mask, kernel, *, atol=2e-5, rtol=0.0, **sizes):
  """Checks that result and gradients equal the formula's; returns the result."""
  query, keys, values, weights = operands(**sizes)
  pairs = seen(mask, query.shape[2], keys.shape[2])
  fused = lambda *x: dispatch.attend(*x, mask, kernel=kernel, largest_block=128)
  actual = value_and_grads(fused, query, keys, values, weights)
  expected = value_and_grads(lambda *x: formula(*x, pairs), query, keys, values, weights)
  for name, one, other in zip(("result", "query", "keys", "values"), actual, expected, strict=True):
    assert one.dtype == query.dtype
    one, other = (np.asarray(x, np.float32) for x in (one, other))
    np.testing.assert_allclose(one, other, atol=atol, rtol=rtol, err_msg=name)
  return actual[0]


@pytest.mark.slow
@pytest.mark.exhaustive_from(2)
@pytest.mark.parametrize("name", MASKS)
def test_splash_is_the_formula(name):
  """300 positions are padded to three blocks of 128."""
  assert_is_formula(MASKS[name], "splash")


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("name", ["bidirectional", "causal"])
def test_splash_whose_gradient_of_queries_has_too_many_parts(monkeypatch, name):
  """A separate kernel computes it."""
  monkeypatch.setattr(splash, "MOST_PARTS", 2)
  assert_is_formula(MASKS[name], "splash")


@pytest.mark.slow
@pytest.mark.exhaustive_from(2)
@pytest.mark.parametrize("name", CUDNN_MASKS)
@pytest.mark.parametrize("kernel", ["cudnn", "triton"])
def test_what_gpus_are_asked_for_is_the_formula(kernel, name):
  assert_is_formula(CUDNN_MASKS[name], kernel)


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("kernel", ["cudnn", "triton"])
def test_a_bias_on_gpus(kernel):
  """Result, and gradients of queries and of the bias, equal the formula's."""
  query, keys, values, weights = operands()
  bias = jnp.asarray(np.random.default_rng(1).normal(size=(1, 2, LENGTH, LENGTH)), jnp.float32)
  packed = MASKS["packed"]

  def fused(query, bias):
    return dispatch.attend(query, keys, values, packed, kernel=kernel, bias=bias)

  def plain(query, bias):
    logits = jnp.where(packed.allowed(LENGTH, LENGTH), query @ jnp.swapaxes(keys, -1, -2) + bias, -1e30)
    return jnp.where((SEGMENTS > 0)[:, None, :, None], jax.nn.softmax(logits) @ values, 0.0)

  real = weights * (SEGMENTS > 0)[:, None, :, None]
  results = [
    jax.jit(jax.value_and_grad(lambda *x, f=f: jnp.sum(f(*x) * real), argnums=(0, 1)))(query, bias)
    for f in (fused, plain)
  ]
  jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-3, rtol=1e-4), *results)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kernel", ["splash", "cudnn", "triton"])
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_grouped_queries(kernel, kv_heads):
  """Four heads share one or two heads of keys and values."""
  assert_is_formula(MASKS["packed prefix"], kernel, heads=4, kv_heads=kv_heads)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kernel", ["splash", "cudnn", "triton"])
def test_another_sequence(kernel):
  """Decoder queries and encoder keys of other lengths; a segment without keys gives zeros, not NaN."""
  queries = np.repeat([[1, 2, 3]] * 2, [120, 136, 4], axis=1).astype(np.int32)
  keys = np.array([np.repeat([1, 2, 0], [50, 100, 250]), np.repeat([1, 3, 0], [384, 10, 6])], np.int32)
  assert_is_formula(mask(queries, keys), kernel, query_length=260, key_length=400)
  assert_is_formula(mask(), kernel, query_length=260, key_length=400)


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("name", ["causal", "packed causal"])
@pytest.mark.parametrize("kernel", ["splash", "cudnn", "triton"])
def test_bfloat16(kernel, name):
  """Inputs, result and gradients have two to three digits."""
  assert_is_formula(MASKS[name], kernel, dtype=jnp.bfloat16, atol=0.05, rtol=0.02)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kernel", ["splash", "cudnn", "triton"])
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_on_a_mesh(kernel, kv_heads):
  """Every device computes its rows and heads; a key head shared by two devices is on both."""
  several = mask(np.repeat(SEGMENTS, 2, axis=0), causal=True, prefix=np.repeat(PREFIX, 2, axis=0))
  mesh = sharding.make_mesh({"data": 2, "fsdp": 2, "tensor": 2})
  with jax.set_mesh(mesh):
    result = assert_is_formula(several, kernel, batch=4, heads=4, kv_heads=kv_heads)
    assert sharding.num_shards("batch") == 4 and sharding.num_shards("heads") == 2 and sharding.num_shards("kv") == 1
  assert result.sharding.shard_shape(result.shape) == (1, 2, LENGTH, 16)


@pytest.mark.slow
def test_heads_of_keys_that_devices_share_stay_with_their_queries():
  """Two key heads on four devices: the first belongs to the first two query heads, not to every other one."""
  with jax.set_mesh(sharding.make_mesh({"fsdp": 2, "tensor": 4})):
    assert_is_formula(mask(SEGMENTS[:2], causal=True), "cudnn", batch=2, heads=8, kv_heads=2)


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("name", sorted(MASKS))
def test_a_split_sequence(name):
  """Every device computes its part of the queries with all keys."""
  one = MASKS[name]
  if one.window:
    pytest.skip("a window over a split sequence runs without a kernel")
  with jax.set_mesh(sharding.make_mesh({"fsdp": 2, "sequence": 2, "tensor": 2})):
    result = assert_is_formula(one, "splash", heads=4, kv_heads=2)
  assert result.sharding.shard_shape(result.shape) == (1, 2, LENGTH // 2, 16)


def gradient_of_layers(weights, run, **options):
  """Returns the gradient function of two attention layers, [2, kv, kv], which `run` calls in sequence."""

  def layer(x, kernel):
    attended = dispatch.attend(x, x @ kernel, x, MASKS["packed causal"], kernel="splash", largest_block=128)
    return x + attended, None

  body = jax.checkpoint(layer, prevent_cse=False, **options) if options else layer
  return jax.jit(jax.grad(lambda layers, x: jnp.sum(run(body, x, layers)[0] * weights)))


@pytest.mark.exhaustive
def test_layers_in_a_scan_with_checkpoints():
  """Equal to a loop without checkpoints."""
  x, _, _, weights = operands(head_dim=8)
  layers = jnp.asarray(np.random.default_rng(1).normal(size=(2, 8, 8)) / 3, jnp.float32)
  loop = lambda body, x, layers: body(body(x, layers[0])[0], layers[1])
  actual = gradient_of_layers(weights, jax.lax.scan, policy=jax.checkpoint_policies.nothing_saveable)(layers, x)
  np.testing.assert_allclose(actual, gradient_of_layers(weights, loop)(layers, x), atol=1e-4)


@pytest.mark.slow
def test_a_policy_that_saves_by_name_runs_forward_once(monkeypatch):
  """Three kernels are left, forward and for two gradients, instead of four with nothing saved."""
  monkeypatch.setattr(sharding, "platform", lambda: "tpu")
  x, _, _, weights = operands(head_dim=8)
  policies = jax.checkpoint_policies
  for policy, calls in ((policies.nothing_saveable, 4), (policies.save_only_these_names(remat.SAVED), 3)):
    gradient = gradient_of_layers(weights, jax.lax.scan, policy=policy)
    text = gradient.trace(jnp.ones((2, 8, 8)), x).lower(lowering_platforms=("tpu",)).as_text()
    assert text.count("@tpu_custom_call") == calls


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  ("segments", "poisoned", "clean", "fields"),
  [
    ([128, 128, 64], [1], [0, 2], {}),
    ([128, 128, 64], [1], [0, 2], {"causal": True}),
    ([350], [2], [0, 1], {"causal": True}),
    ([350], [2], [0, 1], {"causal": True, "prefix": (np.arange(384) < 200).astype(np.int32)[None]}),
  ],
)
def test_blocks_that_no_query_sees_are_not_read(segments, poisoned, clean, fields):
  """NaN in these blocks would reach a query even with probability 0."""
  segments = np.repeat([*range(1, len(segments) + 1), 0], [*segments, 384 - sum(segments)])[None].astype(np.int32)
  query, keys, values, weights = operands(batch=1, heads=1, kv_heads=1, query_length=384)
  positions = lambda blocks: np.isin(np.arange(384) // 128, blocks)
  poison = jnp.where(positions(poisoned)[:, None], jnp.nan, values)
  attend = lambda *x: dispatch.attend(*x, mask(segments, **fields), kernel="splash", largest_block=128)
  expected = value_and_grads(attend, query, keys, values, weights)
  actual = value_and_grads(attend, query, keys, poison, weights)
  for one, other in zip(actual[:2], expected[:2], strict=True):  # result, gradient of queries
    np.testing.assert_array_equal(one[:, :, positions(clean)], other[:, :, positions(clean)])
  assert np.isnan(actual[0][:, :, positions(poisoned)]).any()


def test_every_query_has_a_block():
  """The second block of queries has a segment without keys in the second row."""
  queries, keys = np.array([[1, 1, 2, 2, 3, 3]] * 2), np.array([[1, 1, 1, 3], [1, 1, 3, 3]])
  runs = splash._blocks_that_run(None, queries, keys, shape=(2, 3, 2), blocks=(2, 2))
  np.testing.assert_array_equal(runs, [[[1, 1], [0, 1], [0, 1]], [[1, 0], [1, 0], [0, 1]]])


def test_how_far_a_prefix_sees():
  """The docstring's arrays; without segments the last two prefixes follow from the ids."""
  prefix, segments = np.array([[1, 1, 1, 0, 0, 1, 1, 0]]), np.array([[1, 1, 1, 1, 1, 2, 2, 2]])
  np.testing.assert_array_equal(blocks.reach(prefix, segments), [[2, 2, 2, 3, 4, 6, 6, 7]])
  both = np.ones((1, 4), np.int32)
  np.testing.assert_array_equal(blocks.reach(both, np.array([[1, 1, 2, 2]])), [[1, 1, 3, 3]])
  np.testing.assert_array_equal(blocks.reach(both, None), [[3, 3, 3, 3]])


def test_blocks_to_fetch():
  """The docstring's arrays."""
  runs = np.array([[0, 1, 0, 1, 0], [0, 0, 0, 0, 0]], bool)
  np.testing.assert_array_equal(blocks.to_fetch(runs, 1), [[1, 1, 3, 3, 1], [0, 0, 0, 0, 0]])


def test_blocks_pad_little():
  assert [blocks.block(length, 512) for length in (128, 130, 512, 568, 1024, 1100, 2048)] == [
    128, 256, 512, 384, 512, 384, 512
  ]  # fmt: skip


@pytest.mark.exhaustive_from(6)
@pytest.mark.parametrize("head_dim", [64, 80])
@pytest.mark.parametrize("name", ["bidirectional", "causal", "packed prefix", "packed window"])
def test_splash_lowers_for_tpus(monkeypatch, name, head_dim):
  """Mosaic accepts the blocks and types of all kernels: forward, and one or two backward."""
  monkeypatch.setattr(sharding, "platform", lambda: "tpu")
  text = lowered(MASKS[name], "splash", "tpu", head_dim=head_dim)
  assert text.count("@tpu_custom_call") == (3 if "packed" in name else 2)


@pytest.mark.parametrize("name", CUDNN_MASKS)
def test_cudnn_lowers_for_gpus(monkeypatch, name):
  """JAX accepts cuDNN's arguments, and needs a [query, key] array only for masks that cuDNN does not have."""
  cudnn = pytest.importorskip("jax._src.cudnn.fused_attention_stablehlo")
  monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91_000)
  monkeypatch.setattr(sharding, "platform", lambda: "gpu")
  text = lowered(CUDNN_MASKS[name], "cudnn", "cuda", head_dim=64)
  assert ("ScaleBias" not in text) == (name in ("bidirectional", "causal", "causal window"))
  assert "fmha" in text


@pytest.mark.slow
@pytest.mark.exhaustive_from(2)
@pytest.mark.parametrize("name", CUDNN_MASKS)
@pytest.mark.parametrize(("dtype", "length"), [(jnp.bfloat16, LENGTH), (jnp.float32, 113)])
def test_triton_lowers_for_gpus(monkeypatch, name, dtype, length):
  """Tokamax accepts the arguments, also shapes and dtypes that cuDNN refuses: one kernel forward, and one backward."""
  config = pytest.importorskip("tokamax.config")
  monkeypatch.setattr(sharding, "platform", lambda: "gpu")
  cut = jax.tree.map(lambda x: x[:, :length] if isinstance(x, np.ndarray) else x, CUDNN_MASKS[name])
  with config.cross_compile(True):
    text = lowered(cut, "triton", "cuda", head_dim=64, query_length=length, dtype=dtype)
  assert text.count("custom_call @__gpu$xla.gpu.triton(") == 2


def lowered(mask, kernel, platform, *, dtype=jnp.bfloat16, **sizes):
  """Returns the program of the gradients for `platform`."""
  arrays = operands(heads=4, kv_heads=2, dtype=dtype, **sizes)
  function = lambda *x: value_and_grads(lambda *y: dispatch.attend(*y, mask, kernel=kernel), *x)
  return jax.jit(function).trace(*arrays).lower(lowering_platforms=(platform,)).as_text()


def chosen(platform, *, lengths=(512, 512), mask=None, dtype="bfloat16", head_dim=64, heads=8, **fields):
  fields = {"compute_capability": "9.0"} | fields
  mask = MASKS["packed causal"] if mask is None else mask
  shapes = [(4, heads, length, head_dim) for length in lengths]
  return str(dispatch.choose(*shapes, dtype, mask, platform=platform, **fields))


def test_the_choice_and_its_reason():
  prefix_window = CUDNN_MASKS["packed prefix window"]
  window, splash = MASKS["window"], "splash (TPU, no bias)"
  assert chosen("tpu", mask=MASKS["causal"]) == chosen("tpu", mask=MASKS["causal"], dtype="float32") == splash
  assert chosen("gpu") == "cudnn (GPU, no bias)"
  assert chosen("cpu") == "plain (CPU)"
  assert chosen("tpu", batch_shards=8) == "plain (4 rows over 8 devices)"
  assert chosen("tpu", head_shards=3) == "plain (8 heads over 3 devices)"
  assert chosen("tpu", dtype="float16") == "plain (float16)"
  assert chosen("tpu", lengths=(1, 512)) == "plain (length 1, shorter than a block of 128)"
  assert chosen("tpu", mask=prefix_window) == "distance (TPU, window and prefix)"
  assert chosen("tpu", mask=window, lengths=(512, 1024)) == "distance (TPU, window in cross-attention)"
  ranks, both = CUDNN_MASKS["ranks"], mask(ranks=RANKS, causal=True, prefix=PREFIX)
  assert chosen("tpu", mask=ranks) == "distance (TPU, ranks)"
  assert chosen("tpu", mask=both) == "plain (ranks and prefix, TPU, ranks)"
  assert chosen("gpu", mask=ranks, lengths=(512, 512)) == "cudnn (GPU, no bias)"
  assert chosen("gpu", mask=ranks, lengths=(511, 511)) == "plain (odd length with a mask)"
  assert chosen("gpu", dtype="float32") == "plain (float32)"
  assert chosen("gpu", head_dim=80) == "cudnn (GPU, no bias)"
  assert chosen("gpu", head_dim=100).startswith("plain (head_dim 100")
  assert chosen("gpu", head_dim=256) == "cudnn (GPU, no bias)"
  assert chosen("gpu", head_dim=256, compute_capability="8.0").startswith("plain (head_dim 256")
  assert chosen("gpu", compute_capability="7.5") == "plain (compute capability 7.5, below 8.0)"
  assert chosen("gpu", compute_capability="gfx90a").startswith("plain (compute capability gfx90a")
  assert chosen("gpu", compute_capability="") == "plain (compute capability unknown, below 8.0)"
  assert chosen("gpu", lengths=(511, 512)) == "plain (odd length with a mask)"
  assert chosen("gpu", lengths=(511, 511), mask=MASKS["causal window"]) == "cudnn (GPU, no bias)"
  assert chosen("gpu", lengths=(1, 512)) == "plain (one query)"


@pytest.mark.parametrize("name", MASKS)
def test_rows_that_are_masked_apart_run_on_distance_where_it_can(name):
  """Splash would process rows as one sequence; it remains for other shapes, and on request."""
  splash, of = "splash (TPU, no bias)", MASKS[name]
  apart = not of.window and (of.query_segments is not None or of.prefix is not None)
  assert chosen("tpu", mask=of) == ("distance (TPU, row-specific masks)" if apart else splash)
  assert chosen("tpu", mask=of, requested="splash") == splash
  assert chosen("tpu", mask=of, head_dim=80) == splash
  assert chosen("tpu", mask=of, lengths=(65_536, 65_536)) == splash
  shapes = [(4, heads, 512, 64) for heads in (8, 2)]
  assert dispatch.choose(*shapes, "bfloat16", of, platform="tpu").kernel == ("distance" if apart else "splash")


def test_rows_that_are_masked_apart_run_on_splash_where_a_core_has_room_for_small_blocks_alone():
  """On a v4 at 8,192 positions distance would be slower; a bias requires distance."""
  on_v4 = lambda length, **fields: chosen("tpu", device_kind="TPU v4", lengths=(length, length), **fields)
  assert on_v4(4_096, head_dim=128).startswith("distance")
  assert on_v4(8_192, head_dim=128).startswith("splash")
  assert on_v4(8_192, head_dim=128, requested="distance").startswith("distance")
  assert on_v4(8_192, bias="distance", reach=128).startswith("distance")


def test_a_sequence_that_is_split_runs_on_distance_in_whole_blocks():
  causal = dict(mask=MASKS["causal"], length_shards=4)
  assert chosen("tpu", **causal) == "distance (TPU, row-specific masks)"
  assert chosen("tpu", **causal, lengths=(768, 768)) == "splash (TPU, no bias)"
  assert chosen("tpu", mask=MASKS["bidirectional"], length_shards=4) == "splash (TPU, no bias)"


def test_triton_is_asked_for(monkeypatch):
  """It supports shapes that cuDNN does not; it is used only on request."""
  assert chosen("gpu", requested="triton") == "triton (GPU, set by config.model.attention_kernel)"
  assert chosen("gpu", requested="triton", dtype="float32", head_dim=100).startswith("triton")
  assert chosen("gpu", requested="triton", lengths=(511, 512), bias="distance").startswith("triton")
  assert chosen("gpu", requested="triton", compute_capability="7.5").startswith("plain (compute capability 7.5")
  assert chosen("gpu", requested="triton", dropout="each") == "plain (dropout of probabilities)"
  monkeypatch.setattr(gpu, "has_triton", lambda: False)
  assert chosen("gpu", requested="triton") == "plain (Tokamax is not installed: pip install -e '.[tokamax]')"


def test_an_unknown_kernel():
  query, keys, values, _ = operands()
  with pytest.raises(ValueError, match="kernel='flash': unknown kernel. Known values: splash, distance, cudnn, triton"):
    dispatch.attend(query, keys, values, mask(), kernel="flash")
