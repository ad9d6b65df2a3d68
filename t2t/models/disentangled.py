"""Disentangled attention: logits of content with positions, each with its own vector (DeBERTa, He et al. 2021)."""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from t2t import UserError
from t2t.models import layers
from t2t.models.config import TransformerConfig
from t2t.models.positions import Call, Positions, Projections, Scheme
from t2t.models.relative_vectors import Pairs


def log_bucket(distance: jax.Array, *, num_buckets: int, max_distance: int) -> jax.Array:
  """Maps the distance of a key to the left of its query to a row of the table of vectors.

  Distances of up to a quarter of the buckets are exact, farther ones logarithmic. If `num_buckets` is twice
  `max_distance`, all are exact.

  Args:
    distance: int [...], query position minus key position.
    num_buckets: number of rows, for both directions.
    max_distance: distance from which all share the last bucket.

  Returns:
    int32 of the same shape, in [0, num_buckets).

  Source: He et al. 2021, section 3.1; He et al. 2023 (DeBERTa v2 and v3), as released.
  """
  span = num_buckets // 2
  if span < max_distance:
    exact = span // 2
    # Avoids log(0); the result is not used, because small distances are exact.
    far = jnp.maximum(jnp.abs(distance), exact).astype(jnp.float32)
    share = jnp.log(far / exact) / np.log((max_distance - 1) / exact).astype(np.float32)
    far = (jnp.ceil(share * (exact - 1)) + exact).astype(jnp.int32)
    distance = jnp.where(jnp.abs(distance) <= exact, distance, far * jnp.sign(distance))
  return jnp.clip(distance + span, 0, num_buckets - 1).astype(jnp.int32)


class DistanceVectors(nnx.Module):
  """A vector for each distance bucket, and optionally for each absolute position; shared by the layers of a stack."""

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
    self.dtype = config.dtype
    scale, embed = config.init_scale or 1.0, config.embed_dim
    self.table = layers.param(rngs, (config.relative_position_buckets, embed), ("buckets", "embed"), scale=scale)
    self.norm = layers.Norm(config, embed) if config.relative_position_norm else None
    at_end = config.absolute_positions == "mask_decoder"
    shape, axes = (config.max_length, embed), ("positions", "embed")
    self.absolute = layers.param(rngs, shape, axes, scale=scale) if at_end else None

  def __call__(self) -> jax.Array:
    """Returns the vectors of distances, [buckets, embed]."""
    vectors = self.table[...]
    return (vectors if self.norm is None else self.norm(vectors)).astype(self.dtype)


class DistanceProjections(nnx.Module):
  """Matrices of a layer from vectors of distances to keys, for queries of content, and to queries, for its keys."""

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
    self.gradient_dtype, self.quantization = config.gradient_dtype, config.quantization
    embed, joined = config.embed_dim, config.num_heads * config.head_dim
    matrix = lambda: layers.param(rngs, (embed, joined), ("embed", "heads"), scale=layers.fan_in_scale(config, embed))
    reads = Disentangled.reads(config)
    self.key = matrix() if "content_to_position" in reads else None
    self.key_bias = layers.bias(config, joined, "heads") if self.key is not None and config.key_bias else None
    self.query = matrix() if "position_to_content" in reads else None
    self.query_bias = layers.bias(config, joined, "heads") if self.query is not None else None
    self.num_heads = config.num_heads

  def projected(self, x: jax.Array, name: str, dropout_key: jax.Array | None = None) -> jax.Array:
    """Maps [rows, embed] to [heads, rows, kv] with the matrix "query" or "key"."""
    options = {"gradient_dtype": self.gradient_dtype, "quantization": self.quantization}
    kernel, bias = getattr(self, name), getattr(self, f"{name}_bias")
    y = layers.dense(x, kernel, bias, dropout_key=dropout_key, **options)
    return jnp.swapaxes(y.reshape(len(x), self.num_heads, -1), 0, 1)


