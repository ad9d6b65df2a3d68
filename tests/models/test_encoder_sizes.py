"""Encoders of other sizes than the decoder, with a separate embedding."""

import dataclasses
import math

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import UserError, sharding
from t2t.configs import default
from t2t.configuration.loading import override, records
from t2t.inference import embedding
from t2t.models import adapters as adapters_lib
from t2t.models import presets
from t2t.models.config import ENCODER_FIELDS, TransformerConfig
from t2t.models.head_config import HeadConfig
from t2t.serving import attention_maps
from t2t.training import mesh_selection, recipe

T5GEMMA = toy.KINDS["t5gemma"]


def test_each_stack_has_the_config_of_its_sizes():
  """Sizes of the encoder replace the decoder's; 0 keeps the decoder's, and other fields are common."""
  encoder = T5GEMMA.of_stack("encoder")
  for name in ENCODER_FIELDS:
    assert getattr(encoder, name.removeprefix("encoder_")) == getattr(T5GEMMA, name) > 0
    assert getattr(encoder, name) == 0
  assert T5GEMMA.of_stack("decoder") is T5GEMMA
  deeper = dataclasses.replace(T5GEMMA, encoder_num_kv_heads=0, encoder_mlp_dim=0).of_stack("encoder")
  assert (deeper.kv_heads, deeper.mlp_dim) == (T5GEMMA.num_kv_heads, T5GEMMA.mlp_dim)
  assert deeper.attention_softcap == T5GEMMA.attention_softcap
  plain = toy.config()
  assert plain.of_stack("encoder") is plain


def test_sizes_equal_to_the_decoders_change_nothing():
  """Explicit values give the parameters and logits of the model without them."""
  plain = dataclasses.replace(T5GEMMA, **dict.fromkeys(ENCODER_FIELDS, 0))
  same = {name: getattr(plain, name.removeprefix("encoder_")) for name in ENCODER_FIELDS}
  models = [toy.model(dataclasses.replace(plain, **fields)) for fields in ({}, same)]
  toy.assert_trees_close(*(toy.split(model)[1] for model in models), atol=0, rtol=0)
  logits = [toy.logits(model, toy.batch()) for model in models]
  np.testing.assert_array_equal(*logits)


def test_inputs_and_targets_have_separate_embeddings():
  """A token's row of one table affects only the side that the token is on; logits are tied to the decoder's."""
  model, batch = toy.model(T5GEMMA), toy.batch()
  shapes = {path: x.shape for path, x in toy.flat(toy.split(model)[1]).items()}
  assert shapes["encoder/embed/table"] == (40, 24) and shapes["embed/table"] == (40, 16)
  assert "head/projection" not in shapes
  states, logits = model.states(batch), toy.logits(model, batch)
  model.embed.table[...] = model.embed.table[...] * 2
  np.testing.assert_array_equal(model.states(batch), states)
  assert not np.allclose(toy.logits(model, batch), logits)


def test_windows_and_caps_are_those_of_each_stack():
  """The encoder's window of three positions on each side is not the decoder's of two."""
  model, batch = toy.model(T5GEMMA), toy.batch((8,), (6,))
  (local, _), (before, *_) = (model.attention_map(batch, side, jnp.array(0))[:2] > 0 for side in ("encoder", "decoder"))
  distance = np.arange(8)[:, None] - np.arange(8)
  np.testing.assert_array_equal(local[0], np.abs(distance) <= 3)
  distance = distance[:6, :6]
  np.testing.assert_array_equal(before[0], (distance >= 0) & (distance <= 2))


