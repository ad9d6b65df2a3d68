"""Memory of layers: rows that continue read what one long row reads, and no gradient enters the memory."""

import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import UserError
from t2t.models import layer_memory
from t2t.models.flops import model_flops

PART = 5
XL = dataclasses.replace(toy.KINDS["transformer_xl"], memory_length=12)


def continued(config, tokens, *, parts=3, continues=None):
  """Returns the hidden states of a text that is read in parts, each with the memory of the parts before."""
  model, rows = toy.model(config), tokens.shape[0]
  shape = (rows, config.num_decoder_layers, config.memory_length, config.embed_dim)
  carried, outputs = jnp.zeros(shape), []
  for part in range(parts):
    row = tokens[:, part * PART : (part + 1) * PART]
    batch = {"decoder_input_tokens": row, "decoder_target_tokens": row, "carried/decoder/memory": carried}
    batch |= {} if continues is None else {"decoder_continues": continues}
    read = step(model, batch)
    outputs.append(read.x)
    carried = jnp.moveaxis(read.aux.states["decoder/memory"], 0, 1)
  return jnp.concatenate(outputs, axis=1)


@jax.jit
def step(model, batch):
  return model.hidden(batch)


def text(rows=2, length=3 * PART):
  return jnp.asarray(np.random.default_rng(0).integers(2, 40, (rows, length)), jnp.int32)


SCHEMES = {
  "relative_xl": XL,
  "clamped": dataclasses.replace(XL, relative_clamp=3, share_relative_biases=True, post_norm=False),
  "relative": dataclasses.replace(toy.KINDS["prefix_lm"], bidirectional_prefix=False, memory_length=12),
  "rotary": dataclasses.replace(toy.KINDS["llama"], memory_length=12),
  "windows": dataclasses.replace(toy.KINDS["gemma"], memory_length=12),
  "alibi": dataclasses.replace(toy.KINDS["mpt"], memory_length=12),
}


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_parts_with_a_memory_equal_one_long_row(scheme):
  """With any relative positions, if the memory holds all earlier parts."""
  config = SCHEMES[scheme]
  whole = step(toy.model(config), {"decoder_input_tokens": text(), "decoder_target_tokens": text()}).x
  np.testing.assert_allclose(continued(config, text()), whole, atol=2e-5)


@pytest.mark.slow
def test_a_row_that_continues_nothing_reads_no_memory():
  """The flag is of each row: the second row reads every part as a text of its own."""
  alone = continued(XL, text(), continues=jnp.array([[0], [0]]))
  mixed = continued(XL, text(), continues=jnp.array([[1], [0]]))
  np.testing.assert_allclose(mixed[0], continued(XL, text())[0], atol=1e-5)
  np.testing.assert_allclose(mixed[1], alone[1], atol=1e-5)
  first = step(toy.model(XL), {"decoder_input_tokens": text()[:, -PART:]}).x
  np.testing.assert_allclose(alone[:, -PART:], first, atol=1e-5)
  assert np.max(np.abs(mixed[0, -PART:] - alone[0, -PART:])) > 1e-3


def test_the_memory_keeps_the_last_real_states():
  """Padding enters as an empty position, and the oldest states leave."""
  states, x = jnp.full((1, 3, 2), 5.0), jnp.arange(2.0, 8.0).reshape(1, 3, 2)
  kept = layer_memory.pushed(states, x, jnp.array([[True, True, False]]))
  np.testing.assert_array_equal(kept, [[[2.0, 3.0], [4.0, 5.0], [0.0, 0.0]]])
  np.testing.assert_array_equal(layer_memory.pushed(states, x[:, :1], None)[0, :, 0], [5.0, 5.0, 2.0])
  np.testing.assert_array_equal(layer_memory.pushed(states, x, None, reuse=1)[0, :, 0], [5.0, 5.0, 2.0])


@pytest.mark.slow
def test_no_gradient_enters_the_memory():
  """The states of the last row depend on the memory, but their gradient does not reach the parts before."""
  graphdef, params = toy.split(toy.model(XL))
  zeros = jnp.zeros((2, XL.num_decoder_layers, 12, XL.embed_dim))

  def last(table, use_memory):
    model = nnx.merge(graphdef, params | {"embed": params["embed"] | {"table": table}})
    before = model.hidden({"decoder_input_tokens": text()[:, :PART], "carried/decoder/memory": zeros})
    carried = jnp.moveaxis(before.aux.states["decoder/memory"], 0, 1)
    carried = carried if use_memory else jax.lax.stop_gradient(carried)
    batch = {"decoder_input_tokens": jnp.full((2, PART), 1), "carried/decoder/memory": carried}
    return jnp.sum(model.hidden(batch).x[:, -1] ** 3)

  grads = jax.jit(jax.grad(last), static_argnums=1)
  gradient = np.abs(grads(params["embed"]["table"], True)).sum(-1)
  assert gradient[1] > 0 and not np.any(gradient[2:])


def test_a_memory_needs_relative_positions():
  """Learned positions begin at 0 in each row."""
  with pytest.raises(UserError, match="memory_length=4 needs relative positions, .* config.model.positions=learned"):
    layer_memory.check(dataclasses.replace(toy.KINDS["gpt2"], memory_length=4))
  with pytest.raises(UserError, match="memory_length=4 needs rows of plain text, but config.model.architecture"):
    layer_memory.check(dataclasses.replace(toy.KINDS["t5_1_1"], memory_length=4))


def test_flops_count_the_keys_of_a_memory_and_the_queries_of_two_streams():
  """By hand for one layer of width 16 with 4 heads of 6 and an MLP of 32, in a row of 10; three times the forward."""
  flops = lambda config: model_flops(config, batch_size=1, lengths={config.kind.predicts: 10}) / 6
  config = dataclasses.replace(toy.KINDS["transformer_xl"], num_decoder_layers=1)
  keys, pairs = 2 * 16 * 24 * 5, 2 * 24 * 10 * 5
  assert flops(dataclasses.replace(config, memory_length=5)) - flops(config) == keys + pairs
  config = dataclasses.replace(toy.KINDS["xlnet"], num_encoder_layers=1)
  stream = 10 * (2 * 16 * 24 + 2 * 16 * 32) + 2 * 24 * 10 * 10
  assert flops(config) - flops(dataclasses.replace(config, two_streams=False)) == stream
