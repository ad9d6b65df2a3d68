"""What the backward pass finds saved of a layer, as `config.model.remat` says; the rest is computed again."""

from collections.abc import Callable

import jax
import jax.extend

from t2t import UserError, did_you_mean

# What a layer computes and can be asked to keep, in the order of its computing.  "attention" is what a fused kernel
# gives, and its softmax's statistics; the others are what the layer reads, and what its matrices give.
NAMES = ("input", "query", "key", "value", "attention", "attention_out", "mlp_gate", "mlp_up", "mlp_out")
# Policies by one word; "none" is no jax.checkpoint at all.
POLICIES = ("none", "minimal", "full", "offload")
# What large models are published with: projections and kernels are not run again, the MLP is.  And where that is too
# much for a device, its host keeps what each layer reads and projects.
ATTENTION_KEPT = "query,key,value,attention"
ATTENTION_ON_HOST = "input@host,query@host,key@host,value@host,attention"
_HOST = "@host"
# Name of a kernel's output in the policies, so that the backward pass does not run a kernel forward again.
SAVED = "attention"


def of_products(*, on_host: bool) -> list[str]:
  """Names of all that matrices and kernels give; of matrices in the host's memory, if it is to be there."""
  return [name + _HOST * (on_host and name != "attention") for name in NAMES if name != "input"]


def parse(remat: str) -> tuple[list[str], list[str]]:
  """What of a list of names stays on the device, and what waits in the host's memory.

  "query,key,input@host" -> ["query", "key"], ["input"]

  Raises:
    UserError: no such policy, or a name that no layer has, or that stands there twice.
  """
  parts = [part.strip() for part in remat.split(",")]
  names = [part.removesuffix(_HOST) for part in parts]
  for part in names:
    if part not in NAMES:
      known = (*POLICIES, *NAMES) if len(names) == 1 else NAMES
      raise UserError(
        f"config.model.remat={remat!r}: {part!r} is no policy ({', '.join(POLICIES)}) and nothing that a layer can keep"
        f" ({', '.join(NAMES)}; with @host in the host's memory){did_you_mean(part, known)}"
      )
    if names.count(part) > 1:
      raise UserError(f"config.model.remat={remat!r}: {part} is in it twice")
  host = [part.removesuffix(_HOST) for part in parts if part.endswith(_HOST)]
  return [part for part in names if part not in host], host


_NAMED_KERNELS = jax.checkpoint_policies.save_only_these_names(SAVED)
_OFFLOAD_MATMULS = jax.checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host")


def _is_cudnn(primitive: jax.extend.core.Primitive) -> bool:
  """Whether this is cuDNN's forward pass, of which nothing has the name that policies of `jax.checkpoint` go by."""
  return primitive.name == "dot_product_attention_fwd_wrapper"


def _kernels(primitive, *args, **params) -> bool:
  """A kernel's output, which few policies want computed twice."""
  return _is_cudnn(primitive) or _NAMED_KERNELS(primitive, *args, **params)


def _offload(primitive, *args, **params):
  """As "minimal", but what matmuls give waits in the host's memory for the backward pass."""
  return _kernels(primitive, *args, **params) is True or _OFFLOAD_MATMULS(primitive, *args, **params)


def policy(name: str, quantization: str) -> Callable[..., bool]:
  """What `jax.checkpoint` is given for a value of `config.model.remat` other than "none"."""
  policies = jax.checkpoint_policies
  if quantization and name in ("minimal", "offload"):
    # What a quantized product gives has 32 bits, until it is scaled back: it is kept then, by its name.
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
