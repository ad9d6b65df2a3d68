"""Prefix tuning (Li & Liang 2021): learned keys and values precede the self-attention's own in every layer.

A small network, trained with them, computes them from one vector per position. With `hidden=0` they are trained
directly: P-tuning v2 (Liu et al. 2022), which uses heads for its tasks (config.train.loss=heads).

The prefix takes the first positions, and the text the following ones, as in PEFT and transformers. A bias by distance
(T5, ALiBi) and learned positions count accordingly, and a window reaches the prefix only from nearby. Rotary positions
do not rotate its keys. Every text of a packed row attends to it, as if it directly preceded that text.
"""

import dataclasses
import re

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import UserError, did_you_mean, sharding
from t2t.models import attention, layers, transformer
from t2t.models.adapters import Adapter, patterns
from t2t.models.architecture import ENCODER_DECODER
from t2t.models.config import TransformerConfig

ADDED = "(^|/)prefix/"
SIDES = ENCODER_DECODER.sides


@dataclasses.dataclass(frozen=True)
class PrefixConfig:
  """Options of prefix tuning.

  Raises:
    UserError: a field is out of range, or a side is unknown.
  """

  length: int = 20  # number of keys and values in each layer; each takes a position of the model
  hidden: int = 512  # width of the network, default as in the paper; 0: no network (P-tuning v2)
  #: sides of the model with a prefix; PEFT uses only the last side
  sides: tuple[str, ...] = SIDES
  also_train: tuple[str, ...] = ()  # patterns over paths of other trained parameters: "norm", "bias"

  def __post_init__(self):
    for name, least in (("length", 1), ("hidden", 0)):
      if getattr(self, name) < least:
        raise UserError(f"config.prefix.{name}={getattr(self, name)}: must be at least {least}")
    for name in ("sides", "also_train"):  # lists, in a config.json
      object.__setattr__(self, name, tuple(getattr(self, name)))
    for side in self.sides:
      if side not in SIDES:
        raise UserError(
          f"config.prefix.sides: unknown side {side!r}. Known values: {', '.join(SIDES)}{did_you_mean(side, SIDES)}"
        )


class Prefix(nnx.Module):
  """Directly trained keys and values for each layer."""

  def __init__(self, model: TransformerConfig, config: PrefixConfig, rngs: nnx.Rngs, *, num_layers: int):
    self.length, self.head_dim = config.length, model.head_dim
    shape, axes = (num_layers, config.length, model.kv_heads * model.head_dim), ("positions", "heads")
    self.keys = layers.param(rngs, shape, axes, scale=1.0)
    self.values = layers.param(rngs, shape, axes, scale=1.0)

  def __call__(self) -> attention.KVCache:
    """Returns keys and values, [layers, kv heads, length, kv]."""
    return _by_heads(self.keys[...], self.values[...], self.head_dim)


class MadePrefix(nnx.Module):
  """Keys and values for each layer, computed from a vector per position by a tanh layer and a linear layer."""

  keys: nnx.Param
  keys_bias: nnx.Param
  values: nnx.Param
  values_bias: nnx.Param

  def __init__(self, model: TransformerConfig, config: PrefixConfig, rngs: nnx.Rngs, *, num_layers: int):
    self.length, self.head_dim = config.length, model.head_dim
    embed, hidden, joined = model.embed_dim, config.hidden, model.kv_heads * model.head_dim
    self.table = layers.param(rngs, (config.length, embed), ("positions", "embed"), scale=1.0)
    self.hidden = layers.param(rngs, (embed, hidden), ("embed", "rank"), scale=embed**-0.5)
    self.hidden_bias = nnx.Param(jnp.zeros(hidden, jnp.float32), axes=("rank",))
    shape, axes = (num_layers, hidden, joined), ("rank", "heads")
    for name in ("keys", "values"):
      setattr(self, name, layers.param(rngs, shape, axes, scale=hidden**-0.5))
      setattr(self, f"{name}_bias", nnx.Param(jnp.zeros((num_layers, joined), jnp.float32), axes=("heads",)))

  def __call__(self) -> attention.KVCache:
    """Returns keys and values, [layers, kv heads, length, kv]."""
    hidden = jnp.tanh(self.table[...] @ self.hidden[...] + self.hidden_bias[...])
    keys, values = (
      jnp.einsum("ph,lhk->lpk", hidden, out[...]) + bias[...][:, None]
      for out, bias in ((self.keys, self.keys_bias), (self.values, self.values_bias))
    )
    return _by_heads(keys, values, self.head_dim)


def _by_heads(keys: jax.Array, values: jax.Array, head_dim: int) -> attention.KVCache:
  """Reshapes both from [layers, length, kv heads * kv] to [layers, kv heads, length, kv]."""

  def split(x: jax.Array) -> jax.Array:
    x = jnp.swapaxes(x.reshape(*x.shape[:2], -1, head_dim), 1, 2)
    return sharding.shard(x, "layers", "heads", None, "kv")

  return attention.KVCache(split(keys), split(values))


def adapt(model: nnx.Module, config: PrefixConfig, rngs: nnx.Rngs) -> nnx.Module:
  """Returns the model with learned keys and values in its self-attentions.

  Raises:
    UserError: the model does not have the sides, or a pattern of `also_train` matches no parameter.
  """
  model = patterns.copy_of(model)
  make = MadePrefix if config.hidden else Prefix
  for _, submodel in patterns.modules(model, transformer.MODELS):
    sides = [side for side in submodel.architecture.sides if side in config.sides]
    if not sides:
      there = ",".join(submodel.architecture.sides)
      raise UserError(
        f"config.prefix.sides={','.join(config.sides)}: the model does not have these sides. Set "
        f"--config.prefix.sides={there}."
      )
    for side in sides:
      stack = getattr(submodel, side)
      stack.prefix = nnx.data(make(stack.config, config, rngs, num_layers=stack.num_layers))  # replaces None
  patterns.check(config.also_train, "config.prefix.also_train", patterns.paths_of(model))
  return model


def base_path(path: str) -> str | None:
  """Returns the path of a parameter in the base model; None: the adapter added it."""
  return None if re.search(ADDED, path) else path


ADAPTER = Adapter(
  PrefixConfig,
  adapt,
  ADDED,
  base_path,
  merge=None,
  positions=lambda config: config.length,
  sides=lambda config: config.sides,
)
