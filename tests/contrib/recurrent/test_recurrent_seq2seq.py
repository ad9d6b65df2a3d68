"""Recurrent encoder-decoders: formulas written out, the one vector of a text, and attention with input feeding."""

import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_recurrent_layer import gru, lstm, of_gates, sigmoid
import toy

from t2t.contrib.recurrent import block, presets
from t2t.models import transformer
from t2t.models.config import TransformerConfig
from t2t.models.flops import model_flops
from t2t.models.masks import AttentionMask

GRU, LUONG = (dataclasses.replace(toy.KINDS[kind], num_decoder_layers=2) for kind in ("gru_seq2seq", "luong"))
COVE = dataclasses.replace(LUONG, num_decoder_layers=1)  # one attention above two LSTMs


def test_the_last_state_of_each_text():
  """The arrays of the docstring; a query of no text reads zeros."""
  states = jnp.arange(1.0, 5.0)[None, :, None]
  mask = AttentionMask(jnp.array([[2, 2, 1, 3]]), jnp.array([[1, 1, 2, 0]]))
  np.testing.assert_array_equal(block.last_states(states, mask)[0, :, 0], [3, 3, 2, 0])


# ---- Formulas --------------------------------------------------------------------------------------------------------


def of_layer(params, index):
  return jax.tree.map(lambda x: np.asarray(x[index], np.float64), params)


def embedded(embed, tokens):
  x = np.asarray(embed["table"], np.float64)[np.asarray(tokens)]
  return x @ embed["projection"] if "projection" in embed else x


def luong(params, x, memory):
  """Returns the outputs of one row: LSTMs, attention to all of the memory, and input feeding."""
  cells, units = [params[name] for name in ("forward", "above_0") if name in params], x.shape[1]
  states, fed = [(np.zeros(units), np.zeros(units)) for _ in cells], np.zeros(units)
  outputs = []
  for position in x:
    output = np.concatenate([position, fed])
    for index, cell in enumerate(cells):
      before, inner = states[index]
      i, f, g, o = of_gates(output @ cell["input"] + before @ cell["recurrent"] + cell["bias"], 4)
      inner = sigmoid(f) * inner + sigmoid(i) * np.tanh(g)
      output = sigmoid(o) * np.tanh(inner)
      states[index] = output, inner
    scores = memory @ (output @ params["query"] + params["query_bias"])
    weights = np.exp(scores - scores.max())
    context = weights / weights.sum() @ memory
    fed = np.tanh(np.concatenate([context, output]) @ params["combined"] + params["combined_bias"])
    outputs.append(fed)
  return np.stack(outputs)


@pytest.mark.slow
@pytest.mark.exhaustive_from(2)
@pytest.mark.parametrize(("name", "config"), [("gru", GRU), ("cove", COVE), ("luong", LUONG)])
def test_a_model_equals_the_formulas(name, config):
  """Two layers of each stack, or one attention above two LSTMs, with an encoder of another width, on a padded row."""
  model, batch = toy.model(config), toy.batch((5,), (4,))
  params, none = toy.split(model)[1], np.zeros(8, bool)
  x = embedded(params["encoder"]["embed"], batch["encoder_input_tokens"][0, :5])
  for index in range(2):
    cells = of_layer(params["encoder"]["layers"]["mlp"], index)
    if name == "gru":
      x = gru(cells["forward"], x, none)
    else:
      x = np.concatenate([lstm(cells["forward"], x, none), lstm(cells["backward"], x[::-1], none)[::-1]], axis=1)
  y = embedded(params["embed"], batch["decoder_input_tokens"][0, :4])
  for index in range(config.num_decoder_layers):
    own = of_layer(params["decoder"]["layers"]["mlp"], index)
    beside = np.broadcast_to(x[-1], (4, 24))
    y = gru(own["forward"], np.concatenate([y, beside], axis=1), none) if name == "gru" else luong(own, y, x)
  np.testing.assert_allclose(jax.jit(lambda model: model(batch))(model)[0, :4], y, atol=1e-5)


def read_positions(config):
  """Returns the positions of the encoder's output on which the decoder's output depends, bool [length]."""
  model, batch = toy.model(config), toy.batch((5,), (4,))
  mask = AttentionMask(jnp.ones((1, 6), jnp.int32), (batch["encoder_input_tokens"] > 0).astype(jnp.int32))
  x = model.embed(batch["decoder_input_tokens"])
  memory = model.states(batch)
  options = {"mask": AttentionMask(causal=True), "memory_mask": mask}
  total = lambda memory: jnp.sum(model.decoder(x, memory=memory, **options)[0] ** 2)
  return np.asarray(jnp.any(jax.jit(jax.grad(total))(memory)[0] != 0, axis=-1))


