import dataclasses
import functools

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import sharding
from t2t.models import positions as positions_lib
from t2t.models import remat as remat_lib
from t2t.models import stack, transformer
from t2t.models.masks import AttentionMask


def layer_of(layers, index):
  return jax.tree.map(lambda leaf: leaf[index], layers)


def loop(stack, x, *, body=None, **inputs):
  """Runs the layers of a stack in a loop, with plain numbers as indices."""
  config = stack.config
  pick = (lambda layers, index: layers) if config.share_layers else layer_of
  bias = (
    None
    if stack.position_bias is None
    else positions_lib.bias_of(stack.position_bias(), AttentionMask(), x.shape[1], x.shape[1])
  )
  for index in range(stack.num_layers):
    every = config.global_attention_every
    is_local = bool(config.attention_window) and not (every and index % every == 0)
    base = (is_local and config.local_rotary_base) or config.rotary_base
    is_rotary = config.positions == "rotary"
    angles = toy.rotary_angles(x.shape[1], config.head_dim, base) if is_rotary else None
    own = pick(stack.own_layers, index)
    x, *_ = (own if body is None else pick(body, index))(
      x,
      positions=positions_lib.Positions(bias, angles, is_local),
      is_normed=index == 0 and config.embedding_norm and not config.post_norm,
      cross_layer=own,
      **inputs,
    )
  return x if stack.norm is None else stack.norm(x)


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize(
  "kind", ["t5_1_1", "shared_stacks", "shared_everything", "local_llama", "local_prefix_lm", "modern_bert"]
)
def test_scan_equals_a_loop_over_the_layers(kind):
  """In the encoder and in the decoder."""
  model = toy.model(toy.KINDS[kind])
  x, memory = (jax.random.normal(jax.random.key(seed), (2, 6, 16)) for seed in (0, 1))
  prefix = jnp.array([[1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0]]) if model.config.bidirectional_prefix else None
  causal = AttentionMask(causal=True, prefix=prefix)

  def both(model):
    stacks = []
    if hasattr(model, "encoder"):
      stacks.append((model.encoder, dict(mask=AttentionMask())))
    if hasattr(model, "decoder"):
      inputs = dict(mask=causal)
      if hasattr(model, "encoder"):
        body = model.encoder.own_layers if model.config.share_stacks else None
        inputs |= dict(memory=memory, memory_mask=AttentionMask(), body=body)
      stacks.append((model.decoder, inputs))
    return [(stack(x, **inputs)[0], loop(stack, x, **inputs)) for stack, inputs in stacks]

  for scanned, looped in jax.jit(both)(model):
    np.testing.assert_allclose(scanned, looped, atol=1e-5)


def loss_and_gradient(config):
  """Returns a function of parameters, and parameters."""
  graphdef, params = toy.split(toy.model(config))
  batch, dropout_key = toy.batch(architecture=config.architecture), toy.key(7)
  loss_fn = toy.summed_loss(toy.loss_config())
  return jax.value_and_grad(lambda params: loss_fn(nnx.merge(graphdef, params), batch, dropout_key)[0]), params


