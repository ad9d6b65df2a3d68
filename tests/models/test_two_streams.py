"""Two streams: the query stream reads tokens of lower ranks, never its own; the content stream is a causal model's."""

import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_transformer import reached
import toy

from t2t import UserError

XLNET = toy.KINDS["xlnet"]
TOKENS = np.arange(10, 20)[None]
RANKS = np.array([[0, 3, 1, 0, 5, 2, 0, 4, 0, 6]])


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("kind", ["xlnet", "bert", "modern_bert"])
def test_a_state_depends_on_lower_ranks_only_by_gradient(kind):
  """With any positions. Tokens of rank 0 are read by all; a state does not depend on its position's own token."""
  config = dataclasses.replace(toy.KINDS[kind], two_streams=True, attention_window=0, global_attention_every=0)
  batch = {"encoder_input_tokens": TOKENS, "encoder_ranks": jnp.asarray(RANKS)}
  predicted = RANKS[0] > 0
  expected = RANKS[0][:, None] > RANKS[0][None, :]
  np.testing.assert_array_equal(reached(config, batch, TOKENS)[predicted], expected[predicted])


@pytest.mark.slow
def test_ranks_in_order_are_a_causal_model():
  """The content stream equals a decoder with the same parameters, and the query stream continues it."""
  config = toy.KINDS["transformer_xl"]
  decoder = toy.model(config)
  fields = dict(architecture="encoder_only", num_encoder_layers=3, num_decoder_layers=0)
  encoder = nnx.merge(toy.split(toy.model(dataclasses.replace(config, **fields)))[0], _as_encoder(decoder))
  order = jnp.arange(10)[None]
  run = jax.jit(lambda model, batch: model(batch))
  states = run(encoder, {"encoder_input_tokens": TOKENS, "encoder_ranks": order})
  np.testing.assert_allclose(states, run(decoder, {"decoder_input_tokens": TOKENS}), atol=1e-5)
  config = dataclasses.replace(XLNET, relative_segments=False)
  found = reached(config, {"encoder_input_tokens": TOKENS, "encoder_ranks": order}, TOKENS)
  np.testing.assert_array_equal(found[1:], np.tri(10, k=-1, dtype=bool)[1:])


def _as_encoder(decoder):
  params = toy.split(decoder)[1]
  return {("encoder" if name == "decoder" else name): x for name, x in params.items()}


def batch(ranks=(RANKS[0][:7], RANKS[0][:4]), **options):
  """Returns rows with ranks, which are 0 at padding."""
  rows = toy.batch(architecture="encoder_only", **options)
  length = rows["encoder_input_tokens"].shape[1]
  padded = np.stack([np.pad(row, (0, length - len(row))) for row in ranks])
  return rows | {"encoder_ranks": jnp.asarray(padded)}


@pytest.mark.slow
def test_padded_and_packed_rows_have_the_same_logits():
  """Ranks are of each example: those of others in the row hide and show nothing."""
  model, rows = toy.model(XLNET), batch()
  is_predicted = lambda rows: np.asarray(rows["encoder_ranks"]) > 0
  expected = np.asarray(toy.logits(model, rows))[is_predicted(rows)]
  wider = batch(padded_to=(11, 9))
  np.testing.assert_allclose(np.asarray(toy.logits(model, wider))[is_predicted(wider)], expected, atol=1e-5)
  packed = toy.packed(rows)
  np.testing.assert_allclose(np.asarray(toy.logits(model, packed))[is_predicted(packed)], expected, atol=1e-5)


@pytest.mark.slow
def test_both_streams_are_trained_with_a_memory():
  """The memory is read by both streams, and receives the content stream's states."""
  config = dataclasses.replace(XLNET, memory_length=6)
  graphdef, params = toy.split(toy.model(config))
  memory = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 6, 16)), jnp.float32)
  rows = batch() | {"carried/encoder/memory": memory}

  def total(params, memory):
    hidden = nnx.merge(graphdef, params).hidden(rows | {"carried/encoder/memory": memory})
    return jnp.sum(hidden.x**3), hidden.aux.states["encoder/memory"]

  run = jax.jit(jax.value_and_grad(total, has_aux=True))
  (value, states), grads = run(params, memory)
  assert np.any(np.abs(grads["embed"]["query_stream"]) > 1e-6)
  assert abs(value - run(params, memory * 0)[0][0]) > 1e-2
  content = dict(rows, encoder_ranks=rows["encoder_ranks"] * 0)
  np.testing.assert_allclose(states[0][:, -6:], _embedded(graphdef, params, content)[:, 2:], atol=1e-6)


def _embedded(graphdef, params, rows):
  """Returns the embedded tokens, zero at padding."""
  real = np.asarray(rows["encoder_input_tokens"])[..., None] > 0
  return np.where(real, nnx.merge(graphdef, params).look_up(rows), 0)


def test_a_second_stream_needs_an_encoder():
  """A decoder is causal in one stream."""
  with pytest.raises(UserError, match="config.model.two_streams=True needs config.model.architecture=encoder_only"):
    dataclasses.replace(toy.KINDS["gpt2"], two_streams=True)
