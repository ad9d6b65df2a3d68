"""Named heads on a model's hidden states: classes and scores of texts and tokens, and tokens of spans by boundaries."""

from collections.abc import Callable, Mapping
import dataclasses
import functools
import itertools
from typing import ClassVar

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import sharding
from t2t.models import layers
from t2t.models.config import TransformerConfig
from t2t.models.head_config import HeadConfig
from t2t.models.heads import Logits, gathered, of_tokens, transform_weights


class AnswerHead(nnx.Module):
  """Head that selects states and applies a pooler, dropout and a projection, as configured by `HeadConfig`.

  `HeadConfig.spelled_out` gives the defaults of each kind. A vector head may omit the projection.
  """

  # State vectors that the input joins, by `HeadConfig.reads`.
  joined: ClassVar[Mapping[str, int]] = {"concat": 3}

  def __init__(self, config: TransformerConfig, head: HeadConfig, rngs: nnx.Rngs):
    head = head.spelled_out(config.kind)
    embed, width = config.embed_dim, config.embed_dim * self.joined.get(head.reads, 1)
    scale = layers.fan_in_scale(config, width)
    self.reads, self.layers, pooler = head.reads, head.layers, head.pooler
    self.activation = config.mlp_activation if pooler == "norm" else pooler
    self.dropout_rate = config.dropout_rate if head.dropout_rate < 0 else head.dropout_rate
    # Spans are predicted from states without dropout (Devlin et al. 2019, and their code), and vectors are compared
    # without dropout (Gao et al. 2021, and their code).
    self.drops, self.drops_inputs = head.kind not in ("span", "vector") or head.dropout_rate > 0, head.drops_inputs
    self.gradient_dtype = config.gradient_dtype
    if head.layers == "mix":
      number = config.num_encoder_layers or config.num_decoder_layers
      self.mix = nnx.Param(jnp.zeros(number + 1, jnp.float32), axes=(None,))
      self.mix_scale = nnx.Param(jnp.ones((), jnp.float32), axes=())
    if pooler:
      self.pooler = layers.param(rngs, (width, embed), ("embed", None), scale=scale)
      self.pooler_bias = layers.bias(config, embed, "embed")
      width, scale = embed, layers.fan_in_scale(config, embed)
    self.norm = layers.Norm(config, embed) if pooler == "norm" else None
    projects, shape = head.num_classes > 0, (width, head.num_classes)
    self.projection = layers.param(rngs, shape, ("embed", None), scale=scale) if projects else None
    # Models without biases have this bias, too, because class frequencies differ.
    has_bias = projects and head.bias
    self.projection_bias = nnx.Param(jnp.zeros(head.num_classes, jnp.float32), axes=(None,)) if has_bias else None

  def mixed(self, states: jax.Array) -> jax.Array:
    """Maps [layers + 1, ..., embed] to [..., embed]: scale * sum_j softmax(mix)_j state_j (Peters et al. 2018, eq. 1)

    The sum is in float32, and the result in the dtype of `states`.
    """
    weights = self.mix_scale[...] * jax.nn.softmax(self.mix[...])
    states32 = states.astype(jnp.float32)
    return jnp.einsum("s,s...e->...e", weights, states32, precision="highest").astype(states.dtype)

  def pooled(self, hidden: jax.Array) -> jax.Array:
    """Applies the pooler to [..., embed], in the dtype of `hidden`."""
    if not self.activation:
      return hidden
    x = layers.dense(hidden, self.pooler, self.pooler_bias, gradient_dtype=self.gradient_dtype)
    x = jnp.tanh(x) if self.activation == "tanh" else layers.activate(self.activation, x)
    return x if self.norm is None else self.norm(x)

  def __call__(self, hidden: jax.Array, *, dropout_key: jax.Array | None = None) -> jax.Array:
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