@functools.cache
def computed(kind, remat):
  function, params = loss_and_gradient(dataclasses.replace(toy.KINDS[kind], remat=remat, dropout_rate=0.1))
  return jax.jit(function)(params)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  ("kind", "remat"),
  [
    ("t5_1_1", "minimal"),
    ("t5_1_1", "full"),
    ("t5_1_1", "offload"),
    ("t5_1_1", "input@host,query,key@host,mlp_up"),
    ("local_prefix_lm", "full"),
  ],
)
def test_remat_changes_neither_loss_nor_gradients(kind, remat):
  """Recomputed values, dropout included, equal the original ones."""
  (expected, expected_gradient), (loss, gradient) = computed(kind, "none"), computed(kind, remat)
  np.testing.assert_allclose(loss, expected, rtol=1e-6)
  toy.assert_trees_close(gradient, expected_gradient, atol=1e-4)


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", [{}, {"gradient_dtype": "bfloat16"}, {"quantization": "int8"}], ids=str)
def test_remat_computes_again(how):
  """minimal recomputes attention's products but no projection, full recomputes both."""

  def matmuls(remat):
    function, params = loss_and_gradient(toy.config(remat=remat, dropout_rate=0.1, **how))
    found = toy.equations(jax.make_jaxpr(function)(params).jaxpr)
    return [equation for equation, _ in found if equation.primitive.name == "dot_general"]

  num = {remat: len(matmuls(remat)) for remat in ("none", "minimal", "full")}
  assert num["none"] <= num["minimal"] < num["full"]
  kernels = {remat: sum(x.invars[1].aval.ndim == 2 for x in matmuls(remat)) for remat in (*num, "query,key,value")}
  assert kernels["none"] == kernels["minimal"] < kernels["query,key,value"] < kernels["full"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("tensor", [1, 4])
def test_devices_keep_their_part_of_the_residual_sum(tensor, monkeypatch):
  """No device of a tensor axis has all features of the residual stream or of saved layer inputs."""
  monkeypatch.setattr(stack, "unrolled", lambda *_: 1)
  function, params = loss_and_gradient(toy.config(remat="full"))
  with jax.set_mesh(sharding.make_mesh({"fsdp": 2, "tensor": tensor}, devices=jax.devices()[: 2 * tensor])):
    text = jax.jit(function).lower(params).compile().as_text()
  kept = lambda width: [f"f32[{layers},1,{length},{width}]" in text for layers, length in ((2, 8), (3, 6))]
  assert kept(16 // tensor) == [True, True]
  assert kept(16) == [tensor == 1] * 2


def test_every_name_of_a_policy_is_kept():
  """Each name exists in a layer, so that keeping it keeps an array."""
  function, params = loss_and_gradient(toy.config(mlp_activation="gated_gelu", remat="full"))
  names = {e.params["name"] for e, _ in toy.equations(jax.make_jaxpr(function)(params).jaxpr) if "name" in e.params}
  assert names >= set(remat_lib.NAMES) - {"attention"}


def unshared(config, params):
  """Returns the parameters of a model without sharing, with copies of shared parameters."""
  copies = lambda layer, number: jax.tree.map(lambda x: jnp.stack([x] * number), layer)
  stacks = {name: dict(params[name]) for name in ("encoder", "decoder") if name in params}
  if config.share_layers:
    for name, stack in stacks.items():
      stack["layers"] = copies(stack.pop("layer"), getattr(config, f"num_{name}_layers"))
  if config.share_stacks:
    stacks["decoder"]["layers"] = stacks["encoder"]["layers"] | stacks["decoder"]["layers"]
  return params | stacks


@pytest.mark.parametrize("kind", ["shared_stacks", "shared_everything"])
def test_what_is_shared_is_one_parameter(kind):
  """The loss is that of a model with copies, and the gradient the sum of the copies' gradients."""
  config = toy.KINDS[kind]
  apart = dataclasses.replace(config, share_layers=False, share_stacks=False)
  function, params = loss_and_gradient(config)
  spread, add_up = jax.vjp(functools.partial(unshared, config), params)
  other, expected_shapes = loss_and_gradient(apart)
  assert jax.tree.map(jnp.shape, spread) == jax.tree.map(jnp.shape, expected_shapes)
  count = lambda tree: sum(x.size for x in jax.tree.leaves(tree))
  assert count(params) < 0.8 * count(spread)
  (loss, gradient), (expected, copies) = jax.jit(function)(params), jax.jit(other)(spread)
  np.testing.assert_allclose(loss, expected, rtol=1e-5)
  toy.assert_trees_close(gradient, add_up(copies)[0], atol=1e-4, rtol=1e-4)


def test_one_layer_is_compiled():
  """The program of a deep model is as long as that of a shallow one."""

  def num_equations(**layers):
    abstract = jax.eval_shape(lambda: transformer.build(toy.config(**layers), nnx.Rngs(0)))
    program = jax.make_jaxpr(lambda model: model(toy.batch()))(abstract)
    return len(list(toy.equations(program.jaxpr)))

  assert num_equations() == num_equations(num_encoder_layers=6) == num_equations(num_decoder_layers=6)


@pytest.mark.slow
def test_layers_draw_their_own_dropout():
  """Two layers with the same parameters drop different features."""
  stack = toy.model(toy.config(dropout_rate=0.5)).encoder

  def updates(stack, key):
    layer, x, mask = layer_of(stack.layers, 0), jnp.ones((1, 3, 16)), AttentionMask()
    return [layer(x, mask=mask, dropout_key=key)[0] for key in jax.random.split(key)]

  first, second = jax.jit(updates)(stack, toy.key())
  assert np.any(first != second)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["t5_1_1", "shared_everything", "local_prefix_lm", "bert"])
def test_each_draw_has_a_key_of_its_own(kind, monkeypatch):
  """Dropout masks at all places of all layers are independent."""
  config = dataclasses.replace(toy.KINDS[kind], dropout_rate=0.1)
  keys, batch = toy.dropout_keys(monkeypatch), toy.batch(architecture=config.architecture)
  jax.block_until_ready(jax.jit(lambda model, key: model(batch, dropout_key=key))(toy.model(config), jax.random.key(0)))
  jax.effects_barrier()
  assert len(set(keys)) == len(keys)
  # Probabilities, each branch's result, and for T5 the inner features of a feed-forward layer, and both ends.
  t5 = int(config.broadcast_dropout)
  both = config.architecture == "encoder_decoder"
  number = config.num_encoder_layers * (3 + t5) + config.num_decoder_layers * (3 + 2 * both + t5)
  assert len(keys) == number + (1 + both) * (1 + t5)


@pytest.mark.exhaustive
@pytest.mark.parametrize("broadcast_dropout", [True, False])
def test_t5_drops_the_same_features_at_all_positions(broadcast_dropout):
  """Without positions, equal tokens stay equal under T5's dropout; other models draw for each position."""
  config = toy.config(dropout_rate=0.15, broadcast_dropout=broadcast_dropout, positions="learned", max_length=4)
  stack = toy.model(config).encoder
  run = jax.jit(lambda stack, key: stack(jnp.ones((1, 4, 16)), mask=AttentionMask(), dropout_key=key)[0])
  out = np.asarray(run(stack, toy.key()))
  assert np.allclose(out, out[:, :1], atol=1e-5) == broadcast_dropout
  # T5 has dropout after the last norm, too.
  assert np.any(out == 0.0) == broadcast_dropout


def test_layers_are_stacked_and_start_apart():
  """A stacked parameter has a leading axis of layers, each with its own values."""
  query = toy.model(toy.config()).decoder.layers.self_attention.query[...]
  assert query.shape == (3, 16, 24)
  assert np.all(np.std(query, axis=0) > 0)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("kind", "stack", "bidirectional"),
  [("t5_1_1", "encoder", True), ("t5_1_1", "decoder", False), ("prefix_lm", "decoder", True)],
)
def test_relative_positions_tell_right_from_left_where_both_are_seen(kind, stack, bidirectional):
  """In a causal decoder all buckets are for the past; with a bidirectional prefix half of them."""
  bias = getattr(toy.model(toy.KINDS[kind]), stack).position_bias()
  bias = positions_lib.bias_of(bias, AttentionMask(), 5, 5)
  assert np.all(bias[0, :, 0, 1] == bias[0, :, 0, 0]) == (not bidirectional)
  assert np.all(bias[0, :, 1, 0] != bias[0, :, 0, 0])


