"""Reformer's attention: equal to full attention where it must be, causal, linear in the length, and its settings."""

import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import UserError
from t2t.models import flops, lsh, transformer
from t2t.models.masks import AttentionMask

REFORMER = toy.KINDS["reformer"]


def an_input(length, heads=2, size=6):
  """Returns queries that are also keys, and values."""
  random = np.random.default_rng(0)
  return tuple(jnp.asarray(random.normal(size=(2, heads, length, size)), jnp.float32) for _ in range(2))


def full(shared, values, segments, causal):
  """Computes attention with shared queries and keys between all pairs; a token sees itself only if it is alone."""
  keys = shared / np.sqrt(np.mean(np.square(shared), -1, keepdims=True) + 1e-6) / np.sqrt(shared.shape[-1])
  logits = np.einsum("bhqd,bhkd->bhqk", shared, keys)
  length = shared.shape[2]
  allowed = (segments[:, None, :, None] == segments[:, None, None]) & (np.tri(length, dtype=bool) | (not causal))
  allowed = allowed & ~np.eye(length, dtype=bool)
  allowed = allowed | (np.eye(length, dtype=bool) & ~allowed.any(-1, keepdims=True))
  weights = np.where(allowed, np.exp(logits), 0.0)
  return np.einsum("bhqk,bhkd->bhqd", weights / weights.sum(-1, keepdims=True), values)


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize(("chunk", "rounds"), [(6, 3), (11, 2), (64, 1)])
def test_one_bucket_or_one_chunk_is_full_attention(chunk, rounds):
  """With equal hashes a causal token of two chunks sees its own and the one before: all tokens before it."""
  shared, values = an_input(11)
  segments = np.array([[1] * 11, [1] * 6 + [2] * 3 + [0] * 2])
  equal = jnp.zeros((2, 6, rounds, 1))  # every rotation has the same nearest bucket
  run = jax.jit(lambda s, v: lsh.attend_to_hashed(s, v, jnp.asarray(segments), equal, chunk=chunk, causal=True))
  expected = full(np.asarray(shared), np.asarray(values), segments, causal=True)
  real = np.broadcast_to(segments[:, None] > 0, expected.shape[:-1])
  np.testing.assert_allclose(run(shared, values)[real], expected[real], atol=1e-5)


@pytest.mark.slow
def test_more_rounds_come_nearer_to_full_attention():
  """The mean error over tokens falls from one round to eight."""
  shared, values = an_input(64)
  segments = np.ones((2, 64), np.int32)
  expected = full(np.asarray(shared), np.asarray(values), segments, causal=True)

  def error(rounds):
    rotations = jax.random.normal(jax.random.key(1), (2, 6, rounds, 4))
    run = jax.jit(lambda s, v: lsh.attend_to_hashed(s, v, jnp.asarray(segments), rotations, chunk=8, causal=True))
    return np.mean(np.abs(run(shared, values) - expected))

  assert error(8) < 0.7 * error(1)


@pytest.mark.parametrize(
  "layer", ["hashed", pytest.param("local", marks=pytest.mark.slow), pytest.param("both ways", marks=pytest.mark.slow)]
)
def test_what_a_token_sees_by_gradient(layer):
  """No token to its right if causal, nor of another text, nor itself in a hashed layer if it sees others."""
  shared, values = an_input(21, heads=1)
  shared, values = shared[:1], values[:1]
  segments = np.array([[1] * 15 + [2] * 4 + [0] * 2])
  rotations = jax.random.normal(jax.random.key(1), (1, 6, 2, 2))
  causal = layer != "both ways"
  options = dict(chunk=4, causal=causal)

  def out(values):
    if layer == "hashed":
      return lsh.attend_to_hashed(shared, values, jnp.asarray(segments), rotations, **options)
    return lsh.attend_to_chunks(shared, shared, values, jnp.asarray(segments), **options)

  seen = np.abs(jax.jit(jax.jacrev(lambda v: out(v)[0, 0, :, 0]))(values))[:19, 0, 0, :, 0] > 0
  assert not np.any(seen & (segments[0][:19, None] != segments[0]))
  if causal:
    assert not np.any(np.triu(seen, 1))
  places = np.arange(21)
  if layer == "hashed":
    assert np.all(seen.sum(1) > 0) and np.all(np.diag(seen)[[0, 15]])
    assert not np.any(np.diag(seen)[1:15] & (seen.sum(1)[1:15] > 1))
  else:
    near = places[:19, None] // 4 - places // 4
    expected = (near >= (0 if causal else -1)) & (near <= 1) & (segments[0][:19, None] == segments[0])
    np.testing.assert_array_equal(seen, expected & (places <= places[:19, None]) if causal else expected)


