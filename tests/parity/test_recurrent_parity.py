"""t2t's LSTM and GRU layers against torch.nn.LSTM and GRU with equal weights: outputs, states and gradients.

Needs torch (tests/parity-requirements.txt).
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from parity import torch
import pytest
import toy

from t2t.contrib.recurrent import layer
from t2t.models.masks import AttentionMask

INPUTS, UNITS, PROJECTED = 16, 24, 16
CONFIGS = {
  "awd_lstm": toy.KINDS["awd_lstm"],
  "elmo": toy.decoder(
    feed_forward="lstm", block="recurrent", positions="none", recurrent_hidden=UNITS, recurrent_projection=True
  ),
}


def in_gates(x, gates=4):
  """Returns torch's rows of gates from columns of units: [..., units * gates] -> [gates * units, ...]."""
  of_gates = np.asarray(x).reshape(*x.shape[:-1], -1, gates)
  return np.moveaxis(of_gates, (-1, -2), (0, 1)).reshape(x.shape[-1], *x.shape[:-1])


def theirs(params, projected):
  lstm = torch.nn.LSTM(INPUTS, UNITS, batch_first=True, proj_size=PROJECTED if projected else 0).double()
  values = {"weight_ih_l0": in_gates(params["input"]), "weight_hh_l0": in_gates(params["recurrent"])}
  values |= {"bias_ih_l0": in_gates(params["bias"]), "bias_hh_l0": np.zeros(4 * UNITS)}
  if projected:
    values["weight_hr_l0"] = np.asarray(params["projection"]).T
  lstm.load_state_dict({name: torch.tensor(np.asarray(x, np.float64)) for name, x in values.items()})
  return lstm


@pytest.mark.parametrize("name", CONFIGS)
def test_a_layer_equals_torch(name):
  """Also from a state, and with respect to every weight."""
  config, random = CONFIGS[name], np.random.default_rng(0)
  module = layer.LstmFirst(config, toy.transformer.nnx.Rngs(0))
  graphdef, params = toy.split(module)
  own = params["forward"]
  outputs = own["recurrent"].shape[0]
  x, weights = random.normal(size=(3, 11, INPUTS)), random.normal(size=(3, 11, outputs))
  before = [np.pad(random.normal(size=(3, size)), [(0, 0), (0, UNITS - size)]) for size in (outputs, UNITS)]

  def run(params, x):
    state = tuple(jnp.asarray(y, jnp.float32) for y in before)
    hidden, after = toy.transformer.nnx.merge(graphdef, params)(x, state=state)
    return jnp.sum(hidden.x * weights), (hidden.x, after)

  x32 = jnp.asarray(x, jnp.float32)
  gradients, (found, after) = jax.jit(jax.grad(run, argnums=(0, 1), has_aux=True))(params, x32)
  lstm, input_ = theirs(own, outputs != UNITS), torch.tensor(x, requires_grad=True)
  begin = (torch.tensor(before[0][None, :, :outputs].copy()), torch.tensor(before[1][None]))
  expected, (output, cell) = lstm(input_, begin)
  (expected * torch.tensor(weights)).sum().backward()
  np.testing.assert_allclose(found, expected.detach(), atol=1e-5)
  np.testing.assert_allclose(after[0][:, :outputs], output[0].detach(), atol=1e-5)
  np.testing.assert_allclose(after[1], cell[0].detach(), atol=1e-5)
  np.testing.assert_allclose(gradients[1], input_.grad, atol=1e-4)
  of_weights = gradients[0]["forward"]
  for mine, its in (("input", "weight_ih_l0"), ("recurrent", "weight_hh_l0"), ("bias", "bias_ih_l0")):
    np.testing.assert_allclose(in_gates(of_weights[mine]), getattr(lstm, its).grad, atol=1e-4)
  if outputs != UNITS:
    np.testing.assert_allclose(of_weights["projection"].T, lstm.weight_hr_l0.grad, atol=1e-4)


def test_a_gru_equals_torch():
  """From a state, with respect to every weight; only the candidate has a bias inside of the reset gate."""
  random = np.random.default_rng(0)
  graphdef, params = toy.split(layer.GruFirst(toy.KINDS["gru_lm"], toy.transformer.nnx.Rngs(0)))
  own = jax.tree.map(lambda x: jnp.asarray(random.normal(size=x.shape, scale=0.3), jnp.float32), params["forward"])
  x, weights = random.normal(size=(3, 11, INPUTS)), random.normal(size=(3, 11, UNITS))
  before = random.normal(size=(3, UNITS))

  def run(own, x):
    state = jnp.asarray(before, jnp.float32), jnp.zeros((3, UNITS))
    hidden, after = toy.transformer.nnx.merge(graphdef, {"forward": own})(x, state=state)
    return jnp.sum(hidden.x * weights), (hidden.x, after)

  gradients, (found, after) = jax.jit(jax.grad(run, argnums=(0, 1), has_aux=True))(own, jnp.asarray(x, jnp.float32))
  gru, input_ = torch.nn.GRU(INPUTS, UNITS, batch_first=True).double(), torch.tensor(x, requires_grad=True)
  values = {"weight_ih_l0": in_gates(own["input"], 3), "weight_hh_l0": in_gates(own["recurrent"], 3)}
  values["bias_ih_l0"] = in_gates(own["bias"], 3)
  values["bias_hh_l0"] = np.concatenate([np.zeros(2 * UNITS), own["recurrent_bias"]])
  gru.load_state_dict({name: torch.tensor(np.asarray(x, np.float64)) for name, x in values.items()})
  expected, output = gru(input_, torch.tensor(before[None]))
  (expected * torch.tensor(weights)).sum().backward()
  np.testing.assert_allclose(found, expected.detach(), atol=1e-5)
  np.testing.assert_allclose(after[0], output[0].detach(), atol=1e-5)
  np.testing.assert_allclose(gradients[1], input_.grad, atol=1e-4)
  for mine, its in (("input", "weight_ih_l0"), ("recurrent", "weight_hh_l0"), ("bias", "bias_ih_l0")):
    np.testing.assert_allclose(in_gates(gradients[0][mine], 3), getattr(gru, its).grad, atol=1e-4)
  np.testing.assert_allclose(gradients[0]["recurrent_bias"], gru.bias_hh_l0.grad[2 * UNITS :], atol=1e-4)


