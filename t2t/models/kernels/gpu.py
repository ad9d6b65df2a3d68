"""Attention on NVIDIA GPUs: cuDNN's, and Tokamax's in Triton for shapes and dtypes that cuDNN does not support.

Both sum the gradient of a bias over rows, but Tokamax first writes it for each row: [batch, heads, query, key] in
float32. Without a bias neither allocates an array of that size.
"""

import dataclasses
import importlib.util
import logging
from typing import Any

from absl import flags
import jax
import jax.numpy as jnp

from t2t import sharding
from t2t.models.masks import AttentionMask


def is_structure(mask: AttentionMask) -> bool:
  """Returns True if cuDNN has this mask built in: causal, padding or none; a window only with a causal mask."""
  is_hidden = mask.key_segments is not None and not mask.padded
  return not is_hidden and mask.ranks is None and (mask.prefix is None if mask.causal else not mask.window)


def has_triton() -> bool:
  """Returns True if Tokamax, the extra `tokamax`, is installed."""
  return importlib.util.find_spec("tokamax") is not None


def attend_cudnn(
  query: jax.Array, keys: jax.Array, values: jax.Array, mask: AttentionMask, *, bias: jax.Array | None = None
) -> jax.Array:
  """Computes cuDNN's attention on one device; other masks than the built-in ones become [batch, 1, query, key].

  Args:
    query: [batch, heads, query, kv].
    keys, values: [batch, kv heads, key, kv].
    mask: see `dispatch.attend`.
    bias: float32 [1, heads, query, key].
  """
  lengths = None
  if mask.padded:
    # Lengths instead of a mask, which cuDNN would add to the bias and expand to [batch, heads, query, key]. Rows of
    # padding keep their first position, because a softmax needs at least one key.
    assert mask.key_segments is not None
    lengths = jnp.maximum(jnp.sum(mask.key_segments > 0, axis=1, dtype=jnp.int32), 1)
    mask = dataclasses.replace(mask, query_segments=None, key_segments=None)
  return _attend(
    jax.nn.dot_product_attention,
    "cudnn",
    *(query, keys, values, mask),
    bias=None if bias is None else bias.astype(query.dtype),
    key_value_seq_lengths=lengths,
  )


def attend_triton(
  query: jax.Array, keys: jax.Array, values: jax.Array, mask: AttentionMask, *, bias: jax.Array | None = None
) -> jax.Array:
  """Computes Tokamax's attention in Triton, see `attend_cudnn`.

  Source: openxla/tokamax.
  """
  if not flags.FLAGS.is_parsed():
    flags.FLAGS.mark_as_parsed()  # prevents it from parsing the command line
  import tokamax

  logging.getLogger("absl").addFilter(_tunes_nothing)
  return _attend(tokamax.dot_product_attention, "triton", query, keys, values, mask, bias=bias)


def _attend(function, implementation: str, query, keys, values, mask: AttentionMask, **options: Any) -> jax.Array:
  causal = mask.causal and mask.prefix is None
  explicit_mask = dataclasses.replace(mask, causal=False, window=0) if causal else mask
  attended = function(
    *(jnp.swapaxes(x, 1, 2) for x in (query, keys, values)),
    mask=explicit_mask.allowed(query.shape[2], keys.shape[2]),
    scale=1.0,
    is_causal=causal,
    local_window_size=(mask.window, 0) if causal and mask.window else None,
    implementation=implementation if sharding.platform() == "gpu" else "xla",
    **options,
  )
  return jnp.swapaxes(attended, 1, 2)


def _tunes_nothing(record: logging.LogRecord) -> bool:
  """Filters Tokamax's warning at every call that its blocks are not tuned; the defaults are intended."""
  return not record.getMessage().startswith("Autotuning cache miss")
