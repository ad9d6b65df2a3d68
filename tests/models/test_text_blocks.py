"""Blocks of a text: which tokens each stream reads, packing, prompts, one block, and settings that do not fit."""

import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_transformer import reached
import toy

from t2t import UserError
from t2t.models import adapters as adapters_lib
from t2t.models.adapters import prefix, prompt
from t2t.models.flops import model_flops
from t2t.models.kernels import dispatch

KINDS = {
  "bert": toy.KINDS["bert"],
  "mosaic_bert": toy.KINDS["mosaic_bert"],
  "rotary": toy.encoder(num_kv_heads=2, positions="rotary"),
  "relative": toy.encoder(),
  "sinusoidal": toy.encoder(positions="sinusoidal"),
  "bottleneck": toy.encoder(block="bottleneck", bottleneck_dim=8, post_norm=True, positions="rotary"),
}
CLEAN, NOISY = np.arange(10, 17)[None], np.arange(20, 27)[None]
LEVEL = 2**19


def blocks(config, block_length=3):
  return dataclasses.replace(config, block_length=block_length)


def two_streams(noisy=NOISY, clean=CLEAN, levels=LEVEL, **features):
  """Returns features of a text of which every token has a noise level."""
  rows = {"input_tokens": noisy, "target_tokens": clean, "noise_levels": np.full_like(noisy, 1) * levels}
  rows |= {"loss_weights": np.ones_like(noisy)} | features
  return {f"encoder_{name}": jnp.asarray(x) for name, x in rows.items()}


# ---- Visibility ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("kind", KINDS)
def test_a_noisy_block_reads_itself_and_clean_blocks_before_it(kind):
  """By gradient, with every scheme of positions that may repeat."""
  block = np.arange(7) // 3
  found = reached(blocks(KINDS[kind]), two_streams(), np.concatenate([CLEAN, NOISY], axis=1))
  np.testing.assert_array_equal(found[:, :7], block[:, None] > block[None, :])
  np.testing.assert_array_equal(found[:, 7:], block[:, None] == block[None, :])


@pytest.mark.slow
def test_a_text_without_noise_reads_its_block_and_earlier_ones():
  """Prediction has one stream; a window limits it further."""
  block, batch = np.arange(7) // 3, {"encoder_input_tokens": jnp.asarray(CLEAN)}
  expected = block[:, None] >= block[None, :]
  np.testing.assert_array_equal(reached(blocks(KINDS["rotary"]), batch, CLEAN), expected)
  place = np.arange(7)
  near = expected & (np.abs(place[:, None] - place) <= 1)
  local = blocks(dataclasses.replace(toy.KINDS["local_bert"], num_encoder_layers=1))
  np.testing.assert_array_equal(reached(local, batch, CLEAN), near)
  found = reached(local, two_streams(), np.concatenate([CLEAN, NOISY], axis=1))
  np.testing.assert_array_equal(found[:, :7], near & (block[:, None] > block))
  np.testing.assert_array_equal(found[:, 7:], near & (block[:, None] == block))


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("kind", ["rotary", "bert", "relative", "mosaic_bert"])
def test_two_streams_are_the_prediction_of_each_block(kind):
  """The states of a noisy block equal those of one stream: the clean text before it, then the block."""
  model = toy.model(blocks(KINDS[kind]))
  run = jax.jit(lambda model, batch: model(batch))
  found = np.asarray(run(model, two_streams()))[0]
  for begin, end in ((0, 3), (3, 6), (6, 7)):
    row = np.concatenate([CLEAN[:, :begin], NOISY[:, begin:end]], axis=1)
    alone = np.asarray(run(model, {"encoder_input_tokens": jnp.asarray(row)}))[0, begin:]
    np.testing.assert_allclose(found[begin:end], alone, atol=2e-5)


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("kind", ["rotary", "bert", "relative", "mosaic_bert"])
def test_one_block_is_a_bidirectional_encoder(kind):
  """With blocks as long as the row the clean stream is not read."""
  config = KINDS[kind]
  expected = toy.logits(toy.model(config), {"encoder_input_tokens": jnp.asarray(NOISY)})
  for length in (7, 100):
    found = toy.logits(toy.model(blocks(config, length)), two_streams())
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_a_given_token_is_read_as_it_is():
  """Without a noise level the clean text has the input, not the target, which may be padding."""
  model, levels = toy.model(blocks(KINDS["rotary"])), np.array([[0, 0, 0, 1, 1, 1, 1]]) * LEVEL
  found = toy.logits(model, two_streams(levels=levels, target_tokens=np.where(levels > 0, CLEAN, 0)))
  expected = toy.logits(model, two_streams(clean=np.where(levels > 0, CLEAN, NOISY)))
  np.testing.assert_allclose(found[:, 3:], expected[:, 3:], atol=1e-6)


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("kind", ["rotary", "bert", "relative"])
def test_packed_texts_do_not_see_each_other(kind):
  """Blocks begin with each text of a packed row, and padding changes nothing."""
  model = toy.model(blocks(KINDS[kind]))
  (one, two), (three, four) = (np.split(x, [4], axis=1) for x in (NOISY, CLEAN))
  expected = np.concatenate([toy.logits(model, two_streams(one, three)), toy.logits(model, two_streams(two, four))], 1)
  segments, positions = np.array([[1] * 4 + [2] * 3]), np.array([[0, 1, 2, 3, 0, 1, 2]])
  pad = lambda x: np.pad(x, [(0, 0), (0, 2)])
  features = {"segment_ids": pad(segments), "positions": pad(positions), "loss_weights": pad(np.ones_like(NOISY))}
  rows = two_streams(pad(NOISY), pad(CLEAN), pad(np.full_like(NOISY, LEVEL)), **features)
  np.testing.assert_allclose(np.asarray(toy.logits(model, rows))[:, :7], expected, atol=2e-5)


