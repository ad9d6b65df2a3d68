"""Heads by name on a model's hidden states: answers, scores of each token, tokens of spans by their boundaries."""

from collections.abc import Callable
import dataclasses
import functools

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import sharding
from t2t.models import layers
from t2t.models.config import HeadConfig, TransformerConfig
from t2t.models.heads import Logits, gathered, transform_weights


class AnswerHead(nnx.Module):
  """Logits of an answer: what is read, a pooler, dropout and a projection, as `HeadConfig` has them.

  What its kind implies is said in `HeadConfig.spelled_out`.  A vector may do without the projection.
  """

  def __init__(self, config: TransformerConfig, head: HeadConfig, rngs: nnx.Rngs):
    embed, scale = config.embed_dim, layers.fan_in_scale(config, config.embed_dim)
    head = head.spelled_out(config.kind)
    self.reads, self.layers, pooler = head.reads, head.layers, head.pooler
    self.activation = config.mlp_activation if pooler == "norm" else pooler
    self.dropout_rate = config.dropout_rate if head.dropout_rate < 0 else head.dropout_rate
    # A span is read off the states as they are (Devlin et al. 2019, and their code).
    # A vector is compared as it is (Gao et al. 2021, and their code).
    self.drops, self.drops_inputs = head.kind not in ("span", "vector") or head.dropout_rate > 0, head.drops_inputs
    self.gradient_dtype = config.gradient_dtype
    if head.layers == "mix":
      number = config.num_encoder_layers or config.num_decoder_layers
      self.mix = nnx.Param(jnp.zeros(number + 1, jnp.float32), axes=(None,))
      self.mix_scale = nnx.Param(jnp.ones((), jnp.float32), axes=())
    if pooler:
      self.pooler = layers.param(rngs, (embed, embed), ("embed", None), scale=scale)
      self.pooler_bias = layers.bias(config, embed, "embed")
    self.norm = layers.Norm(config, embed) if pooler == "norm" else None
    projects, shape = head.num_classes > 0, (embed, head.num_classes)
    self.projection = layers.param(rngs, shape, ("embed", None), scale=scale) if projects else None
    # In models without biases, too: some classes are more frequent than others.
    has_bias = projects and head.bias
    self.projection_bias = nnx.Param(jnp.zeros(head.num_classes, jnp.float32), axes=(None,)) if has_bias else None

  def mixed(self, states: jax.Array) -> jax.Array:
    """[layers + 1, ..., embed] -> [..., embed]: scale * sum_j softmax(mix)_j state_j (Peters et al. 2018, eq. 1)."""
    weights = self.mix_scale[...] * jax.nn.softmax(self.mix[...])
    states32 = states.astype(jnp.float32)
    return jnp.einsum("s,s...e->...e", weights, states32, precision="highest").astype(states.dtype)

  def pooled(self, hidden: jax.Array) -> jax.Array:
    """[..., embed] -> the same, in the dtype of `hidden`."""
    if not self.activation:
      return hidden
    x = layers.dense(hidden, self.pooler, self.pooler_bias, gradient_dtype=self.gradient_dtype)
    x = jnp.tanh(x) if self.activation == "tanh" else layers.activate(self.activation, x)
    return x if self.norm is None else self.norm(x)

  def __call__(self, hidden: jax.Array, *, dropout_key: jax.Array | None = None) -> jax.Array:
    """See `Head`."""
    before, behind = layers.split_key(dropout_key, 2)
    if self.layers == "mix":
      hidden = self.mixed(hidden)
    if self.drops_inputs:
      hidden = layers.dropout(hidden, self.dropout_rate, before)
    x = self.pooled(hidden)
    if self.drops:
      x = layers.dropout(x, self.dropout_rate, behind)
    if self.projection is None:
      return x.astype(jnp.float32)
    logits = jnp.einsum("...e,ec->...c", x, self.projection[...].astype(x.dtype), preferred_element_type=jnp.float32)
    return logits if self.projection_bias is None else logits + self.projection_bias[...]


class DetectorHead(nnx.Module):
  """Scores of each token: a dense layer, the model's activation and a projection (ELECTRA, Clark et al. 2020)."""

  reads, layers = "each", "last"

  def __init__(self, config: TransformerConfig, head: HeadConfig, rngs: nnx.Rngs):
    embed, scale = config.embed_dim, layers.fan_in_scale(config, config.embed_dim)
    self.activation, self.gradient_dtype = config.mlp_activation, config.gradient_dtype
    self.dense = layers.param(rngs, (embed, embed), ("embed", None), scale=scale)
    self.dense_bias = layers.bias(config, embed, "embed")
    self.projection = layers.param(rngs, (embed, head.num_classes), ("embed", None), scale=scale)
    self.projection_bias = nnx.Param(jnp.zeros(head.num_classes, jnp.float32), axes=(None,))

  def __call__(self, hidden: jax.Array, *, dropout_key: jax.Array | None = None) -> jax.Array:
    """See `Head`."""
    del dropout_key
    x = layers.dense(hidden, self.dense, self.dense_bias, gradient_dtype=self.gradient_dtype)
    x = layers.activate(self.activation, x)
    kernel = self.projection[...].astype(x.dtype)
    return jnp.einsum("...e,ec->...c", x, kernel, preferred_element_type=jnp.float32) + self.projection_bias[...]


POSITION_WIDTH = 200  # of a boundary head's embedding of positions in a span, as in the authors' code


@dataclasses.dataclass(frozen=True)
class _BoundaryLogits:
  """Computation of a boundary head from its weights: two layers, of which `Logits` has the second."""

  logits: Logits

  def __call__(self, weights: dict[str, dict[str, jax.Array]], read: jax.Array) -> jax.Array:
    """float32 [..., vocab] of what `BoundaryHead.read` gives."""
    return self.logits(weights["logits"], self.logits.transformed(weights["first"], read))


