"""From hidden states to logits: the embedding or a projection, behind BERT's transform or not."""

from collections.abc import Callable
import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import sharding
from t2t.models import layers
from t2t.models.config import TransformerConfig


@dataclasses.dataclass(frozen=True)
class _Logits:
  """What is computed from the weights of a head; compared by value, as the static part of a pytree must be."""

  activation: str
  norm_epsilon: float
  centered: bool
  scale: float

  def __call__(self, weights: dict[str, jax.Array], hidden: jax.Array) -> jax.Array:
    """float32 [..., vocab] of [..., embed]."""
    if "transform" in weights:
      hidden = self._transformed(weights, hidden)
    if self.scale != 1.0:
      hidden = hidden * self.scale
    if "table" in weights:
      logits = jnp.einsum("...e,ve->...v", hidden, weights["table"], preferred_element_type=jnp.float32)
    else:
      logits = jnp.einsum("...e,ev->...v", hidden, weights["projection"], preferred_element_type=jnp.float32)
    return logits if "bias" not in weights else logits + weights["bias"]

  def _transformed(self, weights: dict[str, jax.Array], hidden: jax.Array) -> jax.Array:
    x = jnp.einsum("...e,ef->...f", hidden, weights["transform"])
    if "transform_bias" in weights:
      x = x + weights["transform_bias"].astype(x.dtype)
    x = layers.ACTIVATIONS[self.activation](x).astype(jnp.float32)
    return layers.normalise(
      x, weights["norm_scale"], weights.get("norm_bias"), epsilon=self.norm_epsilon, centered=self.centered
    ).astype(hidden.dtype)


class Head(nnx.Module):
  """Logits over the vocabulary: hidden states against the embedding if they are tied, else against a projection.

  With `config.logits_transform`, a dense layer, activation and norm stand before and a bias behind (BERT).
  """

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
    self.config = config
    width = config.embedding_dim or config.embed_dim
    axis = "embed" if width == config.embed_dim else "factor"
    scale, rows = layers.into(config, config.embed_dim), config.vocab_size
    self.projection = None if config.tied_logits else layers.param(rngs, (width, rows), (axis, "vocab"), scale=scale)
    if config.logits_transform:
      self.transform = layers.param(rngs, (config.embed_dim, width), ("embed", None), scale=scale)
      self.transform_bias = layers.bias(config, width, axis)
      self.norm = layers.Norm(config, width, axis=axis)
      self.bias = nnx.Param(jnp.zeros(rows, jnp.float32), axes=("vocab",))

  def logits_fn(self, embed: layers.Embed) -> Callable[[jax.Array], jax.Array]:
    """[..., embed] -> float32 logits [..., vocab], as a pytree that holds its weights.

    The weights are gathered and cast once, however often the function is called.
    """
    config, weights = self.config, {}

    def add(name: str, parameter: nnx.Param | None, dtype: str = "float32") -> None:
      if parameter is not None:
        weights[name] = sharding.gather(parameter[...].astype(dtype), tuple(parameter.get_metadata()["axes"]))

    if config.tied_logits:
      add("table", embed.table, config.dtype)
    add("projection", self.projection, config.dtype)
    if config.logits_transform:
      add("transform", self.transform, config.dtype)
      add("transform_bias", self.transform_bias)
      add("norm_scale", self.norm.scale)
      add("norm_bias", self.norm.bias)
      add("bias", self.bias)
    # T5 scales, because its embedding's entries have standard deviation 1.
    scale = config.embed_dim**-0.5 if config.tied_logits and not config.init_scale else 1.0
    function = _Logits(config.mlp_activation, config.norm_epsilon, config.norm == "layer", scale)
    return jax.tree_util.Partial(function, weights)
