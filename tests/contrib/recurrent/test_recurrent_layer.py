"""Recurrent layers: formulas written out, texts of packed rows, carried states, beams, dropout and auxiliary terms."""

import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import UserError
from t2t.contrib.recurrent import cells, layer, words
from t2t.losses.auxiliary_terms import AuxiliaryTerms
from t2t.models import adapters, transformer
from t2t.models.flops import model_flops
from t2t.training import param_groups

KINDS = {name: toy.KINDS[name] for name in ("awd_lstm", "awd_qrnn", "elmo_lm", "gru_lm")}
PART = 5


def text(rows=2, length=3 * PART, seed=0):
  return jnp.asarray(np.random.default_rng(seed).integers(2, 40, (rows, length)), jnp.int32)


@jax.jit
def step(model, batch):
  return model.hidden(batch)


def test_states_are_zero_before_each_text():
  """The arrays of the docstring."""
  starts = layer.text_starts(jnp.array([[1, 1, 2, 2, 0]]))
  np.testing.assert_array_equal(starts, [[False, False, True, False, True]])


# ---- Formulas --------------------------------------------------------------------------------------------------------


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def of_gates(x, gates):
  return np.moveaxis(x.reshape(*x.shape[:-1], -1, gates), -1, 0)


def lstm(params, x, starts, clip=0.0):
  """Returns the outputs of one row, [length, output], position by position."""
  units = params["bias"].size // 4
  output, cell, outputs = np.zeros(params["recurrent"].shape[0]), np.zeros(units), []
  limit = lambda y: np.clip(y, -clip, clip) if clip else y
  for i in range(len(x)):
    output, cell = (0 * value if starts[i] else value for value in (output, cell))
    i_gate, f, g, o = of_gates(x[i] @ params["input"] + output @ params["recurrent"] + params["bias"], 4)
    cell = limit(sigmoid(f) * cell + sigmoid(i_gate) * np.tanh(g))
    output = sigmoid(o) * np.tanh(cell)
    output = limit(output @ params["projection"]) if "projection" in params else output
    outputs.append(output)
  return np.stack(outputs)


def gru(params, x, starts, clip=0.0):
  """Returns the outputs of one row, [length, units], position by position; the reset gate acts after the product."""
  units = params["bias"].size // 3
  output, outputs = np.zeros(units), []
  for i in range(len(x)):
    output = 0 * output if starts[i] else output
    r, z, n = of_gates(x[i] @ params["input"] + params["bias"], 3)
    of_r, of_z, of_n = of_gates(output @ params["recurrent"], 3)
    candidate = np.tanh(n + sigmoid(r + of_r) * (of_n + params["recurrent_bias"]))
    output = (1 - sigmoid(z + of_z)) * candidate + sigmoid(z + of_z) * output
    outputs.append(output)
  return np.stack(outputs)


def qrnn(params, x, starts, clip=0.0):
  """Returns the outputs of one row; a text's first position has zeros before it."""
  cell, outputs = np.zeros(params["bias"].size // 3), []
  for i in range(len(x)):
    is_first = i == 0 or starts[i]
    before = np.zeros_like(x[i]) if is_first else x[i - 1]
    z, f, o = of_gates(np.concatenate([before, x[i]]) @ params["input"] + params["bias"], 3)
    cell = sigmoid(f) * (0 if is_first else cell) + (1 - sigmoid(f)) * np.tanh(z)
    outputs.append(sigmoid(o) * cell)
  return np.stack(outputs)


FORMULAS = [("awd_lstm", lstm), ("awd_qrnn", qrnn), ("elmo_lm", lstm), ("gru_lm", gru)]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "formula"), FORMULAS)
def test_a_model_equals_the_formulas(kind, formula):
  """Two texts and padding in a row, three layers of different sizes, residual sums from the second layer on."""
  config = dataclasses.replace(KINDS[kind], recurrent_clip=0.05 if kind == "elmo_lm" else 0.0)
  model, tokens = toy.model(config), text(1, 9)
  segments = jnp.array([[1, 1, 1, 1, 2, 2, 2, 0, 0]])
  batch = {"decoder_input_tokens": tokens, "decoder_segment_ids": segments, "decoder_target_tokens": tokens}
  params = jax.tree.map(lambda x: np.asarray(x, np.float64), toy.split(model)[1])
  x, name = params["embed"]["table"][np.asarray(tokens[0])], config.feed_forward
  for place in ("first", "inner", "last"):
    own = {
      key: value[0] for key, value in params["decoder"]["layers"]["mlp"][f"{name}_{place}"]["layers"]["forward"].items()
    }
    y = formula(own, x, np.asarray(layer.text_starts(segments))[0], config.recurrent_clip)
    x = x + y if config.recurrent_residual and place != "first" else y
  np.testing.assert_allclose(step(model, batch).x[0], x, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "formula"), [("elmo_lm", lstm), ("gru_lm", gru)])