def largest(length):
  """Returns the number of elements of the largest array of a training step of a hashed layer."""
  config = dataclasses.replace(REFORMER, lsh_chunk=8, lsh_every=1, lsh_buckets=4)
  attention = lsh.LSHAttention(config, nnx.Rngs(toy.key()))
  assert not hasattr(attention, "key")
  mask = AttentionMask(causal=True)
  loss = lambda x: jnp.sum(attention(x, *attention.keys_and_values(x), mask=mask))
  program = jax.make_jaxpr(jax.grad(loss))(jnp.zeros((1, length, 16)))
  return max(var.aval.size for equation, _ in toy.equations(program.jaxpr) for var in equation.outvars)


@pytest.mark.slow
def test_memory_is_linear_in_the_length():
  """Twice the length has twice the largest array, forward and backward."""
  assert largest(1024) == 2 * largest(512) < 1024**2


@pytest.mark.exhaustive
def test_a_model_trains_on_texts_of_many_chunks():
  """Every parameter has a gradient, except the keys of hashed layers, which are the queries; chunks hide the future."""
  config = dataclasses.replace(REFORMER, lsh_chunk=4, dropout_rate=0.0)
  graphdef, params = toy.split(toy.model(config))
  batch = toy.batch((11, 7), (8, 9), padded_to=(11, 10), architecture="decoder_only")
  loss_fn = toy.summed_loss()
  gradient = toy.flat(jax.jit(jax.grad(lambda p: loss_fn(nnx.merge(graphdef, p), batch, None)[0]))(params))
  keys = np.abs(gradient["decoder/layers/self_attention/key"]).max((1, 2))
  assert (keys > 1e-6).tolist() == [True, False, True]
  for name, x in gradient.items():
    assert np.all(np.isfinite(x)) and np.any(np.abs(x) > 1e-6), name


@pytest.mark.parametrize(
  ("changed", "message"),
  [
    ({"positions": "rotary"}, "positions=rotary. Set config.model.positions=learned"),
    ({"num_kv_heads": 2}, "num_kv_heads=2. Set config.model.num_kv_heads=0"),
    ({"attention_window": 3}, "attention_window=3. Set config.model.attention_window=0"),
    ({"bidirectional_prefix": True}, "bidirectional_prefix=True. Set config.model.bidirectional_prefix=False"),
    ({"lsh_buckets": 5}, "lsh_buckets=5. Set config.model.lsh_buckets=6"),
    ({"attention_kernel": "splash"}, "attention_kernel=splash. Set config.model.attention_kernel=''"),
  ],
)
def test_settings_that_do_not_fit_are_errors_before_anything_is_compiled(changed, message):
  config = dataclasses.replace(REFORMER, **changed)
  with pytest.raises(UserError, match=message):
    jax.eval_shape(lambda: transformer.build(config, nnx.Rngs(0)))


@pytest.mark.slow
def test_texts_longer_than_a_chunk_are_not_generated():
  """The message names the length; nothing is compiled."""
  model = toy.model(dataclasses.replace(REFORMER, lsh_chunk=6))

  def decode(model):
    _, state = model.start_decode({"decoder_input_tokens": jnp.ones((2, 3), jnp.int32)}, 8)
    return model.decode_step(jnp.ones(2, jnp.int32), state)

  with pytest.raises(UserError, match=r"texts of 8 tokens cannot be generated with config.model.lsh_chunk=6.*Set .*=8"):
    jax.eval_shape(decode, model)


@pytest.mark.parametrize("length", [40, 200])
def test_flops_of_two_layers(length):
  """A local layer with all projections, and a hashed one with a shared one; pairs of two chunks, in four rounds."""
  config = dataclasses.replace(REFORMER, num_decoder_layers=2, vocabulary_head=False, mlp_activation="relu")
  pairs = 2 * length**2 if length <= 64 else (1 + 4) * 2 * 64 * length
  expected = 6 * 3 * (length * ((4 + 3) * 16 * 24 + 2 * 2 * 16 * 32) + 2 * 24 * pairs)
  assert flops.model_flops(config, batch_size=3, lengths={"decoder": length}) == expected
