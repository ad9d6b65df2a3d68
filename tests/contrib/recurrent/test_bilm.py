"""The loss of ELMo: both directions written out, and the released sizes."""

import dataclasses
import math

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import UserError
from t2t.contrib.recurrent import bilm, presets
from t2t.inference import predictor
from t2t.losses.auxiliary_terms import AuxiliaryTerms
from t2t.models import transformer
from t2t.models.config import TransformerConfig
from t2t.models.head_config import HeadConfig

CONFIG = dataclasses.replace(toy.KINDS["bilstm"], embedding="both_directions", embedding_dim=8, logits_transform=False)


def test_the_loss_predicts_each_token_from_both_sides():
  """Cross-entropy of every pair of neighbours in one text, packed; masks of the inputs change nothing."""
  model, batch = toy.model(CONFIG), toy.packed(toy.batch(architecture="encoder_only"))
  loss = bilm.BiLm(toy.loss_config(z_loss=0.0), AuxiliaryTerms())
  weights = loss.weights(batch)
  terms, metrics = jax.jit(lambda model, batch: loss(model, batch, weights, key=None, train=True))(model, batch)
  tokens, segments = (np.asarray(batch[f"encoder_{name}"])[0] for name in ("target_tokens", "segment_ids"))
  states = model.hidden({**batch, "encoder_input_tokens": jnp.asarray(tokens[None])}).x[0]
  log_p = [jax.nn.log_softmax(model.logits_fn()(states[:, half])) for half in (slice(0, 8), slice(8, 16))]
  losses = []
  for i in range(len(tokens) - 1):
    if segments[i] == segments[i + 1] > 0:
      losses += [-log_p[0][i, tokens[i + 1]], -log_p[1][i + 1, tokens[i]]]
  assert len(losses) == weights["loss"]
  np.testing.assert_allclose(terms["loss"], np.mean(losses), rtol=1e-5)
  np.testing.assert_allclose(metrics["loss"].value(), np.mean(losses), rtol=1e-5)


def test_sizes_are_those_of_the_release():
  """The release has 93,600,864 parameters, with 18,037,856 in the character CNN; layers are 3 x 1,024."""
  config = TransformerConfig(**presets.elmo())
  model = jax.eval_shape(lambda: transformer.build(config, nnx.Rngs(0)))
  shapes = {path: x.shape for path, x in toy.flat(toy.split(model)[1]).items()}
  of_layers = sum(math.prod(shape) for path, shape in shapes.items() if path.startswith("encoder/layers/"))
  of_cnn = sum(math.prod(shape) for path, shape in shapes.items() if path.startswith("embed/cnn/"))
  assert (of_cnn, of_layers + of_cnn) == (18_037_856, 93_600_864)
  assert "embed/table" not in shapes and shapes["head/projection"] == (512, 32_128)
  batch = {"encoder_input_tokens": jnp.ones((2, 7), jnp.int32)}
  assert jax.eval_shape(lambda model: model.states(batch, every_layer=True), model).shape == (3, 2, 7, 1_024)


def test_a_head_mixes_the_layers():
  """gamma * sum of softmax(w) h over three layers, from the embedding on, as for any encoder (Peters et al. 2018)."""
  head = HeadConfig("tags", 3, kind="tag", layers="mix")
  model = toy.model(dataclasses.replace(CONFIG, heads=(head,)))
  batch = toy.batch(architecture="encoder_only")
  states = model.states(batch, every_layer=True)
  params = toy.flat(toy.split(model)[1])
  assert {path for path in params if "mix" in path}, sorted(params)
  assert states.shape == (4, 2, 8, 16)
  np.testing.assert_allclose(states[0, ..., :8], states[0, ..., 8:])
  assert model.head_logits("tags", states).shape == (2, 8, 3)


def test_models_that_do_not_fit_are_errors():
  """The embedding is half as wide as the model."""
  with pytest.raises(UserError, match="embedding=both_directions needs config.model.embedding_dim=8, .* not 6"):
    transformer.build(dataclasses.replace(CONFIG, embedding_dim=6), nnx.Rngs(0))


def test_blanks_need_logits_of_both_sides():
  """A prediction from one side each is refused; an encoder whose logits read all features is not."""
  with pytest.raises(UserError, match="runs/x is two language models, .* fills no blanks .* Run `t2t embed`"):
    predictor.check_predicts_tokens(CONFIG, where="runs/x")
  predictor.check_predicts_tokens(toy.KINDS["bilstm"], where="runs/x")
  predictor.check_predicts_tokens(toy.KINDS["gru_lm"], where="runs/x")
