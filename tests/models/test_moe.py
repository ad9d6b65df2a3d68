"""Mixture of experts: routing, capacity, terms, and the same results on every mesh."""

import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import UserError, sharding
from t2t.losses.auxiliary_terms import AuxiliaryTerms
from t2t.models import moe, transformer
from t2t.models.feed_forward import Mlp
from t2t.models.flops import model_flops

BATCH, LENGTH, EXPERTS = 3, 7, 5
REAL = np.arange(LENGTH) < np.array([[7], [4], [0]])


def config_of(**fields):
  fields = dict(feed_forward="moe", moe_experts=EXPERTS, mlp_activation="gated_silu", broadcast_dropout=True) | fields
  return toy.decoder(**fields)


def layer_of(config, *, seed=0):
  return jax.jit(lambda key: moe.Moe(config, nnx.Rngs(key)))(toy.key(seed))


def inputs_of(config):
  return jax.random.normal(toy.key(1), (BATCH, LENGTH, config.embed_dim))


@jax.jit
def run(layer, x, key=None, real=None):
  return layer(x, key, real=real)


def by_hand(config, layer, x, real):
  """Returns the layer's output, token by token."""
  num_chosen, capacity = config.moe_experts_per_token, moe.capacity_of(config, LENGTH) or LENGTH
  out, dropped = np.zeros_like(x), 0
  for row in range(BATCH):
    used = np.zeros(config.moe_experts, int)
    for position in np.flatnonzero(real[row]):
      token = np.asarray(x[row, position], np.float64)
      scores = np.exp(token @ np.asarray(layer.router[...], np.float64))
      scores /= scores.sum()
      chosen = np.argsort(-scores)[:num_chosen]
      total = scores[chosen].sum() if config.moe_normalize_gates else 1.0
      for expert in chosen:
        if used[expert] == capacity:
          dropped += 1
          continue
        used[expert] += 1
        gate, up, down = (np.asarray(w[expert], np.float64) for w in (layer.gate, layer.up, layer.down))
        hidden = token @ gate
        hidden = hidden / (1 + np.exp(-hidden)) * (token @ up)
        out[row, position] += scores[expert] / total * (hidden @ down)
  return out, dropped


@pytest.mark.parametrize(
  "fields",
  [
    dict(moe_experts_per_token=2, moe_normalize_gates=True),
    dict(moe_experts_per_token=2, moe_capacity_factor=0.75),
    pytest.param(dict(moe_capacity=1), marks=pytest.mark.slow),
    pytest.param(dict(), marks=pytest.mark.slow),
  ],
  ids=["mixtral", "capacity", "switch", "dropless"],
)
def test_tokens_go_to_the_experts_of_the_formula(fields):
  """Gates, order of the slots, dropped tokens and padding, against a loop over tokens."""
  config = config_of(**fields)
  layer, x = layer_of(config), inputs_of(config)
  found = run(layer, x, toy.key(2), real=jnp.asarray(REAL))  # a key, as in training
  expected, dropped = by_hand(config, layer, x, REAL)
  np.testing.assert_allclose(np.where(REAL[..., None], found.x, 0), expected, atol=1e-5)
  share = dropped / config.moe_experts_per_token
  np.testing.assert_allclose(found.aux.terms["moe_dropped"], share, atol=1e-5)
  assert (dropped > 0) == bool(moe.capacity_of(config, LENGTH))


def test_padding_changes_nothing_outside_of_training():
  """A factor of the row's length gives longer rows more slots, so evaluation and inference drop no token."""
  config = config_of(moe_experts_per_token=2, moe_capacity_factor=0.75)
  layer, x = layer_of(config), inputs_of(config)
  found = run(layer, jnp.pad(x, [(0, 0), (0, 9), (0, 0)]), real=jnp.pad(jnp.asarray(REAL), [(0, 0), (0, 9)]))
  np.testing.assert_allclose(found.x[:, :LENGTH][REAL], run(layer, x, real=jnp.asarray(REAL)).x[REAL], atol=1e-6)
  assert found.aux.terms["moe_dropped"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["switch", "mixtral"])
def test_beams_do_not_compete_for_slots(kind):
  """Four equal beams have the logits of one, also if an expert has one slot in a row."""
  config = dataclasses.replace(toy.KINDS[kind], moe_capacity_factor=0.0, moe_capacity=1)
  model = toy.model(config)
  batch = toy.batch((7, 4), (1, 1), architecture=config.architecture)
  if config.architecture == "decoder_only":
    batch["decoder_causal_attention"] = jnp.ones_like(batch["decoder_input_tokens"])

  def logits(beams):
    last, state = model.start_decode(batch, 4, num_beams=beams)
    return model.decode_step(jnp.broadcast_to(last[:, None], (2, beams)) if beams > 1 else last, state)[0]

  found, expected = logits(4), logits(1)
  np.testing.assert_allclose(found, jnp.broadcast_to(expected.reshape(2, 1, -1), found.shape), atol=1e-5)


