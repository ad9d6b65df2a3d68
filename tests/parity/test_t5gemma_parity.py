"""t2t's T5Gemma against Hugging Face's, with the same random weights.

Needs torch and transformers (tests/parity-requirements.txt).
"""

import jax
import numpy as np
import parity
from parity import torch
import pytest
import toy

from t2t.models import presets
from t2t.models.config import TransformerConfig

# Sizes differ from each other, from powers of two, and from transformers' defaults; windows are shorter than the texts.
SHAPE = dict(vocab_size=53, embed_dim=18, num_heads=6, num_kv_heads=2, head_dim=4, mlp_dim=28, dtype="float32")
SHAPE |= dict(num_encoder_layers=4, num_decoder_layers=3, attention_window=4, encoder_attention_window=5)
SHAPE |= dict(attention_softcap=1.5, logits_softcap=2.0, max_length=60, norm_epsilon=1e-3)
EQUAL = presets.t5gemma("2b_2b") | SHAPE
WIDER = dict(encoder_embed_dim=30, encoder_num_heads=10, encoder_num_kv_heads=5, encoder_head_dim=6, encoder_mlp_dim=44)
FAMILIES = {
  "equal": EQUAL,
  "wider-encoder": EQUAL | WIDER,
  "wider-encoder-same-window": EQUAL | WIDER | dict(encoder_attention_window=0, attention_scale_dim=9),
  "narrow-encoder-untied": EQUAL
  | dict(encoder_embed_dim=12, encoder_num_heads=3, encoder_num_kv_heads=3, tied_logits=False, rotary_base=500.0),
  "without-windows-or-caps": EQUAL
  | WIDER
  | dict(attention_window=0, encoder_attention_window=0, global_attention_every=0, global_attention_first=0)
  | dict(attention_softcap=0.0, logits_softcap=0.0, num_kv_heads=0, encoder_num_kv_heads=0),
}


@pytest.fixture(scope="module", params=list(FAMILIES))
def pair(request, tmp_path_factory):
  return parity.pair(TransformerConfig(**FAMILIES[request.param]), tmp_path_factory.mktemp(request.param))


BATCHES = {"long": ((37, 23, 40), (12, 35, 30), (40, 39)), "short": ((5, 9, 1), (3, 1, 6), (9, 7))}


@pytest.fixture(scope="module", params=list(BATCHES))
def batch(request):
  inputs, targets, padded_to = BATCHES[request.param]
  return toy.batch(inputs, targets, padded_to=padded_to)


def inputs(batch):
  """Returns transformers' arguments. Its default mask of the decoder hides the first token, which is t2t's padding."""
  return parity.of_both_sides(batch) | {
    "decoder_attention_mask": torch.ones_like(parity.as_torch(batch["decoder_input_tokens"]))
  }


def test_encoder_output_and_logits_are_theirs(pair, batch):
  """Also with a window in the encoder that is one position wider on both sides than the decoder's."""
  encoded = jax.jit(lambda model, batch: model.states(batch))(pair.model, batch)
  with torch.no_grad():
    expected = pair.theirs(**inputs(batch)).encoder_last_hidden_state.numpy()
  at = parity.real(batch, "encoder")
  np.testing.assert_allclose(np.asarray(encoded)[at], expected[at], atol=1e-4)
  parity.assert_same_logits(pair, batch, inputs)


@parity.GRADIENT_BATCHES
def test_loss_and_gradients_are_theirs(pair, batch):
  """The mean loss over real targets, and the gradient of every parameter."""
  parity.assert_same_loss_and_gradients(pair, batch, inputs)


@pytest.mark.parametrize("num_beams", [4, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_what_is_written_is_theirs(pair, num_beams):
  """Greedy and four-beam output from the cache, longer than the window."""
  batch = toy.batch((5, 9, 1, 7, 8, 3), (1,) * 6, padded_to=(9, 1))
  parity.assert_writes_the_same(pair, batch, num_beams=num_beams)
