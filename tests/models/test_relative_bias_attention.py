"""Attention with a bias by distance: the kernels in Pallas' interpreter equal the plain formula."""

import dataclasses
import functools

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import test_kernels
from test_kernels import CUDNN_MASKS, LENGTH, MASKS, SEGMENTS, operands, seen
import test_train_state
import toy

from t2t import UserError, sharding
from t2t.configuration.loading import load_config, override, records
from t2t.models import attention
from t2t.models import positions as positions_lib
from t2t.models.kernels import dispatch, relative_bias_attention, relative_bias_tiles
from t2t.models.masks import AttentionMask
from t2t.training import recipe

MASKS_OF_ALL = CUDNN_MASKS  # including a window with a prefix


def a_bias(heads: int, reach: int, seed: int = 1) -> positions_lib.DistanceBias:
  values = np.random.default_rng(seed).normal(size=(heads, 2 * reach + 1))
  return positions_lib.DistanceBias(jnp.asarray(values, jnp.float32))


def formula(query, keys, values, bias, pairs, kept=None):
  """Computes attention in float32, pair by pair; zeros for queries without visible keys.

  Args:
    query, keys, values: [batch, heads, length, kv].
    bias: see `positions_lib.DistanceBias`; None: no bias.
    pairs: bool [batch or 1, query, key], visible pairs.
    kept: float32 [batch, heads, query, key], factors of the probabilities; None: 1.
  """
  query, keys, values = (x.astype(jnp.float32) for x in (query, keys, values))
  groups = query.shape[1] // keys.shape[1]
  keys, values = (jnp.repeat(x, groups, axis=1) for x in (keys, values))
  logits = jnp.einsum("bhqd,bhkd->bhqk", query, keys)
  if bias is not None:
    logits += bias.at(np.arange(keys.shape[2]) - np.arange(query.shape[2])[:, None])
  pairs = pairs[:, None]
  logits = jnp.where(pairs, logits, -1e30)
  shares = jnp.where(pairs, jnp.exp(logits - logits.max(-1, keepdims=True)), 0.0)
  shares /= jnp.maximum(shares.sum(-1, keepdims=True), 1e-30)
  return jnp.einsum("bhqk,bhkd->bhqd", shares if kept is None else shares * kept, values)


def value_and_gradients(function, weights, *arguments):
  """Returns the result of `function`, and the gradients of a weighted sum of it."""

  def total(*arguments):
    result = function(*arguments)
    return jnp.sum(result.astype(jnp.float32) * weights.astype(jnp.float32)), result

  numbers = tuple(range(len(arguments)))
  (_, result), gradients = jax.jit(jax.value_and_grad(total, argnums=numbers, has_aux=True))(*arguments)
  return jax.tree.map(np.asarray, (result, gradients))


def assert_is_formula(mask, *, reach=128, rate=0.0, largest_block=128, tolerance=1e-5, **sizes):
  """Compares result and every gradient, relative to the largest entry; returns the result."""
  query, keys, values, weights = operands(**{"head_dim": 64} | sizes)
  given = (query, keys, values, *([a_bias(query.shape[1], reach)] if reach else []))
  pairs, key, kept = seen(mask, query.shape[2], keys.shape[2]), None, None
  if rate:
    key = jax.random.key(3)
    seeds = jax.lax.bitcast_convert_type(jax.random.bits(key, query.shape[:2]), jnp.int32)[..., None, None]
    positions = (jnp.arange(x.shape[2], dtype=jnp.int32) for x in (keys, query))
    at_keys, at_queries = (next(positions)[None, :], next(positions)[:, None])
    kept = relative_bias_tiles.keep(seeds, at_keys, at_queries, rate) / (1.0 - rate)
    np.testing.assert_allclose(kept.mean(), 1.0, atol=0.02)

  def on_kernel(query, keys, values, bias=None):
    options = dict(kernel="distance", bias=bias, dropout_rate=rate, dropout_key=key, largest_block=largest_block)
    return dispatch.attend(query, keys, values, mask, **options)

  by_formula = lambda query, keys, values, bias=None: formula(query, keys, values, bias, pairs, kept)
  found, expected = (value_and_gradients(each, weights, *given) for each in (on_kernel, by_formula))
  for number, (one, other) in enumerate(zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)):
    assert np.isfinite(one).all()
    one, other = one.astype(np.float32), other.astype(np.float32)
    # Entries of the bias sum gradients of a hundred thousand pairs, in different orders.
    np.testing.assert_allclose(one, other, atol=(5 if number == 4 else 1) * tolerance * np.abs(other).max())
  return found[0]