@pytest.mark.parametrize("kind", ["class", "tag", "vector", "boundary"])
def test_heads_have_the_width_of_the_side_that_they_read(kind):
  """The encoder's for all heads of inputs, and the decoder's for spans of targets."""
  head = HeadConfig("h", 0 if kind == "vector" else 3, kind, pooler="tanh" if kind == "vector" else "published")
  model, batch = toy.model(dataclasses.replace(T5GEMMA, heads=(head,))), toy.batch()
  if kind == "boundary":
    hidden = model(batch)
    read = model.heads["h"].read(hidden, *[jnp.zeros(hidden.shape[:2], jnp.int32)] * 3)
    assert model.logits_fn("h")(read).shape == (2, 6, 40)
  else:
    states = model.states(batch)
    assert states.shape == (2, 8, 24)
    logits = model.head_logits("h", states if kind == "tag" else states[:, 0])
    assert logits.shape == {"class": (2, 3), "tag": (2, 8, 3), "vector": (2, 24)}[kind]


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("section", ["lora", "prefix", "prompt", "ia3", "houlsby", "pfeiffer", "pals"])
def test_adapters_fit_each_stack(section):
  """An adapted model computes, and each parameter of the adapter that is not zero at first has a gradient."""
  config = override(
    default.get_config(), [f"--config.{section}.{'tasks=a,b' if section == 'pals' else 'also_train=()'}"]
  )
  wanted = records(config).adapters
  model = adapters_lib.adapt(toy.model(T5GEMMA), wanted, nnx.Rngs(toy.key(1)))
  graphdef, params = toy.split(model)
  batch = toy.batch()
  if section == "pals":
    batch |= {f"{side}_tasks": jnp.zeros((2, 1), jnp.int32) for side in ("encoder", "decoder")}
  loss_fn = toy.summed_loss()
  gradient = toy.flat(jax.jit(jax.grad(lambda params: loss_fn(nnx.merge(graphdef, params), batch, None)[0]))(params))
  added = {path for path in gradient if adapters_lib.base_path(path, wanted) is None}
  sides = {path.split("/")[0] for path in added}
  assert sides == ({"encoder"} if section == "prompt" else {"encoder", "decoder"})
  assert all(any(np.any(gradient[path]) for path in added if path.startswith(side)) for side in sides)


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    (dict(own_encoder_embedding=False), "encoder_embed_dim=24 and config.model.embed_dim=16 differ, which needs"),
    (dict(share_stacks=True, num_encoder_layers=3), "encoder_embed_dim=24: the stacks share their layers"),
    (dict(own_decoder_positions=True, positions="learned", max_length=9), "own_decoder_positions=False"),
    (dict(attention_window=0, global_attention_every=0, global_attention_first=0), "needs a window of the decoder"),
    (dict(encoder_num_kv_heads=3), r"num_kv_heads=3 does not divide .* \(in the encoder, with config.model.encoder_"),
    (dict(encoder_head_dim=5), r"head_dim=5: must be even.* \(in the encoder"),
    (dict(encoder_mlp_dim=-1), "encoder_mlp_dim=-1: must be at least 0"),
    (dict(encoder_num_heads=10**6), "encoder_num_heads=1000000: must be at most 100,000"),
  ],
)
def test_sizes_that_do_not_fit_are_refused(fields, message):
  with pytest.raises(UserError, match=message):
    dataclasses.replace(T5GEMMA, **fields)


@pytest.mark.parametrize("field", ["encoder_mlp_dim", "own_encoder_embedding"])
def test_a_model_with_one_stack_has_one_size(field):
  value = True if field.startswith("own") else 8
  with pytest.raises(UserError, match=f"config.model.{field}={value} needs config.model.architecture=encoder_decoder"):
    toy.decoder(**{field: value})


def test_initial_focus_needs_one_width():
  """Queries of cross-attention would start as keys of another width."""
  with pytest.raises(UserError, match=r"needs config.model.attention_init_bias=0.0, not 2.0"):
    toy.config(encoder_embed_dim=24, own_encoder_embedding=True, attention_init_bias=2.0)


def test_what_serves_and_embeds_reads_the_encoders_sizes():
  maps = attention_maps.sizes(T5GEMMA, ("encoder", "decoder", "cross"))
  assert {kind: size["heads"] for kind, size in maps.items()} == {"encoder": 8, "decoder": 4, "cross": 4}
  model = toy.model(T5GEMMA)
  embedder = embedding.Embedder(
    T5GEMMA,
    toy.split(model)[0],
    sharding.make_mesh({}, devices=jax.devices()[:1]),
    pool="mean",
    layers=[2],
    pad_id=0,
    batch_size=2,
  )
  example = {"inputs": [3, 4, 1], "token_types": [0] * 3, "texts": [0] * 3}
  assert embedder.vectors(toy.split(model)[1], [example]).shape == (1, 1, 24)


def test_meshes_divide_both_stacks():
  """Tensor parallelism divides the heads of both, and fsdp both widths."""
  fields = dataclasses.asdict(T5GEMMA) | dict(encoder_num_heads=6, encoder_num_kv_heads=2, num_kv_heads=4)
  config = default.get_config()
  config.model.update(fields)
  config.mesh.tensor = 4
  with pytest.raises(UserError, match=r"mesh.tensor=4 does not divide config.model.encoder_num_heads=6. Give one of"):
    recipe.check_sizes(records(config), sharding.make_mesh({"tensor": 4, "data": 2}))
  config.mesh.tensor = 1
  config.model.update(embed_dim=64, encoder_embed_dim=48)
  sizes, _ = mesh_selection.choose(records(config), 64)
  assert math.gcd(64, 48) % sizes["fsdp"] == 0


def test_a_published_size_is_two_of_gemma_2():
  """9B-2B has the sizes of Gemma 2's 9B in the encoder, and 2B's in the decoder."""
  config = TransformerConfig(**presets.t5gemma("9b_2b"))
  encoder = config.of_stack("encoder")
  assert (encoder.embed_dim, encoder.num_heads, encoder.kv_heads, config.num_encoder_layers) == (3584, 16, 8, 42)
  assert (config.embed_dim, config.num_heads, config.kv_heads, config.num_decoder_layers) == (2304, 8, 4, 26)
  equal = TransformerConfig(**presets.t5gemma("2b_2b"))
  assert equal.of_stack("encoder") is equal
  with pytest.raises(UserError, match="unknown size '2b_9b'. Known values: s_s"):
    presets.t5gemma("2b_9b")
