"""What stands on a model's hidden states: the head over the vocabulary, which all have, and those that go by a name."""

from collections.abc import Callable
import dataclasses
from typing import Literal, Protocol

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import sharding
from t2t.models import layers
from t2t.models.config import HeadConfig, TransformerConfig


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


class VocabularyHead(nnx.Module):
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


# ---- By name ---------------------------------------------------------------------------------------------------------


class Head(Protocol):
  """What a model has under a name of its own; its parameters are at heads/NAME.

  reads: "tokens", the hidden states of all positions, [batch, length, embed]; "first", those of each sequence's first
    position, [batch, embed], of batches with one sequence in a row.
  """

  reads: Literal["tokens", "first"]

  def __call__(self, hidden: jax.Array, *, dropout_key: jax.Array | None = None) -> jax.Array:
    """What it makes of what it reads, float32."""


class ClassHead(nnx.Module):
  """Logits of the classes that a sequence may belong to: BERT's pooler, dropout and a projection.

  The pooler is a dense layer with tanh on the first position (Devlin et al. 2019); RoBERTa and ALBERT have the same.
  """

  reads = "first"

  def __init__(self, config: TransformerConfig, head: HeadConfig, rngs: nnx.Rngs):
    embed, scale = config.embed_dim, layers.into(config, config.embed_dim)
    self.dropout_rate, self.gradient_dtype = config.dropout_rate, config.gradient_dtype
    self.pooler = layers.param(rngs, (embed, embed), ("embed", None), scale=scale)
    self.pooler_bias = layers.bias(config, embed, "embed")
    self.projection = layers.param(rngs, (embed, head.num_classes), ("embed", None), scale=scale)
    # In models without biases, too: some classes are more frequent than others.
    self.projection_bias = nnx.Param(jnp.zeros(head.num_classes, jnp.float32), axes=(None,))

  def pooled(self, hidden: jax.Array) -> jax.Array:
    """[batch, embed] -> the same, in the dtype of `hidden`."""
    return jnp.tanh(layers.dense(hidden, self.pooler, self.pooler_bias, gradient_dtype=self.gradient_dtype))

  def __call__(self, hidden: jax.Array, *, dropout_key: jax.Array | None = None) -> jax.Array:
    """float32 [batch, classes] of [batch, embed]."""
    pooled = layers.dropout(self.pooled(hidden), self.dropout_rate, dropout_key)
    kernel = self.projection[...].astype(pooled.dtype)
    return jnp.einsum("be,ec->bc", pooled, kernel, preferred_element_type=jnp.float32) + self.projection_bias[...]


class DetectorHead(nnx.Module):
  """Scores of each token: a dense layer, the model's activation and a projection (ELECTRA, Clark et al. 2020)."""

  reads = "tokens"

  def __init__(self, config: TransformerConfig, head: HeadConfig, rngs: nnx.Rngs):
    embed, scale = config.embed_dim, layers.into(config, config.embed_dim)
    self.activation, self.gradient_dtype = config.mlp_activation, config.gradient_dtype
    self.dense = layers.param(rngs, (embed, embed), ("embed", None), scale=scale)
    self.dense_bias = layers.bias(config, embed, "embed")
    self.projection = layers.param(rngs, (embed, head.num_classes), ("embed", None), scale=scale)
    self.projection_bias = nnx.Param(jnp.zeros(head.num_classes, jnp.float32), axes=(None,))

  def __call__(self, hidden: jax.Array, *, dropout_key: jax.Array | None = None) -> jax.Array:
    """float32 [batch, length, scores] of [batch, length, embed]."""
    del dropout_key
    x = layers.dense(hidden, self.dense, self.dense_bias, gradient_dtype=self.gradient_dtype)
    x = layers.activate(self.activation, x)
    kernel = self.projection[...].astype(x.dtype)
    return jnp.einsum("ble,ec->blc", x, kernel, preferred_element_type=jnp.float32) + self.projection_bias[...]


HEADS: dict[str, Callable[[TransformerConfig, HeadConfig, nnx.Rngs], Head]] = {
  "class": ClassHead,
  "detector": DetectorHead,
}

_READ: dict[str, Callable[[jax.Array], jax.Array]] = {"tokens": lambda hidden: hidden, "first": lambda x: x[:, 0]}


def build(config: TransformerConfig, rngs: nnx.Rngs) -> nnx.Dict:
  """The heads of a model by their names."""
  return nnx.Dict({head.name: HEADS[head.kind](config, head, rngs) for head in config.heads})


def call(head: Head, hidden: jax.Array, *, dropout_key: jax.Array | None = None) -> jax.Array:
  """What a head makes of the part that it reads of [batch, length, embed]."""
  return head(_READ[head.reads](hidden), dropout_key=dropout_key)
