"""What training measures: weighted sums, model FLOPs, throughput."""

import collections
from collections.abc import Mapping
import dataclasses
import time

import jax
import jax.numpy as jnp

from t2t.models.config import TransformerConfig


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class WeightedSum:
  """A sum and the weight that it is divided by, once, after all parts have been added."""

  total: jax.Array
  weight: jax.Array

  def __add__(self, other: "WeightedSum") -> "WeightedSum":
    return WeightedSum(self.total + other.total, self.weight + other.weight)

  def value(self) -> jax.Array:
    """total / weight; 0 where nothing counted."""
    return jnp.where(self.weight > 0, self.total / jnp.maximum(self.weight, 1e-8), 0.0)


Metrics = dict[str, WeightedSum]


def merge(first: Metrics, second: Metrics) -> Metrics:
  """The metrics of two batches as one."""
  return {name: first[name] + second[name] for name in first}


# bfloat16 FLOP/s of one device, by `jax.Device.device_kind`.  Google Cloud's TPU system pages and NVIDIA's data sheets
# (dense, without sparsity).  A device that is not here (a CPU) has no MFU.
PEAK_FLOPS: Mapping[str, float] = {
  "TPU v2": 22.5e12,
  "TPU v3": 61.5e12,
  "TPU v4": 275e12,
  "TPU v5 lite": 197e12,
  "TPU v5": 459e12,
  "TPU v6 lite": 918e12,
  "TPU7x": 1153.5e12,
  "NVIDIA A100-SXM4-40GB": 312e12,
  "NVIDIA A100-SXM4-80GB": 312e12,
  "NVIDIA A100-PCIE-40GB": 312e12,
  "NVIDIA A100 80GB PCIe": 312e12,
  "NVIDIA H100 80GB HBM3": 989.4e12,
  "NVIDIA H100 PCIe": 756e12,
  "NVIDIA H200": 989.4e12,
  "NVIDIA B200": 2250e12,
}


def model_flops(
  config: TransformerConfig, *, batch_size: int, lengths: Mapping[str, int], predicted: float = 1.0
) -> float:
  """Floating-point operations of one training step, forward and backward, without recomputation.

  Two for each multiply-add, three times the forward pass for forward and backward: 6 x parameters of a matmul x the
  tokens that pass through it, plus attention's scores and weighted values (a causal mask or a window saves nothing
  here).  Embedding lookups, norms, softmax and activations are not counted (PaLM, Chowdhery et al. 2022, appendix B).

  Args:
    config: shape of the model.
    batch_size: sequences.
    lengths: positions of "encoder" and "decoder" that are computed, padding included.
    predicted: share of the last stack's positions whose logits are needed.
  """
  encoder_length, decoder_length = (lengths.get(side, 0) for side in ("encoder", "decoder"))
  joined, kv_joined = config.num_heads * config.head_dim, config.kv_heads * config.head_dim
  queries, keys = 2 * config.embed_dim * joined, 2 * config.embed_dim * kv_joined  # and out, and values
  mlp = (3 if config.gated else 2) * config.embed_dim * config.mlp_dim
  block = queries + keys + mlp
  encoder = config.num_encoder_layers * (block * encoder_length + 2 * joined * encoder_length**2)
  decoder = config.num_decoder_layers * (block * decoder_length + 2 * joined * decoder_length**2)
  if encoder_length and decoder_length:
    cross = queries * decoder_length + keys * encoder_length + 2 * joined * decoder_length * encoder_length
    decoder += config.num_decoder_layers * cross
  width = config.embedding_dim or config.embed_dim
  projected = width * config.vocab_size + (config.embed_dim * width if config.logits_transform else 0)
  logits = projected * predicted * (decoder_length or encoder_length)
  embedding = config.embedding_dim * config.embed_dim * (encoder_length + decoder_length)
  return 6.0 * batch_size * (embedding + encoder + decoder + logits)


class Throughput:
  """Tokens per second, step time, MFU and the share of time spent waiting for data, as a moving average.

  The first step is left out: it contains the compilation.
  """

  def __init__(self, *, flops_per_step: float, devices: list[jax.Device]):
    peak = PEAK_FLOPS.get(devices[0].device_kind)
    self._flops_per_second = None if peak is None else peak * len(devices)
    self._flops_per_step = flops_per_step
    # (seconds, tokens, seconds waited) of the latest steps
    self._window: collections.deque[tuple[float, float, float]] = collections.deque(maxlen=50)
    self._last: float | None = None

  def step(self, *, tokens: float, wait_seconds: float) -> dict[str, float]:
    """Notes that a step has ended; what is known of the latest steps, nothing after the first."""
    now = time.monotonic()
    if self._last is not None:
      self._window.append((now - self._last, tokens, wait_seconds))
    self._last = now
    if not self._window:
      return {}
    seconds, tokens, waited = (sum(column) for column in zip(*self._window, strict=True))
    values = {
      "step_seconds": self._window[-1][0],
      "tokens_per_second": tokens / seconds,
      "steps_per_second": len(self._window) / seconds,
      "input_wait": self._window[-1][2] / self._window[-1][0],
      "input_wait_average": waited / seconds,
    }
    if self._flops_per_second is not None:
      values["mfu"] = self._flops_per_step * values["steps_per_second"] / self._flops_per_second
    return values

  def pause(self) -> None:
    """What happens from here to the next step is no part of it (an evaluation)."""
    self._last = None
