"""What the backward pass finds saved of a layer, as `config.model.remat` says; the rest is computed again."""

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
  kept = [part.removesuffix(_HOST) for part in parts]
  for part in kept:
    if part not in NAMES:
      known = (*POLICIES, *NAMES) if len(kept) == 1 else NAMES
      raise UserError(
        f"config.model.remat={remat!r}: {part!r} is no policy ({', '.join(POLICIES)}) and nothing that a layer can keep"
        f" ({', '.join(NAMES)}; with @host in the host's memory){did_you_mean(part, known)}"
      )
    if kept.count(part) > 1:
      raise UserError(f"config.model.remat={remat!r}: {part} is in it twice")
  host = [part.removesuffix(_HOST) for part in parts if part.endswith(_HOST)]
  return [part for part in kept if part not in host], host
