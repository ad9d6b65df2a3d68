"""t2t's Mixtral and Switch Transformer against Hugging Face's, with the same random weights.

Needs torch and transformers (tests/parity-requirements.txt).
"""

import foreign
import jax
import numpy as np
import parity
import pytest
import toy

from t2t.convert import huggingface
from t2t.models import presets
from t2t.models.config import TransformerConfig

# Sizes differ from each other, from powers of two, and from transformers' defaults.
SHAPE = dict(vocab_size=53, embed_dim=18, num_heads=6, head_dim=4, mlp_dim=28, dtype="float32", norm_epsilon=1e-3)
MIXTRAL = presets.mixtral("8x7b") | SHAPE | dict(num_kv_heads=2, num_decoder_layers=3, moe_experts=5)
MIXTRAL |= dict(max_length=60, embed_dim=24, head_dim=6)  # torch needs rows of 16 bytes
SWITCH = presets.switch("base_8") | SHAPE | dict(moe_experts=3, num_encoder_layers=4, num_decoder_layers=2)
# Some tokens have no slot.
SWITCH |= dict(moe_capacity_factor=0.0, moe_capacity=9, moe_z_loss=0.003, dropout_rate=0.1)
FAMILIES = {
  "mixtral": MIXTRAL,
  "mixtral-window-three": MIXTRAL | dict(moe_experts_per_token=3, attention_window=4, tied_logits=True),
  "switch": SWITCH,
  "switch-tied-every-layer": SWITCH | dict(moe_every=1, moe_first=0, tied_logits=True, moe_capacity=4),
}


@pytest.fixture(scope="module", params=list(FAMILIES))
def pair(request, tmp_path_factory):
  return parity.pair(TransformerConfig(**FAMILIES[request.param]), tmp_path_factory.mktemp(request.param))


def batch_of(pair):
  """Returns a padded batch, and the function from a batch to transformers' arguments."""
  architecture = pair.config.architecture
  batch = toy.batch((30, 7), (25, 31), padded_to=(31, 32), architecture=architecture)
  return batch, parity.inputs if architecture == "decoder_only" else parity.of_both_sides


def test_logits_loss_and_gradients_are_theirs(pair):
  """Files in both directions are bit-identical; so are dropped tokens, which change logits."""
  batch, inputs = batch_of(pair)
  parity.assert_same_logits(pair, batch, inputs)
  parity.assert_same_loss_and_gradients(pair, batch, inputs)
  if pair.config.moe_capacity:
    terms = jax.jit(lambda model, batch: model.hidden(batch).aux.terms)(pair.model, batch)
    assert terms["moe_dropped"] > 0


def test_the_balance_loss_is_theirs(tmp_path):
  """transformers averages over layers before the product, so the layer is one; its coefficient is half of t2t's."""
  pair = parity.pair(TransformerConfig(**(MIXTRAL | dict(num_decoder_layers=1))), tmp_path)
  batch = toy.batch((30, 7), (25, 31), padded_to=(31, 32), architecture="decoder_only")
  expected = pair.theirs(**parity.inputs(batch), output_router_logits=True).aux_loss.item()
  terms = jax.jit(lambda model, batch: model.hidden(batch).aux.terms)(pair.model, batch)
  balance = terms["moe_balance"] / np.sum(parity.real(batch))
  coefficient = pair.theirs.config.router_aux_loss_coef
  assert pair.config.moe_balance_loss * balance == pytest.approx(coefficient * expected, rel=1e-4)


def test_what_is_written_is_theirs(pair):
  """Greedy decoding from the cache."""
  batch = toy.batch((5, 9, 1, 7, 8, 3), (1,) * 6, padded_to=(9, 1), architecture=pair.config.architecture)
  parity.assert_writes_the_same(pair, batch, num_beams=1)


def test_a_folder_with_dense_layers_between_comes_back(tmp_path):
  """Export and import of alternating layers change no bit, in bfloat16 either."""
  config = TransformerConfig(**SWITCH)
  again = huggingface.open_foreign(str(parity.exported(config, tmp_path / "out", dtype="bfloat16")))
  params = foreign.random_params(config)
  for path, value in foreign.read(again).items():
    expected = np.asarray(jax.numpy.asarray(params[path]).astype("bfloat16").astype("float32"))
    np.testing.assert_array_equal(value, expected, err_msg=path)
