"""Decoder registry: a bidirectional encoder that generates by unmasking."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import UserError, sharding
from t2t.inference import decoding, predictor
from t2t.inference.prompt_features import PromptFraming, padded
from t2t.models import config as config_lib

FRAMING = PromptFraming(bos_id=0, eos_id=toy.EOS, pad_id=0, cls_id=37, sep_id=38, mask_id=39)
LENGTH = 4


class Unmasking:
  """Fills one masked position per iteration, with the highest probability of its likeliest token."""

  streams = False

  @staticmethod
  def check(config, prompt_length, max_length):
    if max_length > 8:
      raise UserError(f"max_length={max_length}: at most 8 positions are unmasked")

  @staticmethod
  def features(prompts, width, *, architecture, framing, max_length):
    rows = [[framing.cls_id, *prompt, *[framing.mask_id] * max_length] for prompt in prompts]
    return {
      "encoder_input_tokens": padded(rows, width + 1 + max_length, framing.pad_id),
      "encoder_segment_ids": padded([[1] * len(row) for row in rows], width + 1 + max_length, 0),
      "mask_start": np.array([len(row) - max_length for row in rows], np.int32),
    }

  @staticmethod
  def decode(model, batch, key, *, config, eos_id):
    rows, places = jnp.arange(len(batch["mask_start"]))[:, None], batch["mask_start"][:, None]
    places = places + jnp.arange(config.max_length)

    def unmask(_, carried):
      tokens, scores = carried
      features = {"encoder_input_tokens": tokens, "encoder_segment_ids": batch["encoder_segment_ids"]}
      log_p = jax.nn.log_softmax(model.logits(model(features)))[rows, places]
      is_masked = tokens[rows, places] == FRAMING.mask_id
      best = jnp.where(is_masked, jnp.max(log_p.at[..., FRAMING.mask_id].set(-jnp.inf), axis=-1), -jnp.inf)
      chosen = jnp.argmax(best, axis=1)
      token = jnp.argmax(log_p.at[..., FRAMING.mask_id].set(-jnp.inf), axis=-1)[rows[:, 0], chosen]
      tokens = tokens.at[rows[:, 0], places[rows[:, 0], chosen]].set(token)
      return tokens, scores + jnp.max(best, axis=1)

    start = batch["encoder_input_tokens"], jnp.zeros(len(rows), jnp.float32)
    tokens, scores = jax.lax.fori_loop(0, config.max_length, unmask, start)
    return decoding.Decoded(tokens[rows, places][:, None], scores[:, None])


@pytest.fixture
def unmasking(monkeypatch):
  """Registers config.model.decoder=unmasking."""
  monkeypatch.setitem(config_lib.DECODERS.rows, "unmasking", f"{__name__}:Unmasking")


def encoder():
  return dataclasses.replace(toy.KINDS["bert"], decoder="unmasking", dtype="float32", dropout_rate=0.0)


def make_predictor(config, graphdef, max_length=LENGTH):
  decode = decoding.DecodeConfig(max_length=max_length)
  mesh = sharding.make_mesh({"data": 1}, devices=jax.devices()[:1])
  return predictor.Predictor(config, graphdef, mesh, FRAMING, decode=decode, batch_size=2, max_inputs=8)


@pytest.mark.exhaustive
def test_an_encoder_generates(unmasking):
  """Generation does not depend on the attention direction."""
  config = encoder()
  assert config.is_generative and not toy.KINDS["bert"].is_generative
  graphdef, params = toy.split(toy.model(config, seed=1))
  writer = make_predictor(config, graphdef)
  found = writer.generate(params, [[7, 8, 9], [5, 6]])
  alone = writer.generate(params, [[5, 6]])
  assert [len(each.tokens[0]) <= LENGTH for each in found] == [True, True]
  assert found[1].tokens == alone[0].tokens
  np.testing.assert_allclose(found[1].scores, alone[0].scores, rtol=1e-5)
  assert all(FRAMING.mask_id not in each.tokens[0] for each in found)


def test_a_decoder_checks_lengths(unmasking):
  """The predictor calls the decoder's own check."""
  config = encoder()
  graphdef, _ = toy.split(toy.model(config, seed=1))
  with pytest.raises(UserError, match="max_length=9: at most 8 positions are unmasked"):
    make_predictor(config, graphdef, max_length=9)


def test_unknown_decoders_are_refused():
  """The message has the nearest name; a model without a decoder has none to ask."""
  with pytest.raises(
    UserError,
    match=re.escape(
      "config.model.decoder='autoregresive': unknown value. Known values: autoregressive, speculative, unmask; "
    ),
  ):
    dataclasses.replace(toy.KINDS["gpt2"], decoder="autoregresive")
  with pytest.raises(UserError, match="an encoder-only model cannot generate text"):
    toy.KINDS["bert"].text_decoder  # noqa: B018 - a property