class ClozeHead(nnx.Module):
  """Classes of a masked token: the mean vocabulary logit of the words of each class, without own parameters.

  Source: Schick & Schuetze 2021 (PET), section 3; the mean over several words as in the authors' code.
  """

  reads, layers = "each", "last"

  def __init__(self, config: TransformerConfig, head: HeadConfig, rngs: nnx.Rngs):
    del config, rngs
    self.words = head.words

  def of_vocabulary(self, logits_fn: jax.tree_util.Partial, hidden: jax.Array) -> jax.Array:
    """Maps [..., embed] to float32 [..., classes]."""
    logits = of_tokens(logits_fn, jnp.array([token for tokens in self.words for token in tokens]))(hidden)
    ends = list(itertools.accumulate(len(tokens) for tokens in self.words))
    return jnp.stack([jnp.mean(part, axis=-1) for part in jnp.split(logits, ends[:-1], axis=-1)], axis=-1)


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
    del dropout_key
    x = layers.dense(hidden, self.dense, self.dense_bias, gradient_dtype=self.gradient_dtype)
    x = layers.activate(self.activation, x)
    kernel = self.projection[...].astype(x.dtype)
    return jnp.einsum("...e,ec->...c", x, kernel, preferred_element_type=jnp.float32) + self.projection_bias[...]


POSITION_WIDTH = 200  # width of the position-in-span embedding, as in the authors' code


@dataclasses.dataclass(frozen=True)
class _BoundaryLogits:
  """Function of a boundary head's weights: two layers, of which `Logits` has the second."""

  logits: Logits

  def __call__(self, weights: dict[str, dict[str, jax.Array]], read: jax.Array) -> jax.Array:
    """Returns float32 [..., vocab] from the result of `BoundaryHead.read`."""
    return self.logits(weights["logits"], self.logits.transformed(weights["first"], read))


class BoundaryHead(nnx.Module):
  """Vocabulary logits of a token in a span, from the states at both boundaries and the position in the span.

  Two dense layers, each with activation and norm; then the token embedding and a bias (Joshi et al. 2020, section 3.2,
  and their code). `logits_fn` takes the result of `read` instead of single states.
  """

  def __init__(self, config: TransformerConfig, head: HeadConfig, rngs: nnx.Rngs):
    self.reads, self.layers, self.config = "boundaries", "last", config
    embed, width = config.embed_dim, config.embedding_dim or config.embed_dim
    axis = "embed" if width == embed else "factor"
    read = 2 * embed + POSITION_WIDTH
    # Same scale as the embedding's, because the states beside it are normed.
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
    """Returns both boundaries' states and the position embedding, [batch, length, 2 * embed + `POSITION_WIDTH`].

    Args:
      hidden: [batch, length, embed].
      left, right: int [batch, length], positions of the boundaries.
      places: int [batch, length], index of the token in its span, from 0.
    """
    state = lambda at: jnp.take_along_axis(hidden, at[..., None], axis=1)
    vectors = self.positions[...].astype(hidden.dtype)[places]
    return sharding.shard(jnp.concatenate([state(left), state(right), vectors], axis=-1), "batch", "length", None)

  def logits_fn(self, embed: layers.Embed) -> Callable[[jax.Array], jax.Array]:
    """Returns a function from the result of `read` to float32 logits [..., vocab], a pytree with the head's weights.

    It uses the token embedding even if the model's own logits are not tied to it.
    """
    config = self.config
    weights = {
      "first": transform_weights(config, self.first, self.first_bias, self.first_norm),
      "logits": transform_weights(config, self.second, self.second_bias, self.second_norm)
      | {"table": gathered(embed.table, config.dtype), "bias": gathered(self.bias)},
    }
    scale = 1.0 if config.init_scale else config.embed_dim**-0.5  # as in `VocabularyHead`
    logits = Logits(config.mlp_activation, config.norm_epsilon, config.norm, scale, config.logits_softcap)
    return jax.tree_util.Partial(_BoundaryLogits(logits), weights)


def mean_of_segments(hidden: jax.Array, segments: jax.Array) -> jax.Array:
  """Returns at each position the mean over its segment, computed in float32.

  In:  [[1, 3, 5, 0]], segments [[1, 1, 2, 0]]
  Out: [[2, 2, 5, 0]]

  Args:
    hidden: [..., batch, length, embed].
    segments: int [batch, length], 0 for padding, with mean 0.
  """

  def of_row(x: jax.Array, segments: jax.Array) -> jax.Array:
    add = functools.partial(jax.ops.segment_sum, segment_ids=segments, num_segments=len(segments) + 1)
    number = add((segments > 0).astype(jnp.float32))
    return (add(x.astype(jnp.float32)) / jnp.maximum(number, 1.0)[:, None])[segments] * (segments > 0)[:, None]

  of_rows = jax.vmap(of_row)
  for _ in range(hidden.ndim - 3):
    of_rows = jax.vmap(of_rows, in_axes=(0, None))
  return of_rows(hidden, segments).astype(hidden.dtype)