@pytest.mark.slow
def test_the_decoder_reads_one_vector_or_all_of_them():
  """The state at the last token, or with attention those at all tokens; padding never."""
  np.testing.assert_array_equal(read_positions(GRU), [0, 0, 0, 0, 1, 0, 0, 0])
  np.testing.assert_array_equal(read_positions(LUONG), [1, 1, 1, 1, 1, 0, 0, 0])


@pytest.mark.slow
@pytest.mark.parametrize("config", [GRU, COVE], ids=["gru", "cove"])
def test_beams_follow_their_parents(config):
  """After two beams have changed places, each continues the states of the other, with its row's memory."""
  model, batch = toy.model(config), toy.batch((5, 3), (1, 1))

  @jax.jit
  def decoded(model):
    first, state = model.start_decode(batch, 4, num_beams=2)
    state = model.ready(state)
    _, state = model.decode_step(jnp.repeat(first[:, None], 2, axis=1), state)
    _, state = model.decode_step(jnp.tile(jnp.array([[7, 9]]), (2, 1)), state)
    swapped = jnp.array([[1, 0], [0, 1]])
    return model.decode_step(jnp.tile(jnp.array([[11, 12]]), (2, 1)), state.follow(swapped))[0]

  logits = decoded(model)
  for row, tails in enumerate((((9, 11), (7, 12)), ((7, 11), (9, 12)))):
    for beam, tail in enumerate(tails):
      read = jnp.array([[0, *tail]])
      whole = {"encoder_input_tokens": batch["encoder_input_tokens"][row : row + 1], "decoder_input_tokens": read}
      np.testing.assert_allclose(logits[row, beam], toy.logits(model, whole)[0, -1], atol=1e-5)


@pytest.mark.slow
def test_an_empty_input_gives_finite_outputs():
  """Without a memory the decoder is a language model; padding of the input changes nothing."""
  batch = toy.batch((1,), (4,))
  empty = [batch | {"encoder_input_tokens": jnp.zeros((1, length), jnp.int32)} for length in (2, 6)]
  for config in (GRU, LUONG):
    short, long = (toy.logits(toy.model(config), rows) for rows in empty)
    assert np.all(np.isfinite(short))
    np.testing.assert_allclose(short, long, atol=1e-6)


def test_flops_are_those_of_the_matrices():
  """By hand, for 10 positions of the encoder and 4 of the decoder."""
  lengths = {"encoder": 10, "decoder": 4}
  of_gru = 2 * 10 * 3 * 24 * (24 + 24) + 2 * 4 * 3 * 16 * (16 + 24 + 16)
  assert model_flops(GRU, batch_size=1, lengths=lengths) == 6 * (of_gru + 4 * 16 * 40)
  of_encoder = 2 * 10 * 2 * 4 * 12 * (24 + 12)
  of_decoder = 2 * 4 * (4 * 16 * (32 + 16) + 16 * 24 + (24 + 16) * 16 + 2 * 10 * 24)
  of_words = 4 * 8 * 16 + 10 * 8 * 24
  expected = of_encoder + of_decoder + of_words + 4 * 16 * 40
  assert model_flops(LUONG, batch_size=1, lengths=lengths) == 6 * expected
  of_cove = of_decoder // 2 + 4 * 4 * 16 * (16 + 16)
  assert model_flops(COVE, batch_size=1, lengths=lengths) == 6 * (expected - of_decoder + of_cove)


def sizes(fields):
  config = TransformerConfig(**fields)
  model = jax.eval_shape(lambda: transformer.build(config, nnx.Rngs(0)))
  return {path: x.shape for path, x in toy.flat(toy.split(model)[1]).items()}


def test_sizes_are_the_published_ones():
  """Words, units and logits of Skip-Thought, SA-LSTM and CoVe."""
  skip = sizes(presets.skip_thought())
  assert skip["embed/table"] == (20_096, 620) and skip["head/projection"] == (2_400, 20_096)
  assert skip["encoder/layers/mlp/forward/recurrent"] == (1, 2_400, 3 * 2_400)
  assert skip["decoder/layers/mlp/forward/input"] == (1, 2 * 2_400, 3 * 2_400)
  assert sizes(presets.sa_lstm())["decoder/layers/mlp/forward/recurrent"] == (1, 1_024, 4 * 1_024)
  cove = sizes(presets.cove())
  for side in ("forward", "backward"):
    assert cove[f"encoder/layers/mlp/{side}/recurrent"] == (2, 300, 4 * 300)
    assert cove[f"encoder/layers/mlp/{side}/input"] == (2, 600, 4 * 300)
  for name, inputs in (("forward", 1_200), ("above_0", 600)):
    assert cove[f"decoder/layers/mlp/{name}/input"] == (1, inputs, 4 * 600)
  assert cove["decoder/layers/mlp/query"] == (1, 600, 600)
  assert cove["encoder/embed/table"] == cove["embed/table"] == (37_120, 300)
