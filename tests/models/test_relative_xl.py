"""Relative positions of Transformer-XL and XLNet: the logits are the formula's."""

import dataclasses

from flax import nnx
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import UserError
from t2t.models.masks import AttentionMask
from t2t.models.positions import Call
from t2t.models.relative_xl import relative_shift, sinusoids


def formula(layer, biases, q, k, places, types, scale):
  """Returns the terms of one head's logits besides q k, pair by pair; `places` of queries and keys."""
  logits = np.zeros((len(q), len(k)))
  for i, at in enumerate(places[0]):
    for j, there in enumerate(places[1]):
      r = np.asarray(sinusoids(at - there, 8)) @ layer["projection"]
      e = layer["segments"][int(types[0][i] != types[1][j])]
      content, position, segment = (biases[name] for name in ("content", "position", "segment"))
      # `q` is scaled already.
      logits[i, j] = scale * (content @ k[j] + position @ r + segment @ e) + q[i] @ r + q[i] @ e
  return logits


@pytest.mark.parametrize("case", ["shift", "memory and two streams", "decoding", "prefix"])
def test_the_logits_are_the_formulas(case):
  """Holds for all pairs of queries and keys: with a memory or a prefix before the keys, and for one query."""
  config = dataclasses.replace(toy.KINDS["xlnet"], embed_dim=8, num_heads=1, head_dim=4, num_kv_heads=1)
  scheme, random = config.position_scheme, np.random.default_rng(0)
  layer = scheme.layer_parameters(nnx.Rngs(0))
  front = 2 if case == "prefix" else 0
  streams = 2 if "streams" in case else 1
  offset = {"memory and two streams": 3, "decoding": jnp.asarray(4)}.get(case, 0)
  num_queries, num_keys = {"decoding": (1, 6), "memory and two streams": (8, 7)}.get(case, (4, 4 + front))
  types = random.integers(0, 2, num_keys)
  mask = AttentionMask(query_offset=offset, streams=streams, front=front)
  if case in ("shift", "memory and two streams"):
    mask = dataclasses.replace(mask, token_types=jnp.asarray(types[None]))
  call = Call(1, num_queries, num_keys, mask, front, drops=False)
  q, k = (random.normal(size=(n, 4)).astype(np.float32) for n in (num_queries, num_keys))
  positions = scheme.positions(None, call)(0)
  actual = positions.on_logits(jnp.asarray(q)[None, None], jnp.asarray(k)[None, None], layer)[0, 0]
  values = {"projection": np.asarray(layer.projection[...]), "segments": np.asarray(layer.segments[...])[:, 0]}
  if mask.token_types is None:
    values["segments"] = np.zeros_like(values["segments"])
  biases = {name: np.asarray(getattr(layer.biases, name)[...])[0] for name in ("content", "position", "segment")}
  queries = np.tile(np.arange(num_queries // streams), streams) + int(offset) + front
  own = types[num_keys - num_queries // streams :] if mask.token_types is not None else np.zeros(num_queries)
  places = queries, np.arange(num_keys)
  expected = formula(values, biases, q, k, places, (np.tile(own, streams), types), config.attention_scale)
  np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_the_shift_is_that_of_the_docstring():
  """Also for one query, whose columns are its keys."""
  rows = jnp.asarray([[1, 2, 3], [4, 5, 6]])
  np.testing.assert_array_equal(relative_shift(rows, 2), [[2, 3], [4, 5]])
  np.testing.assert_array_equal(relative_shift(rows[:1], 3), [[1, 2, 3]])


def test_an_odd_width_is_an_error():
  """Sinusoids are pairs."""
  with pytest.raises(UserError, match="config.model.embed_dim=15: must be even"):
    _ = dataclasses.replace(toy.KINDS["xlnet"], embed_dim=15).position_scheme
