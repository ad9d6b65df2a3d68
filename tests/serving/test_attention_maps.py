"""Attention maps: probabilities consistent with the layers' outputs, for every architecture."""

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t.models import attention
from t2t.models import positions as positions_lib
from t2t.models.masks import AttentionMask

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kv_heads", [0, 2])
def test_probabilities_weigh_the_values(kv_heads):
  """Weighted values equal the attention's output, including bias, window and grouped keys."""
  config = toy.encoder(num_heads=4, num_kv_heads=kv_heads, attention_window=2)
  layer = attention.Attention(config, nnx.Rngs(0))
  x = jax.random.normal(jax.random.key(1), (2, 6, config.embed_dim))
  keys, values = layer.keys_and_values(x)
  segments = jnp.array([[1] * 6, [1] * 4 + [0] * 2])
  options = {"mask": AttentionMask(segments, segments), "positions": positions_lib.Positions(is_local=True)}
  found = layer.probabilities(x, keys, **options)
  heads = jnp.einsum("bhqs,bhsk->bqhk", found, jnp.repeat(values, 4 // values.shape[1], axis=1))
  expected = heads.reshape(2, 6, -1) @ layer.out[...]
  np.testing.assert_allclose(layer(x, keys, values, **options), expected, atol=1e-5)
  assert not found[0, :, 0, 3:].any() and not found[1, :, :4, 4:].any()


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", toy.REPRESENTATIVES)
def test_maps_of_every_architecture(kind):
  """Maps are [layers, batch, query, key] with rows that sum to one; decoders are causal."""
  model = toy.model(toy.KINDS[kind])
  batch = toy.batch((7, 5), (6, 4), architecture=model.architecture.name)
  inputs, targets = 8, 6
  sizes = {"encoder": (inputs, inputs), "decoder": (targets, targets), "cross": (targets, inputs)}
  for which in model.architecture.attentions:
    found = model.attention_map(batch, which, jnp.array(1))
    assert (
      found.shape[2:] == sizes[which]
      if model.architecture.has_encoder_and_decoder
      else found.shape[2] == found.shape[3]
    )
    np.testing.assert_allclose(found.sum(axis=-1), 1.0, atol=1e-5)
    other = model.attention_map(batch, which, jnp.array(0))
    assert np.abs(other - found).max() > 1e-4, "heads are told apart"
    if which == "decoder" and not model.config.bidirectional_prefix:
      assert not np.triu(found, 1).any()


def test_a_layer_is_that_layer():
  """Changing the second layer's queries changes its map, and no earlier one."""
  model = toy.model(toy.encoder())
  batch = toy.batch((7, 5), (6, 4), architecture="encoder_only")
  before = model.attention_map(batch, "encoder", jnp.array(0))
  query = model.encoder.layers.self_attention.query
  query[...] = query[...].at[1].multiply(3.0)
  after = model.attention_map(batch, "encoder", jnp.array(0))
  np.testing.assert_array_equal(before[0], after[0])
  assert np.abs(before[1] - after[1]).max() > 1e-4
