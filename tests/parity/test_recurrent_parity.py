"""t2t's LSTM layers against torch.nn.LSTM with equal weights: outputs, states and gradients.

Needs torch (tests/parity-requirements.txt).
"""

import jax
import jax.numpy as jnp
import numpy as np
from parity import torch
import pytest
import toy

from t2t.contrib.recurrent import layer

INPUTS, UNITS, PROJECTED = 16, 24, 16
CONFIGS = {
  "awd_lstm": toy.KINDS["awd_lstm"],
  "elmo": toy.decoder(
    feed_forward="lstm", block="recurrent", positions="none", recurrent_hidden=UNITS, recurrent_projection=True
  ),
}


def in_gates(x):
  """Returns torch's rows of gates from columns of units: [..., units * 4] -> [4 * units, ...]."""
  return np.moveaxis(np.asarray(x).reshape(*x.shape[:-1], -1, 4), (-1, -2), (0, 1)).reshape(x.shape[-1], *x.shape[:-1])


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