def test_an_encoder_with_attention_equals_torch():
  """Two bidirectional layers, each direction reading both of the layer below, on a padded row."""
  config = toy.KINDS["luong"].of_stack("encoder")
  model = toy.model(toy.KINDS["luong"])
  params = toy.split(model)[1]["encoder"]["layers"]["mlp"]
  x = np.random.default_rng(0).normal(size=(2, 7, 24))
  segments = jnp.array([[1] * 7, [1] * 4 + [0] * 3])
  found = jax.jit(lambda encoder, x: encoder(x, mask=AttentionMask(segments, segments, padded=True))[0])(
    model.encoder, jnp.asarray(x, jnp.float32)
  )
  lstm = torch.nn.LSTM(24, 12, num_layers=config.num_encoder_layers, bidirectional=True, batch_first=True).double()
  values = {}
  for index in range(config.num_encoder_layers):
    for side, end in (("forward", ""), ("backward", "_reverse")):
      own = {name: in_gates(x[index]) for name, x in params[side].items()}
      values |= {f"weight_ih_l{index}{end}": own["input"], f"weight_hh_l{index}{end}": own["recurrent"]}
      values |= {f"bias_ih_l{index}{end}": own["bias"], f"bias_hh_l{index}{end}": np.zeros(48)}
  lstm.load_state_dict({name: torch.tensor(np.asarray(x, np.float64)) for name, x in values.items()})
  for row, length in ((0, 7), (1, 4)):
    expected = lstm(torch.tensor(x[row : row + 1, :length]))[0].detach()
    np.testing.assert_allclose(found[row, :length], expected[0], atol=1e-5)


def test_a_decoder_with_attention_equals_torch():
  """Two LSTM cells, attention of the upper one, and input feeding into the lower one (McCann et al. 2017)."""
  model = toy.model(dataclasses.replace(toy.KINDS["luong"], num_decoder_layers=1))
  random = np.random.default_rng(0)
  x, memory = random.normal(size=(2, 6, 16)), random.normal(size=(2, 7, 24))
  segments = jnp.array([[1] * 7, [1] * 4 + [0] * 3])
  masks = {"mask": AttentionMask(causal=True), "memory_mask": AttentionMask(jnp.ones((2, 6), int), segments)}
  found = jax.jit(lambda decoder, x, memory: decoder(x, memory=memory, **masks)[0])(
    model.decoder, jnp.asarray(x, jnp.float32), jnp.asarray(memory, jnp.float32)
  )
  params = jax.tree.map(lambda x: np.asarray(x[0], np.float64), toy.split(model)[1]["decoder"]["layers"]["mlp"])
  cells = [torch.nn.LSTMCell(32, 16).double(), torch.nn.LSTMCell(16, 16).double()]
  for cell, name in zip(cells, ("forward", "above_0"), strict=True):
    own = {key: torch.tensor(in_gates(value)) for key, value in params[name].items()}
    values = {"weight_ih": own["input"], "weight_hh": own["recurrent"], "bias_ih": own["bias"]}
    cell.load_state_dict({**values, "bias_hh": torch.zeros(64).double()})
  query, query_bias, combined, combined_bias = (
    torch.tensor(params[name]) for name in ("query", "query_bias", "combined", "combined_bias")
  )
  zeros, keys, expected = torch.zeros(2, 16).double(), torch.tensor(memory), []
  states, fed = [(zeros, zeros), (zeros, zeros)], zeros
  for position in range(6):
    output = torch.cat([torch.tensor(x[:, position]), fed], dim=1)
    for index, cell in enumerate(cells):
      states[index] = cell(output, states[index])
      output = states[index][0]
    scores = torch.einsum("bse,be->bs", keys, output @ query + query_bias)
    weights = torch.softmax(scores.masked_fill(torch.tensor(np.asarray(segments) == 0), -torch.inf), dim=1)
    context = torch.einsum("bs,bse->be", weights, keys)
    fed = torch.tanh(torch.cat([context, output], dim=1) @ combined + combined_bias)
    expected.append(fed.detach())
  np.testing.assert_allclose(found, torch.stack(expected, dim=1), atol=1e-5)
