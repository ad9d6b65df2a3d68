"""Longformer's attention: equal to formulas of all pairs, linear in the length, and its tokens and settings."""

import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import UserError
from t2t.models import flops, longformer, transformer
from t2t.models.masks import AttentionMask

LONGFORMER = toy.KINDS["longformer"]
DECODER = dict(architecture="decoder_only", num_encoder_layers=0, num_decoder_layers=2, segment_types=0)


@pytest.mark.slow
def test_all_tokens_global_with_equal_projections_is_full_attention():
  """The window then has no effect."""
  config = dataclasses.replace(LONGFORMER, most_global_tokens=8)
  graphdef, params = toy.split(toy.model(config))
  own = dict(params["encoder"]["layers"]["self_attention"])
  for name in ("query", "key", "value"):
    own |= {f"global_{name}": own[name], f"global_{name}_bias": own[f"{name}_bias"]}
  params = params | {"encoder": {"layers": params["encoder"]["layers"] | {"self_attention": own}}}
  batch = toy.batch((7, 8), architecture="encoder_only")
  everywhere = batch | {"encoder_global_tokens": jnp.ones((2, 8), jnp.int32)}
  full = toy.model(dataclasses.replace(config, attention="full", attention_window=0, global_tokens=""))
  real = np.asarray(batch["encoder_target_tokens"]) > 0
  expected = toy.logits(nnx.merge(toy.split(full)[0], _without_global(params)), batch)
  np.testing.assert_allclose(
    toy.logits(nnx.merge(graphdef, params), everywhere)[real], np.asarray(expected)[real], atol=1e-5
  )


def _without_global(params):
  own = {name: x for name, x in params["encoder"]["layers"]["self_attention"].items() if not name.startswith("global_")}
  return params | {"encoder": {"layers": params["encoder"]["layers"] | {"self_attention": own}}}


def layer(**fields):
  """Returns an attention of random parameters, and inputs [2, 11, 16] with two segments and padding."""
  config = dataclasses.replace(LONGFORMER, num_kv_heads=2, **fields)
  attention = longformer.LongformerAttention(config, nnx.Rngs(toy.key()))
  random = np.random.default_rng(0)
  for name in ("query_bias", "global_query_bias", "value_bias", "global_value_bias"):
    bias = getattr(attention, name)
    bias[...] = jnp.asarray(random.normal(size=bias.shape), jnp.float32)
  x = jnp.asarray(random.normal(size=(2, 11, 16)), jnp.float32)
  segments = np.array([[1] * 6 + [2] * 4 + [0], [1] * 11], np.int32)
  flags = np.zeros((2, 11), np.int32)
  flags[0, [2, 3, 7]] = flags[1, [0, 10, 5, 6]] = 1  # one more than most_global_tokens
  return attention, x, segments, flags


def formula(attention, x, segments, flags, dilation):
  """Computes the attention with arrays of all pairs, in NumPy."""
  project = lambda name: np.stack(
    np.split(np.asarray(x @ getattr(attention, name)[...] + getattr(attention, f"{name}_bias")[...]), 4, axis=-1)
    if "query" in name
    else np.repeat(
      np.split(np.asarray(x @ getattr(attention, name)[...] + getattr(attention, f"{name}_bias")[...]), 2, axis=-1),
      2,
      axis=0,
    ),
    axis=1,
  )
  flags = (flags > 0) & (np.cumsum(flags, axis=1) <= 3)
  distance = np.arange(11)[:, None] - np.arange(11)
  near = (np.abs(distance) <= 2 * dilation) & (distance % dilation == 0)
  same = segments[:, :, None] == segments[:, None]
  local = same & (near | flags[:, None, :])

  def attend(query, key, value, allowed):
    logits = np.einsum("bhqd,bhkd->bhqk", project(query), project(key)) * 6**-0.5
    weights = np.where(allowed[:, None], np.exp(logits), 0.0)
    return np.einsum("bhqk,bhkd->bhqd", weights / weights.sum(-1, keepdims=True), project(value))

  out = attend("query", "key", "value", local)
  out = np.where(flags[:, None, :, None], attend("global_query", "global_key", "global_value", same), out)
  return np.moveaxis(out, 1, 2).reshape(2, 11, -1) @ attention.out[...] + attention.out_bias[...]


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("dilation", [1, 2, 3])
def test_windows_and_global_tokens_are_those_of_all_pairs(dilation):
  """Two packed texts, padding, an odd length, grouped heads, and more global tokens than most_global_tokens."""
  attention, x, segments, flags = layer(attention_dilation=dilation)
  run = jax.jit(lambda attention, mask: attention(x, *attention.keys_and_values(x), mask=mask))
  for given in (flags, None):
    found = run(attention, AttentionMask(segments, segments, global_tokens=given))
    expected = formula(attention, x, segments, 0 * flags if given is None else given, dilation)
    np.testing.assert_allclose(found[segments > 0], expected[segments > 0], atol=1e-5)


