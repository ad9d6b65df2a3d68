"""A feed-forward layer registered in the table: two experts with a soft gate."""

import dataclasses
import re

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from configs import default
from t2t import UserError, sharding
from t2t.configuration.loading import records
from t2t.convert import hf_config as settings_lib
from t2t.convert import hf_mappings
from t2t.models import adapters as adapters_lib
from t2t.models import config as config_lib
from t2t.models import layers
from t2t.models.adapters import ia3, lora
from t2t.models.feed_forward import FeedForward, Mlp
from t2t.models.flops import model_flops
from t2t.training import optimizers, recipe, train_state, train_step


class Two(FeedForward):
  """Two MLPs weighted by a gate."""

  def __init__(self, config, rngs):
    self.first, self.second = Mlp(config, rngs), Mlp(config, rngs)
    self.gate = layers.param(rngs, (config.embed_dim, 2), ("embed", None), scale=config.embed_dim**-0.5)

  def __call__(self, x, dropout_key=None, *, real=None):
    shares = jax.nn.softmax(layers.dense(x, self.gate, dropout_key=dropout_key), axis=-1)
    keys = layers.split_key(dropout_key, 2)
    return shares[..., :1] * self.first(x, keys[0]) + shares[..., 1:] * self.second(x, keys[1])

  @classmethod
  def multiply_adds(cls, config):
    return 2 * Mlp.multiply_adds(config) + 2 * config.embed_dim

  @classmethod
  def inner_features(cls, config):
    return 2 * Mlp.inner_features(config) + 2


@pytest.fixture
def two(monkeypatch):
  """Registers the layer: config.model.feed_forward=two."""
  monkeypatch.setitem(config_lib.FEED_FORWARD.rows, "two", f"{__name__}:Two")


@pytest.mark.slow
def test_chunks_of_positions_change_nothing():
  """Output and gradient of 8 positions in chunks of 3, with dropout, whose mask is the same for all positions."""
  x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 8, 16)), jnp.float32)

  def out_and_gradient(chunk):
    config = dataclasses.replace(toy.KINDS["t5_1_1"], dropout_rate=0.3, feed_forward_chunk=chunk)
    graphdef, params = toy.split(Mlp(config, nnx.Rngs(toy.key())))
    total = lambda params: jnp.sum(jnp.sin(nnx.merge(graphdef, params)(x, toy.key(3))))
    return jax.jit(jax.value_and_grad(total))(params)

  (out, gradient), (expected, expected_gradient) = out_and_gradient(3), out_and_gradient(0)
  np.testing.assert_allclose(out, expected, rtol=1e-5)
  toy.assert_trees_close(gradient, expected_gradient)


KINDS = ["t5_1_1", "local_prefix_lm", "bert"]


def config_of(kind, **fields):
  return dataclasses.replace(toy.KINDS[kind], **(dict(feed_forward="two", dropout_rate=0.0) | fields))


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_of_another_file_is_trained(two, kind):
  """Its parameters replace the MLP's, all are trained, and the loss falls."""
  config, mesh = config_of(kind), sharding.make_mesh({"data": 1}, devices=jax.devices()[:1])
  tx, _ = optimizers.make_optimizer(toy.optimizer_config(), 10)
  model = toy.model(config)
  graphdef, state, shardings = train_state.init_train_state(lambda _: model, tx, toy.key(), mesh)
  before = {path: np.asarray(x) for path, x in toy.flat(state.params).items()}
  own = {path.partition("/mlp/")[2] for path in before if "/mlp/" in path}
  assert {"gate", "first/up", "second/up", "first/down", "second/down"} <= own and "up" not in own
  step = train_step.make_train_step(graphdef, toy.loss(), tx, shardings)
  batch, found = toy.batch((8,) * 4, (6,) * 4, architecture=config.architecture), []
  for _ in range(3):
    state, metrics = step(state, batch, toy.key())
    found.append(float(metrics["loss"].value()))
  assert found[2] < found[1] < found[0]
  for path, x in toy.flat(state.params).items():
    assert "/mlp/" not in path or np.any(x != before[path]), path


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["t5_1_1", "local_prefix_lm"])
def test_it_decodes_as_it_is_trained(two, kind):
  """Decoding by token equals the logits of all positions."""
  config = config_of(kind)
  model, batch = toy.model(config), toy.batch((7, 7), (6, 6), architecture=config.architecture)
  tokens = batch["decoder_input_tokens"][:, :6]
  batch = {name: x for name, x in batch.items() if name.startswith("encoder")} | {"decoder_input_tokens": tokens}
  expected = model.logits(model(batch))
  _, state = model.start_decode(batch | {"decoder_input_tokens": tokens[:, :1]}, 6)
  state = model.ready(state)
  for column in range(6):
    logits, state = model.decode_step(tokens[:, column], state)
    np.testing.assert_allclose(logits, expected[:, column], atol=2e-4)