def test_one_expert_is_the_dense_layer():
  """With one expert the gate is 1: the same function of the same weights."""
  config = config_of(moe_experts=1)
  layer, x = layer_of(config), inputs_of(config)
  dense = jax.jit(lambda key: Mlp(config, nnx.Rngs(key)))(toy.key(3))
  for name in ("gate", "up", "down"):
    setattr(layer, name, nnx.Param(getattr(dense, name)[...][None], axes=getattr(layer, name).get_metadata()["axes"]))
  np.testing.assert_allclose(run(layer, x).x, run(dense, x), atol=1e-6)


@pytest.mark.parametrize("factor", [0.0, pytest.param(1.0, marks=pytest.mark.slow)])
def test_the_order_of_experts_is_arbitrary(factor):
  """Permuted experts with equally permuted router columns give the same output."""
  config = config_of(moe_experts_per_token=2, moe_capacity_factor=factor)
  layer, x, order = layer_of(config), inputs_of(config), np.random.default_rng(0).permutation(EXPERTS)
  permuted = jax.tree.map(lambda w: w[:, order] if w.ndim == 2 else w[order], layer)
  np.testing.assert_allclose(run(permuted, x, toy.key(2)).x, run(layer, x, toy.key(2)).x, atol=1e-6)


@pytest.mark.parametrize("factor", [0.0, pytest.param(1.0, marks=pytest.mark.slow)])
def test_gradients_reach_the_router_and_every_used_expert(factor):
  config = config_of(moe_experts_per_token=2, moe_capacity_factor=factor)
  layer, x = layer_of(config), inputs_of(config)
  gradients = jax.jit(jax.grad(lambda layer: jnp.sum(layer(x, toy.key(2)).x ** 2)))(layer)
  for name in ("router", "gate", "up", "down"):
    assert np.all(np.any(np.asarray(getattr(gradients, name)[...]) != 0, axis=-1)), name


def test_balance_is_one_if_uniform_and_the_number_of_experts_if_collapsed():
  """Terms are sums over real positions; the router's z is the squared log-sum-exp."""
  logits = jnp.zeros((1, EXPERTS, EXPERTS))
  choice, kept = jnp.arange(EXPERTS)[None, :, None], jnp.ones((1, EXPERTS, 1), bool)
  terms = moe._terms(logits, jax.nn.softmax(logits), choice, kept, None)
  expected = {"moe_balance": 1.0, "moe_router_z": np.log(EXPERTS) ** 2, "moe_dropped": 0.0}
  expected |= {"moe_max_load": 1.0, "moe_min_load": 1.0}
  toy.assert_trees_close({name: x / EXPERTS for name, x in terms.items()}, expected)
  logits = logits.at[..., 0].set(50.0)
  terms = moe._terms(logits, jax.nn.softmax(logits), jnp.zeros_like(choice), ~kept, None)
  np.testing.assert_allclose(terms["moe_balance"] / EXPERTS, EXPERTS, rtol=1e-5)
  np.testing.assert_allclose(terms["moe_dropped"], EXPERTS)


def test_terms_are_means_over_the_layers_with_experts():
  """The weight of a term is half of layers times positions, if every other layer has experts."""
  config = dataclasses.replace(toy.KINDS["switch"], moe_balance_loss=0.01)
  terms = AuxiliaryTerms(config, ("encoder", "decoder"))
  weights = terms.weights(toy.batch((7, 4), (3, 5)))
  assert set(weights) == {"moe_balance", "moe_router_z", "moe_dropped", "moe_max_load", "moe_min_load"}
  assert {float(weight) for weight in weights.values()} == {1 * 11 + 2 * 8}


def test_flops_count_the_selected_experts():
  """Per position of a gated layer: the router, and three matrices of each selected expert; other layers are dense."""
  config = config_of(moe_experts_per_token=2)
  dense = 3 * 16 * 32
  assert moe.Moe.multiply_adds(config) == 16 * EXPERTS + 2 * dense
  mixed = dataclasses.replace(config, moe_every=3)
  assert moe.Moe.multiply_adds(mixed) == pytest.approx((16 * EXPERTS + 4 * dense) / 3)
  flops = [model_flops(c, batch_size=1, lengths={"decoder": 1}) for c in (config, toy.decoder())]
  assert flops[0] - flops[1] == 6 * 3 * (16 * EXPERTS + dense)


def test_layers_without_experts_have_no_parameters_of_experts():
  """In a Switch model every other layer has experts, and attention stays in one stack."""
  model = jax.eval_shape(lambda: transformer.build(toy.KINDS["switch"], nnx.Rngs(0)))
  shapes = {path: x.shape for path, x in toy.flat(toy.split(model)[1]).items()}
  assert shapes["decoder/layers/mlp/moe/layers/up"] == (2, 4, 16, 32)
  assert shapes["decoder/layers/mlp/dense/layers/up"] == (2, 16, 32)
  assert shapes["decoder/layers/self_attention/query"] == (4, 16, 24)


