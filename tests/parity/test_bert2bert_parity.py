"""An encoder-decoder initialized from BERT on both sides, against Hugging Face's combined model."""

import dataclasses

import foreign
import jax.numpy as jnp
import numpy as np
import parity
import pytest
import toy

from t2t.models import presets
from t2t.models.config import TransformerConfig

BERT = TransformerConfig(
  **presets.bert("base")
  | dict(vocab_size=53, embed_dim=18, num_heads=3, head_dim=6, mlp_dim=28, num_encoder_layers=3, max_length=40)
  | dict(dtype="float32", dropout_rate=0.0, norm_epsilon=1e-3)
)
OURS = dataclasses.replace(BERT, architecture="encoder_decoder", num_decoder_layers=3)
# cross-attention of t2t -> of transformers
CROSS = {
  **{f"cross_attention/{name}": f"crossattention.self.{name}.weight" for name in ("query", "key", "value")},
  **{f"cross_attention/{name}_bias": f"crossattention.self.{name}.bias" for name in ("query", "key", "value")},
  "cross_attention/out": "crossattention.output.dense.weight",
  "cross_attention/out_bias": "crossattention.output.dense.bias",
  "cross_attention_norm/scale": "crossattention.output.LayerNorm.weight",
  "cross_attention_norm/bias": "crossattention.output.LayerNorm.bias",
}


@pytest.fixture(scope="module")
def both(tmp_path_factory):
  """Returns t2t's parameters and the transformers model: BERT on both sides, with the same random cross-attention."""
  folder = parity.exported(BERT, tmp_path_factory.mktemp("bert"))
  theirs = parity.transformers.EncoderDecoderModel.from_encoder_decoder_pretrained(
    str(folder), str(folder), encoder_attn_implementation="eager", decoder_attn_implementation="eager"
  ).eval()
  params, random = foreign.random_params(OURS), foreign.random_params(BERT)
  for path in params:
    if "cross_attention" not in path:
      params[path] = random[path.replace("decoder", "encoder")]
  state = dict(theirs.named_parameters())
  named = {path.removeprefix("decoder/layers/") for path in params if "cross_attention" in path}
  assert named == set(CROSS)
  for ours, name in CROSS.items():
    for layer in range(OURS.num_decoder_layers):
      value = params[f"decoder/layers/{ours}"][layer]
      other = state[f"decoder.bert.encoder.layer.{layer}.{name}"]
      other.data = parity.torch.tensor(value.T.copy() if value.ndim == 2 else value)
  return foreign.nested(params), theirs


@pytest.mark.parametrize("typed", [False, True])
def test_logits_are_theirs(both, typed):
  """With and without a second segment of the inputs, for texts of different lengths."""
  params, theirs = both
  batch = toy.batch((17, 9, 12), (8, 13, 5), padded_to=(17, 13))
  if typed:
    batch["encoder_token_types"] = jnp.asarray(np.arange(17)[None] >= np.array([[8], [3], [5]]), jnp.int32)
  given = {
    "input_ids": parity.as_torch(batch["encoder_input_tokens"]),
    "attention_mask": parity.as_torch(parity.real(batch, "encoder")),
    "decoder_input_ids": parity.as_torch(batch["decoder_input_tokens"]),
  } | ({"token_type_ids": parity.as_torch(batch["encoder_token_types"])} if typed else {})
  with parity.torch.no_grad():
    expected = theirs(**given).logits.numpy()
  model = parity.nnx.merge(foreign.graphdef(OURS), params)
  at = parity.real(batch)
  tolerance = 1e-4 * max(1.0, np.abs(expected[at]).max())
  np.testing.assert_allclose(np.asarray(toy.logits(model, batch))[at], expected[at], atol=tolerance)