@pytest.mark.exhaustive
@pytest.mark.parametrize("reach", [128, 0])
@pytest.mark.parametrize("name", MASKS_OF_ALL)
def test_it_is_the_formula(name, reach):
  """300 positions are padded to three blocks of 128; with a bias and without."""
  assert_is_formula(MASKS_OF_ALL[name], reach=reach)


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize(
  ("sizes", "reach"),
  [
    (dict(query_length=128), 128),  # one block
    (dict(query_length=100, largest_block=512), 7),  # less than one block
    (dict(query_length=520, largest_block=256), 20),  # constant bias for most pairs
    (dict(query_length=260, key_length=400), 128),
    (dict(heads=4, kv_heads=2), 128),
    (dict(heads=3, kv_heads=1), 128),  # no whole groups
    (dict(heads=6, kv_heads=2, head_dim=128), 128),  # read in place
    (dict(heads=2, kv_heads=1, head_dim=256, query_length=260, key_length=400), 0),
    (dict(batch=1, heads=2, kv_heads=1, query_length=700, largest_block=512), 300),
    (dict(query_length=280, largest_block=256), 200),  # more than 128 positions of filling in the last block
    (dict(query_length=280, key_length=600, largest_block=256), 500),
  ],
)
def test_other_shapes(sizes, reach):
  """Blocks of other sizes, cross-attention, shared key heads, and a bias with a large reach or none."""
  sizes = sizes | dict(batch=sizes.get("batch", 2))
  assert_is_formula(MASKS["bidirectional"], reach=reach, **sizes)
  assert_is_formula(MASKS["causal"], reach=reach, **sizes)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["bidirectional", "packed causal", "packed prefix window"])
def test_dropout_of_single_probabilities(name):
  """By a hash of positions: forward, backward and formula drop the same."""
  assert_is_formula(MASKS_OF_ALL[name], rate=0.25)
  assert_is_formula(MASKS_OF_ALL[name], rate=0.1, reach=0)


@pytest.mark.slow
def test_a_query_that_sees_nothing():
  """The result is zero, without gradients."""
  queries = np.repeat([[1, 2, 3]] * 2, [120, 136, 4], axis=1).astype(np.int32)
  keys = np.array([np.repeat([1, 2, 0], [50, 100, 250]), np.repeat([1, 3, 0], [384, 10, 6])], np.int32)
  result = assert_is_formula(AttentionMask(queries, keys), query_length=260, key_length=400)
  assert not result[0, :, 256:].any() and not result[1, :, 120:256].any()


@pytest.mark.slow
def test_a_query_of_any_rank_that_sees_nothing():
  """Neither its own position nor lower ranks have its segment: zeros, and finite numbers elsewhere."""
  queries = np.repeat([[1, 2]] * 2, [200, 100], axis=1).astype(np.int32)
  keys = np.repeat([[1, 3], [3, 1]], [250, 50], axis=1).astype(np.int32)
  result = assert_is_formula(AttentionMask(queries, keys, ranks=test_kernels.RANKS))
  assert not result[:, :, 200:].any() and result[0, :, :200].any()


@pytest.mark.exhaustive
@pytest.mark.parametrize("as_ranks", ["causal", "prefix"])
def test_causality_and_prefixes_are_ranks(as_ranks):
  """Bitwise: the kernel converts a prefix to ranks."""
  prefix = test_kernels.UNPACKED_PREFIX if as_ranks == "prefix" else np.zeros((2, LENGTH), np.int32)
  ranks = np.where(prefix > 0, 0, np.arange(LENGTH, dtype=np.int32))
  query, keys, values, weights = operands(head_dim=64)
  found = []
  for mask in (AttentionMask(ranks=ranks), AttentionMask(causal=True, prefix=prefix)):
    attend = lambda *x, mask=mask: dispatch.attend(*x, mask, kernel="distance", bias=a_bias(2, 128), largest_block=128)
    found.append(jax.tree.leaves(value_and_gradients(attend, weights, query, keys, values)))
  for one, other in zip(*found, strict=True):
    np.testing.assert_array_equal(one, other)


