"""MobileBERT's block and embedding, written out; the parity tests compare whole models with transformers."""

import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import UserError
from t2t.models import bottleneck_block, transformer, trigram_embedding
from t2t.models.flops import model_flops
from t2t.models.layers import Norm
from t2t.models.masks import AttentionMask

MOBILE, TINY = toy.KINDS["mobilebert"], toy.KINDS["mobilebert_tiny"]


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("config", [MOBILE, TINY], ids=["shared", "tiny"])
def test_a_narrow_block_lies_between_two_projections(config):
  """Its attention reads the stream or the narrow input, and each sum is followed by a scale and a bias."""
  block = bottleneck_block.BottleneckBlock(config, nnx.Rngs(0), cross=False)
  random = np.random.default_rng(0)
  change = lambda x: jnp.asarray(random.normal(size=x.shape) / 4, x.dtype) if x.ndim == 1 else x
  graphdef, params = toy.split(block)
  block = nnx.merge(graphdef, jax.tree.map(change, params))
  x = random.normal(size=(2, 5, 16)).astype(np.float32)
  inner, attention = block.inner, block.inner.self_attention
  norm = lambda x, norm: x * norm.scale[...] + norm.bias[...]
  narrowed = lambda x, module: norm(x @ module.kernel[...] + module.kernel_bias[...], module.norm)
  feed_forward = lambda x, mlp: np.maximum(x @ mlp.up[...] + mlp.up_bias[...], 0) @ mlp.down[...] + mlp.down_bias[...]

  first = narrowed(x, block.input)
  shared, wide = (first, first) if config is TINY else (narrowed(x, block.shared), x)
  heads = lambda x, name: np.swapaxes(
    (x @ getattr(attention, name)[...] + getattr(attention, f"{name}_bias")[...]).reshape(2, 5, 4, 6), 1, 2
  )
  logits = heads(shared, "query") @ np.swapaxes(heads(shared, "key"), 2, 3) / np.sqrt(6)
  probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  attended = np.swapaxes(probabilities @ heads(wide, "value"), 1, 2).reshape(2, 5, 24)
  y = norm(first + attended @ attention.out[...] + attention.out_bias[...], inner.self_attention_norm)
  for each in inner.feed_forwards.values():
    y = norm(y + feed_forward(y, each.mlp), each.norm)
  y = norm(y + feed_forward(y, inner.mlp), inner.mlp_norm)
  expected = norm(x + y @ block.widening[...] + block.widening_bias[...], block.norm)
  assert len(inner.feed_forwards) == config.num_feed_forwards - 1
  np.testing.assert_allclose(block(x, mask=AttentionMask())[0], expected, rtol=1e-4, atol=1e-4)


def test_trigrams_end_with_their_text():
  """Next, same and previous token; behind a text padding, and zeros outside of the row."""
  vectors = np.array([7.0, 1.0, 2.0, 3.0, 4.0], np.float32)[:, None]  # of ids 0 to 4
  tokens = np.array([[1, 2, 3, 4, 0], [1, 2, 3, 4, 1]])
  positions = np.array([[0, 1, 0, 1, 0], [0, 1, 2, 3, 4]])
  found = trigram_embedding.trigrams(vectors[tokens], vectors[0], tokens, positions)
  np.testing.assert_array_equal(found[0, :4], [[2, 1, 0], [7, 2, 1], [4, 3, 0], [7, 4, 3]])
  np.testing.assert_array_equal(found[1], [[2, 1, 0], [3, 2, 1], [4, 3, 2], [1, 4, 3], [0, 1, 4]])
  np.testing.assert_array_equal(trigram_embedding.trigrams(vectors[tokens], vectors[0], tokens)[1], found[1])


def test_products_of_the_block_are_counted():
  """Each matrix of a layer multiplies each position; the trigrams' projection too."""
  for config in (MOBILE, TINY):
    deeper = dataclasses.replace(config, num_encoder_layers=config.num_encoder_layers + 1)
    flops = [model_flops(each, batch_size=2, lengths={"encoder": 8}) for each in (config, deeper)]
    abstract = jax.eval_shape(lambda config=config: bottleneck_block.BottleneckBlock(config, nnx.Rngs(0), cross=False))
    matrices = sum(x.size for x in jax.tree.leaves(abstract) if x.ndim == 2)
    pairs = 2 * 4 * 6 * 8 * 8
    assert flops[1] - flops[0] == 6 * 2 * (8 * matrices + pairs)
  wider = dataclasses.replace(MOBILE, embedding_dim=MOBILE.embedding_dim + 1)
  more = model_flops(wider, batch_size=2, lengths={"encoder": 8}) - model_flops(
    MOBILE, batch_size=2, lengths={"encoder": 8}
  )
  assert more == 6 * 2 * 8 * 3 * 16


def test_a_norm_without_statistics_scales_and_shifts():
  norm = Norm(dataclasses.replace(MOBILE, norm="affine"), 3)
  norm.scale[...], norm.bias[...] = jnp.array([1.0, 2.0, 3.0]), jnp.array([0.0, 1.0, -1.0])
  np.testing.assert_array_equal(norm(jnp.array([[10.0, 20.0, 30.0]])), [[10.0, 41.0, 89.0]])


@pytest.mark.parametrize(
  ("kind", "fields", "message"),
  [
    ("mobilebert", {"bottleneck_dim": 0}, "config.model.bottleneck_dim=0: config.model.block=bottleneck needs the"),
    ("mobilebert", {"post_norm": False}, "config.model.post_norm=False: config.model.block=bottleneck needs"),
    (
      "t5_1_1",
      {"block": "bottleneck", "bottleneck_dim": 8, "post_norm": True},
      "MobileBERT's block has no cross-attention",
    ),
    ("gpt2", {"embedding": "trigram"}, "embedding=trigram needs config.model.architecture=encoder_only"),
    ("bert", {"embedding": "trigram"}, "embedding_dim above 0. This model is encoder_only with embedding_dim=0"),
    ("bert", {"num_feed_forwards": 2}, "config.model.num_feed_forwards=2 needs config.model.block=bottleneck"),
    ("bert", {"bottleneck_dim": 8}, "config.model.bottleneck_dim=8 needs config.model.block=bottleneck"),
    ("bert", {"block": "botleneck"}, "did you mean bottleneck?"),
  ],
)
def test_fields_that_do_not_fit_are_refused(kind, fields, message):
  """Before any computation, with the key."""
  with pytest.raises(UserError, match=message):
    jax.eval_shape(lambda: transformer.build(dataclasses.replace(toy.KINDS[kind], **fields), nnx.Rngs(0)))
