from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

HIDDEN = np.random.default_rng(0).normal(size=(1, 3, 16)).astype(np.float32)


@pytest.mark.parametrize("tied", [True, False])
def test_logits_come_from_the_embedding_or_a_projection(tied):
  """Tied: hidden * embed_dim**-0.5 against the embedding, for its entries have standard deviation 1."""
  model = toy.model(toy.KINDS["t5_1_0" if tied else "t5_1_1"])
  kernel = model.embed.table[...].T / 4 if tied else model.head.projection[...]
  np.testing.assert_allclose(model.logits(HIDDEN), HIDDEN @ np.asarray(kernel), atol=1e-5)
  assert (model.head.projection is None) == tied


def test_an_embedding_with_small_entries_is_not_scaled():
  """Where the config says how large initial weights are (GPT-2, BERT), logits are hidden against embedding."""
  model = toy.model(toy.config(tied_logits=True, init_scale=0.02))
  np.testing.assert_allclose(model.logits(HIDDEN), HIDDEN @ np.asarray(model.embed.table[...]).T, atol=1e-6)


@pytest.mark.parametrize("kind", ["bert", "albert", "modern_bert"])
def test_a_transform_stands_before_the_logits(kind):
  """norm(gelu(hidden W + b)) against the embedding, as wide as that is, plus a bias for each token."""
  config = toy.KINDS[kind]
  model, random = toy.model(config), np.random.default_rng(1)
  graphdef, params = toy.split(model)
  params["head"] = jax.tree.map(lambda x: x + jnp.asarray(random.normal(size=x.shape), x.dtype), params["head"])
  head, table = params["head"], params["embed"]["table"]
  assert head["transform"].shape == (16, config.embedding_dim or 16)
  transformed = jax.nn.gelu(HIDDEN @ head["transform"] + head.get("transform_bias", 0.0), approximate=False)
  centered = transformed - transformed.mean(-1, keepdims=True)
  normed = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + config.norm_epsilon) * head["norm"]["scale"]
  normed = normed + head["norm"].get("bias", 0.0)
  # This family's logits are scaled only because the toy's embedding starts as T5's.
  expected = normed * 16**-0.5 @ table.T + head["bias"]
  np.testing.assert_allclose(nnx.merge(graphdef, params).logits(HIDDEN), expected, atol=1e-4)
  assert ("transform_bias" in head) == ("bias" in head["norm"]) == config.biases


def test_the_function_of_logits_is_a_pytree_of_the_same_structure():
  """Taken from a model twice, it compiles once; its leaves are the weights that it reads."""
  model = toy.model(toy.KINDS["bert"])
  first, again = model.logits_fn(), model.logits_fn()
  assert jax.tree.structure(first) == jax.tree.structure(again)
  assert sorted(x.shape for x in jax.tree.leaves(first)) == [(16,), (16,), (16,), (16, 16), (40,), (40, 16)]
