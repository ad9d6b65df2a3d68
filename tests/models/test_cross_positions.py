"""Rotary cross-attention: the targets' positions continue the inputs' (RedLLM)."""

import dataclasses

from flax import nnx
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import UserError
from t2t.models import attention, positions
from t2t.models.masks import AttentionMask

RED_LLM = dataclasses.replace(toy.KINDS["red_llm"], rotary_scaling="linear", rotary_scaling_factor=2.0)


def test_targets_continue_the_inputs_of_their_segment():
  """Packed, with padding at the end of both sides; without packing by the length of each row."""
  segments = jnp.asarray([[1, 1, 1, 2, 2, 0]])
  packed = AttentionMask(jnp.asarray([[1, 1, 2, 2, 2]]), segments, positions=jnp.asarray([[0, 1, 0, 1, 2]]))
  np.testing.assert_array_equal(packed.positions_after_keys(), [[3, 4, 5, 6, 7]])
  rows = AttentionMask(jnp.ones((2, 3), int), jnp.asarray([[1, 1, 1, 1], [1, 1, 0, 0]]), padded=True)
  np.testing.assert_array_equal(rows.positions_after_keys(), [[4, 5, 6], [2, 3, 4]])


def test_targets_read_inputs_as_if_both_were_one_sequence():
  """Equal to self-attention over inputs and targets in one row, of which targets read only the inputs."""
  layer = attention.Attention(RED_LLM, nnx.Rngs(0), cross=True)
  scheme, width = RED_LLM.position_scheme, RED_LLM.embed_dim
  row = jnp.asarray(np.random.default_rng(0).normal(size=(1, 8, width)), jnp.float32)
  inputs, targets = row[:, :5], row[:, 5:]
  call = positions.Call(1, 8, 8, AttentionMask(), 0, drops=False)
  within = scheme.positions(None, call)(0)
  keys, values = (x[:, :, :5] for x in layer.keys_and_values(row, within))
  expected = layer(row, keys, values, mask=AttentionMask(), positions=within)[:, 5:]
  mask = AttentionMask(jnp.ones((1, 3), int), jnp.asarray([[1, 1, 1, 1, 1, 0]]), padded=True)
  padded = jnp.pad(inputs, [(0, 0), (0, 1), (0, 0)])
  crossing = scheme.cross_positions(mask, 6)
  found = layer(targets, *layer.keys_and_values(padded, crossing), mask=mask, positions=crossing)
  np.testing.assert_allclose(found, expected, atol=1e-5)
  cached = layer.keys_and_values(padded, scheme.cross_positions(None, 6))[0]
  np.testing.assert_array_equal(cached[:, :, :5], keys)


@pytest.mark.exhaustive
def test_the_layers_of_a_model_use_them():
  """With the same parameters, logits differ from those of a model without rotary cross-attention."""
  batch = toy.batch()
  plain = dataclasses.replace(toy.KINDS["red_llm"], rotary_cross_attention=False)
  difference = toy.logits(toy.model(toy.KINDS["red_llm"]), batch) - toy.logits(toy.model(plain), batch)
  assert np.max(np.abs(difference)) > 0.01


@pytest.mark.parametrize("config", [toy.decoder(positions="rotary"), toy.config(), toy.config(positions="alibi")])
def test_models_without_rotary_cross_attention(config):
  """The message has both keys."""
  with pytest.raises(
    UserError, match=f"architecture=encoder_decoder and .*positions=rotary, not {config.architecture}"
  ):
    _ = dataclasses.replace(config, rotary_cross_attention=True).position_scheme
