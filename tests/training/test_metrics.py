import dataclasses
import types
from unittest import mock

from flax import nnx
import jax
import numpy as np
import pytest
import toy

from t2t import metrics, sharding
from t2t.models.flops import model_flops
from t2t.models.masks import AttentionMask
from t2t.training import throughput as throughput_lib
from t2t.training.throughput import Throughput


def weighted(total, weight):
  return metrics.WeightedSum(np.float32(total), np.float32(weight))


def test_weighted_sums_are_divided_once():
  """(3 + 10) / (1 + 4), not the mean of 3 and 2.5."""
  assert (weighted(3, 1) + weighted(10, 4)).value() == pytest.approx(2.6)


def test_a_sum_without_weight_is_zero():
  """A batch without counted positions has no NaN."""
  assert weighted(0, 0).value() == 0.0


def test_a_weight_may_be_less_than_one():
  """Weights are no counts if a task weights tokens by fractions."""
  assert weighted(0.5, 0.25).value() == pytest.approx(2.0)


def test_merge_adds_each_metric():
  merged = metrics.merge({"loss": weighted(1, 1), "z": weighted(0, 1)}, {"loss": weighted(5, 2), "z": weighted(3, 2)})
  assert {name: float(metric.value()) for name, metric in merged.items()} == {"loss": 2.0, "z": 1.0}


def counted_flops(config, batch, *, logits_chunk_tokens):
  """Counts two FLOPs for each multiply-add of all matrix products in a step's program, forward and backward.

  A loop of unknown length counts once. The program is in bfloat16 and for a mesh, because a CPU would compute attention
  scores twice.
  """
  graphdef, params = toy.split(toy.model(dataclasses.replace(config, dtype="bfloat16")))
  loss_fn = toy.summed_loss(toy.loss_config(logits_chunk_tokens=logits_chunk_tokens))
  function = jax.value_and_grad(lambda params: loss_fn(nnx.merge(graphdef, params), batch, None)[0])
  with mock.patch.object(sharding, "is_alone", lambda: False):
    jaxpr = jax.make_jaxpr(function)(params).jaxpr
  counted = 0
  for equation, repeated in toy.equations(jaxpr):
    if equation.primitive.name == "dot_general":
      (contracted, _), _ = equation.params["dimension_numbers"]
      depth = np.prod([equation.invars[0].aval.shape[axis] for axis in contracted])
      counted += 2 * repeated * depth * np.prod(equation.outvars[0].aval.shape)
  return counted


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["t5_1_1", "t5_1_0", "modern_t5", "shared_stacks", "t5gemma"])
def test_model_flops_are_the_matmuls_of_a_step(kind):
  """Encoder, decoder and cross-attention, also with grouped queries, and an encoder of another size."""
  batch, every_position = toy.batch((8,) * 4, (6,) * 4, padded_to=(8, 6)), dict(attention_window=0)
  every_position |= dict(encoder_attention_window=0, global_attention_every=0, global_attention_first=0)
  config = dataclasses.replace(toy.KINDS[kind], **every_position)
  flops = model_flops(config, batch_size=4, lengths={"encoder": 8, "decoder": 6})
  assert flops == counted_flops(config, batch, logits_chunk_tokens=12)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "prefix_lm"])
def test_model_flops_of_a_decoder_alone(kind):
  """All positions are predicted if the batch has no prompt."""
  batch = toy.batch((8,) * 4, (6,) * 4, padded_to=(8, 6), architecture="decoder_only")
  del batch["decoder_causal_attention"]
  flops = model_flops(toy.KINDS[kind], batch_size=4, lengths={"decoder": 14})
  assert flops == counted_flops(toy.KINDS[kind], batch, logits_chunk_tokens=14)


@pytest.mark.slow
@pytest.mark.exhaustive_from(3)
@pytest.mark.parametrize("kind", ["bert", "roberta", "rembert", "mobilebert"])
def test_model_flops_of_an_encoder_alone(kind):
  """A quarter of the positions is predicted: one chunk of 8 tokens out of 32."""
  batch = toy.batch((8,) * 4, (1,) * 4, padded_to=(8, 1), architecture="encoder_only")
  flops = model_flops(toy.KINDS[kind], batch_size=4, lengths={"encoder": 8}, predicted=0.25)
  assert flops == counted_flops(toy.KINDS[kind], batch, logits_chunk_tokens=8)


@pytest.mark.parametrize("every", [0, 1, 2, 3])
@pytest.mark.parametrize("window", [0, 1, 3, 7, 8, 100])
def test_model_flops_of_a_window(window, every):
  """Layers with a window count the pairs that their mask allows."""
  config = dataclasses.replace(
    toy.KINDS["bert"], num_encoder_layers=5, attention_window=window, global_attention_every=every if window else 0
  )
  flops = lambda of: model_flops(of, batch_size=2, lengths={"encoder": 8})
  whole = flops(dataclasses.replace(config, attention_window=0, global_attention_every=0))
  near = 64 if not window else AttentionMask(window=window).allowed(8, 8).sum()
  local = 5 - len(range(0, 5, every)) if every else 5
  assert whole - flops(config) == 6 * 2 * local * 2 * config.num_heads * config.head_dim * (64 - near)


def throughput(monkeypatch, device_kind):
  now = types.SimpleNamespace(seconds=100.0)
  monkeypatch.setattr(throughput_lib.time, "monotonic", lambda: now.seconds)
  devices = [types.SimpleNamespace(device_kind=device_kind)] * 2
  return now, Throughput(flops_per_step=5.5e14, devices=devices)


def test_throughput_leaves_out_the_first_step(monkeypatch):
  """Rates are over later steps, without pauses."""
  now, measured = throughput(monkeypatch, "TPU v4")
  assert measured.step(tokens=1000.0, wait_seconds=0.0) == {}
  now.seconds += 2.0
  assert measured.step(tokens=10.0, wait_seconds=0.5)["tokens_per_second"] == 5.0
  measured.pause()
  now.seconds += 1000.0
  measured.step(tokens=1000.0, wait_seconds=0.0)
  now.seconds += 4.0
  values = measured.step(tokens=20.0, wait_seconds=1.0)
  assert values["tokens_per_second"] == pytest.approx(30 / 6)
  assert values["steps_per_second"] == pytest.approx(2 / 6)
  assert values["step_seconds"] == pytest.approx(4.0)
  assert values["input_wait"] == pytest.approx(1 / 4)
  assert values["input_wait_average"] == pytest.approx(1.5 / 6)
  assert values["mfu"] == pytest.approx(5.5e14 / 3 / (2 * 275e12))


def test_a_device_whose_peak_is_unknown_has_no_mfu(monkeypatch):
  """For example a CPU."""
  now, measured = throughput(monkeypatch, "cpu")
  measured.step(tokens=1.0, wait_seconds=0.0)
  now.seconds += 1.0
  assert "mfu" not in measured.step(tokens=1.0, wait_seconds=0.0)
