"""Sinusoidal positions: the paper's formula, with the sines in the first half."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t.models.sinusoidal import sinusoids


@pytest.mark.parametrize("width", [6, 7])
def test_the_features_are_the_papers_in_another_order(width):
  """Feature 2i of the paper is sine i, feature 2i + 1 is cosine i, far from the first position, too."""
  positions = np.array([[0, 1, 5], [300, 2, 4_000]])
  interleaved = np.empty((2, 3, width))
  for feature in range(width):
    angle = positions / 10_000.0 ** (2 * (feature // 2) / width)
    interleaved[..., feature] = np.cos(angle) if feature % 2 else np.sin(angle)
  expected = np.concatenate([interleaved[..., 0::2], interleaved[..., 1::2]], axis=-1)
  np.testing.assert_allclose(sinusoids(jnp.asarray(positions), width), expected, atol=5e-4)


def test_they_are_added_to_scaled_tokens_without_a_longest_position():
  """A token at position 5,000 differs from its embedding by the sinusoids; there is no parameter."""
  config = dataclasses.replace(toy.KINDS["marian"], max_length=0)
  model = toy.model(config)
  assert not [path for path in toy.flat(toy.split(model)[1]) if "positions" in path]
  tokens, positions = jnp.asarray([[3, 9]]), jnp.asarray([[5_000, 0]])
  expected = 4.0 * model.embed.table[...][tokens] + sinusoids(positions, 16)
  np.testing.assert_allclose(model.embed(tokens, positions=positions), expected, atol=1e-5)
  assert config.most_positions == 0