@pytest.mark.exhaustive
@pytest.mark.parametrize("sizes", [{"data": 2, "fsdp": 2, "tensor": 2}, {"fsdp": 2, "sequence": 2, "tensor": 2}])
@pytest.mark.parametrize(
  "name", ["packed", "packed causal", "packed prefix", "packed causal window", "packed causal ranks window"]
)
def test_on_a_mesh(name, sizes):
  """Every device computes its rows, heads and queries of a sharded sequence; one gradient of the bias for all."""
  one = MASKS_OF_ALL[name]
  many = {field: np.repeat(value, 2, axis=0)[:, :256] for field, value in vars(one).items() if np.ndim(value) == 2}
  several = AttentionMask(**many, causal=one.causal, window=one.window)
  with jax.set_mesh(sharding.make_mesh(sizes)):
    assert_is_formula(several, batch=4, heads=4, kv_heads=4, query_length=256)
    assert_is_formula(several, batch=4, heads=4, kv_heads=2, query_length=256, rate=0.1)
    assert_is_formula(several, batch=4, heads=4, kv_heads=2, head_dim=128, query_length=256)
    assert_is_formula(several, batch=4, heads=4, kv_heads=1, head_dim=128, query_length=256)


@pytest.mark.exhaustive
def test_parts_of_a_sequence_that_are_no_whole_blocks():
  """A part's last block extends past the sequence's end by more than a block."""
  with jax.set_mesh(sharding.make_mesh({"fsdp": 2, "sequence": 2, "tensor": 2})):
    assert_is_formula(MASKS["causal"], batch=2, heads=4, kv_heads=4, query_length=768, largest_block=256, reach=600)


@pytest.mark.slow
def test_bfloat16():
  """Slightly less exact than the plain formula in bfloat16, whose products are not rounded here, unlike on a TPU."""
  one, (query, keys, values, weights) = MASKS["packed causal"], operands(head_dim=64, dtype=jnp.bfloat16)
  bias, pairs = a_bias(2, 128), seen(MASKS["packed causal"], LENGTH, LENGTH)
  exact = value_and_gradients(lambda *x: formula(*x, pairs), weights, query, keys, values, bias)
  on_kernel = lambda q, k, v, bias: dispatch.attend(q, k, v, one, kernel="distance", bias=bias)
  plain = functools.partial(attention.attend, mask=one)
  errors = []
  for function in (on_kernel, lambda q, k, v, bias: plain(q, k, v, bias=bias)):
    found = value_and_gradients(function, weights, query, keys, values, bias)
    pairs_of = zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True)
    errors.append([np.abs(a.astype(np.float32) - b.astype(np.float32)).max() for a, b in pairs_of])
  for ours, theirs in zip(*errors, strict=True):
    assert ours < 3 * theirs