@dataclasses.dataclass(frozen=True)
class DisentangledPositions(Positions):
  """Adds content-to-position and position-to-content products to the logits.

  pairs: rows of the vectors for each pair of positions.
  vectors: vectors of distances, [rows, embed].
  reads: the terms.
  as_keys, as_queries: projected vectors of the layer, [heads, rows, kv]; queries are scaled.
  """

  pairs: Pairs | None = None
  vectors: jax.Array | None = None
  reads: tuple[str, ...] = ()
  as_keys: jax.Array | None = None
  as_queries: jax.Array | None = None

  def of_attention(self, attention: Projections, dropout_key: jax.Array | None) -> "DisentangledPositions":
    assert self.vectors is not None
    owner: Any = attention if attention.position is None else attention.position
    key = None if dropout_key is None else jax.random.fold_in(dropout_key, 1)
    vectors = layers.dropout(self.vectors, attention.dropout_rate, key)
    as_keys = as_queries = None
    if "content_to_position" in self.reads:
      as_keys = owner.projected(vectors, "key", dropout_key)
    if "position_to_content" in self.reads:
      as_queries = owner.projected(vectors, "query", dropout_key) * attention.scale
    return dataclasses.replace(self, as_keys=as_keys, as_queries=as_queries)

  def on_logits(self, queries: jax.Array, keys: jax.Array, parameters: nnx.Module | None) -> jax.Array:
    del parameters
    assert self.pairs is not None
    bias = jnp.zeros((), jnp.float32)
    if self.as_keys is not None:
      as_keys = jnp.repeat(self.as_keys, queries.shape[1] // self.as_keys.shape[0], axis=0)
      bias = bias + self.pairs.with_queries(queries, as_keys)
    if self.as_queries is not None:
      bias = bias + self.pairs.with_keys(keys, self.as_queries)
    return bias


class Disentangled(Scheme):
  """Vectors of distances that are projected to keys and queries in each layer.

  With absolute_positions=mask_decoder, the last layer runs twice before the vocabulary's logits, from queries with
  absolute positions (the enhanced mask decoder).

  Raises:
    UserError: settings that contradict each other.
  """

  bias = "rows"

  def __init__(self, config: TransformerConfig):
    super().__init__(config)
    buckets, distance = config.relative_position_buckets, config.relative_position_max_distance
    if buckets > 2 * distance:
      raise UserError(
        f"config.model.relative_position_buckets={buckets}: must be at most {2 * distance}, two for each distance up "
        f"to config.model.relative_position_max_distance={distance}. Lower the number of buckets or raise the distance."
      )
    if config.absolute_positions and not config.max_length:
      raise UserError(
        f"config.model.max_length=0: config.model.absolute_positions={config.absolute_positions} needs a maximum "
        "length. Set --config.model.max_length to the longest sequence."
      )
    if config.absolute_positions == "mask_decoder" and (config.is_generative or not config.post_norm):
      raise UserError(
        "config.model.absolute_positions=mask_decoder needs config.model.architecture=encoder_only and "
        f"config.model.post_norm=True, not {config.architecture} and {config.post_norm}. Set these keys, or "
        "config.model.absolute_positions=input."
      )
    self.embedded = config.absolute_positions == "input"
    self.decodes_masks = config.absolute_positions == "mask_decoder"
    self.logit_terms = 1 + len(self.reads(config))

  @staticmethod
  def reads(config: TransformerConfig) -> tuple[str, ...]:
    """Returns the terms of the logits beside content-to-content."""
    both = ("content_to_position", "position_to_content")
    return both if config.disentangled_terms == "both" else (config.disentangled_terms,)

  def multiply_adds(self, length: int, batch_size: int) -> float:
    """Returns the products of each term with the distances that occur, and the layer's projections of vectors."""
    config = self.config
    joined, rows = config.num_heads * config.head_dim, config.relative_position_buckets
    product = batch_size * length * min(rows, 2 * length - 1) * joined
    return len(self.reads(config)) * (product + rows * config.embed_dim * joined)

  def stack_parameters(self, rngs: nnx.Rngs, *, bidirectional: bool) -> nnx.Module:
    del bidirectional
    return DistanceVectors(self.config, rngs)

  def layer_parameters(self, rngs: nnx.Rngs) -> nnx.Module | None:
    return None if self.config.share_position_projections else DistanceProjections(self.config, rngs)

  def positions(self, shared: nnx.Module | None, call: Call) -> Callable[[jax.Array], Positions]:
    assert isinstance(shared, DistanceVectors)
    config = self.config
    bucket = functools.partial(
      log_bucket, num_buckets=config.relative_position_buckets, max_distance=config.relative_position_max_distance
    )
    pairs = Pairs(call, lambda distances: bucket(-distances))
    vectors = shared()
    return lambda index: DisentangledPositions(
      is_local=config.is_local(index), pairs=pairs, vectors=vectors, reads=self.reads(config)
    )

  def mask_queries(self, shared: nnx.Module | None, call: Call) -> jax.Array:
    """Returns the absolute positions' vectors, [batch or 1, length, embed]."""
    assert isinstance(shared, DistanceVectors) and shared.absolute is not None
    positions = call.mask.positions
    if positions is None and call.query_length > self.config.max_length:
      raise ValueError(
        f"config.model.max_length={self.config.max_length}: a sequence has {call.query_length} positions, but only "
        f"{self.config.max_length} positions are learned. Shorten the sequence."
      )
    positions = jnp.arange(call.query_length)[None] if positions is None else positions
    return jnp.take(shared.absolute[...], positions, axis=0).astype(self.config.dtype)
