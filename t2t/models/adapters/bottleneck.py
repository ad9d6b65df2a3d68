"""Small feed-forward layers behind the branches of a model's layers: what Houlsby's and Pfeiffer's adapters are."""

from typing import Protocol

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import UserError, did_you_mean
from t2t.models import layers, stack
from t2t.models.adapters import patterns

ADDED = "(^|/)adapters/"


class BottleneckConfig(Protocol):
  """The keys that the sections of such adapters have in common."""

  @property
  def bottleneck(self) -> int:
    """Their width inside."""

  @property
  def activation(self) -> str:
    """A name of `layers.ACTIVATIONS`."""

  @property
  def also_train(self) -> tuple[str, ...]:
    """Patterns over paths of parameters that are trained as they are."""


class Bottleneck(nnx.Module):
  """x + activation(x W_down + b_down) W_up + b_up; W_up and both biases are zero at first, so that it gives x."""

  def __init__(self, embed_dim: int, size: int, rngs: nnx.Rngs, *, activation: str, stacked: tuple[int, ...]):
    down = embed_dim**-0.5 * jax.random.normal(rngs.params(), (*stacked, embed_dim, size), jnp.float32)
    zeros = lambda *shape: jnp.zeros((*stacked, *shape), jnp.float32)
    self.activation = activation
    self.down = nnx.Param(down, axes=("embed", "rank"))
    self.down_bias = nnx.Param(zeros(size), axes=("rank",))
    self.up = nnx.Param(zeros(size, embed_dim), axes=("rank", "embed"))
    self.up_bias = nnx.Param(zeros(embed_dim), axes=("embed",))

  def __call__(self, x: jax.Array) -> jax.Array:
    """[batch, length, embed] -> the same."""
    hidden = layers.activate(self.activation, layers.dense(x, self.down, self.down_bias))
    return x + layers.dense(hidden, self.up, self.up_bias)


def check(section: str, size: int, activation: str) -> None:
  """Refuses sizes and names that there are not.

  Raises:
    UserError: names the key.
  """
  if size < 1:
    raise UserError(f"config.{section}.bottleneck={size}: must be at least 1")
  known = [name for name in layers.ACTIVATIONS if not name.startswith("gated_")]
  if activation not in known:
    raise UserError(
      f"config.{section}.activation={activation!r}: known are {', '.join(known)}{did_you_mean(activation, known)}"
    )


def adapt(
  model: nnx.Module, config: BottleneckConfig, rngs: nnx.Rngs, *, section: str, branches: tuple[str, ...]
) -> nnx.Module:
  """The model with a `Bottleneck` behind some branches of every layer that has them, in front of the residual sum.

  Args:
    model: stays as it is.
    config: the section's record, of which `bottleneck` is their width inside.
    rngs: of the initial values.
    section: of the config, for messages.
    branches: of self_attention, cross_attention, mlp.

  Raises:
    UserError: a pattern of `also_train` that matches no parameter.
  """
  model = patterns.copy_of(model)
  for _, layer in patterns.modules(model, stack.Layer):
    there = [branch for branch in branches if branch in vars(layer)]
    if there:
      *stacked, embed_dim = getattr(layer, f"{there[0]}_norm").scale[...].shape
      options = {"activation": config.activation, "stacked": tuple(stacked)}
      bottlenecks = nnx.Dict({branch: Bottleneck(embed_dim, config.bottleneck, rngs, **options) for branch in there})
      layer.adapters = nnx.data(bottlenecks)  # in place of a None
  patterns.check(config.also_train, f"config.{section}.also_train", patterns.paths_of(model))
  return model


def base_path(path: str) -> str | None:
  """Where a parameter was before; None: it is new."""
  return None if "/adapters/" in path else path