@pytest.mark.exhaustive
def test_blocks_that_no_query_sees_are_not_read():
  """NaN in these blocks would reach a query even with probability 0."""
  segments = np.repeat([1, 2, 3, 0], [128, 128, 64, 64])[None].astype(np.int32)
  query, keys, values, weights = operands(batch=1, head_dim=64, query_length=384)
  at = lambda blocks: np.isin(np.arange(384) // 128, blocks)
  poison = jnp.where(at([1])[:, None], jnp.nan, values)
  bias = a_bias(2, 128)
  for causal in (False, True):
    mask = AttentionMask(segments, segments, causal=causal)
    attend = lambda *x, mask=mask: dispatch.attend(*x, mask, kernel="distance", bias=bias, largest_block=128)
    (expected, wanted), (found, gradients) = (
      value_and_gradients(attend, weights, query, keys, each) for each in (values, poison)
    )
    for one, other in ((found, expected), (gradients[0], wanted[0])):
      np.testing.assert_array_equal(one[:, :, at([0, 2])], other[:, :, at([0, 2])])
    assert np.isnan(found[:, :, at([1])]).any()


@pytest.mark.slow
def test_t5_s_dropout_is_that_of_rows_of_values():
  """Same mask as dropping probabilities for all queries at once, on any kernel."""
  query, keys, values, _ = operands(head_dim=64)
  key, rate, pairs = jax.random.key(5), 0.3, seen(MASKS["packed"], LENGTH, LENGTH)
  kept = jax.random.bernoulli(key, 1.0 - rate, (2, 2, 1, LENGTH)) / (1.0 - rate)
  expected = formula(query, keys, values, None, pairs, kept)
  options = dict(mask=MASKS["packed"], dropout_rate=rate, dropout_key=key, broadcast_dropout=True)
  seen_by_some = (SEGMENTS > 0)[:, None, :, None]
  np.testing.assert_allclose(
    *(jnp.where(seen_by_some, x, 0) for x in (attention.attend(query, keys, values, **options), expected)), atol=1e-5
  )


@pytest.mark.parametrize("sizes", [dict(head_dim=64, kv_heads=4), dict(head_dim=128, kv_heads=2)])
@pytest.mark.parametrize("name", ["bidirectional", "packed causal", "packed prefix"])
def test_it_lowers_for_tpus(monkeypatch, name, sizes):
  """The program has one kernel forward and one backward, and no array of queries and keys."""
  monkeypatch.setattr(sharding, "platform", lambda: "tpu")
  query, keys, values, weights = operands(heads=4, **sizes, dtype=jnp.bfloat16)

  def run(query, keys, values, bias, weights):
    total = lambda *x: jnp.sum(dispatch.attend(*x[:3], MASKS[name], kernel="distance", bias=x[3]) * weights)
    return jax.grad(total, argnums=(0, 1, 2, 3))(query, keys, values, bias)

  traced = jax.jit(run).trace(query, keys, values, a_bias(4, 128), weights)
  text = traced.lower(lowering_platforms=("tpu",)).as_text()
  assert text.count("@tpu_custom_call") == 2
  assert f"x{LENGTH}x{LENGTH}x" not in text and "x384x384x" not in text


def test_what_takes_it():
  """See also test_kernels.py: other attentions use splash and cuDNN."""
  chosen = functools.partial(test_kernels.chosen, mask=test_kernels.MASKS["causal"])
  assert chosen("tpu", bias="distance") == "distance (TPU, bias by distance)"
  assert chosen("gpu", bias="distance") == "cudnn (GPU, bias by distance)"
  assert chosen("tpu", dropout="each") == "distance (TPU, dropout of probabilities)"
  assert chosen("gpu", dropout="each") == "plain (dropout of probabilities)"
  assert chosen("tpu", dropout="rows") == "splash (TPU, no bias)"
  assert chosen("tpu", bias="soft cap") == "plain (soft cap on the logits)"
  assert chosen("tpu", bias="array") == "plain (bias on the logits)"
  assert chosen("tpu", bias="distance", head_dim=80) == "plain (head_dim 80, TPU, bias by distance)"
  assert chosen("tpu", bias="distance", heads=3).startswith("distance")
  assert chosen("tpu", bias="distance", head_shards=8) == "distance (TPU, bias by distance)"
  assert chosen("tpu", bias="distance", head_dim=128, head_shards=8) == "distance (TPU, bias by distance)"
  assert chosen("tpu", bias="distance", lengths=(64, 512)) == "distance (TPU, bias by distance)"
  assert chosen("tpu", bias="distance", lengths=(63, 512)) == "plain (length 63, shorter than a block of 128)"
  assert chosen("tpu", lengths=(114, 512)) == "distance (TPU, length 114)"
  assert chosen("tpu", requested="distance").startswith("distance (TPU, set by config.model.attention_kernel")
  assert chosen("tpu", requested="plain") == "plain (set by config.model.attention_kernel)"
  assert chosen("tpu", bias="distance", reach=2049).startswith("plain (bias with reach 2049, above 2048")


def test_what_a_core_has_memory_for():
  """A v4 has at most a quarter of the others' memory: smaller blocks, and finally no kernel."""
  of = functools.partial(relative_bias_attention.blocks_for, head_dim=64, reach=128)
  assert of(2_048, 2_048, dtype="float32", device_kind="TPU v5 lite") == (512, 512)
  assert of(2_048, 2_048, dtype="float32", device_kind="TPU v4") == (256, 256)
  assert of(2_048, 2_048, dtype="bfloat16", device_kind="TPU v4") == (512, 512)
  assert of(2_048, 2_048, dtype="bfloat16", device_kind="TPU v4", reach=1_024) == (256, 256)
  assert of(16_384, 16_384, dtype="bfloat16", device_kind="TPU v4") is None
  chosen = functools.partial(test_kernels.chosen, "tpu", bias="distance", reach=128, device_kind="TPU v4")
  assert chosen(lengths=(2_048, 2_048)) == "distance (TPU, bias by distance)"
  assert chosen(lengths=(16_384, 16_384)).startswith("plain (length 16384, too large for a core's memory, TPU, bias")
  assert chosen(lengths=(16_384, 16_384), length_shards=8) == "distance (TPU, bias by distance)"


def test_what_is_chosen_fits(monkeypatch):
  """A window reaches one position further than its size, which may exceed a core's memory."""
  monkeypatch.setattr(sharding, "platform", lambda: "tpu")
  monkeypatch.setattr(sharding, "device_kind", lambda: "TPU v4")
  mask = AttentionMask(causal=True, window=256)
  of = functools.partial(relative_bias_attention.blocks_for, head_dim=32, dtype="bfloat16", device_kind="TPU v4")
  length = next(n for n in range(1_024, 10_000, 128) if of(n, n, reach=256) and not of(n, n, reach=257))
  shape = (1, 4, length, 32)
  options = dict(platform="tpu", bias="distance", reach=128, device_kind="TPU v4")
  assert dispatch.choose(shape, shape, "bfloat16", mask, **options).kernel == "plain"
  shape = (1, 4, length - 128, 32)
  assert dispatch.choose(shape, shape, "bfloat16", mask, **options).kernel == "distance"
  x = jax.ShapeDtypeStruct(shape, jnp.bfloat16)
  jax.eval_shape(lambda x: dispatch.attend(x, x, x, mask, kernel="distance", bias=a_bias(4, 128)), x)


@pytest.mark.parametrize(("causal", "window", "share"), [(False, 0, 1.0), (True, 0, 10 / 16), (True, 512, 7 / 16)])
def test_what_runs_is_counted(causal, window, share):
  """Fully masked blocks cost no FLOPs, and the kernels' cost estimates reflect this: 16 pairs of blocks in all."""
  x = jax.ShapeDtypeStruct((1, 2, 2_048, 64), jnp.float32)
  mask = AttentionMask(causal=causal, window=window)
  run = lambda x: jnp.sum(dispatch.attend(x, x, x, mask, kernel="distance", bias=a_bias(2, 128)))
  noted = [
    equation.params["cost_estimate"].flops
    for equation, _ in toy.equations(jax.make_jaxpr(jax.grad(run))(x).jaxpr)
    if equation.primitive.name == "pallas_call"
  ]
  whole = 2 * 2 * 2_048**2 * 64
  assert noted == [2 * whole * share, 5 * whole * share]


# ---- Whole models ----------------------------------------------------------------------------------------------------


@pytest.fixture
def as_on_tpus(monkeypatch):
  """Selects TPU kernels and runs them in the interpreter."""
  choose = dispatch.choose
  monkeypatch.setattr(dispatch, "choose", lambda *shapes, **known: choose(*shapes, **known | {"platform": "tpu"}))


def loss_and_gradients(config, batch):
  """Returns loss and gradients of the whole model, with dropout."""
  graphdef, params = toy.split(toy.model(config))
  of = lambda params: toy.summed_loss()(nnx.merge(graphdef, params), batch, jax.random.key(7))[0]
  kernels_run = sum(
    repeated
    for equation, repeated in toy.equations(jax.make_jaxpr(of)(params).jaxpr)
    if equation.primitive.name == "pallas_call"
  )
  return kernels_run, *jax.jit(jax.value_and_grad(of))(params)


@pytest.mark.exhaustive
@pytest.mark.parametrize("remat", ["none", "minimal", "full"])
@pytest.mark.parametrize("kind", ["t5_1_1", "prefix_lm", "mpt", "mosaic_bert", "bert"])
def test_a_model_computes_what_it_does_without(kind, remat, as_on_tpus):
  """Loss and all gradients, with T5's dropout, under each policy; for BERT, with another dropout, without it."""
  fields = dict(num_heads=4, num_kv_heads=0, head_dim=32, remat=remat)
  fields["dropout_rate"] = 0.1 if toy.KINDS[kind].broadcast_dropout else 0.0
  fields |= dict(max_length=80) if toy.KINDS[kind].max_length else {}
  config = dataclasses.replace(toy.KINDS[kind], **fields)
  batch = toy.batch((70, 40), (66, 9), padded_to=(80, 70), architecture=config.architecture)
  kernels_run, loss, gradients = loss_and_gradients(config, batch)
  none, expected, wanted = loss_and_gradients(dataclasses.replace(config, attention_kernel="plain"), batch)
  crossed = config.num_decoder_layers if config.kind.has_encoder_and_decoder else 0
  assert (kernels_run, none) == (config.num_encoder_layers + config.num_decoder_layers + crossed, 0)
  np.testing.assert_allclose(loss, expected, rtol=1e-5)
  toy.assert_trees_close(gradients, wanted, atol=1e-4)


def test_other_lengths_than_those_of_training(as_on_tpus):
  """A run with a requested kernel evaluates its tasks with any kernel that fits their lengths."""
  overrides = ["--config.model.attention_kernel=distance", "--config.model.num_heads=4", "--config.model.head_dim=32"]
  overrides += ["--config.data.inputs_length=128", "--config.data.targets_length=128"]
  config = records(override(load_config("tiny_t5"), overrides))
  mesh = sharding.make_mesh({"data": 8})
  with jax.set_mesh(mesh):
    program = recipe.make(config).build(mesh)
    short = toy.batch((16, 9), (16, 4), padded_to=(16, 16))
    run = lambda graphdef: jax.eval_shape(lambda state: state.model(graphdef)(short), program.state)
    with pytest.raises(UserError, match="attention_kernel=distance needs a TPU"):
      run(program.graphdef)
    assert jax.tree.leaves(run(program.reader))


def losses_of_training(config, steps):
  """Returns the losses of Adam with dropout on four repeated batches."""
  graphdef, params = toy.split(toy.model(config))
  batches = [toy.batch((70, 40), (66, 9), padded_to=(80, 70), seed=seed) for seed in range(4)]
  optimizer = optax.adam(1e-3)

  @jax.jit
  def step(params, state, batch, key):
    of = lambda params: toy.summed_loss()(nnx.merge(graphdef, params), batch, key)[0]
    loss, gradient = jax.value_and_grad(of)(params)
    updates, state = optimizer.update(gradient, state)
    return optax.apply_updates(params, updates), state, loss

  found, state = [], optimizer.init(params)
  for index in range(steps):
    params, state, loss = step(params, state, batches[index % 4], jax.random.key(index))
    found.append(float(loss))
  return np.array(found)


@pytest.mark.exhaustive
def test_training_goes_as_it_does_without(as_on_tpus):
  """200 steps, each from the previous state: the losses agree."""
  config = dataclasses.replace(toy.KINDS["t5_1_1"], num_heads=4, head_dim=32, dropout_rate=0.1)
  found = losses_of_training(config, 200)
  expected = losses_of_training(dataclasses.replace(config, attention_kernel="plain"), 200)
  assert expected[-4:].sum() < 0.7 * expected[:4].sum()
  np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  ("sizes", "microbatches"),
  [({"data": 2, "fsdp": 2, "tensor": 2}, 2), ({"fsdp": 2, "sequence": 2, "tensor": 2}, 1)],
)
def test_a_mesh_trains_as_one_device_does_without(sizes, microbatches, as_on_tpus, monkeypatch):
  """Copies of the parameters, microbatches and sharded sequences: a step's metrics and parameters agree."""
  config = dataclasses.replace(toy.KINDS["t5_1_1"], num_heads=4, head_dim=64)
  for name, kernel in (("kernel", "distance"), ("no_kernel", "plain")):
    monkeypatch.setitem(toy.KINDS, name, dataclasses.replace(config, attention_kernel=kernel))
  batch = toy.batch((250, 7, 190, 60) * 2, (200, 30, 5, 256) * 2, padded_to=(256, 256))
  on_kernel = test_train_state.train(sizes, batch, steps=1, kind="kernel", microbatches=microbatches)
  alone = test_train_state.train(test_train_state.ONE_DEVICE, batch, steps=1, kind="no_kernel")
  test_train_state.assert_same_training(on_kernel, alone)
