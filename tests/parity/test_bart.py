"""t2t's BART and Marian (for sinusoidal positions) against Hugging Face's, with the same random weights.

Needs torch and transformers (tests/parity-requirements.txt).
"""

import dataclasses

import foreign
import jax
import jax.numpy as jnp
import numpy as np
import parity
from parity import torch
import pytest
import toy

from t2t.convert import bart
from t2t.models import presets
from t2t.models.config import TransformerConfig

# Sizes differ from each other, from powers of two, and from transformers' defaults.
SHAPE = dict(vocab_size=53, embed_dim=18, num_heads=3, head_dim=6, mlp_dim=28, max_length=40)
SHAPE |= dict(num_encoder_layers=3, num_decoder_layers=2, dtype="float32", dropout_rate=0.0)
FAMILIES = {
  "bart": presets.bart("base") | SHAPE,
  "bart-scaled": presets.bart("base") | SHAPE | dict(scale_embedding=True, mlp_activation="relu"),
  # An odd width has one more sine than cosines.
  "marian": presets.transformer("base")
  | SHAPE
  | dict(embed_dim=15, head_dim=5, mlp_activation="silu", logits_bias=True, num_decoder_layers=3),
}
START = 2  # first token of the transformers decoder


@pytest.fixture(scope="module", params=list(FAMILIES))
def pair(request, tmp_path_factory):
  pair = parity.pair(TransformerConfig(**FAMILIES[request.param]), tmp_path_factory.mktemp(request.param))
  # A buffer in transformers, without a gradient.
  return dataclasses.replace(pair, places={name: x for name, x in pair.places.items() if name != bart.LOGITS_BIAS})


BATCHES = {"long": ((37, 23, 40), (12, 35, 30), (40, 39)), "short": ((5, 9, 1), (3, 1, 6), (9, 7))}


@pytest.fixture(scope="module", params=list(BATCHES))
def batch(request):
  inputs, targets, padded_to = BATCHES[request.param]
  return toy.batch(inputs, targets, padded_to=padded_to)


def test_encoder_output_and_logits_are_theirs(pair, batch):
  encoded = jax.jit(lambda model, batch: model.states(batch))(pair.model, batch)
  with torch.no_grad():
    expected = pair.theirs(**parity.of_both_sides(batch)).encoder_last_hidden_state.numpy()
  at = parity.real(batch, "encoder")
  np.testing.assert_allclose(np.asarray(encoded)[at], expected[at], atol=1e-4)
  parity.assert_same_logits(pair, batch, parity.of_both_sides)


@parity.GRADIENT_BATCHES
def test_loss_and_gradients_are_theirs(pair, batch):
  """The mean loss over real targets, and the gradient of every parameter."""
  parity.assert_same_loss_and_gradients(pair, batch, parity.of_both_sides)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_what_is_written_is_theirs(pair, num_beams):
  """Greedy and four-beam output after transformers' start token."""
  batch = toy.batch((5, 9, 1, 7, 8, 3), (1,) * 6, padded_to=(9, 1))
  batch["decoder_input_tokens"] = jnp.full((6, 1), START, jnp.int32)
  parity.assert_writes_the_same(pair, batch, num_beams=num_beams)


def test_the_bare_model_is_the_same(pair, tmp_path):
  """Released BARTs have no logits head; the embedding then gives the logits."""
  pair.theirs.model.save_pretrained(tmp_path)
  found = parity.huggingface.open_foreign(str(tmp_path))
  assert found.model == dataclasses.replace(pair.config, logits_bias=False)
  params = foreign.random_params(pair.config)
  for path, value in foreign.read(found).items():
    np.testing.assert_array_equal(value, params[path], err_msg=path)
