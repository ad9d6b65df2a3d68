"""The kernel that an attention runs on, under the mesh that is set."""

import jax

from t2t import UserError, sharding
from t2t.models import kernels
from t2t.models.config import TransformerConfig
from t2t.models.masks import AttentionMask


def choose(
  query: jax.Array | jax.ShapeDtypeStruct,
  keys: jax.Array | jax.ShapeDtypeStruct,
  mask: AttentionMask,
  *,
  bias: str,
  dropout: str,
  reach: int = 0,
  kernel: str = "",
) -> kernels.Choice:
  """The kernel that `attention.attend` runs on; shapes will do.

  Args:
    query, keys: see `attention.attend`.
    mask: what it has matters, not the numbers in it.
    bias, dropout: see `kernels.BIASES` and `kernels.DROPOUTS`.
    reach: of a bias by distance.
    kernel: the one that is asked for; "": the best.

  Raises:
    UserError: it cannot be had; says why not.
  """
  chosen = kernels.choose(
    query.shape,
    keys.shape,
    query.dtype,
    mask,
    platform=sharding.platform(),
    bias=bias,
    reach=reach,
    dropout=dropout,
    device_kind=sharding.device_kind(),
    compute_capability=kernels.compute_capability(),
    batch_shards=sharding.num_shards("batch"),
    head_shards=sharding.num_shards("heads"),
    length_shards=sharding.num_shards("length"),
    asked=kernel,
  )
  if kernel and chosen.kernel != kernel:
    needed, here = kernels.PLATFORMS.get(kernel), sharding.platform()
    if needed not in (None, here):
      raise UserError(
        f"config.model.attention_kernel={kernel}: cannot be had on a {here.upper()}, it runs on {needed.upper()}s;"
        " leave it empty, and each attention runs on what it can"
      )
    raise UserError(
      f"config.model.attention_kernel={kernel}: cannot be had for queries of {list(query.shape)} and keys of"
      f" {list(keys.shape)}, which run {chosen}; leave it empty, and each attention runs on what it can"
    )
  return chosen


def choose_in(
  config: TransformerConfig,
  batch: int,
  query_length: int,
  key_length: int,
  mask: AttentionMask,
  *,
  biased: bool,
  drops: bool = True,
) -> kernels.Choice:
  """`choose` for a kind of attention that layers of this config have.

  Args:
    config: of the model.
    batch, query_length, key_length: sizes of queries and keys.
    mask: with the window of these layers.
    biased: something is added by distance.
    drops: as in training.
  """
  shape = lambda heads, length: jax.ShapeDtypeStruct((batch, heads, length, config.head_dim), config.dtype)
  return choose(
    shape(config.num_heads, query_length),
    shape(config.kv_heads, key_length),
    mask,
    bias="soft cap" if config.attention_softcap else "distance" if biased else "",
    reach=config.bias_reach(key_length) if biased else 0,
    dropout=config.attention_dropout if drops else "",
    kernel=config.attention_kernel,
  )
