import dataclasses
import functools

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import losses
from t2t.models import attention

T5_1_1 = toy.config()
T5_1_0 = toy.config(mlp_activation="relu", tied_logits=True)


def test_decoder_is_causal_by_gradient():
  """The output at position i depends on the decoder's tokens up to i, on none after, and on all of the encoder's."""
  graphdef, params = toy.split(toy.model(T5_1_1))
  encoder, decoder = np.arange(2, 9)[None], np.arange(10, 16)[None]  # every token has a row of the table to itself
  batch = {"encoder_input_tokens": encoder, "decoder_input_tokens": decoder}
  read_out = np.random.default_rng(0).normal(size=16)

  def of_table(table):
    return nnx.merge(graphdef, params | {"embed": {"table": table}})(batch)[0] @ read_out

  gradient = jax.jit(jax.jacrev(of_table))(params["embed"]["table"])
  reached = np.abs(gradient).max(-1)  # [position, token]
  np.testing.assert_array_equal(reached[:, 10:16] > 1e-6, np.tri(6, dtype=bool))
  np.testing.assert_array_equal(reached[:, 10:16][~np.tri(6, dtype=bool)], 0.0)
  assert np.all(reached[:, 2:9] > 1e-6)


def test_encoder_sees_both_directions_by_gradient():
  """Every position of the encoder depends on every token, except on padding."""
  graphdef, params = toy.split(toy.model(T5_1_1))
  batch = {"encoder_input_tokens": np.array([[2, 3, 4, 5, 0, 0]])}

  def of_table(table):
    return nnx.merge(graphdef, params | {"embed": {"table": table}}).encode(batch)[0][0, :4].sum(-1)

  reached = np.abs(jax.jit(jax.jacrev(of_table))(params["embed"]["table"])).max(-1)
  assert np.all(reached[:, 2:6] > 1e-6)
  np.testing.assert_array_equal(reached[:, 0], 0.0)


def test_packed_equals_unpacked():
  """Examples that share a row, kept apart by segment ids, have the logits that they have in rows of their own."""
  rows = toy.batch((5, 3, 4), (2, 4, 3), padded_to=(6, 5))
  packed = {name: np.zeros((1, length), np.int32) for name, length in (("encoder", 14), ("decoder", 11))}
  segments = {name: np.zeros_like(x) for name, x in packed.items()}
  places = []
  for side, lengths in (("encoder", (5, 3, 4)), ("decoder", (2, 4, 3))):
    start = 0
    for row, length in enumerate(lengths):
      packed[side][0, start : start + length] = rows[f"{side}_input_tokens"][row, :length]
      segments[side][0, start : start + length] = row + 1
      if side == "decoder":
        places.append((row, start, length))
      start += length
  batch = {f"{side}_input_tokens": x for side, x in packed.items()}
  batch |= {f"{side}_segment_ids": x for side, x in segments.items()}
  model = toy.model(T5_1_1)
  apart, together = toy.logits(model, rows), toy.logits(model, batch)
  for row, start, length in places:
    np.testing.assert_allclose(together[0, start : start + length], apart[row, :length], atol=1e-5)


def test_padding_changes_nothing():
  """Logits of real positions do not depend on how far inputs and targets are padded."""
  model = toy.model(T5_1_1)
  short, long = toy.batch(padded_to=(7, 5)), toy.batch(padded_to=(11, 9))
  real = np.asarray(short["decoder_target_tokens"]) > 0
  np.testing.assert_allclose(
    np.asarray(toy.logits(model, short))[real], np.asarray(toy.logits(model, long))[:, :5][real], atol=1e-5
  )


@pytest.mark.parametrize("config", [T5_1_0, T5_1_1], ids=["t5_1_0", "t5_1_1"])
def test_cached_decode_equals_teacher_forcing(config):
  """Decoding token by token gives the logits of all positions at once."""
  model, batch = toy.model(config), toy.batch()
  tokens = batch["decoder_input_tokens"].T

  @jax.jit
  def decode(model, batch):
    step = lambda state, tokens: model.decode_step(tokens, state)[::-1]
    return jax.lax.scan(step, model.start_decode(batch, max_length=9), tokens)[1]

  np.testing.assert_allclose(decode(model, batch).swapaxes(0, 1), toy.logits(model, batch), atol=1e-5)


def test_scan_equals_a_loop_over_the_layers():
  """The stack of layers is each layer after another, in the encoder and in the decoder."""
  model = toy.model(T5_1_1)
  x, memory = (jax.random.normal(jax.random.key(seed), (2, 5, 16)) for seed in (0, 1))
  mask = attention.AttentionMask(causal=True)

  def loop(stack, x, **inputs):
    for index in range(stack.num_layers):
      layer = jax.tree.map(lambda leaf, index=index: leaf[index], stack.layers)
      x = layer(x, bias=stack.position_bias(5, 5), **inputs)
    return stack.norm(x)

  def both(model):
    encoder, decoder = dict(mask=attention.AttentionMask()), dict(mask=mask, memory=memory, memory_mask=mask)
    return [(s(x, **i), loop(s, x, **i)) for s, i in ((model.encoder, encoder), (model.decoder, decoder))]

  for scanned, looped in jax.jit(both)(model):
    np.testing.assert_allclose(scanned, looped, atol=1e-5)


