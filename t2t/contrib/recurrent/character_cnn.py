"""Token vectors from characters: convolutions over a token's bytes, highway layers and a projection (ELMo).

The characters of each id are a table of the model, which `character_table` fills from the run's vocabulary. It is no
weight: it is frozen, and checkpoints keep it, so that every reader of a checkpoint has it.
"""

import dataclasses
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import UserError, did_you_mean, sharding
from t2t.contrib.recurrent.bilm import BothDirections
from t2t.models import layers
from t2t.models.config import TransformerConfig

NUM_CHARACTERS = 262  # 256 bytes, five marks, and 0 for positions of no token
_CARRY_BIAS = -2.0  # of the gates, so that highway layers at first copy their input (Kim et al. 2016, section 2.3)


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Sizes of a character CNN.

  width: features of a character.
  filters: (characters of a window, number of filters) of each convolution.
  highways: number of highway layers.
  longest: characters of a token with the marks of its begin and end; further ones are cut.
  """

  width: int
  filters: tuple[tuple[int, int], ...]
  highways: int
  longest: int

  @property
  def features(self) -> int:
    """Returns the number of filters of all convolutions."""
    return sum(number for _, number in self.filters)


_ELMO = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
# config.model.character_cnn -> sizes; the first two are those of the released models (Peters et al. 2018).
SIZES = {
  "elmo": Sizes(16, _ELMO, highways=2, longest=50),
  "elmo_small": Sizes(16, _ELMO, highways=1, longest=50),
  "tiny": Sizes(8, ((1, 8), (2, 16), (3, 32), (4, 64)), highways=1, longest=20),
}


class Highway(nnx.Module):
  """y = g relu(x W + b) + (1 - g) x with g = sigmoid(x V + c) (Srivastava et al. 2015)."""

  def __init__(self, config: TransformerConfig, size: int, rngs: nnx.Rngs):
    scale, axes = layers.fan_in_scale(config, size), ("embed", "mlp")
    self.kernel = layers.param(rngs, (size, size), axes, scale=scale)
    self.bias = nnx.Param(jnp.zeros(size, jnp.float32), axes=("mlp",))
    self.gate = layers.param(rngs, (size, size), axes, scale=scale)
    self.gate_bias = nnx.Param(jnp.full(size, _CARRY_BIAS, jnp.float32), axes=("mlp",))
    self.gradient_dtype = config.gradient_dtype

  def __call__(self, x: jax.Array) -> jax.Array:
    new = jax.nn.relu(layers.dense(x, self.kernel, self.bias, gradient_dtype=self.gradient_dtype))
    gate = jax.nn.sigmoid(layers.dense(x, self.gate, self.gate_bias, gradient_dtype=self.gradient_dtype))
    return gate * new + (1.0 - gate) * x


class CharacterCnn(nnx.Module):
  """Maps the characters of tokens to vectors.

  Source: Kim et al. 2016, section 2; Jozefowicz et al. 2016, section 3.2; with the sizes of Peters et al. 2018.
  """

  def __init__(self, config: TransformerConfig, sizes: Sizes, rngs: nnx.Rngs):
    self.sizes, self.dtype, self.gradient_dtype = sizes, config.dtype, config.gradient_dtype
    self.recomputes = config.remat != "none"
    self.characters = layers.param(rngs, (NUM_CHARACTERS, sizes.width), (None, None), scale=config.init_scale or 1.0)
    kernel = lambda rows, number: layers.param(
      rngs, (rows, number), (None, None), scale=layers.fan_in_scale(config, rows)
    )
    self.kernels = nnx.Dict({f"width_{width}": kernel(width * sizes.width, n) for width, n in sizes.filters})
    self.bias = nnx.Param(jnp.zeros(sizes.features, jnp.float32), axes=(None,))
    self.highways = nnx.Dict({f"layer_{i}": Highway(config, sizes.features, rngs) for i in range(sizes.highways)})
    shape, scale = (sizes.features, config.embedding_width), layers.fan_in_scale(config, sizes.features)
    self.projection = layers.param(rngs, shape, ("embed", "mlp"), scale=scale)
    self.projection_bias = nnx.Param(jnp.zeros(config.embedding_width, jnp.float32), axes=("mlp",))

  def _convolved(self, ids: jax.Array) -> jax.Array:
    """Returns the largest value of each filter, [..., features], over the windows of int [..., longest]."""
    # As `layers.Embed.vectors`: gradients of a character with many occurrences are summed in float32.
    x = jnp.take(self.characters[...], ids, axis=0).astype(self.dtype)
    largest = []
    for width, _ in self.sizes.filters:
      number = ids.shape[-1] - width + 1
      windows = jnp.concatenate([x[..., i : i + number, :] for i in range(width)], axis=-1)
      y = layers.dense(windows, self.kernels[f"width_{width}"], gradient_dtype=self.gradient_dtype)
      largest.append(jnp.max(y, axis=-2))
    return jnp.concatenate(largest, axis=-1)

  def __call__(self, ids: jax.Array) -> jax.Array:
    """Maps int [..., longest] to [..., embedding width].

    The maximum includes windows of padding, as in the release. The number of padded characters has no effect, if
    windows of padding alone exist.
    """
    convolved = jax.checkpoint(self._convolved) if self.recomputes else self._convolved
    # Bias and activation are increasing, so that they commute with the maximum.
    x = jax.nn.relu(layers.add_bias(convolved(ids), self.bias))
    for i in range(self.sizes.highways):
      x = self.highways[f"layer_{i}"](x)
    return layers.dense(x, self.projection, self.projection_bias, gradient_dtype=self.gradient_dtype)


class CharacterEmbed(layers.Embed):
  """Token vectors by a `CharacterCnn`, in place of a table of vectors.

  Raises:
    UserError: the sizes are unknown, or the config needs a table of token vectors.
  """

  constants = ("(^|/)embed/characters$",)

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs, *, owns_table: bool = True):
    del owns_table
    _check(config)
    super().__init__(config, rngs, owns_table=False)
    sizes = SIZES[config.character_cnn]
    self.characters = nnx.Param(jnp.zeros((config.vocab_size, sizes.longest), jnp.int32), axes=("vocab", None))
    self.cnn = CharacterCnn(config, sizes, rngs)

  @property
  def table(self) -> Any:
    """Raises an error, because there is no table of token vectors."""
    raise UserError(
      f"config.model.embedding={self.config.embedding}: token vectors are computed from characters, so there is no "
      "table that config.prompt, config.electra or a converted checkpoint could use. Leave these out, or set "
      "config.model.embedding=tokens."
    )

  @table.setter
  def table(self, value: None) -> None:
    assert value is None

  @property
  def prompt_ids(self) -> jax.Array:
    return jnp.zeros(0, jnp.int32)

  def vectors(self, tokens: jax.Array, table: nnx.Param | None = None) -> jax.Array:
    assert table is None
    x = self.cnn(jnp.take(self.characters[...], tokens, axis=0))
    x = sharding.shard(x.astype(self.dtype), "batch", "length", "embed")
    return x if self.scale == 1.0 else x * jnp.asarray(self.scale, self.dtype)

  @classmethod
  def multiply_adds(cls, config: TransformerConfig) -> float:
    return _multiply_adds(config) + super().multiply_adds(config)


class CharactersBothDirections(BothDirections, CharacterEmbed):
  """`CharacterEmbed` whose vector is the input of both directions, as in ELMo; see `BothDirections`."""

  @classmethod
  def multiply_adds(cls, config: TransformerConfig) -> float:
    return _multiply_adds(config)


def _multiply_adds(config: TransformerConfig) -> float:
  """Returns multiplications with parameters of the CNN per token."""
  sizes = SIZES[config.character_cnn]
  convolutions = sum((sizes.longest - width + 1) * width * sizes.width * number for width, number in sizes.filters)
  return convolutions + sizes.features * (2 * sizes.highways * sizes.features + config.embedding_width)


def _check(config: TransformerConfig) -> None:
  if config.character_cnn not in SIZES:
    raise UserError(
      f"config.model.character_cnn={config.character_cnn!r}: unknown sizes. Give one of {', '.join(SIZES)}"
      f"{did_you_mean(config.character_cnn, SIZES) or '.'}"
    )
  for name in ("tied_logits", "embedding_difference"):
    if getattr(config, name):
      raise UserError(
        f"config.model.{name}=True needs a table of token vectors, but config.model.embedding={config.embedding} "
        f"computes them from characters. Set --config.model.{name}=False, or --config.model.embedding=tokens."
      )
