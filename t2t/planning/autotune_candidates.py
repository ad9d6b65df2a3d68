"""Candidates of the search for the best plan of a config, and estimates of their memory and time before compilation."""

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
import math
from typing import Any, NamedTuple

import jax

from t2t import UserError, accelerators, sharding
from t2t.configuration.schema import Config
from t2t.models.flops import model_flops
from t2t.models.remat import ATTENTION_KEPT, ATTENTION_ON_HOST
from t2t.planning import aot_compile, mesh_layouts, roofline
from t2t.training import recipe

_MOST_TENSOR = 16
_BATCHES = (1, 2, 4)  # multiples of config.train.batch_size
_MICROBATCHES = (1, 2, 4, 8, 16)
# From the largest to the smallest activation memory; recomputation as a fraction of forward and backward together.
# These are three passes of matmuls; "full" repeats the forward pass, and ATTENTION_KEPT two thirds of it.
_RECOMPUTES = {"none": 0.0, "minimal": 0.02, ATTENTION_KEPT: 0.22, ATTENTION_ON_HOST: 0.22, "full": 1 / 3}
_REMATS = tuple(_RECOMPUTES)
_WORTH_OFFLOADING = 0.02  # fraction of a device's memory


def _recomputes(remat: str) -> float:
  """Returns the fraction of `_RECOMPUTES`; a custom policy counts as ATTENTION_KEPT."""
  return _RECOMPUTES.get(remat, _RECOMPUTES[ATTENTION_KEPT])


@dataclasses.dataclass(frozen=True)
class Candidate:
  """Settings that the search varies.

  mesh: (axis, size) for every axis.
  offload_optimizer: keeps the optimizer's moments in the host's memory.
  order: layout of the mesh's axes on a slice, see `config.mesh.physical_layout`.
  attention_block: see `config.model.attention_block`.
  """

  mesh: tuple[tuple[str, int], ...]
  batch_size: int
  microbatches: int
  remat: str
  offload_optimizer: bool = False
  order: mesh_layouts.Order = ()
  attention_block: int = 0

  def apply(self, config: Config) -> Config:
    """Returns the config with these settings."""
    return config.with_(
      mesh=dict(self.mesh) | {"physical_layout": self.order},
      train={
        "batch_size": self.batch_size,
        "microbatches": self.microbatches,
        "offload_optimizer": self.offload_optimizer,
      },
      model={"remat": self.remat, "attention_block": self.attention_block},
    )

  def needs_more(self, other: "Candidate") -> bool:
    """Returns True if the candidate certainly needs at least the memory of `other`."""
    if self.remat == other.remat:
      remat_ranks = (0, 0)
    elif {self.remat, other.remat} <= set(_REMATS):
      remat_ranks = [_REMATS.index(candidate.remat) for candidate in (self, other)]
    else:
      return False
    larger = self.batch_size >= other.batch_size and self.microbatches <= other.microbatches
    # For the same rows per microbatch, more microbatches need more memory, because gradients are accumulated.
    rows, other_rows = self.batch_size / self.microbatches, other.batch_size / other.microbatches
    larger = larger or (rows >= other_rows and self.microbatches >= other.microbatches)
    return (
      self.mesh == other.mesh
      and self.remat != ATTENTION_ON_HOST  # may need less than even "full", because the host keeps layer inputs
      and larger
      and remat_ranks[0] <= remat_ranks[1]
      and self.offload_optimizer <= other.offload_optimizer
    )

  def is_slower(self, other: "Candidate", plan: Mapping[str, Any]) -> bool:
    """Returns True if the candidate takes at least as long as `other`, which must not wait for a host.

    Recomputed values are not stored and read back. This may save all of a step's time except its products and its
    waiting for links.

    Args:
      other: candidate with the same batch.
      plan: plan of `other`.
    """
    # All other fields must be equal.
    ordered = {name: getattr(other, name) for name in ("microbatches", "remat", "offload_optimizer")}
    more = (1 + _recomputes(self.remat)) / (1 + _recomputes(other.remat))
    if (
      other.remat == ATTENTION_ON_HOST
      or dataclasses.replace(self, **ordered) != other
      or self.microbatches < other.microbatches
      or self.offload_optimizer < other.offload_optimizer
      or more < 1
    ):
      return False
    same = self.remat == other.remat or (self.remat, other.remat) == (ATTENTION_ON_HOST, ATTENTION_KEPT)
    if same or plan["seconds_at_peak"] is None:
      return True
    least = plan["seconds_at_peak"]["compute"] / roofline.MATMUL_SHARE * more + plan["exposed_seconds"]
    return least >= plan["predicted_step_seconds"]

  def flags(self) -> str:
    """Returns the command-line flags of these settings."""
    mesh = " ".join(f"--config.mesh.{axis}={size}" for axis, size in self.mesh if size > 1)
    mesh += f" --config.mesh.physical_layout={','.join(self.order)}" if self.order else ""
    return (
      f"{mesh} --config.train.batch_size={self.batch_size} --config.train.microbatches={self.microbatches}"
      f" --config.model.remat={self.remat}{' --config.train.offload_optimizer=True' * self.offload_optimizer}"
      + (f" --config.model.attention_block={self.attention_block}" if self.attention_block else "")
    ).strip()


