"""Span boundary objective against PyTorch modules composed as in the paper (Joshi et al. 2020, section 3.2).

transformers has no model with this head; the layers are torch's, with the same random weights.
"""

import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
from parity import torch
import pytest
import toy

from t2t.losses import head_losses
from t2t.models.head_config import HeadConfig
from t2t.models.task_heads import POSITION_WIDTH

PLACES = 3
# (first, last) of each row's spans; one has more tokens than places.
SPANS = (((1, 4), (7, 7)), ((2, 3),), ((1, 1), (5, 6), (8, 9)))
LENGTH = 12


class Boundary(torch.nn.Module):
  """h1 = LayerNorm(gelu(W1 [left; right; place])), h2 = LayerNorm(gelu(W2 h1)), logits = E h2 + b."""

  def __init__(self, embed: int, vocab: int, epsilon: float):
    super().__init__()
    self.positions = torch.nn.Embedding(PLACES, POSITION_WIDTH)
    self.first = torch.nn.Linear(2 * embed + POSITION_WIDTH, embed)
    self.first_norm = torch.nn.LayerNorm(embed, eps=epsilon)
    self.second = torch.nn.Linear(embed, embed)
    self.second_norm = torch.nn.LayerNorm(embed, eps=epsilon)
    self.bias = torch.nn.Parameter(torch.zeros(vocab))

  def forward(self, left: torch.Tensor, right: torch.Tensor, place: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    gelu = torch.nn.functional.gelu
    hidden = self.first_norm(gelu(self.first(torch.cat([left, right, self.positions(place)]))))
    return table @ self.second_norm(gelu(self.second(hidden))) + self.bias


# torch parameter -> t2t parameter, whose matrices are transposed.
NAMES = {
  "positions.weight": "positions",
  "first.weight": "first",
  "first.bias": "first_bias",
  "first_norm.weight": "first_norm/scale",
  "first_norm.bias": "first_norm/bias",
  "second.weight": "second",
  "second.bias": "second_bias",
  "second_norm.weight": "second_norm/scale",
  "second_norm.bias": "second_norm/bias",
  "bias": "bias",
}
MATRICES = ("first.weight", "second.weight")


@pytest.fixture(scope="module")
def ours():
  """Returns a model with random parameters, a batch for its head, and its loss."""
  config = dataclasses.replace(toy.KINDS["bert"], heads=(HeadConfig("sbo", PLACES, "boundary"),), init_scale=0.02)
  graphdef, params = toy.split(toy.model(config))
  random = np.random.default_rng(3)
  params = jax.tree.map(lambda x: x + 0.2 * jnp.asarray(random.normal(size=x.shape), x.dtype), params)
  batch = toy.batch((LENGTH,) * 3, (1,) * 3, padded_to=(LENGTH, 1), architecture="encoder_only")
  asked = {name: np.zeros((3, LENGTH), np.int32) for name in ("heads", "targets", "groups")}
  for row, spans in enumerate(SPANS):
    for first, last in spans:
      asked["heads"][row, first : last + 1] = asked["groups"][row, first : last + 1] = 1
      asked["targets"][row, first] += 1
      asked["targets"][row, last] += 2
  batch |= {f"encoder_answer_{name}": jnp.asarray(x) for name, x in asked.items()}
  return graphdef, params, batch, head_losses.HeadLosses(config, toy.loss_config(z_loss=0.0, logits_chunk_tokens=16))


def test_logits_loss_and_gradients_are_theirs(ours):
  """Every token in a span up to the last place, and every parameter, including the model's."""
  graphdef, params, batch, loss = ours
  config = loss.config
  theirs = Boundary(config.embed_dim, config.vocab_size, config.norm_epsilon)
  own = toy.flat(params["heads"]["sbo"])
  for name, parameter in theirs.named_parameters():
    value = torch.tensor(np.array(own[NAMES[name]]))
    parameter.data = value.T.contiguous() if name in MATRICES else value

  states = jax.jit(lambda params: nnx.merge(graphdef, params).states(batch))
  hidden = torch.tensor(np.array(states(params)), requires_grad=True)
  table = torch.tensor(np.array(params["embed"]["table"]), requires_grad=True)
  logits, targets, asked = [], [], []
  for row, spans in enumerate(SPANS):
    for first, last in spans:
      for place in range(min(last - first + 1, PLACES)):
        sides = hidden[row, first - 1], hidden[row, last + 1]
        logits.append(theirs(*sides, torch.tensor(place), table))
        targets.append(int(batch["encoder_target_tokens"][row, first + place]))
        asked.append((row, first - 1, last + 1, place))
  expected = torch.nn.functional.cross_entropy(torch.stack(logits), torch.tensor(targets))
  expected.backward()

  rows, left, right, places = (jnp.array(column)[:, None] for column in zip(*asked, strict=True))
  model = nnx.merge(graphdef, params)
  read = model.heads["sbo"].read(states(params)[rows[:, 0]], left, right, places)
  found = model.logits_fn("sbo")(read)[:, 0]
  np.testing.assert_allclose(found, torch.stack(logits).detach(), atol=1e-4)
  assert np.std(found) > 0.1

  def term(params):
    terms, metrics = loss(nnx.merge(graphdef, params), batch, loss.weights(batch), key=None, train=False)
    return terms["sbo"], metrics

  (value, metrics), gradient = jax.jit(jax.value_and_grad(term, has_aux=True))(params)
  np.testing.assert_allclose(value, expected.item(), rtol=1e-5)
  right_ones = np.mean(np.argmax(torch.stack(logits).detach().numpy(), -1) == np.array(targets))
  np.testing.assert_allclose(metrics["sbo_accuracy"].value(), right_ones, rtol=1e-6)
  flat = toy.flat(gradient["heads"]["sbo"])
  for name, parameter in theirs.named_parameters():
    wanted = parameter.grad.T if name in MATRICES else parameter.grad
    np.testing.assert_allclose(flat[NAMES[name]], wanted, atol=1e-4, err_msg=name)
    assert np.abs(wanted).max() > 1e-3, name

  # t2t propagates torch's gradients of the states to the parameters below the head; the table has both parts.
  _, back = jax.vjp(states, params)
  below = toy.flat(back(jnp.asarray(hidden.grad.numpy()))[0])
  below["embed/table"] = below["embed/table"] + table.grad.numpy()
  for name, wanted in toy.flat(gradient).items():
    if not name.startswith("heads/"):
      np.testing.assert_allclose(wanted, below[name], atol=1e-4, err_msg=name)