class BoundaryHead(nnx.Module):
  """A token of a span over the vocabulary, by what stands on both sides of the span and how far in the token is.

  Two dense layers, each with activation and norm; then the rows of the embedding, and a bias (Joshi et al. 2020,
  section 3.2, and their code).  It has no logits of single states: `logits_fn` takes what `read` gives.
  """

  def __init__(self, config: TransformerConfig, head: HeadConfig, rngs: nnx.Rngs):
    self.reads, self.layers, self.config = "boundaries", "last", config
    embed, width = config.embed_dim, config.embedding_dim or config.embed_dim
    axis = "embed" if width == embed else "factor"
    read = 2 * embed + POSITION_WIDTH
    # As the embedding's: the states beside it are normed.
    scale = config.init_scale or 1.0
    self.positions = layers.param(rngs, (head.num_classes, POSITION_WIDTH), (None, None), scale=scale)
    self.first = layers.param(rngs, (read, embed), (None, "embed"), scale=layers.fan_in_scale(config, read))
    self.first_bias = layers.bias(config, embed, "embed")
    self.first_norm = layers.Norm(config, embed)
    self.second = layers.param(rngs, (embed, width), ("embed", None), scale=layers.fan_in_scale(config, embed))
    self.second_bias = layers.bias(config, width, axis)
    self.second_norm = layers.Norm(config, width, axis=axis)
    self.bias = nnx.Param(jnp.zeros(config.vocab_size, jnp.float32), axes=("vocab",))

  def read(self, hidden: jax.Array, left: jax.Array, right: jax.Array, places: jax.Array) -> jax.Array:
    """[batch, length, 2 * embed + `POSITION_WIDTH`] of each position: both boundaries' states, and its place's vector.

    Args:
      hidden: [batch, length, embed].
      left, right: int [batch, length], the positions of the boundaries.
      places: int [batch, length], of the token in its span, from 0.
    """
    state = lambda at: jnp.take_along_axis(hidden, at[..., None], axis=1)
    vectors = self.positions[...].astype(hidden.dtype)[places]
    return sharding.shard(jnp.concatenate([state(left), state(right), vectors], axis=-1), "batch", "length", None)

  def logits_fn(self, embed: layers.Embed) -> Callable[[jax.Array], jax.Array]:
    """What `read` gives -> float32 logits [..., vocab], as a pytree that holds its weights.

    The embedding is there whether or not the model's own logits are tied to it.
    """
    config = self.config
    weights = {
      "first": transform_weights(config, self.first, self.first_bias, self.first_norm),
      "logits": transform_weights(config, self.second, self.second_bias, self.second_norm)
      | {"table": gathered(embed.table, config.dtype), "bias": gathered(self.bias)},
    }
    scale = 1.0 if config.init_scale else config.embed_dim**-0.5  # as in `VocabularyHead`
    logits = Logits(config.mlp_activation, config.norm_epsilon, config.norm == "layer", scale, config.logits_softcap)
    return jax.tree_util.Partial(_BoundaryLogits(logits), weights)


def mean_of_segments(hidden: jax.Array, segments: jax.Array) -> jax.Array:
  """At each position the mean over all of its segment, in float32 and back.

  In:  [[1, 3, 5, 0]], segments [[1, 1, 2, 0]]
  Out: [[2, 2, 5, 0]]

  Args:
    hidden: [..., batch, length, embed].
    segments: int [batch, length], 0 for padding, whose mean is 0.
  """

  def of_row(x: jax.Array, segments: jax.Array) -> jax.Array:
    add = functools.partial(jax.ops.segment_sum, segment_ids=segments, num_segments=len(segments) + 1)
    number = add((segments > 0).astype(jnp.float32))
    return (add(x.astype(jnp.float32)) / jnp.maximum(number, 1.0)[:, None])[segments] * (segments > 0)[:, None]

  of_rows = jax.vmap(of_row)
  for _ in range(hidden.ndim - 3):
    of_rows = jax.vmap(of_rows, in_axes=(0, None))
  return of_rows(hidden, segments).astype(hidden.dtype)


def read_texts(hidden: jax.Array, segments: jax.Array, *, number: int, reads: str) -> jax.Array:
  """What is read of the first texts of each row, float32 [..., batch, number, embed]; zeros where there is none.

  In:  hidden [[1, 3, 5, 0]], segments [[1, 1, 2, 0]], number 2
  Out: "first" [[1, 5]], "last" [[3, 5]], "mean" [[2, 5]]

  Args:
    hidden: [..., batch, length, embed].
    segments: int [batch, length], text 1, 2, ... of its row that a position belongs to; 0: padding.
    number: texts.
    reads: "first", "last" or "mean".
  """
  in_text = (segments[:, None, :] == jnp.arange(1, number + 1)[None, :, None]).astype(jnp.float32)
  if reads == "mean":
    share = in_text / jnp.maximum(jnp.sum(in_text, axis=-1, keepdims=True), 1.0)
  else:
    # A text's positions stand side by side: its first is where they begin, its last where they end.
    before = jnp.pad(in_text[..., :-1], [(0, 0), (0, 0), (1, 0)])
    behind = jnp.pad(in_text[..., 1:], [(0, 0), (0, 0), (0, 1)])
    share = in_text * (1.0 - {"first": before, "last": behind}[reads])
  # A TPU would otherwise round the shares, and what is read, to bfloat16.
  return jnp.einsum("bnl,...ble->...bne", share, hidden.astype(jnp.float32), precision="highest")