def meshes(config: Config, num_devices: int) -> list[dict[str, int]]:
  """Returns the meshes to try: tensor over up to 16 devices that divide the heads, the rest fsdp, data, or both.

  Other axes stay as in the config.
  """
  sizes = sharding.mesh_sizes({**config.mesh.sizes, "data": 1, "fsdp": -1, "tensor": 1}, num_devices)
  other_axes = {axis: size for axis, size in sizes.items() if axis not in ("data", "fsdp", "tensor")}
  free = num_devices // math.prod(other_axes.values())
  stacks = [config.model.of_stack(side) for side in config.model.kind.sides]
  heads = math.gcd(*(number for stack in stacks for number in (stack.num_heads, stack.kv_heads)))
  layouts = []
  for tensor in range(1, min(free, _MOST_TENSOR) + 1):
    if free % tensor or heads % tensor:
      continue
    remaining = free // tensor
    splits = {1, remaining} | {
      data for data in (2, 4, 8, 16, 32, 64) if remaining % data == 0 and remaining // data >= 4
    }
    layouts += [{**other_axes, "data": data, "fsdp": remaining // data, "tensor": tensor} for data in sorted(splits)]
  return [{axis: mesh[axis] for axis in sizes} for mesh in layouts]


# ---- Estimates before compilation ------------------------------------------------------------------------------------


class _Parts(NamedTuple):
  """Mesh, bytes of parameters and of the optimizer per device, and sides with attention without a kernel."""

  mesh: jax.sharding.Mesh
  params: int
  optimizer: int
  plain: set[str]


class Estimate:
  """Estimates memory and time of candidates, to order their compilation.

  Args:
    config: base config of the search.
    devices: devices of the slice.
  """

  def __init__(self, config: Config, devices: Sequence[jax.Device]):
    self._config, self._devices = config, devices
    self._model = config.model
    kind = devices[0].device_kind
    self._chip, self._peak = accelerators.CHIPS.get(kind), accelerators.peak_flops(kind) or 1e12
    self._parts: dict[tuple[tuple[str, int], ...], _Parts | None] = {}

  def state(self, mesh_sizes: tuple[tuple[str, int], ...]) -> _Parts | None:
    """Returns a mesh's properties; None if it does not divide the parameters, or lacks a requested kernel."""
    if mesh_sizes not in self._parts:
      try:
        mesh = sharding.make_mesh(dict(mesh_sizes), devices=self._devices)
        with jax.set_mesh(mesh):
          _, state, _ = recipe.make(self._config).state(mesh)
        chosen = aot_compile.attention_kernels(self._config, mesh)
        plain = {part.split()[0] for part, choice in chosen.items() if choice.kernel == "plain"}
        params = aot_compile.bytes_per_device((state.params, state.frozen_params))
        self._parts[mesh_sizes] = _Parts(mesh, params, aot_compile.bytes_per_device(state.opt_state), plain)
      except UserError:
        self._parts[mesh_sizes] = None
    return self._parts[mesh_sizes]

  def memory(self, candidate: Candidate) -> float:
    """Returns a rough estimate of bytes per device: state, gradients, and activations kept for the backward pass."""
    _, params, optimizer, _ = self.state(candidate.mesh)
    optimizer = 0 if candidate.offload_optimizer else optimizer
    kept_bytes, working, away = self._activations(candidate)
    return 2 * params + optimizer + kept_bytes - away + working

  def _activations(self, candidate: Candidate) -> tuple[float, float, float]:
    """Returns bytes of kept activations, of one layer's working memory, and of activations on the host."""
    mesh, _, _, plain = self.state(candidate.mesh)
    model, tensor = self._model, dict(candidate.mesh)["tensor"]
    rows = candidate.batch_size / sharding.num_shards("batch", mesh) / candidate.microbatches
    width = 2 if model.dtype == "bfloat16" else 4
    # The host's memory holds all of it except attention outputs.
    is_away = candidate.remat == ATTENTION_ON_HOST
    sides = recipe.positions(self._config)
    layers = {"encoder": model.num_encoder_layers, "decoder": model.num_decoder_layers}
    total, working, away = 0.0, 0.0, 0.0
    for side, length in sides.items():
      model = self._model.of_stack(side)
      # Features per position and layer: residual stream; matmul outputs; values between these.
      residual = model.embed_dim / tensor
      joined, inner = model.num_heads * model.head_dim, model.block_class.inner_features(model)
      matmuls = 2 * residual + (2 * joined + 2 * model.kv_heads * model.head_dim + inner) / tensor
      per_token = {"full": residual, "minimal": residual + matmuls, "none": 4 * model.embed_dim + 2 * matmuls}
      per_token[ATTENTION_KEPT] = residual + 2 * (joined + model.kv_heads * model.head_dim) / tensor
      # Without a kernel, logits of all pairs.
      scores = model.num_heads / tensor * length * 3 if side in plain else 0
      extra = {"none": scores}.get(candidate.remat, 0.0)
      features = per_token.get(candidate.remat, per_token[ATTENTION_KEPT]) + extra
      total += rows * length * width * layers[side] * features
      away += is_away * rows * length * width * layers[side] * (features - joined / tensor)
      if side == "decoder" and "encoder" in sides and candidate.remat != "full":
        # Queries and attention outputs, and keys and values of the encoder's positions.
        both = 2 * length * joined + 2 * sides["encoder"] * model.kv_heads * model.head_dim
        total += rows * width * layers[side] * both / tensor
        away += is_away * rows * width * layers[side] * (both - length * joined) / tensor
      # One layer at a time.
      working = max(working, rows * length * width * (per_token["none"] + scores))
    return total, working, away

  def seconds(self, candidate: Candidate) -> float:
    """Returns a rough estimate of a step's time: matmuls, activations, main collectives, and offloading."""
    mesh, params, optimizer, _ = self.state(candidate.mesh)
    model, sizes = self._model, dict(candidate.mesh)
    sides = recipe.positions(self._config)
    flops = model_flops(model, batch_size=candidate.batch_size, lengths=sides)
    compute = flops * (1 + _recomputes(candidate.remat)) / mesh.size / (self._peak * roofline.MATMUL_SHARE)
    schedule = recipe.pipeline_schedule(
      self._config.with_(
        train={"batch_size": candidate.batch_size, "microbatches": candidate.microbatches},
      ),
      mesh,
    )
    compute /= 1.0 - (schedule.bubble if schedule else 0.0)
    if self._chip is None:
      return compute
    kept_bytes, _, away = self._activations(candidate)
    compute += 2 * kept_bytes * candidate.microbatches / (self._chip.hbm_bandwidth * roofline.BANDWIDTH_SHARE)
    passes = 3 if candidate.remat == "full" else 2

    def send(axis: str, number: float) -> float:
      if sizes[axis] == 1:
        return 0.0
      return accelerators.send_seconds(self._chip, mesh, (axis,), number * (sizes[axis] - 1) / sizes[axis])

    # Weights are gathered in bfloat16 for every pass of every microbatch; gradients are reduced once in each.
    gathered = params * sizes["fsdp"] / 2
    fsdp = send("fsdp", gathered * (passes + 1) * candidate.microbatches)
    data = send("data", 2 * params * candidate.microbatches)
    rows = candidate.batch_size / sharding.num_shards("batch", mesh)
    sums = model.num_encoder_layers * 2 * sides.get("encoder", 0) * model.of_stack("encoder").embed_dim
    branches = 3 if model.num_encoder_layers else 2
    sums += model.num_decoder_layers * branches * sides.get("decoder", 0) * model.embed_dim
    tensor = send("tensor", 2 * passes * rows * sums * 2)
    to_host = lambda number: 2 * number / (self._chip.host_bandwidth * roofline.BANDWIDTH_SHARE)
    # About this fraction of prefetched gathers and deferred reductions is not hidden.
    step = compute + 0.6 * fsdp + data + tensor + (to_host(optimizer) if candidate.offload_optimizer else 0.0)
    return max(step, to_host(away * candidate.microbatches))


def without_evaluation(config: Config, estimate: Estimate, num_devices: int) -> list[dict[str, int]]:
  """Returns the meshes that are excluded because they do not divide config.eval.batch_size."""
  states = ((sizes, estimate.state(tuple(sizes.items()))) for sizes in meshes(config, num_devices))
  return [sizes for sizes, state in states if state is not None and not _evaluates(config, state.mesh)]


def _evaluates(config: Config, mesh: jax.sharding.Mesh) -> bool:
  return config.eval.batch_size % sharding.num_shards("batch", mesh) == 0


def candidates(
  config: Config, devices: Sequence[jax.Device], *, capacity: float | None, estimate: Estimate | None = None
) -> list[Candidate]:
  """Returns candidates for compilation, the most promising first: with the config's batch size, then with larger ones.

  Args:
    config: base config of the search.
    devices: devices of the slice.
    capacity: bytes per device; meshes are excluded if parameters, and an optimizer on the device, do not fit.
    estimate: estimate for this config and these devices, with cached results per mesh; None: a new one.
  """
  estimate, same_batch, larger = estimate or Estimate(config, devices), [], []
  remats = list(dict.fromkeys([*reversed(_REMATS), config.model.remat]))
  for sizes in meshes(config, len(devices)):
    mesh_sizes = tuple(sizes.items())
    state = estimate.state(mesh_sizes)
    if state is None:
      continue
    mesh, params, optimizer, _ = state
    shards = sharding.num_shards("batch", mesh)
    if not _evaluates(config, mesh):
      continue
    for offload in (False, True):
      # Offloading a small optimizer costs time and saves almost no memory.
      if offload and optimizer < _WORTH_OFFLOADING * (capacity or math.inf):
        continue
      if capacity is not None and params + (0 if offload else optimizer) > capacity:
        continue
      for times, parts, remat in itertools.product(_BATCHES, _MICROBATCHES, remats):
        batch_size = config.train.batch_size * times
        # Larger batches gain almost nothing with proportionally more microbatches, except with offloading.
        if batch_size % (shards * parts) == 0 and (times == 1 or times > parts or offload):
          candidate = Candidate(
            mesh_sizes, batch_size, parts, remat, offload, attention_block=config.model.attention_block
          )
          (same_batch if times == 1 else larger).append(candidate)

  def key(candidate: Candidate):
    # The memory estimate may be off by a third.
    too_large = capacity is not None and estimate.memory(candidate) > capacity * 1.3
    return too_large, estimate.seconds(candidate) / candidate.batch_size

  return sorted(same_batch, key=key) + sorted(larger, key=key)