# ---- Settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  ("kind", "fields", "message"),
  [
    ("llama", {}, "block_length=3 needs config.model.architecture=encoder_only, not decoder_only"),
    ("t5_1_1", {}, "block_length=3 needs config.model.architecture=encoder_only, not encoder_decoder"),
    ("deberta", {}, "block_length=3 does not support config.model.positions=disentangled.*relative, rotary"),
    ("nezha", {}, "does not support config.model.positions=functional_relative"),
    ("longformer", {}, "does not support config.model.attention=longformer. Set config.model.attention='full'"),
    ("bert", {"two_streams": True}, "does not support config.model.two_streams=True"),
    ("mobilebert", {}, "does not support config.model.embedding=trigram. Set config.model.embedding='tokens'"),
    ("universal_bert", {}, "does not support config.model.recurrence=universal"),
    ("mosaic_bert", {"attention_kernel": "splash"}, "attention_kernel=splash does not support the mask of"),
    ("bert", {"block_length": -1}, "config.model.block_length=-1: must be at least 0"),
  ],
)
def test_models_that_cannot_read_blocks_are_refused(kind, fields, message):
  """Each message names the key, and a value that works."""
  with pytest.raises(UserError, match=message):
    dataclasses.replace(toy.KINDS[kind], **({"block_length": 3} | fields))


def test_kernels_and_flops_count_two_streams():
  """Training reads clean and noisy tokens, and its mask excludes kernels on every platform."""
  config = toy.KINDS["mosaic_bert"]
  shapes = {name: jax.ShapeDtypeStruct((8, 512), jnp.int32) for name in two_streams()}
  choose = lambda config, batch: dispatch.attention_kernels(config, batch)["encoder"]
  assert choose(blocks(config), shapes).kernel == "plain"
  mask = dataclasses.replace(dispatch.AttentionMask(ranks=jnp.zeros((8, 1024), jnp.int32)), streams=2)
  for platform in ("tpu", "gpu"):
    choice = dispatch.choose(
      *((8, 4, 1024, 64), (8, 4, 1024, 64), "bfloat16", mask),
      platform=platform,
      compute_capability="9.0",
      device_kind="TPU v5e",
    )
    assert str(choice) == "plain (two streams)"
  flops = lambda config, length: model_flops(config, batch_size=2, lengths={"encoder": length})
  logits = 6 * 2 * 8 * (16 * 40 + 16 * 16)
  assert flops(blocks(config), 8) == flops(config, 16) - logits


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("adapter", ["prompt", "prefix"])
def test_learned_vectors_stand_before_all_blocks(adapter):
  """A prompt or prefix is read by every block, and blocks are counted after it."""
  config, options = blocks(KINDS["rotary"]), {"prompt": prompt.PromptConfig(length=5), "prefix": prefix.PrefixConfig()}
  model = adapters_lib.adapt(toy.model(config), {adapter: options[adapter]}, nnx.Rngs(toy.key(1)))
  run = jax.jit(lambda model, batch: model(batch))
  found = np.asarray(run(model, two_streams()))[0]
  assert found.shape[0] == 7
  for begin, end in ((0, 3), (3, 6), (6, 7)):
    row = np.concatenate([CLEAN[:, :begin], NOISY[:, begin:end]], axis=1)
    alone = np.asarray(run(model, {"encoder_input_tokens": jnp.asarray(row)}))[0, begin:]
    np.testing.assert_allclose(found[begin:end], alone, atol=2e-5)
    plain = np.asarray(run(toy.model(config), {"encoder_input_tokens": jnp.asarray(row)}))[0, begin:]
    assert np.abs(plain - alone).max() > 1e-3
