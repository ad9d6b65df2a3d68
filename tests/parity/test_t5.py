"""t2t's T5 against Hugging Face's, with the same random weights.

Runs where torch and transformers are installed (tests/parity/requirements.txt).
"""

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import losses
from t2t.models import transformer
from t2t.models.config import TransformerConfig

torch = pytest.importorskip("torch", reason="needs torch: pip install -r tests/parity/requirements.txt")
transformers = pytest.importorskip("transformers", reason="needs transformers: tests/parity/requirements.txt")

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


def names(config: TransformerConfig) -> dict[str, tuple[str, int | None]]:
  """Hugging Face's name of a parameter -> ours and the layer; matrices are transposed there."""
  found = {"shared.weight": ("embed/table", None)}
  if not config.tied_logits:
    found["lm_head.weight"] = ("head/projection", None)
  for stack, num_layers in (("encoder", config.num_encoder_layers), ("decoder", config.num_decoder_layers)):
    found[f"{stack}.final_layer_norm.weight"] = (f"{stack}/norm/scale", None)
    table = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    found[table] = (f"{stack}/position_bias/table", None)
    for index in range(num_layers):
      block = f"{stack}.block.{index}.layer"
      attentions = [("self_attention", 0, "SelfAttention")]
      attentions += [("cross_attention", 1, "EncDecAttention")] if stack == "decoder" else []
      for ours, place, theirs in attentions:
        found[f"{block}.{place}.layer_norm.weight"] = (f"{stack}/layers/{ours}_norm/scale", index)
        for kernel, letter in ATTENTION.items():
          found[f"{block}.{place}.{theirs}.{letter}.weight"] = (f"{stack}/layers/{ours}/{kernel}", index)
      place = len(attentions)
      found[f"{block}.{place}.layer_norm.weight"] = (f"{stack}/layers/mlp_norm/scale", index)
      for kernel, letters in MLP[config.mlp_activation].items():
        found[f"{block}.{place}.DenseReluDense.{letters}.weight"] = (f"{stack}/layers/mlp/{kernel}", index)
  return found


def transposed(name: str, value: np.ndarray) -> np.ndarray:
  """A matrix as the other side has it; tables of vectors lie the same way in both."""
  return value if value.ndim == 1 or name.endswith("table") else value.T


def theirs(config: TransformerConfig, params: dict):
  """Hugging Face's model with our parameters."""
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
  ).eval()
  if not config.tied_logits:
    # transformers 5 ties the weights whatever the config says; a checkpoint of T5 1.1 unties them when it is loaded.
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
  flat, parameters = toy.flat(params), dict(model.named_parameters())
  assert set(names(config)) == set(parameters)
  with torch.no_grad():
    for name, (ours, layer) in names(config).items():
      value = np.asarray(flat[ours] if layer is None else flat[ours][layer])
      parameters[name].copy_(torch.tensor(transposed(ours, value)))
  return model


@pytest.fixture(scope="module", params=list(CONFIGS))
def pair(request):
  """Our structure and parameters, no two alike, and their model with the same."""
  config = TransformerConfig(
    architecture="encoder_decoder", dtype="float32", **SHAPE, **LAYERS, **CONFIGS[request.param]
  )
  graphdef, params = toy.split(toy.model(config))
  random = np.random.default_rng(0)
  # Norms start as ones, which would hide where they are applied.
  params = jax.tree.map(lambda x: x + jnp.asarray(0.2 * random.normal(size=x.shape), jnp.float32), params)
  return graphdef, params, theirs(config, params), config


@pytest.fixture(scope="module", params=list(LENGTHS))
def batch(request):
  return toy.batch(LENGTHS[request.param][0], LENGTHS[request.param][1], padded_to=LENGTHS[request.param][2])


def as_torch(batch: transformer.Batch) -> dict:
  tokens = {name: torch.tensor(np.array(x), dtype=torch.long) for name, x in batch.items()}
  labels = tokens["decoder_target_tokens"]
  return dict(
    input_ids=tokens["encoder_input_tokens"],
    attention_mask=(tokens["encoder_input_tokens"] > 0).long(),
    labels=labels.masked_fill(labels == 0, -100),
    decoder_input_ids=tokens["decoder_input_tokens"],
  )


def test_encoder_output_and_logits_are_theirs(pair, batch):
  """At every position that is not padding."""
  graphdef, params, other, _ = pair
  model = nnx.merge(graphdef, params)
  with torch.no_grad():
    expected = other(**as_torch(batch))
  encoded = jax.jit(lambda model, batch: model.encode(batch)[0])(model, batch)
  inputs, targets = np.asarray(batch["encoder_input_tokens"]) > 0, np.asarray(batch["decoder_target_tokens"]) > 0
  np.testing.assert_allclose(np.asarray(encoded)[inputs], expected.encoder_last_hidden_state.numpy()[inputs], atol=1e-4)
  np.testing.assert_allclose(np.asarray(toy.logits(model, batch))[targets], expected.logits.numpy()[targets], atol=1e-4)


def test_loss_and_gradients_are_theirs(pair, batch):
  """The mean loss over real targets, and the gradient of every parameter."""
  graphdef, params, other, config = pair
  loss_fn = losses.make_loss_fn(toy.loss_config(z_loss=0.0, chunk_tokens=16))

  def mean_loss(params):
    total, metrics = loss_fn(nnx.merge(graphdef, params), batch, None)
    return total / metrics["loss"].weight

  loss, gradient = jax.jit(jax.value_and_grad(mean_loss))(params)
  other.zero_grad()
  expected = other(**as_torch(batch)).loss
  expected.backward()
  np.testing.assert_allclose(loss, expected.item(), rtol=1e-5)
  flat, parameters = toy.flat(gradient), dict(other.named_parameters())
  for name, (ours, layer) in names(config).items():
    value = np.asarray(flat[ours] if layer is None else flat[ours][layer])
    theirs = transposed(ours, parameters[name].grad.numpy())
    np.testing.assert_allclose(value, theirs, atol=1e-4 * max(1.0, np.abs(theirs).max()), err_msg=name)
