"""Rematerialization policies of `config.model.remat`: the activations that the backward pass keeps."""

from collections.abc import Callable

import jax
import jax.extend

from t2t import UserError, did_you_mean

# Activations that a layer can keep, in order of computation. "attention" is a fused kernel's output with its softmax
# statistics, "input" the layer's input, and the others are outputs of its matrices.
NAMES = ("input", "query", "key", "value", "attention", "attention_out", "mlp_gate", "mlp_up", "mlp_out")
# Policies with a name; "none" does not use jax.checkpoint.
POLICIES = ("none", "minimal", "full", "offload")
# Policies of large published models: projections and kernels are kept, the MLP is recomputed. If device memory does not
# suffice, the host keeps each layer's input and projections.
ATTENTION_KEPT = "query,key,value,attention"
ATTENTION_ON_HOST = "input@host,query@host,key@host,value@host,attention"
_HOST = "@host"
# Checkpoint name of a kernel's output, so that the backward pass does not rerun the kernel.
SAVED = "attention"


def of_products(*, on_host: bool) -> list[str]:
  """Returns the names of all outputs of matrices and kernels; matrix outputs are on the host if `on_host`."""
  return [name + _HOST * (on_host and name != "attention") for name in NAMES if name != "input"]


def parse(remat: str) -> tuple[list[str], list[str]]:
  """Splits a list of names into activations kept on the device and on the host.

  "query,key,input@host" -> ["query", "key"], ["input"]

  Raises:
    UserError: unknown policy, or an unknown or duplicate name.
  """
  parts = [part.strip() for part in remat.split(",")]
  names = [part.removesuffix(_HOST) for part in parts]
  for part in names:
    if part not in NAMES:
      known = (*POLICIES, *NAMES) if len(names) == 1 else NAMES
      raise UserError(
        f"config.model.remat={remat!r}: unknown value {part!r}{did_you_mean(part, known) or '.'} Policies: "
        f"{', '.join(POLICIES)}. Activations: {', '.join(NAMES)}. Append @host to an activation to keep the "
        "activation in the host's memory."
      )
    if names.count(part) > 1:
      raise UserError(f"config.model.remat={remat!r}: {part} occurs twice. Remove one occurrence.")
  host = [part.removesuffix(_HOST) for part in parts if part.endswith(_HOST)]
  return [part for part in names if part not in host], host


_NAMED_KERNELS = jax.checkpoint_policies.save_only_these_names(SAVED)
_OFFLOAD_MATMULS = jax.checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host")


def _is_cudnn(primitive: jax.extend.core.Primitive) -> bool:
  """Returns True for cuDNN's forward pass; its output has no checkpoint name."""
  return primitive.name == "dot_product_attention_fwd_wrapper"


def _kernels(primitive, *args, **params) -> bool:
  """Policy that keeps the outputs of kernels."""
  return _is_cudnn(primitive) or _NAMED_KERNELS(primitive, *args, **params)


def _offload(primitive, *args, **params):
  """Policy like "minimal", but with matmul outputs in the host's memory."""
  return _kernels(primitive, *args, **params) is True or _OFFLOAD_MATMULS(primitive, *args, **params)


def policy(name: str, quantization: str) -> Callable[..., bool]:
  """Returns the `jax.checkpoint` policy for a value of `config.model.remat` other than "none"."""
  policies = jax.checkpoint_policies
  if quantization and name in ("minimal", "offload"):
    # The quantized product itself has 32 bits, so its scaled result is kept by name instead.
    name = ",".join(of_products(on_host=name == "offload"))
  if name == "minimal":
    return policies.save_from_both_policies(policies.checkpoint_dots_with_no_batch_dims, _kernels)
  if name == "full":
    return policies.nothing_saveable
  if name == "offload":
    return _offload
  device, host = parse(name)
  named = policies.save_and_offload_only_these_names(
    names_which_can_be_saved=device,
    names_which_can_be_offloaded=host,
    offload_src="device",
    offload_dst="pinned_host",
  )
  if SAVED not in device:
    return named
  return lambda primitive, *args, **params: _is_cudnn(primitive) or named(primitive, *args, **params)
