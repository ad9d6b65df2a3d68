"""Sinusoidal positions: fixed sines and cosines added to the embedded tokens (Vaswani et al. 2017)."""

import jax
import jax.numpy as jnp
import numpy as np

from t2t.models.positions import Scheme

_BASE = 10_000.0


def sinusoids(positions: jax.Array, width: int) -> jax.Array:
  """Returns sines and cosines of positions at geometrically falling frequencies.

  In:  positions [0, 1], width 4
  Out: [[0, 0, 1, 1], [sin(1), sin(0.01), cos(1), cos(0.01)]]

  The sines come first, as in tensor2tensor, Marian and transformers' Marian; the paper's formula interleaves the same
  features. The frequencies are those of the paper and Marian, 10000^(-2i / width). tensor2tensor and fairseq divide i
  by width / 2 - 1 instead, so that the last frequency is exactly 1 / 10000.

  Args:
    positions: int [...].
    width: number of features; an odd width has one more sine than cosines.

  Returns:
    float32 [..., width].

  Source: Vaswani et al. 2017, section 3.5.
  """
  frequencies = _BASE ** -(np.arange(0, width, 2) / width)
  angles = positions[..., None] * frequencies.astype(np.float32)
  return jnp.concatenate([jnp.sin(angles), jnp.cos(angles[..., : width // 2])], axis=-1)


class Sinusoidal(Scheme):
  """Adds `sinusoids` to the embedded tokens; there is no table and no longest position."""

  def embedding(self, positions: jax.Array, width: int) -> jax.Array:
    return sinusoids(positions, width)