@pytest.mark.exhaustive
def test_norms_stand_before_the_branches_or_behind():
  """x + f(norm(x)), or norm(x + f(x)) as in BERT, where the stack has no last norm."""
  x, mask = jax.random.normal(jax.random.key(0), (1, 3, 16)), AttentionMask()

  def by_hand(layer, *, post_norm):
    attended = lambda x: layer.self_attention(x, *layer.self_attention.keys_and_values(x), mask=mask)
    if post_norm:
      middle = layer.self_attention_norm(x + attended(x))
      return layer.mlp_norm(middle + layer.mlp(middle))
    middle = x + attended(layer.self_attention_norm(x))
    return middle + layer.mlp(layer.mlp_norm(middle))

  for post_norm in (False, True):
    stack = toy.model(toy.config(post_norm=post_norm)).encoder
    layer, random = layer_of(stack.layers, 0), np.random.default_rng(0)
    for norm in (layer.self_attention_norm, layer.mlp_norm):
      norm.scale = nnx.Param(jnp.asarray(random.normal(size=16), jnp.float32))
    both = jax.jit(lambda layer, post_norm=post_norm: (layer(x, mask=mask)[0], by_hand(layer, post_norm=post_norm)))
    np.testing.assert_allclose(*both(layer), atol=1e-5)
    assert (stack.norm is None) == post_norm
