"""t2t's hashed and local layers against Hugging Face's Reformer, with the same weights and rotations.

Needs torch and transformers (tests/parity-requirements.txt).
"""

import jax
import jax.numpy as jnp
import numpy as np
from parity import torch, transformers
import pytest
from transformers.models.reformer import modeling_reformer

from t2t.models import lsh

HEADS, SIZE, WIDTH, CHUNK, SEED = 3, 6, 16, 4, 11
SHAPE = dict(hidden_size=WIDTH, num_attention_heads=HEADS, attention_head_size=SIZE, attn_layers=["lsh", "local"])
SHAPE |= dict(lsh_attn_chunk_length=CHUNK, local_attn_chunk_length=CHUNK, hash_seed=SEED, axial_pos_embds=False)


def layer(name, *, causal, rounds=3, buckets=6):
  """Returns the layer of transformers, without dropout.

  In float32 their probabilities of a token that sees only itself, with a logit of -1e5, do not add up to one.
  """
  config = transformers.ReformerConfig(**SHAPE, is_decoder=causal, num_hashes=rounds, num_buckets=buckets)
  return getattr(modeling_reformer, name)(config, layer_idx=0).double().eval()


def rotations(rounds, buckets):
  torch.manual_seed(SEED)
  return jnp.asarray(torch.randn(HEADS, SIZE, rounds, buckets // 2, dtype=torch.float64).numpy(), jnp.float32)


def run(theirs, x, mask):
  """Returns the layer's output before the output projection, and the gradient of a weighted sum in its input."""
  x = torch.tensor(x, dtype=torch.float64, requires_grad=True)
  out = theirs(x, attention_mask=torch.tensor(mask)).hidden_states
  weights = np.random.default_rng(3).normal(size=out.shape).astype(np.float32) * mask[..., None]
  (out * torch.tensor(weights)).sum().backward()
  return out.detach().numpy(), x.grad.numpy(), weights


def heads(x):
  return jnp.moveaxis(x.reshape(*x.shape[:2], HEADS, SIZE), 1, 2)


def merged(x):
  return jnp.moveaxis(x, 2, 1).reshape(x.shape[0], x.shape[2], -1)


def an_input(length):
  x = np.random.default_rng(0).normal(size=(2, length, WIDTH)).astype(np.float32)
  mask = np.ones((2, length), np.float32)
  mask[1, -5:] = length == CHUNK  # no padding in a single chunk
  return x, mask


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [4, 20])
@pytest.mark.parametrize(("rounds", "buckets"), [(1, 4), (3, 6)])
def test_a_hashed_layer_is_theirs(causal, length, rounds, buckets):
  """Output and gradient, of one chunk and of several, with padding; their lengths are whole chunks."""
  x, mask = an_input(length)
  theirs = layer("LSHSelfAttention", causal=causal, rounds=rounds, buckets=buckets)
  expected, gradient, weights = run(theirs, x, mask)
  query, value = (jnp.asarray(w.weight.detach().numpy().T, jnp.float32) for w in (theirs.query_key, theirs.value))
  options = dict(chunk=CHUNK, causal=causal)

  def ours(x):
    return merged(
      lsh.attend_to_hashed(
        heads(x @ query), heads(x @ value), jnp.asarray(mask, jnp.int32), rotations(rounds, buckets), **options
      )
    )

  np.testing.assert_allclose(np.asarray(ours(x)) * mask[..., None], expected * mask[..., None], atol=1e-5)
  found = jax.grad(lambda x: jnp.sum(ours(x) * weights))(jnp.asarray(x))
  np.testing.assert_allclose(found, gradient, atol=1e-4)


@pytest.mark.parametrize("length", [4, 20])
def test_a_local_layer_is_theirs(length):
  """Output and gradient of causal chunks; without causality theirs are circular."""
  x, mask = an_input(length)
  theirs = layer("LocalSelfAttention", causal=True)
  expected, gradient, weights = run(theirs, x, mask)
  names = ("query", "key", "value")
  query, key, value = (jnp.asarray(getattr(theirs, name).weight.detach().numpy().T, jnp.float32) for name in names)

  def ours(x):
    q, k, v = (heads(x @ w) for w in (query * SIZE**-0.5, key, value))
    return merged(lsh.attend_to_chunks(q, k, v, jnp.asarray(mask, jnp.int32), chunk=CHUNK, causal=True))

  np.testing.assert_allclose(np.asarray(ours(x)) * mask[..., None], expected * mask[..., None], atol=1e-5)
  found = jax.grad(lambda x: jnp.sum(ours(x) * weights))(jnp.asarray(x))
  np.testing.assert_allclose(found, gradient, atol=1e-4)
