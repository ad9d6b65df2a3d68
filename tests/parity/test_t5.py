"""t2t's T5 against Hugging Face's, with the same random weights.

Runs where torch and transformers are installed (tests/parity/requirements.txt).
"""

import jax
import numpy as np
import parity
from parity import torch, transformers
import pytest
import toy

from t2t.models import transformer
from t2t.models.config import TransformerConfig

# Every size is another one, and none is a power of two.
SHAPE = dict(vocab_size=53, embed_dim=20, num_heads=3, head_dim=6, mlp_dim=28)
LAYERS = dict(num_encoder_layers=3, num_decoder_layers=2)
CONFIGS = {
  "t5_1_0": dict(mlp_activation="relu", tied_logits=True),
  "t5_1_1": dict(mlp_activation="gated_gelu", tied_logits=False),
}
# Longer than the 128 positions from which on all share a bucket, with padding; and short.
LENGTHS = {
  "long": ((150, 131), (140, 137), (151, 145)),
  "short": ((5, 9, 1), (3, 1, 6), (9, 7)),
}

ATTENTION = {"query": "q", "key": "k", "value": "v", "out": "o"}
MLP = {"gated_gelu": {"gate": "wi_0", "up": "wi_1", "down": "wo"}, "relu": {"up": "wi", "down": "wo"}}


def names(config: TransformerConfig) -> parity.Names:
  """Hugging Face's name of a parameter -> ours."""
  found = {"shared.weight": "embed/table"}
  if not config.tied_logits:
    found["lm_head.weight"] = "head/projection"
  for stack in ("encoder", "decoder"):
    found[f"{stack}.final_layer_norm.weight"] = f"{stack}/norm/scale"
    table = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    found[table] = f"{stack}/position_bias/table"
    block = f"{stack}.block.{{}}.layer"
    attentions = [("self_attention", 0, "SelfAttention")]
    attentions += [("cross_attention", 1, "EncDecAttention")] if stack == "decoder" else []
    for ours, place, theirs in attentions:
      found[f"{block}.{place}.layer_norm.weight"] = f"{stack}/layers/{ours}_norm/scale"
      for kernel, letter in ATTENTION.items():
        found[f"{block}.{place}.{theirs}.{letter}.weight"] = f"{stack}/layers/{ours}/{kernel}"
    place = len(attentions)
    found[f"{block}.{place}.layer_norm.weight"] = f"{stack}/layers/mlp_norm/scale"
    for kernel, letters in MLP[config.mlp_activation].items():
      found[f"{block}.{place}.DenseReluDense.{letters}.weight"] = f"{stack}/layers/mlp/{kernel}"
  return found


def theirs(config: TransformerConfig):
  """Hugging Face's model of this shape."""
  model = transformers.T5ForConditionalGeneration(
    transformers.T5Config(
      vocab_size=config.vocab_size,
      d_model=config.embed_dim,
      d_kv=config.head_dim,
      d_ff=config.mlp_dim,
      num_heads=config.num_heads,
      num_layers=config.num_encoder_layers,
      num_decoder_layers=config.num_decoder_layers,
      feed_forward_proj={"relu": "relu", "gated_gelu": "gated-gelu"}[config.mlp_activation],
      tie_word_embeddings=config.tied_logits,
      dropout_rate=0.0,
      decoder_start_token_id=0,
    )
  )
  if not config.tied_logits:
    # transformers 5 ties the weights whatever the config says; a checkpoint of T5 1.1 unties them when it is loaded.
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
  return model


@pytest.fixture(scope="module", params=list(CONFIGS))
def pair(request):
  config = TransformerConfig(
    architecture="encoder_decoder", dtype="float32", **SHAPE, **LAYERS, **CONFIGS[request.param]
  )
  return parity.pair(config, theirs(config), names(config))


@pytest.fixture(scope="module", params=list(LENGTHS))
def batch(request):
  return toy.batch(LENGTHS[request.param][0], LENGTHS[request.param][1], padded_to=LENGTHS[request.param][2])


def inputs(batch: transformer.Batch) -> dict[str, torch.Tensor]:
  """What their model is called with."""
  return dict(
    input_ids=parity.as_torch(batch["encoder_input_tokens"]),
    attention_mask=parity.as_torch(batch["encoder_input_tokens"] > 0),
    decoder_input_ids=parity.as_torch(batch["decoder_input_tokens"]),
  )


def test_encoder_output_and_logits_are_theirs(pair, batch):
  """At every position that is not padding."""
  encoded = jax.jit(lambda model, batch: model.encode(batch)[0])(pair.model, batch)
  with torch.no_grad():
    expected = pair.theirs(**inputs(batch)).encoder_last_hidden_state.numpy()
  at = parity.real(batch, "encoder")
  np.testing.assert_allclose(np.asarray(encoded)[at], expected[at], atol=1e-4)
  parity.assert_same_logits(pair, batch, inputs)


def test_loss_and_gradients_are_theirs(pair, batch):
  """The mean loss over real targets, and the gradient of every parameter."""
  parity.assert_same_loss_and_gradients(pair, batch, inputs)
