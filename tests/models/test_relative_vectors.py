"""Vectors of distances: disentangled and functional relative positions equal their formulas, written out by pairs."""

import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import UserError
from t2t.models import attention, disentangled, functional_relative, relative_vectors
from t2t.models.config import BESIDE_FIRST
from t2t.models.flops import model_flops
from t2t.models.masks import AttentionMask
from t2t.models.positions import Call

LENGTH = 9
SEGMENTS = np.array([[1, 1, 1, 1, 2, 2, 2, 2, 2], [1, 1, 1, 1, 1, 1, 0, 0, 0]])


def test_products_by_distance_are_moved_to_keys():
  """The arrays of the docstring; the inverse puts zeros at other distances."""
  x = jnp.arange(10).reshape(2, 5)
  found = relative_vectors.by_key(x, 3)
  np.testing.assert_array_equal(found, [[1, 2, 3], [5, 6, 7]])
  np.testing.assert_array_equal(relative_vectors.by_distance(found), [[0, 1, 2, 3, 0], [5, 6, 7, 0, 0]])
  np.testing.assert_array_equal(relative_vectors.by_key(jnp.arange(4).reshape(1, 4), 3), [[0, 1, 2]])


def test_distances_share_logarithmic_buckets():
  """Up to a quarter of the buckets distances are exact; the last bucket begins at the largest distance."""
  found = disentangled.log_bucket(np.arange(-20, 21), num_buckets=16, max_distance=16)
  right = [4, 5, 5, 6, 6, 6, 7, 7, 7, 7, 7, 7]  # 4 + ceil(3 * log(distance / 4) / log(15 / 4)) of distances 4, ..., 15
  expected = np.array([0, 1, 2, 3, *right])
  np.testing.assert_array_equal(found[20 : 20 + 16] - 8, expected)
  np.testing.assert_array_equal(8 - found[20:4:-1], expected)
  assert found[0] == 0 and found[-1] == 15
  exact = disentangled.log_bucket(np.arange(-20, 21), num_buckets=16, max_distance=8)
  np.testing.assert_array_equal(exact, np.clip(np.arange(-20, 21) + 8, 0, 15))


