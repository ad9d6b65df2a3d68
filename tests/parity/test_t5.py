"""t2t's T5, mT5, ByT5 and UL2 against Hugging Face's T5, with the same random weights.

Needs torch and transformers (tests/parity-requirements.txt).
"""

import functools

import foreign
import jax
import numpy as np
import parity
from parity import torch
import pytest
import toy

from t2t.models import presets
from t2t.models.config import TransformerConfig

# Sizes differ from each other, from powers of two, and from transformers' defaults.
SHAPE = dict(vocab_size=53, embed_dim=20, num_heads=3, head_dim=6, mlp_dim=28)
SHAPE |= dict(num_encoder_layers=3, num_decoder_layers=2, dtype="float32", norm_epsilon=1e-3)
SHAPE |= dict(relative_position_buckets=12, relative_position_max_distance=100)
FAMILIES = {
  "t5_1_0": presets.t5_1_0("small"),
  "t5_1_1": presets.t5_1_1("small"),
  "mt5": presets.mt5("small"),
  "byt5": presets.byt5("small") | dict(num_encoder_layers=4),
  "ul2": presets.ul2("20b"),
}
# Longer than the 100 positions after which all share a bucket, with padding; and short.
LENGTHS = {
  "long": ((150, 131), (140, 137), (151, 145)),
  "short": ((5, 9, 1), (3, 1, 6), (9, 7)),
}


@pytest.fixture(scope="module", params=list(FAMILIES))
def pair(request, tmp_path_factory):
  config = TransformerConfig(**(FAMILIES[request.param] | SHAPE))
  return parity.pair(config, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module", params=list(LENGTHS))
def batch(request):
  return toy.batch(LENGTHS[request.param][0], LENGTHS[request.param][1], padded_to=LENGTHS[request.param][2])


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
  """Greedy and four-beam output."""
  batch = toy.batch((5, 9, 1, 7, 8, 3), (1,) * 6, padded_to=(9, 1))
  parity.assert_writes_the_same(pair, batch, num_beams=num_beams)


@pytest.mark.exhaustive_from(2)
@pytest.mark.parametrize("num_beams", [1, 4])
def test_the_least_length_is_theirs(pair, num_beams):
  """EOS is a token with which the first text would begin."""
  batch = toy.batch((5, 9, 1, 7, 8, 3), (1,) * 6, padded_to=(9, 1))
  writes = functools.partial(foreign.writes, pair.graphdef, pair.params, batch, num_beams=num_beams)
  options = dict(eos_id=int(writes(eos_id=-1)[0, 0]), min_length=4)
  found = writes(**options)
  assert np.any(found != writes(**options | {"min_length": 0}))
  np.testing.assert_array_equal(found, parity.writes(pair.theirs, batch, num_beams=num_beams, **options))
