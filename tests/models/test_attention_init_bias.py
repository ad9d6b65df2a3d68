"""Attention initialized to neighbours, and cross-attention to the query's own token."""

import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import UserError
from t2t.models import attention, transformer
from t2t.models import positions as positions_lib

FOCUS = 6.0
WIDE = toy.config(embed_dim=128, num_heads=4, head_dim=32)


def focused(**fields):
  return dataclasses.replace(WIDE, attention_init_bias=FOCUS, **fields)


@pytest.mark.slow
@pytest.mark.parametrize(("bidirectional", "neighbours"), [(True, [-1, 1]), (False, [-1, -2])])
def test_half_of_the_heads_begin_with_a_neighbour(bidirectional, neighbours):
  """The bias is the key's value; all else is T5's initialization with the same random numbers."""
  make = lambda config: positions_lib.RelativePositionBias(config, nnx.Rngs(0), bidirectional=bidirectional)()
  distances = np.arange(-9, 10 if bidirectional else 1)
  added = np.asarray(make(focused()).at(distances) - make(WIDE).at(distances))
  expected = np.zeros((4, len(distances)))
  for head, distance in enumerate(neighbours):
    expected[head, distances == distance] = FOCUS
  np.testing.assert_allclose(added, expected, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{}, {"num_kv_heads": 2}, {"scale_attention": True}, {"init_scale": 0.05}], ids=str)
def test_a_token_asks_for_itself(fields):
  """The mean logit is the key's value, and other tokens are far below, with any scale of queries."""
  config = focused(**fields)
  layer = attention.Attention(config, nnx.Rngs(0), cross=True)
  tokens = jax.random.normal(toy.key(), (1, 200, config.embed_dim))
  tokens /= jnp.sqrt(jnp.mean(jnp.square(tokens), axis=-1, keepdims=True))
  queries, (keys, _) = layer.scale * layer._project(tokens, "query", None), layer.keys_and_values(tokens)
  logits = jnp.einsum("bhqk,bhsk->hqs", queries, jnp.repeat(keys, config.num_heads // config.kv_heads, axis=1))
  own = jnp.diagonal(logits, axis1=1, axis2=2)
  assert float(own.mean()) == pytest.approx(FOCUS, rel=0.05)
  others = logits - jnp.where(jnp.eye(200, dtype=bool), logits, 0.0)
  assert abs(float(others.mean())) < 0.1
  assert float(jnp.mean(own > jnp.quantile(others, 0.99, axis=-1))) > 0.95


@pytest.mark.exhaustive
def test_both_stacks_and_the_attention_between_them_begin_so():
  """Except for biases and the cross-attention's queries, parameters are T5's with the same random numbers."""
  params = lambda config: nnx.to_pure_dict(nnx.state(transformer.build(config, nnx.Rngs(0))))
  flat = lambda config: dict(jax.tree.leaves_with_path(params(config)))
  plain, own = flat(WIDE), flat(focused())
  changed = {"/".join(str(key.key) for key in path) for path in plain if not np.array_equal(plain[path], own[path])}
  assert changed == {
    "encoder/position_bias/table",
    "decoder/position_bias/table",
    "decoder/layers/cross_attention/query",
  }


@pytest.mark.parametrize("fields", [{"positions": "rotary"}, {"qk_norm": True}, {"attention_init_bias": -1.0}], ids=str)
def test_what_cannot_begin_so_is_refused(fields):
  """The initialization needs a bias by distance."""
  with pytest.raises(
    UserError,
    match="config.model.attention_init_bias=(6.0 needs config.model.positions=relative|-1.0: must be at least 0)",
  ):
    dataclasses.replace(focused(), **fields)
