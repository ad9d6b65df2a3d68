"""Fake quantization against PyTorch's, and models without some heads, neurons and layers in transformers."""

import foreign
import jax
import jax.numpy as jnp
import numpy as np
import parity
from parity import torch
import pytest
import toy

from t2t import UserError
from t2t.checkpoints import shrink
from t2t.convert import hf_config, huggingface
from t2t.models import fake_quantization, presets
from t2t.models.config import TransformerConfig

SHAPE = dict(vocab_size=53, embed_dim=24, num_heads=4, head_dim=6, mlp_dim=28, dtype="float32")
T5 = presets.t5_1_1("small") | SHAPE | dict(num_encoder_layers=2, num_decoder_layers=2)
BERT = presets.bert("base") | SHAPE | dict(num_encoder_layers=3, num_decoder_layers=0, max_length=40)


def test_rounding_and_its_gradient_are_pytorchs():
  """Activations with one scale, and weights with one for each output, equal torch's fake quantization."""
  random = np.random.default_rng(0)
  x, kernel, cotangent = (random.normal(size=shape).astype(np.float32) for shape in ((5, 9), (9, 7), (5, 9)))
  bounds = jnp.array([1.5 * 4, 4.0])
  scale = float(fake_quantization.scale_of_range(bounds))
  theirs = torch.tensor(x, requires_grad=True)
  rounded = torch.fake_quantize_per_tensor_affine(theirs, scale, 0, -127, 127)
  rounded.backward(torch.tensor(cotangent))
  ours, pullback = jax.vjp(lambda x: fake_quantization.activation(x, bounds), jnp.asarray(x))
  np.testing.assert_allclose(ours, rounded.detach().numpy(), atol=1e-6)
  np.testing.assert_array_equal(pullback(jnp.asarray(cotangent))[0], theirs.grad.numpy())
  scales = torch.tensor(np.asarray(fake_quantization.scale_of(kernel, 0))[0])
  zeros = torch.zeros(7, dtype=torch.int32)
  expected = torch.fake_quantize_per_channel_affine(torch.tensor(kernel), scales, zeros, 1, -127, 127)
  np.testing.assert_allclose(fake_quantization.weight(jnp.asarray(kernel)), expected.numpy(), atol=1e-6)


@pytest.mark.parametrize("name", ["t5", "bert"])
def test_transformers_loads_smaller_models(name, tmp_path):
  """T5 loses heads and neurons, BERT a layer and neurons; logits are t2t's."""
  config = TransformerConfig(**{"t5": T5, "bert": BERT}[name])
  small = foreign.in_memory(config, foreign.random_params(config))
  random = np.random.default_rng(1)
  importance = lambda path, units: random.random((small.tensors[path].shape[0], units))
  paths = [path for path in small.tensors if path.endswith("mlp/down")]
  kept = shrink.best_units({path.removesuffix("/down"): importance(path, 28) for path in paths}, 20)
  small = shrink.with_neurons(small, kept)
  if name == "t5":
    outs = [path for path in small.tensors if path.endswith("attention/out")]
    heads = {path.removesuffix("/out"): importance(path, 4) for path in outs}
    small = shrink.with_heads(small, shrink.best_units(heads, 3, same=shrink.shared_bias(config)))
    batch = toy.batch()
  else:
    small = shrink.with_layers(small, "encoder", (0, 2))
    batch = toy.batch(architecture="encoder_only")
  huggingface.save(small, tmp_path / "small")
  theirs = parity.load(tmp_path / "small")
  assert (theirs.config.num_heads if name == "t5" else theirs.config.num_hidden_layers) == (3 if name == "t5" else 2)
  inputs = parity.of_both_sides(batch) if name == "t5" else parity.inputs(batch)
  with torch.no_grad():
    expected = theirs(**inputs).logits.numpy()
  at = parity.real(batch)
  ours = np.asarray(toy.logits(foreign.model(small, dtype="float32"), batch))
  np.testing.assert_allclose(ours[at], expected[at], atol=2e-4, rtol=1e-4)


def test_a_bert_without_heads_is_refused():
  """BertConfig has no width of a head: transformers 5 divides the model's width by the heads."""
  config = TransformerConfig(**BERT)
  full = foreign.in_memory(config, foreign.random_params(config))
  kept = {"encoder/layers/self_attention": np.array([[0, 1], [0, 2], [1, 3]])}
  with pytest.raises(UserError, match=r"config.model.head_dim=6 \(transformers 12\)"):
    hf_config.written_as(shrink.with_heads(full, kept).model, "pruned")
