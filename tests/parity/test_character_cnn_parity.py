"""The character CNN against torch.nn.Conv1d, max pooling and highway layers, with the sizes of ELMo.

Needs torch (tests/parity-requirements.txt).
"""

import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
from parity import torch
import toy

from t2t.contrib.recurrent import character_cnn, character_table

CONFIG = dataclasses.replace(
  toy.KINDS["awd_lstm"], embedding="characters", tied_logits=False, embed_dim=512, character_cnn="elmo"
)
WORDS = ["I", "have", "a", "dog", ",", "naïve", "x" * 60, "antidisestablishmentarianism"]


class Theirs(torch.nn.Module):
  """The token encoder of the release as PyTorch's own modules, in float64."""

  def __init__(self, sizes, size):
    super().__init__()
    self.characters = torch.nn.Embedding(262, sizes.width)
    self.convolutions = torch.nn.ModuleList(torch.nn.Conv1d(sizes.width, n, width) for width, n in sizes.filters)
    make = lambda: torch.nn.Linear(sizes.features, sizes.features)
    self.kernels = torch.nn.ModuleList(make() for _ in range(sizes.highways))
    self.gates = torch.nn.ModuleList(make() for _ in range(sizes.highways))
    self.projection = torch.nn.Linear(sizes.features, size)
    self.double()

  def forward(self, ids):
    x = self.characters(ids).transpose(1, 2)
    x = torch.cat([torch.relu(convolution(x).max(dim=-1).values) for convolution in self.convolutions], dim=-1)
    for kernel, gate in zip(self.kernels, self.gates, strict=True):
      opened = torch.sigmoid(gate(x))
      x = opened * torch.relu(kernel(x)) + (1 - opened) * x
    return self.projection(x)


def with_weights(params, sizes, size):
  """Returns torch's module with the weights of a `CharacterCnn`."""
  module, value = Theirs(sizes, size), lambda path: torch.tensor(np.asarray(params[path], np.float64))
  state = {"characters.weight": value("characters")}
  starts = np.cumsum([0, *(number for _, number in sizes.filters)])
  for i, (width, number) in enumerate(sizes.filters):
    kernel = value(f"kernels/width_{width}").reshape(width, sizes.width, number)
    state[f"convolutions.{i}.weight"] = kernel.permute(2, 1, 0)
    state[f"convolutions.{i}.bias"] = value("bias")[starts[i] : starts[i + 1]]
  for i in range(sizes.highways):
    for theirs, mine in (("kernels", "kernel"), ("gates", "gate")):
      state[f"{theirs}.{i}.weight"] = value(f"highways/layer_{i}/{mine}").T
    state[f"kernels.{i}.bias"] = value(f"highways/layer_{i}/bias")
    state[f"gates.{i}.bias"] = value(f"highways/layer_{i}/gate_bias")
  state |= {"projection.weight": value("projection").T, "projection.bias": value("projection_bias")}
  module.load_state_dict(state)
  return module


def test_the_cnn_equals_torch():
  """Vectors, and gradients of the characters and of the widest filters."""
  sizes, random = character_cnn.SIZES["elmo"], np.random.default_rng(0)
  graphdef, params = toy.split(character_cnn.CharacterCnn(CONFIG, sizes, nnx.Rngs(0)))
  params = jax.tree.map(lambda x: x + 0.1 * random.normal(size=x.shape).astype(np.float32), params)
  ids = np.array([character_table.row(word.encode(), sizes.longest) for word in WORDS])
  weights = random.normal(size=(len(WORDS), CONFIG.embed_dim))

  def run(params):
    x = nnx.merge(graphdef, params)(jnp.asarray(ids))
    return jnp.sum(x * weights), x

  gradients, found = jax.jit(jax.grad(run, has_aux=True))(params)
  theirs = with_weights(toy.flat(params), sizes, CONFIG.embed_dim)
  expected = theirs(torch.tensor(ids))
  (expected * torch.tensor(weights)).sum().backward()
  scale = float(expected.detach().abs().max())
  np.testing.assert_allclose(found / scale, expected.detach() / scale, atol=2e-5)
  gradients = toy.flat(gradients)
  kernel = np.asarray(gradients["kernels/width_7"]).reshape(7, sizes.width, -1).transpose(2, 1, 0)
  for mine, its in (
    (kernel, theirs.convolutions[-1].weight.grad),
    (gradients["characters"], theirs.characters.weight.grad),
  ):
    largest = float(its.abs().max())
    np.testing.assert_allclose(np.asarray(mine) / largest, its / largest, atol=1e-4)
