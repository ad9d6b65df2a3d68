"""cuDNN's attention, on NVIDIA GPUs."""

import dataclasses

import jax
import jax.numpy as jnp

from t2t import sharding
from t2t.models.masks import AttentionMask


def is_structure(mask: AttentionMask) -> bool:
  """Whether cuDNN knows this mask by its name: causal or none, with a window only if it is causal."""
  return mask.key_segments is None and (mask.prefix is None if mask.causal else not mask.window)


def attend(
  query: jax.Array, keys: jax.Array, values: jax.Array, mask: AttentionMask, *, bias: jax.Array | None = None
) -> jax.Array:
  """cuDNN's attention of one device; what it has no name for is a mask of [batch, 1, query, key].

  Args:
    query: [batch, heads, query, kv].
    keys, values: [batch, kv heads, key, kv].
    mask: see `kernels.attend`.
    bias: float32 [1, heads, query, key].
  """
  causal = mask.causal and mask.prefix is None
  rest = dataclasses.replace(mask, causal=False, window=0) if causal else mask
  allowed = rest.allowed(query.shape[2], keys.shape[2])
  attended = jax.nn.dot_product_attention(
    *(jnp.swapaxes(x, 1, 2) for x in (query, keys, values)),
    bias=None if bias is None else bias.astype(query.dtype),
    mask=allowed,
    scale=1.0,
    is_causal=causal,
    local_window_size=(mask.window, 0) if causal and mask.window else None,
    implementation="cudnn" if sharding.platform() == "gpu" else "xla",
  )
  return jnp.swapaxes(attended, 1, 2)