def concat_of_segments(hidden: jax.Array, segments: jax.Array) -> jax.Array:
  """Returns at each position the last state, the maximum and the mean of its segment, joined; computed in float32.

  In:  [[1, 3, 5, 0]], segments [[1, 1, 2, 0]]
  Out: [[3 3 2, 3 3 2, 5 5 5, 0 0 0]]

  Args:
    hidden: [batch, length, embed].
    segments: int [batch, length], 0 for padding, where all values are 0.

  Returns:
    [batch, length, 3 * embed], in the dtype of `hidden`.

  Source: concat pooling of ULMFiT (Howard & Ruder 2018, section 3.3).
  """

  tolerance = max(16 * jnp.finfo(jnp.float32).eps, 2 * jnp.finfo(hidden.dtype).eps)

  def of_row(x: jax.Array, segments: jax.Array) -> jax.Array:
    x, real = x.astype(jnp.float32), (segments > 0)[:, None]
    options = {"segment_ids": segments, "num_segments": len(segments) + 1}
    ends = jax.ops.segment_max(jnp.arange(len(segments)), **options)[segments]
    # A segment's maximum has no derivative in JAX; equal maxima share the gradient, as in `jnp.max`. A compiler may
    # compute `x` again and round differently, so equal is within a few roundings.
    most = jax.ops.segment_max(jax.lax.stop_gradient(x), **options)[segments]
    is_most = (x >= most - tolerance * (1.0 + jnp.abs(most))).astype(jnp.float32)
    shares = is_most / jnp.maximum(jax.ops.segment_sum(is_most, **options), 1.0)[segments]
    through = jax.ops.segment_sum(x * shares, **options)[segments]
    largest = jax.lax.stop_gradient(most - through) + through
    return jnp.where(real, jnp.concatenate([x[ends], largest], axis=-1), 0.0)

  last_and_max = jax.vmap(of_row)(hidden, segments).astype(hidden.dtype)
  return jnp.concatenate([last_and_max, mean_of_segments(hidden, segments)], axis=-1)


def read_texts(hidden: jax.Array, segments: jax.Array, *, number: int, reads: str) -> jax.Array:
  """Returns the pooled states of the first texts of each row, float32 [..., batch, number, embed]; 0 for missing texts.

  In:  hidden [[1, 3, 5, 0]], segments [[1, 1, 2, 0]], number 2
  Out: "first" [[1, 5]], "last" [[3, 5]], "mean" [[2, 5]], "concat" [[3 3 2, 5 5 5]]

  Args:
    hidden: [..., batch, length, embed].
    segments: int [batch, length], index of each position's text in its row, from 1; 0: padding.
    number: number of texts.
    reads: "first", "last", "mean" or "concat".
  """
  if reads == "concat":  # the same at all positions of a text
    return read_texts(concat_of_segments(hidden, segments), segments, number=number, reads="first")
  in_text = (segments[:, None, :] == jnp.arange(1, number + 1)[None, :, None]).astype(jnp.float32)
  if reads == "mean":
    share = in_text / jnp.maximum(jnp.sum(in_text, axis=-1, keepdims=True), 1.0)
  else:
    # A text's positions are contiguous: the first has no predecessor in the text, and the last no successor.
    before = jnp.pad(in_text[..., :-1], [(0, 0), (0, 0), (1, 0)])
    behind = jnp.pad(in_text[..., 1:], [(0, 0), (0, 0), (0, 1)])
    share = in_text * (1.0 - {"first": before, "last": behind}[reads])
  # Highest precision, because a TPU would otherwise round weights and states to bfloat16.
  return jnp.einsum("bnl,...ble->...bne", share, hidden.astype(jnp.float32), precision="highest")
