"""Bottleneck layers after the branches of a model's layers, shared by Houlsby's and Pfeiffer's adapters."""

from typing import Protocol

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import UserError, did_you_mean
from t2t.models import layers, stack
from t2t.models.adapters import patterns

ADDED = "(^|/)adapters/"


class BottleneckConfig(Protocol):
  """The common keys of the sections of bottleneck adapters."""

  @property
  def bottleneck(self) -> int:
    """Width of the bottleneck."""

  @property
  def activation(self) -> str:
    """A name in `layers.ACTIVATIONS`."""

  @property
  def also_train(self) -> tuple[str, ...]:
    """Patterns over paths of other trained parameters."""


class Bottleneck(nnx.Module):
  """Computes x + activation(x W_down + b_down) W_up + b_up; starts as the identity, with W_up and biases at zero."""

  def __init__(self, embed_dim: int, size: int, rngs: nnx.Rngs, *, activation: str, stacked: tuple[int, ...]):
    down = embed_dim**-0.5 * jax.random.normal(rngs.params(), (*stacked, embed_dim, size), jnp.float32)
    zeros = lambda *shape: jnp.zeros((*stacked, *shape), jnp.float32)
    self.activation = activation
    self.down = nnx.Param(down, axes=("embed", "rank"))
    self.down_bias = nnx.Param(zeros(size), axes=("rank",))
    self.up = nnx.Param(zeros(size, embed_dim), axes=("rank", "embed"))
    self.up_bias = nnx.Param(zeros(embed_dim), axes=("embed",))

  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps [batch, length, embed] to the same shape."""
    hidden = layers.activate(self.activation, layers.dense(x, self.down, self.down_bias))
    return x + layers.dense(hidden, self.up, self.up_bias)


def check(section: str, size: int, activation: str) -> None:
  """Checks the width and the activation.

  Raises:
    UserError: a value is invalid; the message contains the key.
  """
  if size < 1:
    raise UserError(f"config.{section}.bottleneck={size}: must be at least 1")
  known = [name for name in layers.ACTIVATIONS if not name.startswith("gated_")]
  if activation not in known:
    raise UserError(
      f"config.{section}.activation={activation!r}: unknown activation. Known values: "
      f"{', '.join(known)}{did_you_mean(activation, known)}"
    )


def adapt(
  model: nnx.Module, config: BottleneckConfig, rngs: nnx.Rngs, *, section: str, branches: tuple[str, ...]
) -> nnx.Module:
  """Returns the model with a `Bottleneck` after some branches of every layer that has them, before the residual sum.

  Args:
    model: the base model, which is not modified.
    config: the section's dataclass, with the width `bottleneck`.
    rngs: random keys of the initial values.
    section: name of the config section, for messages.
    branches: of self_attention, cross_attention, mlp.

  Raises:
    UserError: a pattern of `also_train` matches no parameter.
  """
  model = patterns.copy_of(model)
  for _, layer in patterns.modules(model, stack.Layer):
    there = [branch for branch in branches if branch in vars(layer)]
    if there:
      *stacked, embed_dim = getattr(layer, f"{there[0]}_norm").scale[...].shape
      options = {"activation": config.activation, "stacked": tuple(stacked)}
      bottlenecks = nnx.Dict({branch: Bottleneck(embed_dim, config.bottleneck, rngs, **options) for branch in there})
      layer.adapters = nnx.data(bottlenecks)  # replaces None
  patterns.check(config.also_train, f"config.{section}.also_train", patterns.paths_of(model))
  return model


def base_path(path: str) -> str | None:
  """Returns the path of a parameter in the base model; None: the adapter added it."""
  return None if "/adapters/" in path else path
