"""t2t's ELECTRA against Hugging Face's: both models, with the same random weights and the same corrupted tokens."""

import dataclasses

from flax import nnx, traverse_util
import foreign
import jax
import jax.numpy as jnp
import numpy as np
import parity
import pytest
import torch
import toy
import transformers

from t2t.convert import encoders, huggingface
from t2t.losses import electra
from t2t.models import presets
from t2t.models.config import TransformerConfig

SHAPE = dict(vocab_size=53, embed_dim=18, num_heads=3, head_dim=6, mlp_dim=28, num_encoder_layers=3)
SHAPE |= dict(dtype="float32", dropout_rate=0.0, norm_epsilon=1e-3, max_length=40)
SMALL = electra.ElectraConfig(embed_dim=12, num_heads=2, mlp_dim=20, num_layers=2)


@pytest.fixture(scope="module", params=[11, 0], ids=["factored", "plain"])
def pair(request, tmp_path_factory):
  config = TransformerConfig(**(presets.electra("base") | SHAPE | {"embedding_dim": request.param}))
  return parity.pair(config, tmp_path_factory.mktemp("electra"))


@pytest.fixture
def batch():
  return toy.batch((37, 23, 40), (1, 1, 1), padded_to=(40, 1), architecture="encoder_only")


def test_hidden_states_and_scores_are_theirs(pair, batch):
  """Also for the model without its head."""
  parity.assert_same_hidden_states(pair, batch)
  model, at = pair.model, parity.real(batch)
  with torch.no_grad():
    expected = pair.theirs(**parity.inputs(batch)).logits.numpy()
  found = np.asarray(model.head_logits("replaced", model(batch))[..., 0])
  np.testing.assert_allclose(found[at], expected[at], atol=1e-4)


def test_the_bare_model_there_and_back(pair, tmp_path):
  """A fine-tuned model has no detector."""
  bare = dataclasses.replace(pair.config, heads=())
  theirs = parity.load(parity.exported(bare, tmp_path / "ours"))
  assert type(theirs).__name__ == "ElectraModel"
  theirs.save_pretrained(tmp_path / "theirs")
  again = huggingface.open_foreign(str(tmp_path / "theirs"))
  assert again.model == bare
  for path, value in foreign.read(again).items():
    np.testing.assert_array_equal(value, foreign.random_params(bare)[path], err_msg=path)


def their_generator(config, ours, shared):
  """Returns transformers' masked language model with the parameters of t2t's generator and the shared embedding."""
  theirs = transformers.ElectraForMaskedLM(
    transformers.ElectraConfig(
      vocab_size=config.vocab_size,
      embedding_size=config.embedding_dim or config.embed_dim,
      hidden_size=config.embed_dim,
      num_hidden_layers=config.num_encoder_layers,
      num_attention_heads=config.num_heads,
      intermediate_size=config.mlp_dim,
      max_position_embeddings=config.max_length,
      layer_norm_eps=config.norm_epsilon,
      hidden_dropout_prob=0.0,
      attention_probs_dropout_prob=0.0,
      attn_implementation="eager",
    )
  )
  names = encoders.ELECTRA_NAMES | {
    "electra.embeddings_project.weight": "projection",
    "electra.embeddings_project.bias": "projection_bias",
    "generator_predictions.dense.weight": "head/transform",
    "generator_predictions.dense.bias": "head/transform_bias",
    "generator_predictions.LayerNorm.weight": "head/norm/scale",
    "generator_predictions.LayerNorm.bias": "head/norm/bias",
    "generator_lm_head.bias": "head/bias",
  }
  values, places = {}, {}
  for name, path in names.items():
    numbers = range(config.num_encoder_layers) if "{}" in name else [None]
    for layer in numbers:
      whole = ours[path] if path in ours else shared.get(path)
      if whole is not None and not path.startswith("heads/"):
        value = whole if layer is None else whole[layer]
        turned = value.ndim == 2 and not path.startswith("embed/")
        places[name.format(layer)] = path, layer, turned
        values[name.format(layer)] = torch.tensor(np.array(value.T if turned else value))
  missing, unexpected = theirs.load_state_dict(values, strict=False)
  assert not unexpected and all("position_ids" in name or name == "generator_lm_head.weight" for name in missing)
  theirs.tie_weights()
  return theirs.eval(), places


def test_loss_and_gradients_are_theirs(pair, batch, monkeypatch):
  """Both models in one step, on the same corrupted tokens; gradients of a shared embedding are sums."""
  loss = electra.Electra(SMALL, toy.loss_config(z_loss=0.0, logits_chunk_tokens=16))
  ours = loss.build(pair.config, nnx.Rngs(5))
  params = nnx.to_pure_dict(nnx.split(ours, graph=False)[1])
  params["discriminator"] = pair.params
  graphdef = nnx.split(ours, graph=False)[0]
  drawn = np.random.default_rng(0).integers(2, 53, batch["encoder_target_tokens"].shape).astype(np.int32)
  real_sums = electra.token_sums
  monkeypatch.setattr(electra, "token_sums", lambda *args, **options: (*real_sums(*args, **options)[:2], drawn))

  def summed(params):
    terms, _ = loss(nnx.merge(graphdef, params), batch, loss.weights(batch), key=jax.random.key(0), train=True)
    return sum(terms.values())

  value, gradient = jax.jit(jax.value_and_grad(summed))(params)
  gradient = traverse_util.flatten_dict(jax.tree.map(np.asarray, gradient), sep="/")
  flat = traverse_util.flatten_dict(params["generator"], sep="/")
  shared = traverse_util.flatten_dict(params["discriminator"], sep="/")
  generator, places = their_generator(electra.generator_config(pair.config, SMALL), flat, shared)

  masked = np.asarray(batch["encoder_loss_weights"]) > 0
  targets = np.asarray(batch["encoder_target_tokens"])
  corrupted = np.where(masked, drawn, targets)
  labels = parity.as_torch(jnp.asarray(np.where(masked, targets, -100)))
  first = generator(**parity.inputs(batch), labels=labels).loss
  inputs = parity.inputs(batch) | {"input_ids": parity.as_torch(jnp.asarray(corrupted))}
  pair.theirs.zero_grad()
  second = pair.theirs(**inputs, labels=parity.as_torch(jnp.asarray(corrupted != targets))).loss
  (first + 50 * second).backward()
  np.testing.assert_allclose(value, (first + 50 * second).item(), rtol=1e-5)

  theirs = dict(generator.named_parameters())
  from_generator = {
    path: theirs[name].grad.numpy() for name, (path, _, _) in places.items() if path.startswith("embed/")
  }
  largest = max(np.abs(x).max() for x in gradient.values())
  for name, (path, layer, turned) in places.items():
    if not path.startswith("embed/"):
      found = gradient[f"generator/{path}"]
      expected = theirs[name].grad.numpy()
      np.testing.assert_allclose(
        found if layer is None else found[layer], expected.T if turned else expected, atol=1e-4 * largest, err_msg=name
      )
  own = {path.removeprefix("discriminator/"): x for path, x in gradient.items() if path.startswith("discriminator/")}
  own |= {path: own[path] - x for path, x in from_generator.items()}
  parameters = dict(pair.theirs.named_parameters())
  for name in pair.places:
    np.testing.assert_allclose(
      pair.as_theirs(name, own), parameters[name].grad.numpy(), atol=1e-4 * largest, err_msg=name
    )