@pytest.mark.slow
def test_probabilities_are_those_that_weigh_the_values():
  """Each row of real positions adds up to one, and reaches a window and the global tokens."""
  attention, x, segments, flags = layer()
  mask = AttentionMask(segments, segments, global_tokens=flags)
  read = jax.jit(lambda attention: attention.probabilities(x, attention.keys_and_values(x)[0], mask=mask))
  probs = read(attention)
  np.testing.assert_allclose(probs.sum(-1)[0, :, :10], 1.0, atol=1e-5)
  assert (np.asarray(probs[0, 0, 0]) > 0).tolist() == [True] * 4 + [False] * 7  # 3 is global
  assert (np.asarray(probs[1, 0, 5]) > 0).all()


def largest(length):
  """Returns the number of elements of the largest array of a training step of a layer."""
  attention, *_ = layer()
  x, flags = jnp.zeros((1, length, 16)), jnp.zeros((1, length), jnp.int32)
  mask = AttentionMask(flags + 1, flags + 1, global_tokens=flags)
  loss = lambda x: jnp.sum(attention(x, *attention.keys_and_values(x), mask=mask))
  program = jax.make_jaxpr(jax.grad(loss))(x)
  return max(var.aval.size for equation, _ in toy.equations(program.jaxpr) for var in equation.outvars)


def test_memory_is_linear_in_the_length():
  """Twice the length has twice the largest array, forward and backward."""
  assert largest(512) == 2 * largest(256) < 512**2


def test_global_tokens_of_a_batch_without_such_a_feature():
  """The first token of each packed text, or the question; a batch may have its own."""
  batch = {
    "encoder_input_tokens": np.array([[5, 6, 7, 8, 0]]),
    "encoder_segment_ids": np.array([[1, 1, 2, 2, 0]]),
    "encoder_token_types": np.array([[0, 1, 0, 0, 0]]),
  }
  of = lambda kind, batch: longformer.LongformerAttention.with_features(
    dataclasses.replace(LONGFORMER, global_tokens=kind), batch
  ).get("encoder_global_tokens")
  assert of("first", batch).tolist() == [[1, 0, 1, 0, 0]]
  assert of("question", batch).tolist() == [[1, 0, 1, 1, 0]]
  assert of("none", batch) is None and of("", batch) is None
  assert of("first", batch | {"encoder_global_tokens": 3}) == 3
  del batch["encoder_token_types"]
  with pytest.raises(UserError, match=r"global_tokens=question.*no encoder_token_types.*global_tokens=first"):
    of("question", batch)


@pytest.mark.parametrize(
  ("kind", "published"), [("class", "first"), ("choice", "first"), ("span", "question"), ("tag", "none")]
)
def test_heads_have_their_published_global_tokens(kind, published):
  head = {"name": "a", "kind": kind, "num_classes": {"choice": 1}.get(kind, 2)}
  config = dataclasses.replace(LONGFORMER, global_tokens="", heads=(head,))
  assert longformer.global_tokens(config) == published
  assert longformer.global_tokens(dataclasses.replace(config, global_tokens="none")) == "none"


@pytest.mark.parametrize(
  ("changed", "message"),
  [
    (DECODER, "attention=longformer needs config.model.architecture=encoder_only, not decoder_only: a global token"),
    ({"attention_window": 0}, "attention_window=0. Set it to 256"),
    ({"global_attention_every": 2}, "global_attention_every=2. Set config.model.global_attention_every=0"),
    ({"positions": "relative"}, "positions=relative. Set config.model.positions=learned or rotary"),
    ({"attention_kernel": "splash"}, "attention_kernel=splash. Set config.model.attention_kernel=''"),
    ({"global_tokens": "last"}, "global_tokens='last': unknown value. Known values: none, first, question"),
  ],
)
def test_settings_that_do_not_fit_are_errors_before_anything_is_compiled(changed, message):
  config = dataclasses.replace(LONGFORMER, **changed)
  with pytest.raises(UserError, match=message):
    jax.eval_shape(lambda: transformer.build(config, nnx.Rngs(0)))


@pytest.mark.parametrize(("changed", "message"), [({"ranks": 1}, "ranks of .*=unilm"), ({"front": 2}, "config.prefix")])
def test_masks_that_do_not_fit_are_errors(changed, message):
  attention, x, *_ = layer()
  with pytest.raises(UserError, match=message):
    jax.eval_shape(lambda: attention(x, *attention.keys_and_values(x), mask=AttentionMask(**changed)))


@pytest.mark.parametrize(("length", "dilation"), [(50, 1), (5, 1), (50, 3)])
def test_flops_of_a_layer(length, dilation):
  """Projections (keys and values twice), the feed-forward layer, pairs of windows, and of three global tokens."""
  config = dataclasses.replace(
    LONGFORMER, num_encoder_layers=1, vocabulary_head=False, attention_window=4, attention_dilation=dilation
  )
  distance = np.arange(length)[:, None] - np.arange(length)
  pairs = np.sum((np.abs(distance) <= 4 * dilation) & (distance % dilation == 0)) + 2 * 3 * length
  projections = (4 + 2) * 16 * 4 * 6
  expected = 6 * 2 * (length * (projections + 2 * 16 * 32) + 2 * 4 * 6 * pairs)
  assert flops.model_flops(config, batch_size=2, lengths={"encoder": length}) == expected


def test_global_tokens_in_a_decoder_are_an_error():
  with pytest.raises(UserError, match=r"global_tokens=first needs .*attention=longformer.*architecture=decoder_only"):
    toy.decoder(global_tokens="first")