def test_a_mesh_splits_it_by_the_names_of_its_axes(two):
  """Sharding equals that of the MLP."""
  given = default.get_config()
  given.model.update(dataclasses.asdict(config_of("t5_1_1")))
  mesh = sharding.make_mesh({"data": 2, "fsdp": 2, "tensor": 2})
  _, state, _ = recipe.make(records(given)).state(mesh)
  specs = {path: tuple(x.sharding.spec) for path, x in toy.flat(state.params).items()}
  assert specs["encoder/layers/mlp/first/up"] == (None, "fsdp", "tensor")
  assert specs["decoder/layers/mlp/second/down"] == (None, "tensor", "fsdp")
  assert specs["decoder/layers/mlp/gate"][:2] == (None, "fsdp")


def test_its_products_are_counted(two):
  """By the layer's class, in each layer at each position."""
  sizes = dict(batch_size=2, lengths={"encoder": 8, "decoder": 6})
  more = model_flops(config_of("t5_1_1"), **sizes) - model_flops(toy.KINDS["t5_1_1"], **sizes)
  assert more == 6 * 2 * (2 * 8 + 3 * 6) * (3 * 16 * 32 + 2 * 16)


ADAPTERS = {
  "lora": lora.LoraConfig(rank=3, targets=("mlp/",)),
  "ia3": ia3.Ia3Config(targets=("mlp/",)),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters_find_its_matrices(two, name):
  """In its inner layers, too; after a merge the model without the adapter has the same outputs."""
  config = config_of("gpt2")
  model, batch = toy.model(config), toy.batch(architecture="decoder_only")
  graphdef, params = toy.split(adapters_lib.adapt(model, {name: ADAPTERS[name]}, nnx.Rngs(toy.key(1))))
  flat, random = toy.flat(params), np.random.default_rng(0)
  added = {"lora": "lora_up", "ia3": "ia3"}[name]
  matrices = {path.split("/mlp/")[1].removesuffix(f"/{added}") for path in flat if path.endswith(f"/{added}")}
  assert matrices == {"gate", "first/up", "first/down", "second/up", "second/down"}
  change = lambda path, x: jnp.asarray(random.normal(size=x.shape) / 4, x.dtype) if path.endswith(added) else x
  flat = {path: change(path, x) for path, x in flat.items()}
  unflat = lambda flat: nnx.traversals.unflatten_mapping({tuple(path.split("/")): x for path, x in flat.items()})
  expected = toy.logits(nnx.merge(graphdef, unflat(flat)), batch)
  merged = nnx.merge(toy.split(model)[0], unflat(adapters_lib.merge(flat, {name: ADAPTERS[name]})))
  np.testing.assert_allclose(toy.logits(merged, batch), expected, atol=1e-3)
  assert np.max(np.abs(expected - toy.logits(model, batch))) > 0.1
  if name == "ia3":
    sizes = {path.split("/mlp/")[1]: x.shape[-1] for path, x in flat.items() if path.endswith("/ia3")}
    assert sizes["first/down/ia3"] == config.mlp_dim  # scales the matrix's input


def test_no_family_of_others_has_it(two):
  """A converter reports it and writes nothing."""
  gpt2 = config_of("gpt2", tied_logits=True)
  with pytest.raises(hf_mappings.Unknown, match=re.escape("config.model.feed_forward='two' (transformers 'dense')")):
    settings_lib.write_settings(settings_lib.FAMILIES["gpt2"], gpt2)


def test_a_layer_that_there_is_not():
  """The message has the known names, and the most similar one."""
  known = ", ".join(config_lib.FEED_FORWARD)
  expected = f"config.model.feed_forward='densse': unknown value. Known values: {known}; did you mean dense?"
  with pytest.raises(UserError, match=re.escape(expected)):
    dataclasses.replace(toy.KINDS["gpt2"], feed_forward="densse")