def test_routers_stay_exact_in_decoding():
  """Matrices are cast to the activations' dtype for decoding, but a rounded router would select other experts."""
  config = config_of(dtype="bfloat16")
  stack = jax.eval_shape(lambda: transformer.build(config, nnx.Rngs(0)).decoder)
  weights = toy.flat(jax.eval_shape(lambda stack: stack.ready_weights()[0], stack))
  dtypes = {name: {x.dtype for path, x in weights.items() if name in path} for name in ("router", "up")}
  assert dtypes == {"router": {jnp.dtype("float32")}, "up": {jnp.dtype("bfloat16")}}


MESHES = [
  {"expert": 2, "fsdp": 2, "tensor": 2},
  {"expert": 4, "tensor": 2},
  {"data": 2, "expert": 4},
  {"expert": 2, "fsdp": 2, "sequence": 2},
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("sizes", MESHES, ids=lambda sizes: "-".join(f"{k}{v}" for k, v in sizes.items()))
@pytest.mark.parametrize("kind", ["switch", "mixtral", "moe_bert"])
def test_a_mesh_with_an_expert_axis_computes_the_same(kind, sizes):
  """Loss, terms and gradients of one device, with dropped tokens in the encoder-decoder."""
  config = toy.KINDS[kind]
  if kind == "switch":
    config = dataclasses.replace(config, moe_capacity_factor=0.0, moe_capacity=2)
  model, batch = toy.model(config), toy.batch((8,) * 8, (6,) * 8, architecture=config.architecture)

  def loss(model, batch):
    hidden = model.hidden(batch)
    total = jnp.sum(jnp.tanh(model.logits(hidden.x))) / 100 + hidden.aux.terms["moe_balance"]
    return total + hidden.aux.terms["moe_router_z"], hidden.aux.terms

  step = jax.value_and_grad(loss, has_aux=True)
  (expected, terms), gradients = jax.jit(step)(model, batch)
  mesh = sharding.make_mesh(sizes)
  graphdef, params = toy.split(model)
  shardings = sharding.param_shardings(nnx.split(model, graph=False)[1], mesh)
  placed = nnx.merge(graphdef, jax.device_put(params, shardings))
  with jax.set_mesh(mesh):
    rows = jax.device_put(batch, sharding.batch_sharding(mesh))
    (found, found_terms), found_gradients = jax.jit(step)(placed, rows)
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  toy.assert_trees_close(found_terms, terms, rtol=1e-4)
  toy.assert_trees_close(toy.split(found_gradients)[1], toy.split(gradients)[1], atol=1e-4, rtol=1e-4)


def test_experts_that_the_axis_does_not_divide_are_an_error():
  model = jax.eval_shape(lambda: transformer.build(config_of(), nnx.Rngs(0)))
  mesh = sharding.make_mesh({"expert": 2, "data": 4})
  with pytest.raises(UserError, match=r"config.mesh.expert=2 does not divide experts=5 .*that work: \[1, 5\]"):
    sharding.param_shardings(nnx.split(model, graph=False)[1], mesh)


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    (dict(moe_experts=0), "moe_experts=0: feed_forward=moe needs experts"),
    (dict(moe_experts_per_token=6), "moe_experts_per_token=6: must be at most config.model.moe_experts=5"),
    (dict(moe_every=2), r"moe_every=2 does not divide config.model.num_decoder_layers=3. Values that work: \[1, 3\]"),
    (dict(moe_every=3, moe_first=3), "moe_first=3: must be below config.model.moe_every=3"),
    (dict(moe_every=3, share_layers=True), "share_layers=True: one layer cannot be dense and have experts"),
    (dict(moe_capacity_factor=-1.0), "moe_capacity_factor=-1.0: must be at least 0"),
    (dict(moe_capacity=-1), "moe_capacity=-1: must be at least 0"),
    (dict(moe_capacity=2, moe_capacity_factor=1.0), "both set the capacity"),
    (dict(moe_jitter=1.0), "moe_jitter=1.0: must be at least 0 and below 1"),
    (dict(moe_normalize_gates=True), "the router gets no gradient"),
    (dict(feed_forward="dense"), "moe_experts=5 needs config.model.feed_forward=moe, not dense"),
  ],
)
def test_settings_without_a_meaning_are_errors(fields, message):
  with pytest.raises(UserError, match=message):
    jax.eval_shape(lambda: transformer.build(config_of(**fields), nnx.Rngs(0)))


def test_jitter_and_dropout_are_for_training():
  """The router's input is jittered, and hidden features are dropped, only with a key."""
  config = config_of(moe_jitter=0.5, dropout_rate=0.5)
  layer, x = layer_of(config), inputs_of(config)
  plain = layer_of(dataclasses.replace(config, moe_jitter=0.0, dropout_rate=0.0))
  without = run(plain, x)
  np.testing.assert_array_equal(run(layer, x).x, without.x)
  trained = [run(layer, x, toy.key(seed)) for seed in (0, 0, 1)]
  np.testing.assert_array_equal(trained[0].x, trained[1].x)
  assert np.any(trained[0].x != trained[2].x) and np.any(trained[0].x != without.x)
  z = [float(hidden.aux.terms["moe_router_z"]) for hidden in (*trained, without)]
  assert z[0] == z[1] != z[2] and z[0] != z[3]