def test_gradients_equal_differences_of_the_formulas(kind, formula):
  """The derivative along a random direction of each matrix, and of the input, with a second text in the row."""
  random, is_lstm = np.random.default_rng(0), formula is lstm
  cell = (cells.LstmCell if is_lstm else cells.GruCell)(KINDS[kind], nnx.Rngs(0), (6, 8, 5 if is_lstm else 8))
  graphdef, params = toy.split(cell)
  params = {name: 3 * np.asarray(value, np.float64) for name, value in params.items()}
  params["x"] = random.standard_normal((7, 6))
  starts = np.arange(7) == 4
  weights = random.standard_normal((7, cell.sizes[2]))

  def loss(values):
    own = {name: jnp.asarray(value, jnp.float32) for name, value in values.items() if name != "x"}
    state = (jnp.zeros((1, cell.width)),) * 2
    y, _ = nnx.merge(graphdef, own)(values["x"][None], state, jnp.asarray(starts)[None], None)
    return jnp.sum(y[0] * weights)

  gradients = jax.jit(jax.grad(loss))({name: jnp.asarray(value, jnp.float32) for name, value in params.items()})
  exact = lambda values: np.sum(formula(values, values["x"], starts) * weights)
  for name, value in params.items():
    direction = random.standard_normal(value.shape)
    ends = (exact(params | {name: value + step * direction}) for step in (1e-5, -1e-5))
    difference = (next(ends) - next(ends)) / 2e-5
    np.testing.assert_allclose(np.sum(gradients[name] * direction), difference, rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.slow
def test_an_encoder_reads_in_two_directions():
  """Each half of the features depends on the tokens of one side only, and the embedding is split between them."""
  config = toy.KINDS["bilstm"]
  graphdef, params = toy.split(toy.model(config))
  tokens = jnp.arange(2, 9)[None]

  def states(table):
    model = nnx.merge(graphdef, params | {"embed": params["embed"] | {"table": table}})
    return model.states({"encoder_input_tokens": tokens}).reshape(7, 2, -1).sum(-1)

  jacobian = np.abs(jax.jit(jax.jacrev(states))(params["embed"]["table"]))[..., 2:9, :].max(-1) > 1e-6
  np.testing.assert_array_equal(jacobian[:, 0], np.tri(7, dtype=bool))
  np.testing.assert_array_equal(jacobian[:, 1], np.tri(7, dtype=bool).T)


# ---- Carried states --------------------------------------------------------------------------------------------------


def continued(config, tokens, continues=None):
  """Returns the hidden states of a text in parts, each with the states of the part before."""
  model, rows = toy.model(config), tokens.shape[0]
  zeros = jnp.zeros((rows, config.num_decoder_layers, 24))
  states = {"recurrent_output": zeros, "recurrent_cell": zeros}
  outputs = []
  for part in range(tokens.shape[1] // PART):
    row = tokens[:, part * PART : (part + 1) * PART]
    batch = {"decoder_input_tokens": row, "decoder_target_tokens": row}
    batch |= {f"carried/decoder/{name}": x for name, x in states.items()}
    batch |= {} if continues is None else {"decoder_continues": continues}
    read = step(model, batch)
    outputs.append(read.x)
    states = {name: jnp.moveaxis(read.aux.states[f"decoder/{name}"], 0, 1) for name in states}
  return jnp.concatenate(outputs, axis=1)


@pytest.mark.slow
@pytest.mark.exhaustive_from(2)
@pytest.mark.parametrize("kind", KINDS)
def test_parts_with_states_equal_one_long_row(kind):
  """Three rows that continue each other; a row that continues none is a text of its own."""
  config = dataclasses.replace(KINDS[kind], recurrent_carry=True)
  whole = step(toy.model(config), {"decoder_input_tokens": text(), "decoder_target_tokens": text()}).x
  np.testing.assert_allclose(continued(config, text()), whole, atol=1e-5)
  mixed = continued(config, text(), jnp.array([[1], [0]]))
  np.testing.assert_allclose(mixed[0], whole[0], atol=1e-5)
  alone = step(toy.model(config), {"decoder_input_tokens": text()[:, -PART:]}).x
  np.testing.assert_allclose(mixed[1, -PART:], alone[1], atol=1e-5)
  assert np.max(np.abs(mixed[1, -PART:] - whole[1, -PART:])) > 1e-3


@pytest.mark.slow
def test_no_gradient_leaves_a_row():
  """The returned states are constants of the next step."""
  config = dataclasses.replace(KINDS["awd_lstm"], recurrent_carry=True)
  graphdef, params = toy.split(toy.model(config))
  zeros = jnp.zeros((2, 3, 24))
  batch = {f"carried/decoder/{name}": zeros for name in ("recurrent_output", "recurrent_cell")}
  batch |= {"decoder_input_tokens": text()}
  total = lambda params: sum(jnp.sum(x) for x in nnx.merge(graphdef, params).hidden(batch).aux.states.values())
  value, gradient = jax.jit(jax.value_and_grad(total))(params)
  assert abs(value) > 1e-3
  assert not any(np.any(x) for x in jax.tree.leaves(gradient))


# ---- Decoding --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("kind", KINDS)
def test_beams_follow_their_parents(kind):
  """After two beams have changed places, each continues the states of the other."""
  model, prompt = toy.model(KINDS[kind]), text(1, 4)

  @jax.jit
  def decoded(model):
    _, state = model.start_decode(
      {"decoder_input_tokens": prompt, "decoder_segment_ids": jnp.ones_like(prompt)}, 4, num_beams=2
    )
    state = model.ready(state)
    _, state = model.decode_step(jnp.repeat(prompt[:, -1:], 2, axis=1), state)
    _, state = model.decode_step(jnp.array([[7, 9]]), state)
    return model.decode_step(jnp.array([[11, 12]]), state.follow(jnp.array([[1, 0]])))[0]

  for beam, tail in enumerate(((9, 11), (7, 12))):
    row = jnp.concatenate([prompt, jnp.array([tail])], axis=1)
    expected = toy.logits(model, {"decoder_input_tokens": row})[0, -1]
    np.testing.assert_allclose(decoded(model)[0, beam], expected, atol=1e-5)


# ---- Dropout and terms -----------------------------------------------------------------------------------------------


def test_dropped_words_are_zero_everywhere():
  """All occurrences of a token have one factor, 0 or 1 / (1 - rate); ids after the vocabulary stay."""
  config = dataclasses.replace(KINDS["awd_lstm"], embedding_dropout=0.5)
  tokens = jnp.array([[*range(40), 41], [*range(40), 41]])
  dropped = words.drop_tokens(jnp.ones((2, 41, 3)), tokens, config, toy.key())
  assert set(np.unique(dropped[:, :40])) == {0.0, 2.0}
  np.testing.assert_array_equal(dropped[0], dropped[1])
  np.testing.assert_array_equal(dropped[:, 40], 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("field", ["embedding_dropout", "recurrent_dropout", "recurrent_weight_dropout"])
def test_each_dropout_follows_its_key(field):
  """Equal keys give equal logits, other keys others, and evaluation drops nothing."""
  config = dataclasses.replace(KINDS["awd_lstm"], **{field: 0.5})
  model, batch = toy.model(config), toy.batch(architecture="decoder_only")
  first, again, other = (toy.logits(model, batch, toy.key(seed)) for seed in (0, 0, 1))
  np.testing.assert_array_equal(first, again)
  assert np.max(np.abs(first - other)) > 1e-2
  np.testing.assert_array_equal(toy.logits(model, batch), toy.logits(toy.model(KINDS["awd_lstm"]), batch))


@pytest.mark.slow
def test_one_mask_of_weights_serves_all_positions():
  """With half of the recurrent matrix dropped, two equal rows have equal outputs."""
  config = dataclasses.replace(KINDS["awd_lstm"], recurrent_weight_dropout=0.5)
  rows = jnp.repeat(text(1), 2, axis=0)
  logits = toy.logits(toy.model(config), {"decoder_input_tokens": rows}, toy.key())
  np.testing.assert_allclose(logits[0], logits[1], atol=1e-6)


@pytest.mark.slow
def test_terms_are_sums_over_positions_with_a_token():
  """The mean square of the last layer, and of its change within a text; other layers have none."""
  config = dataclasses.replace(KINDS["awd_lstm"], recurrent_size_loss=2.0, recurrent_change_loss=1.0)
  batch = toy.packed(toy.batch(architecture="decoder_only"))
  read = step(toy.model(config), batch)
  x, segments = np.asarray(read.x[0]), np.asarray(batch["decoder_segment_ids"][0])
  assert read.aux.terms.keys() == {"activation_size", "activation_change"}
  np.testing.assert_allclose(read.aux.terms["activation_size"], np.mean(x[segments > 0] ** 2, -1).sum(), rtol=1e-5)
  same = (segments[1:] == segments[:-1]) & (segments[1:] > 0)
  change = np.mean((x[1:] - x[:-1]) ** 2, -1)[same].sum()
  np.testing.assert_allclose(read.aux.terms["activation_change"], change, rtol=1e-5)
  dropping = dataclasses.replace(config, dropout_rate=0.2, broadcast_dropout=True)
  of_dropped = jax.jit(lambda model: model.hidden(batch).aux.terms)(toy.model(dropping))["activation_size"]
  np.testing.assert_allclose(of_dropped, read.aux.terms["activation_size"] / 0.8, rtol=1e-5)


@pytest.mark.slow
def test_changes_are_a_mean_over_the_pairs_within_texts():
  """Two texts in one row have the sum and the weight of two rows; the step between them counts in neither."""
  config = dataclasses.replace(KINDS["awd_lstm"], recurrent_change_loss=1.0)
  model, terms = toy.model(config), AuxiliaryTerms(config, ("decoder",))

  def measured(tokens, segments):
    batch = {f"decoder_{name}_tokens": jnp.array([tokens]) for name in ("input", "target")}
    batch["decoder_segment_ids"] = jnp.array([segments])
    return [float(x["activation_change"]) for x in (step(model, batch).aux.terms, terms.weights(batch))]

  first = measured([5, 7, 9, 8, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0, 0, 0])
  second = measured([6, 4, 3, 0, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0, 0, 0])
  packed = measured([5, 7, 9, 8, 6, 4, 3, 0], [1, 1, 1, 1, 2, 2, 2, 0])
  assert packed[1] == 3 + 2
  np.testing.assert_allclose(packed, np.add(first, second), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["awd_lstm", "awd_qrnn"])
def test_a_long_row_in_bfloat16_is_finite(kind):
  """300 positions with weights ten times as large, and gradients, too."""
  graphdef, params = toy.split(toy.model(dataclasses.replace(KINDS[kind], dtype="bfloat16")))
  batch = {"decoder_input_tokens": text(2, 300)}
  total = lambda params: jnp.sum(nnx.merge(graphdef, params)(batch).astype(jnp.float32) ** 2)
  value, gradient = jax.jit(jax.value_and_grad(total))(jax.tree.map(lambda x: 10 * x, params))
  assert np.isfinite(value) and all(np.all(np.isfinite(x)) for x in jax.tree.leaves(gradient))


# ---- Config ----------------------------------------------------------------------------------------------------------


def test_flops_are_those_of_the_matrices():
  """By hand: 16 to 24, 24 to 24, 24 to 16 features, four gates; no attention."""
  config = KINDS["awd_lstm"]
  matrices = 4 * (24 * (16 + 24) + 24 * (24 + 24) + 16 * (24 + 16))
  assert model_flops(config, batch_size=1, lengths={"decoder": 10}) == 60 * (matrices + 16 * 40)


def test_layers_have_numbers_for_rates():
  """Discriminative rates count layers of three kinds from the top, 1 for the last."""
  config = dataclasses.replace(KINDS["awd_lstm"], num_decoder_layers=4)
  abstract = jax.eval_shape(lambda: transformer.build(config, nnx.Rngs(0)))
  shapes = {path: x.shape for path, x in toy.flat(toy.split(abstract)[1]).items()}
  numbers = param_groups.layers_from_top(shapes, param_groups.deepest(shapes))
  of_place = lambda place: numbers[f"decoder/layers/mlp/lstm_{place}/layers/forward/input"].tolist()
  assert [of_place(place) for place in ("first", "inner", "last")] == [[4], [3, 2], [1]]
  assert numbers["embed/table"] == 5


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"positions": "rotary"}, "positions=rotary: .* needs 'none', because the order of the tokens is in the states"),
    ({"attention_kernel": "splash"}, "attention_kernel=splash: .* kernels compute attention"),
    ({"bidirectional_prefix": True}, "bidirectional_prefix=True: .* a state reads in one direction"),
    ({"memory_length": 4, "recurrent_carry": True}, "memory_length=4: .*recurrent_carry carries the states"),
    ({"future_tokens": 2}, "future_tokens=2: .* decoding keeps states"),
    ({"quantization": "int8"}, "quantization"),
    ({"layer_drop": 0.5}, "layer_drop=0.5: .* different widths"),
    ({"decoder": "speculative"}, "decoder=speculative needs a cache of keys and values"),
    ({"architecture": "encoder_decoder", "num_encoder_layers": 2}, "recurrent_hidden=24 has no effect on the layers"),
    ({"block": "recurrent_attention"}, "block=recurrent_attention attends to an encoder's output, but .*decoder_only"),
    ({"block": "recurrent_attention", "feed_forward": "gru"}, "feed_forward=gru: .*recurrent_attention needs lstm"),
    ({"feed_forward": "dense"}, "feed_forward=dense: config.model.block=recurrent needs lstm or qrnn"),
    ({"feed_forward": "lstm_first"}, "feed_forward=lstm_first: config.model.block=recurrent needs lstm or qrnn"),
    ({"block": "transformer", "positions": "none"}, "feed_forward=lstm: config.model.block=transformer needs dense"),
    ({"recurrent_residual": True}, "recurrent_residual=True needs layers of one width"),
    ({"recurrent_projection": True, "recurrent_hidden": 0}, "recurrent_projection=True needs .* and 0"),
    ({"num_decoder_layers": 1}, "recurrent_hidden=24 has no effect on a single layer"),
    ({"feed_forward": "qrnn", "recurrent_clip": 3.0}, "recurrent_clip=3.0 needs config.model.feed_forward=lstm"),
    ({"recurrent_size_loss": -1.0}, "recurrent_size_loss=-1.0: must be at least 0"),
    ({"recurrent_dropout": 1.0}, "recurrent_dropout=1.0: must be at least 0 and below 1"),
    ({"heads": ({"name": "a", "num_classes": 2, "layers": "mix"},)}, "a has layers='mix', which needs layers of one"),
  ],
)
def test_settings_that_do_not_fit_are_errors(fields, message):
  """They name the key and a value that works, before anything is built."""
  with pytest.raises(UserError, match=message):
    dataclasses.replace(KINDS["awd_lstm"], **fields)


