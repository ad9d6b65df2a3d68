"""Ensembles predict each token with the mean of their members' probabilities, scored or generated."""

import dataclasses

from flax import nnx
import jax
import numpy as np
import pytest
import toy

from t2t.inference import decoding
from t2t.models import ensemble

KINDS = {"encoder_decoder": toy.config(), "decoder_only": toy.decoder(), "encoder_only": toy.encoder()}


def members(architecture):
  """Returns two models of other widths and parameters."""
  wider = dataclasses.replace(
    KINDS[architecture], embed_dim=24, num_decoder_layers=0 if architecture == "encoder_only" else 1
  )
  return [toy.model(KINDS[architecture], seed=1), toy.model(wider, seed=2)]


def rebuilt(models):
  """Returns the ensemble as `nnx.merge` makes it of its structure and its parameters."""
  graphdef, state = nnx.split(ensemble.EnsembleModel(models), graph=False)
  return nnx.merge(graphdef, nnx.to_pure_dict(state))


@pytest.mark.exhaustive_from(2)
@pytest.mark.parametrize("architecture", ["decoder_only", "encoder_only", "encoder_decoder"])
def test_targets_have_the_mean_of_the_probabilities(architecture):
  """The log-likelihood of a row is the sum over its tokens of the logarithm of the mean, computed by hand."""
  models, batch = members(architecture), toy.batch(architecture=architecture)
  side = "encoder" if architecture == "encoder_only" else "decoder"
  targets, weights = (np.asarray(batch[f"{side}_{name}"]) for name in ("target_tokens", "loss_weights"))
  probabilities = np.mean([jax.nn.softmax(toy.logits(model, batch), axis=-1) for model in models], axis=0)
  chosen = np.take_along_axis(probabilities, targets[..., None], axis=-1)[..., 0]
  expected = np.sum(np.log(chosen) * weights, axis=1)
  found, _ = jax.jit(decoding.likelihoods)(rebuilt(models), batch)
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  one, _ = jax.jit(decoding.likelihoods)(rebuilt(models[:1]), batch)
  alone, _ = jax.jit(decoding.likelihoods)(models[0], batch)
  np.testing.assert_allclose(one, alone, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("architecture", ["decoder_only", "encoder_decoder"])
def test_generated_tokens_have_the_mean_of_the_probabilities(architecture, num_beams):
  """The score of a generated text is its log-likelihood by the ensemble, and the greedy choice is the likeliest."""
  models = members(architecture)
  both = rebuilt(models)
  prompts = toy.batch((7, 4), (1, 1), padded_to=(8, 1), architecture=architecture)
  config = decoding.DecodeConfig(max_length=4, num_beams=num_beams, length_penalty=0.0)
  decoded = jax.jit(lambda model, batch: decoding.decode(model, batch, config=config, eos_id=-1))(both, prompts)
  tokens = np.asarray(decoded.tokens[:, 0])
  batch = forced(prompts, tokens, architecture)
  probabilities = np.mean([jax.nn.softmax(toy.logits(model, batch), axis=-1) for model in models], axis=0)[:, -4:]
  if architecture == "decoder_only":
    length = np.asarray(prompts["decoder_causal_attention"]).sum(axis=1)
    all_probabilities = np.mean([jax.nn.softmax(toy.logits(model, batch), axis=-1) for model in models], axis=0)
    probabilities = np.stack([row[n - 1 : n + 3] for row, n in zip(all_probabilities, length, strict=True)])
  chosen = np.take_along_axis(probabilities, tokens[..., None], axis=-1)[..., 0]
  np.testing.assert_allclose(decoded.scores[:, 0], np.sum(np.log(chosen), axis=1), rtol=1e-4)
  if num_beams == 1:
    np.testing.assert_array_equal(tokens, probabilities.argmax(axis=-1))


def forced(prompts, tokens, architecture):
  """Returns the batch that feeds generated tokens back to the model."""
  if architecture == "encoder_decoder":
    start = np.zeros((len(tokens), 1), np.int32)
    return {**prompts, "decoder_input_tokens": np.concatenate([start, tokens[:, :-1]], axis=1)}
  read, is_prompt = (np.asarray(prompts[f"decoder_{x}"]) for x in ("input_tokens", "causal_attention"))
  rows = [[*row[mark > 0], *new[:-1]] for row, mark, new in zip(read, is_prompt, tokens, strict=True)]
  width = max(map(len, rows))
  inputs = np.array([[*row, *[0] * (width - len(row))] for row in rows], np.int32)
  segments = np.array([[1] * len(row) + [0] * (width - len(row)) for row in rows], np.int32)
  return {"decoder_input_tokens": inputs, "decoder_segment_ids": segments}
