"""t2t's Longformer against Hugging Face's, with the same random weights: logits, loss, gradients.

Needs torch and transformers (tests/parity-requirements.txt).
"""

import jax.numpy as jnp
import numpy as np
import parity
import pytest
import toy

from t2t.models import presets
from t2t.models.config import TransformerConfig

SHAPE = dict(vocab_size=53, embed_dim=18, num_heads=3, head_dim=6, mlp_dim=28, num_encoder_layers=3, max_length=60)
SHAPE |= dict(dtype="float32", dropout_rate=0.0, norm_epsilon=1e-3, attention_window=3)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
  config = TransformerConfig(**presets.longformer("base") | SHAPE)
  return parity.pair(config, tmp_path_factory.mktemp("longformer"))


@pytest.fixture(scope="module", params=["no", "some"])
def batch(request):
  """Returns rows of odd lengths and padding, with a different number of global tokens each, or without any."""
  made = toy.batch((37, 23, 41, 1), (1,) * 4, padded_to=(43, 1), architecture="encoder_only")
  made = parity.with_roberta_ids(made, 1)
  flags = np.zeros((4, 43), np.int32)
  if request.param == "some":
    flags[0, [0, 1, 4, 5, 30, 36]] = 1
    flags[1, [3]] = 1
    flags[2, [0, 40]] = 1
  return made | {"encoder_global_tokens": jnp.asarray(flags)}


def test_logits_loss_and_gradients_are_theirs(pair, batch):
  """Also where rows have different numbers of global tokens, and for the projections of global tokens."""
  parity.assert_same_logits(pair, batch)
  parity.assert_same_loss_and_gradients(pair, batch)