def remat_gradient(remat):
  graphdef, params = toy.split(toy.model(toy.config(remat=remat, dropout_rate=0.1)))
  loss_fn = losses.make_loss_fn(toy.loss_config())
  loss = lambda params: loss_fn(nnx.merge(graphdef, params), toy.batch(), toy.key(7))[0]
  return jax.value_and_grad(loss), params


@functools.cache
def computed(remat):
  function, params = remat_gradient(remat)
  return jax.jit(function)(params)


@pytest.mark.parametrize("remat", ["minimal", "full"])
def test_remat_changes_neither_loss_nor_gradients(remat):
  """What is computed again, dropout included, is what was computed before."""
  (expected, expected_gradient), (loss, gradient) = computed("none"), computed(remat)
  np.testing.assert_allclose(loss, expected, rtol=1e-6)
  toy.assert_trees_close(gradient, expected_gradient, atol=1e-4)


def test_remat_computes_again():
  """minimal computes attention's products again but no projection, full computes both again."""

  def matmuls(remat):
    function, params = remat_gradient(remat)
    found = toy.equations(jax.make_jaxpr(function)(params).jaxpr)
    return [equation for equation, _ in found if equation.primitive.name == "dot_general"]

  num = {remat: len(matmuls(remat)) for remat in ("none", "minimal", "full")}
  assert num["none"] <= num["minimal"] < num["full"]
  kernels = {remat: sum(x.invars[1].aval.ndim == 2 for x in matmuls(remat)) for remat in num}
  assert kernels["none"] == kernels["minimal"] < kernels["full"]


def test_dropout_follows_its_key():
  """The same key gives the same logits, another key others, and no key those of a model without dropout."""
  dropping, plain = toy.model(toy.config(dropout_rate=0.3)), toy.model(T5_1_1)
  batch = toy.batch()
  first, again, other = (toy.logits(dropping, batch, toy.key(seed)) for seed in (0, 0, 1))
  np.testing.assert_array_equal(first, again)
  assert np.max(np.abs(first - other)) > 0.1
  np.testing.assert_array_equal(toy.logits(dropping, batch), toy.logits(plain, batch))
  assert np.max(np.abs(first - toy.logits(plain, batch))) > 0.1


def test_layers_draw_their_own_dropout():
  """Two layers with the same parameters drop other features."""
  model = toy.model(toy.config(dropout_rate=0.5))

  def updates(stack, key):
    same = jax.tree.map(lambda leaf: jnp.stack([leaf[0]] * 2), stack.layers)
    keys = jax.random.split(key, 2)
    layers = [jax.tree.map(lambda leaf, index=index: leaf[index], same) for index in range(2)]
    x, mask, bias = jnp.ones((1, 3, 16)), attention.AttentionMask(), stack.position_bias(3, 3)
    return [layer(x, mask=mask, bias=bias, dropout_key=key) for layer, key in zip(layers, keys, strict=True)]

  first, second = jax.jit(updates)(model.encoder, toy.key())
  assert np.any(first != second)


@pytest.mark.parametrize("tied", [True, False])
def test_logits_come_from_the_embedding_or_a_projection(tied):
  """Tied: hidden * embed_dim**-0.5 against the embedding, for its entries have standard deviation 1."""
  model = toy.model(T5_1_0 if tied else T5_1_1)
  hidden = np.random.default_rng(0).normal(size=(1, 3, 16))
  kernel = model.embed.table[...].T / 4 if tied else model.projection[...]
  np.testing.assert_allclose(model.logits(hidden), hidden @ np.asarray(kernel), atol=1e-5)
  assert hasattr(model, "projection") != tied


def test_bfloat16_computes_in_bfloat16_with_float32_ends():
  """Hidden states are bfloat16; parameters and logits float32, near those of a float32 model."""
  config = dataclasses.replace(T5_1_1, dtype="bfloat16")
  model, batch = toy.model(config), toy.batch()
  assert {leaf.dtype for leaf in jax.tree.leaves(model)} == {jnp.dtype("float32")}
  assert jax.eval_shape(model, batch).dtype == jnp.bfloat16
  logits, exact = toy.logits(model, batch), toy.logits(toy.model(T5_1_1), batch)
  assert logits.dtype == jnp.float32
  np.testing.assert_allclose(logits, exact, atol=0.05 * np.abs(exact).max())


def test_layers_are_stacked_and_start_apart():
  """A stacked parameter has a leading axis of layers, each with its own values."""
  query = toy.model(T5_1_1).decoder.layers.self_attention.query[...]
  assert query.shape == (3, 16, 24)
  assert np.all(np.std(query, axis=0) > 0)


def test_shared_modules_are_refused():
  """One parameter under two paths is an error when the model is split, not two parameters that part ways."""
  model = toy.model(T5_1_1)
  model.projection = model.embed.table
  with pytest.raises(ValueError, match="[Ss]hared"):
    toy.split(model)