def attend(config, front=0):
  """Returns the output of an attention on random inputs, and the operands of the formula."""
  random = np.random.default_rng(0)
  rngs = nnx.Rngs(3)
  module, scheme = attention.Attention(config, rngs), config.position_scheme
  shared = scheme.stack_parameters(rngs, bidirectional=True)
  x = jnp.asarray(random.normal(size=(2, LENGTH, config.embed_dim)), jnp.float32)
  segments = jnp.asarray(SEGMENTS)
  mask = AttentionMask(segments, segments, front=front)
  call = Call(2, LENGTH, LENGTH + front, mask, front, drops=False)
  positions = scheme.positions(shared, call)(0)
  keys, values = module.keys_and_values(x, positions)
  if front:
    extra = jnp.asarray(random.normal(size=(2, *keys.shape[:2], front, keys.shape[3])), jnp.float32)
    keys, values = jnp.concatenate([extra[0], keys], axis=2), jnp.concatenate([extra[1], values], axis=2)
  found = module(x, keys, values, mask=mask, positions=positions)
  queries = module._project(x, "query", None)
  heads = lambda x: np.repeat(np.asarray(x, np.float64), config.num_heads // x.shape[1], axis=1)
  return module, shared, found, tuple(heads(x) for x in (queries, keys, values))


def merged(module, heads):
  x = np.moveaxis(heads, 1, 2).reshape(2, LENGTH, -1)
  return x @ np.asarray(module.out[...]) + np.asarray(module.out_bias[...])


def softmax(logits, front):
  same = SEGMENTS[:, :, None] == SEGMENTS[:, None, :]
  allowed = np.concatenate([np.ones((2, LENGTH, front), bool), same], axis=-1)[:, None]
  logits = np.where(allowed, logits, -np.inf)
  weights = np.exp(logits - logits.max(-1, keepdims=True))
  return weights / weights.sum(-1, keepdims=True)


@pytest.mark.slow
@pytest.mark.exhaustive_from(2)
@pytest.mark.parametrize(("shares", "front"), [(False, 0), (False, 2), (True, 0), (True, 2)])
def test_disentangled_attention_is_the_formula(shares, front):
  """Equation 4 of He et al. 2021 by pairs, in packed and padded rows, with prefix keys."""
  kind = "deberta_v2" if shares else "deberta"
  config = dataclasses.replace(toy.KINDS[kind], share_position_projections=shares, num_kv_heads=0)
  module, shared, found, (queries, keys, values) = attend(config, front)
  owner = module if shares else module.position
  as_keys, as_queries = (np.asarray(owner.projected(shared(), name)) for name in ("key", "query"))
  row = lambda q, k: int(
    disentangled.log_bucket(
      np.array(q - k),
      num_buckets=config.relative_position_buckets,
      max_distance=config.relative_position_max_distance,
    )
  )
  logits = np.zeros((2, config.num_heads, LENGTH, LENGTH + front))
  for q in range(LENGTH):
    for k in range(-front, LENGTH):
      content, at = keys[:, :, front + k], row(q, k)
      pairs = (queries[:, :, q], content), (queries[:, :, q], as_keys[:, at]), (content, as_queries[:, at])
      logits[:, :, q, front + k] = sum(np.sum(a * b, axis=-1) for a, b in pairs) / np.sqrt(3 * config.head_dim)
  expected = merged(module, softmax(logits, front) @ values)
  np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("front", [0, 2])
def test_functional_positions_are_the_formula(front):
  """Equations 3 to 6 of Wei et al. 2019 by pairs: vectors on keys and on values, in packed and padded rows."""
  config = toy.KINDS["nezha"]
  reach, size = config.relative_position_max_distance, config.head_dim
  module, _, found, (queries, keys, values) = attend(config, front)

  def vector(q, k):
    distance = np.clip(k - q, -reach, reach) + reach
    angles = [distance / 10_000 ** (2 * (i // 2) / size) for i in range(size)]
    return np.array([np.cos(angle) if i % 2 else np.sin(angle) for i, angle in enumerate(angles)])

  vectors = np.array([[vector(q, k) for k in range(-front, LENGTH)] for q in range(LENGTH)])
  logits = np.einsum("bhqd,bhqkd->bhqk", queries, keys[:, :, None] + vectors) / np.sqrt(size)
  expected = merged(module, np.einsum("bhqk,bhqkd->bhqd", softmax(logits, front), values[:, :, None] + vectors))
  np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.slow
def test_a_convolution_stays_in_its_sequence():
  """Each neighbour of another sequence, and padding, is zero; the kernel has left, token and right in this order."""
  config = dataclasses.replace(toy.KINDS["deberta_v2"], beside_first_activation="tanh")
  module = BESIDE_FIRST[config.beside_first](config, nnx.Rngs(1))
  random = np.random.default_rng(0)
  first, x = (jnp.asarray(random.normal(size=(2, LENGTH, config.embed_dim)), jnp.float32) for _ in range(2))
  found = module(first, x, mask=AttentionMask(jnp.asarray(SEGMENTS), jnp.asarray(SEGMENTS)))
  kernel = np.asarray(module.kernel[...]).reshape(3, config.embed_dim, config.embed_dim)
  for row, position in zip(*np.nonzero(SEGMENTS), strict=True):
    near = [
      first[row, position + step] @ kernel[step + 1]
      for step in (-1, 0, 1)
      if 0 <= position + step < LENGTH and SEGMENTS[row, position + step] == SEGMENTS[row, position]
    ]
    total = np.asarray(x[row, position] + jnp.tanh(sum(near)))
    expected = (total - total.mean()) / np.sqrt(total.var() + config.norm_epsilon)
    np.testing.assert_allclose(found[row, position], expected, atol=1e-5)


@pytest.mark.exhaustive
def test_the_last_layer_decodes_masks():
  """Queries of positions + states, keys and values of states, twice (He et al. 2021, section 3.2 and released code)."""
  config = dataclasses.replace(toy.KINDS["deberta_v2"], beside_first="", dropout_rate=0.0)
  model, batch = toy.model(config), toy.packed(toy.batch(architecture="encoder_only"))
  states = model.states(batch, every_layer=True)
  last = jax.tree.map(lambda x: x[-1], model.encoder.layers)
  mask = AttentionMask(batch["encoder_segment_ids"], batch["encoder_segment_ids"])
  call = Call(1, states.shape[2], states.shape[2], mask, 0, drops=False)
  positions = config.position_scheme.positions(model.encoder.position_bias, call)(config.num_encoder_layers - 1)
  queries = states[-2] + model.encoder.position_bias.absolute[...][batch["encoder_positions"]]
  for _ in range(2):
    kv = last.self_attention.keys_and_values(states[-2], positions)
    update = last.self_attention(queries, *kv, mask=mask, positions=positions)
    queries = last.self_attention_norm(queries + update)
    queries = last.mlp_norm(queries + last.mlp(queries))
  np.testing.assert_allclose(model(batch), queries, atol=1e-5)
  assert not np.allclose(model(batch), states[-1], atol=1e-2)


def test_the_flops_of_one_layer():
  """A layer's products with vectors of distances, its projections of the vectors, and the convolution."""
  one = dataclasses.replace(toy.KINDS["deberta_v2"], num_encoder_layers=1, relative_position_buckets=12)
  plain = dataclasses.replace(one, positions="alibi", absolute_positions="", beside_first="")
  flops = lambda config: model_flops(config, batch_size=2, lengths={"encoder": 5})
  joined = one.num_heads * one.head_dim
  terms = 2 * (2 * 5 * 9 * joined + 12 * one.embed_dim * joined)  # nine distances occur in five positions
  convolution = 2 * 5 * 3 * one.embed_dim**2
  assert flops(one) - flops(plain) == 6 * (terms + convolution)
  nezha = dataclasses.replace(toy.KINDS["nezha"], num_encoder_layers=1)
  plain = dataclasses.replace(nezha, positions="alibi")
  assert flops(nezha) - flops(plain) == 6 * 2 * 2 * 5 * 7 * nezha.num_heads * nezha.head_dim


@pytest.mark.parametrize(
  ("kind", "changed", "message"),
  [
    ("deberta", {"relative_position_buckets": 16}, "relative_position_buckets=16: must be at most 12, two for each"),
    ("deberta", {"max_length": 0}, "max_length=0: config.model.absolute_positions=input needs a maximum length"),
    ("deberta_v2", {"post_norm": False}, "mask_decoder needs config.model.architecture=encoder_only and .*post_norm"),
    ("disentangled_gpt", {"absolute_positions": "mask_decoder", "max_length": 9}, "mask_decoder needs .*encoder_only"),
    ("disentangled_gpt", {"beside_first": "convolution"}, "beside_first=convolution needs an encoder"),
    ("nezha", {"head_dim": 7}, "head_dim=7: must be even, because functional relative positions"),
    ("deberta", {"disentangled_terms": "c2p"}, "disentangled_terms='c2p': unknown value. Known values: both, content"),
  ],
)
def test_settings_that_contradict_each_other(kind, changed, message):
  with pytest.raises(UserError, match=message):
    _ = dataclasses.replace(toy.KINDS[kind], **changed).position_scheme


def test_vectors_of_even_features():
  """The arrays of the docstring."""
  expected = [[0, 1, 0, 1], [np.sin(1), np.cos(1), np.sin(0.01), np.cos(0.01)]]
  np.testing.assert_allclose(functional_relative.sinusoids(2, 4), expected, rtol=1e-6)