_SHARED = {"share_stacks": True, "num_encoder_layers": 3, "encoder_embed_dim": 0, "own_encoder_embedding": False}


@pytest.mark.parametrize(
  ("kind", "fields", "message"),
  [
    ("gpt2", {"recurrent_hidden": 8}, "recurrent_hidden=8 needs config.model.block=recurrent, not transformer"),
    ("bert", {"embedding_dropout": 0.1}, "embedding_dropout=0.1 needs config.model.architecture=decoder_only"),
    ("bilstm", {"recurrent_carry": True}, "recurrent_carry=True needs config.model.architecture=decoder_only"),
    ("bilstm", {"embed_dim": 15}, "embed_dim=15: an encoder with .* Give an even number, such as 16"),
    ("gru_seq2seq", _SHARED, "share_stacks=True: .* layers of the decoder also read the encoder"),
    ("gru_seq2seq", {"recurrent_carry": True}, "recurrent_carry=True needs .* not encoder_decoder"),
    ("gru_seq2seq", {"recurrent_residual": True}, "recurrent_residual=True needs .* not encoder_decoder"),
    ("gru_seq2seq", {"recurrent_change_loss": 1.0}, "recurrent_change_loss=1.0 needs .* not encoder_decoder"),
    ("luong", {"recurrent_hidden": 8}, "recurrent_hidden=8.*have as many units as features"),
    ("luong", {"encoder_embed_dim": 15}, "embed_dim=15: an encoder with config.model.block=recurrent_attention"),
  ],
)
def test_settings_of_other_models_are_errors(kind, fields, message):
  """Recurrent settings of other blocks, and settings of one architecture."""
  with pytest.raises(UserError, match=message):
    dataclasses.replace(toy.KINDS[kind], **fields)


def test_an_attention_map_is_refused():
  """A recurrent block has no attention probabilities."""
  with pytest.raises(UserError, match="config.model.block=recurrent has no attention probabilities"):
    batch = {"decoder_input_tokens": text()}
    jax.eval_shape(
      lambda model: model.attention_map(batch, "decoder", jnp.zeros((), int)), toy.model(KINDS["awd_lstm"])
    )


@pytest.mark.parametrize(
  ("name", "fields"), [("lora", {"targets": ("forward/input",)}), ("pfeiffer", {}), ("pals", {"tasks": ("a", "b")})]
)
def test_adapters_of_other_layers_are_refused(name, fields):
  """They would change nothing, or replace a matrix that the layers read as an array."""
  config = adapters.ADAPTERS[name].config(**fields)
  with pytest.raises(UserError, match=f"config.{name} adapts attention and MLPs, but config.model.block=recurrent"):
    adapters.adapt(toy.model(KINDS["awd_lstm"]), {name: config}, nnx.Rngs(0))
