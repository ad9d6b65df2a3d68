"""Position schemes of self-attention: relative bias (T5), ALiBi, rotary, learned; registered in `config.POSITIONS`.

A scheme defines parameters per stack and per layer, and hooks on queries, keys and logits.
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any, ClassVar, Protocol

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from t2t import UserError, sharding
from t2t.models import layers
from t2t.models.config import ROTARY_SCALINGS, TransformerConfig
from t2t.models.kernels import dispatch
from t2t.models.masks import AttentionMask, DistanceBias


def relative_position_bucket(
  relative_position: jax.Array | np.ndarray, *, bidirectional: bool, num_buckets: int, max_distance: int
) -> jax.Array:
  """Maps distances to buckets: one per small distance, then logarithmically wider ones.

  Args:
    relative_position: int, key position minus query position, any shape.
    bidirectional: whether half of the buckets are for keys to the right; otherwise such keys get bucket 0.
    num_buckets: total number of buckets.
    max_distance: distances from here on share the last bucket.

  Returns:
    int32 of the same shape, in [0, num_buckets).

  Source: Raffel et al. 2020, section 2.1.
  """
  if bidirectional:
    num_buckets //= 2
    offset = jnp.where(relative_position > 0, num_buckets, 0)
    distance = jnp.abs(relative_position)
  else:
    offset = 0
    distance = jnp.maximum(-relative_position, 0)
  num_exact = num_buckets // 2
  # Avoids log(0); the result is not used, because small distances are exact.
  log_share = jnp.log(jnp.maximum(distance, 1) / num_exact) / np.log(max_distance / num_exact)
  far = num_exact + (log_share * (num_buckets - num_exact)).astype(jnp.int32)
  return offset + jnp.where(distance < num_exact, distance, jnp.minimum(far, num_buckets - 1)).astype(jnp.int32)


class RelativePositionBias(nnx.Module):
  """Learned bias of attention logits for each head and distance bucket; one table for all layers."""

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs, *, bidirectional: bool):
    self.num_buckets = config.relative_position_buckets
    self.max_distance = config.relative_position_max_distance
    self.bidirectional = bidirectional
    scale = layers.fan_in_scale(config, config.embed_dim)
    self.table = layers.param(rngs, (self.num_buckets, config.num_heads), ("buckets", "heads"), scale=scale)
    if config.attention_init_bias:
      # Half of the heads start focused on one neighbour each: -1, 1, -2, 2, ..., in causal stacks -1, -2, ...; the
      # other heads start with all positions.
      heads = np.arange(config.num_heads // 2)
      distances = (heads // 2 + 1) * np.where(heads % 2, 1, -1) if bidirectional else -(heads + 1)
      self.table[...] = self.table[...].at[self._buckets(distances), heads].add(config.attention_init_bias)

  def _buckets(self, distances: np.ndarray) -> jax.Array:
    return relative_position_bucket(
      distances,
      bidirectional=self.bidirectional,
      num_buckets=self.num_buckets,
      max_distance=self.max_distance,
    )

  def __call__(self) -> DistanceBias:
    buckets = self._buckets(np.arange(-self.max_distance, self.max_distance + 1))
    return DistanceBias(jnp.take(self.table[...].T, buckets, axis=1))


def alibi_slopes(num_heads: int) -> np.ndarray:
  """Returns the slope of each head's bias by distance, float32 [heads].

  In:  8
  Out: [1/2, 1/4, 1/8, 1/16, 1/32, 1/64, 1/128, 1/256]

  If the number is not a power of two: the slopes of the next lower power, then every other slope of twice that power.

  Source: Press et al. 2022 (ALiBi), section 3, and the accompanying code.
  """
  lower = 2 ** int(np.log2(num_heads))
  falling = lambda number: 2.0 ** (-8.0 * np.arange(1, number + 1) / number)
  return np.concatenate([falling(lower), falling(2 * lower)[::2]])[:num_heads].astype(np.float32)


def alibi(num_heads: int, reach: int) -> DistanceBias:
  """Returns ALiBi's bias of logits up to a distance of `reach`, symmetric in both directions."""
  distances = np.abs(np.arange(-reach, reach + 1, dtype=np.float32))
  return DistanceBias(jnp.asarray(-alibi_slopes(num_heads)[:, None] * distances))


def bias_of(bias: DistanceBias, mask: AttentionMask, query_length: int, key_length: int) -> jax.Array:
  """Returns the bias of the logits of these queries and keys, float32 [1, heads, query, key].

  The shape is [batch, heads, query, key] if prefix keys are present and the queries' positions differ between rows.

  Args:
    bias: bias by distance.
    mask: contains the query offset and the key layout.
    query_length: 1 with beams, because all beams are at one position.
    key_length: prefix keys, then keys as in `mask.key_positions`.
  """
  queries = mask.query_indices(query_length)[:, None]
  row_bias = bias.at(mask.key_positions(key_length - mask.front)[None, :] - queries)[None]
  if mask.front:
    front = jnp.moveaxis(bias.at(mask.front_distances(query_length)), 0, 1)
    row_bias = jnp.concatenate([front, jnp.broadcast_to(row_bias, (front.shape[0], *row_bias.shape[1:]))], axis=-1)
  return sharding.shard(row_bias, None, "heads", "length", None)


def rotary_frequencies(head_dim: int, base: float) -> np.ndarray:
  """Returns the angle per position of each feature pair, float32 [head_dim / 2].

  In:  head_dim 4, base 100.0
  Out: [1, 0.1]

  Args:
    head_dim: features of a head; feature i and feature i + head_dim / 2 are a pair.
    base: the slowest pair has a period of almost 2 pi * base positions.

  Source: Su et al. 2021 (RoFormer), with the pairs as in GPT-NeoX and Llama.
  """
  return base ** -(np.arange(0, head_dim, 2, dtype=np.float32) / head_dim)


def angles_at(positions: jax.Array, frequencies: np.ndarray) -> tuple[jax.Array, jax.Array]:
  """Returns cosine and sine of the rotation angles of positions, int [...]: float32 [..., head_dim / 2] each.

  In:  positions [0, 1, 2], frequencies [1, 0.1]
  Out: cos and sin of [[0, 0], [1, 0.1], [2, 0.2]]
  """
  angles = positions[..., None] * frequencies
  return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, angles: tuple[jax.Array, jax.Array]) -> jax.Array:
  """Rotates queries or keys, [batch, heads, length, kv], by `angles_at` their positions; in float32."""
  cos, sin = (
    jnp.concatenate([first, second], axis=-1) for first, second in ((angles[0], angles[0]), (-angles[1], angles[1]))
  )
  x32 = x.astype(jnp.float32)
  return (x32 * cos + jnp.roll(x32, x.shape[-1] // 2, axis=-1) * sin).astype(x.dtype)


# ---- Schemes ---------------------------------------------------------------------------------------------------------


class Projections(Protocol):
  """The parts of a layer's self-attention that a scheme may use, see `Positions.of_attention`.

  position: parameters of the layer, see `Scheme.layer_parameters`.
  scale: factor of the queries.
  dropout_rate: rate of the model.
  """

  position: nnx.Module | None
  scale: float
  dropout_rate: float

  def projected(self, x: jax.Array, name: str, dropout_key: jax.Array | None = None) -> jax.Array:
    """Maps [rows, embed] to [heads, rows, kv] with the layer's own matrix and bias "query" or "key"."""


@dataclasses.dataclass(frozen=True)
class Positions:
  """Position information for one layer's attention, beside its mask.

  A scheme may return a subclass with other hooks.

  bias: added to the logits, see `attention.attend`; None: no bias.
  angles: rotation of queries and keys, see `angles_at`; None: no rotation.
  key_angles: rotation of keys, if they are not those of the queries' positions; None: `angles`.
  is_local: bool [], whether the model's window applies; a traced value if layers differ.
  adds_values: whether `on_probabilities` adds to the output; no kernel supports it.
  """

  adds_values: ClassVar[bool] = False

  bias: DistanceBias | jax.Array | None = None
  angles: tuple[jax.Array, jax.Array] | None = None
  is_local: jax.Array | bool = False
  key_angles: tuple[jax.Array, jax.Array] | None = None

  def of_attention(self, attention: Projections, dropout_key: jax.Array | None) -> "Positions":
    """Returns the hooks for one layer, with the results of its matrices; `on_logits` is called on the result.

    Args:
      attention: the layer's self-attention.
      dropout_key: None at evaluation.
    """
    del attention, dropout_key
    return self

  def on_queries(self, queries: jax.Array) -> jax.Array:
    """Transforms queries, [batch, heads, length, kv], before scaling."""
    return queries if self.angles is None else rotate(queries, self.angles)

  def on_keys(self, keys: jax.Array) -> jax.Array:
    """Transforms keys, [batch, kv heads, length, kv], before they are cached."""
    angles = self.angles if self.key_angles is None else self.key_angles
    return keys if angles is None else rotate(keys, angles)

  def on_logits(
    self, queries: jax.Array, keys: jax.Array, parameters: nnx.Module | None
  ) -> DistanceBias | jax.Array | None:
    """Returns the bias of the logits, see `attention.attend`.

    Args:
      queries, keys: operands of the logits.
      parameters: parameters of the layer, see `Scheme.layer_parameters`.
    """
    del queries, keys, parameters
    return self.bias

  def on_probabilities(self, probabilities: jax.Array) -> jax.Array:
    """Returns an addition to each head's output, [batch, heads, query, kv], from [batch, heads, query, key].

    It is called on the probabilities after dropout, if `adds_values`.
    """
    raise NotImplementedError


NOWHERE = Positions()


@dataclasses.dataclass(frozen=True)
class Call:
  """Properties of a call of a stack, shared by its self-attentions.

  front: number of learned prefix keys; `key_length` includes them.
  drops: whether dropout is applied.
  """

  batch: int
  query_length: int
  key_length: int
  mask: AttentionMask
  front: int
  drops: bool

  @property
  def query_positions(self) -> int:
    """Returns the number of query positions; all beams are at one."""
    return self.query_length if self.mask.ancestors is None else 1


class Scheme:
  """Base class of position schemes; it adds no position information except the causal mask of decoders.

  bias: kind of bias on attention logits, see `dispatch.BIASES`.
  embedded: whether position vectors from a table of max_length rows are added to embedded tokens.
  logit_terms: number of terms of equal variance in the logits; `scale_attention` divides by its square root.
  decodes_masks: whether the last layer runs twice before vocabulary logits, from `mask_queries`; for encoders only.
  relative: whether keys may begin before the queries, at a memory, and queries may have two streams; see
    `AttentionMask.query_indices`.
  rotates: whether the scheme implements `config.rotary_cross_attention`.

  Raises:
    UserError: rotary cross-attention in another scheme, or without an encoder.
  """

  bias: ClassVar[str] = ""
  relative: ClassVar[bool] = False
  rotates: ClassVar[bool] = False
  embedded: bool = False
  logit_terms: int = 1
  decodes_masks: bool = False

  def __init__(self, config: TransformerConfig):
    self.config = config
    if config.rotary_cross_attention and not (self.rotates and config.kind.has_encoder_and_decoder):
      raise UserError(
        "config.model.rotary_cross_attention=True needs config.model.architecture=encoder_decoder and "
        f"config.model.positions=rotary, not {config.architecture} and {config.positions}. Set these keys, or "
        "config.model.rotary_cross_attention=False."
      )

  def reach(self, length: int) -> int:
    """Returns the distance from which a bias by distance is constant, within a sequence of `length`."""
    return max(length - 1, 1)

  def mask_queries(self, shared: nnx.Module | None, call: Call) -> jax.Array:
    """Returns vectors that are added to the last layer's input for its queries, [batch or 1, length, embed]."""
    raise NotImplementedError

  def multiply_adds(self, length: int, batch_size: int) -> float:
    """Returns multiply-adds for positions in one layer's self-attention, for `model_flops`.

    Args:
      length: computed positions of a sequence.
      batch_size: sequences.
    """
    del length, batch_size
    return 0.0

  def embedding(self, positions: jax.Array, width: int) -> jax.Array | None:
    """Returns fixed vectors that are added to embedded tokens, float32 [..., width]; None: no such vectors.

    Args:
      positions: int [...], counted in each sequence.
      width: size of the embedding.
    """
    del positions, width
    return None

  def stack_parameters(self, rngs: nnx.Rngs, *, bidirectional: bool) -> nnx.Module | None:
    """Returns parameters that the layers of a stack share, under position_bias/ of the stack."""
    del rngs, bidirectional
    return None

  def layer_parameters(self, rngs: nnx.Rngs) -> nnx.Module | None:
    """Returns parameters of each layer, under self_attention/position/."""
    del rngs
    return None

  def positions(self, shared: nnx.Module | None, call: Call) -> Callable[[jax.Array], Positions]:
    """Returns a function from a layer's index to its `Positions`; values common to all layers are computed once.

    Args:
      shared: result of `stack_parameters`.
      call: properties of the call.
    """
    del shared, call
    return lambda index: Positions(is_local=self.config.is_local(index))

  def cross_positions(self, mask: AttentionMask | None, key_length: int, *, front: int = 0) -> Positions:
    """Returns the positions of the cross-attention of all layers; the default is none.

    Args:
      mask: mask of the cross-attention, with the positions of the queries; None: only keys are transformed.
      key_length: length of the encoder's output.
      front: number of learned keys of the decoder, which take the first positions.
    """
    del mask, key_length, front
    return NOWHERE


class ByDistance(Scheme):
  """Base class of biases by distance that are the same in all layers."""

  bias = "distance"
  relative = True

  def values(self, shared: nnx.Module | None, key_length: int) -> DistanceBias:
    raise NotImplementedError

  def positions(self, shared: nnx.Module | None, call: Call) -> Callable[[jax.Array], Positions]:
    """Returns the bias by distance if a layer's kernel supports it, else of all pairs, computed once for all layers."""
    config, bias, mask = self.config, self.values(shared, call.key_length), call.mask
    on_kernel = False
    if not mask.is_decoding:
      choose = functools.partial(
        dispatch.choose_for_config,
        *(config, call.batch, call.query_length, call.key_length),
        biased=True,
        drops=call.drops,
      )
      chosen = [choose(dataclasses.replace(mask, window=window)) for window in config.windows(call.key_length)]
      on_kernel = any(choice.kernel == "distance" for choice in chosen)
    added = bias if on_kernel else bias_of(bias, mask, call.query_positions, call.key_length)
    return lambda index: Positions(added, is_local=config.is_local(index))


class Relative(ByDistance):
  """Learned bias for each head and distance bucket (Raffel et al. 2020)."""

  def reach(self, length: int) -> int:
    del length
    return self.config.relative_position_max_distance

  def stack_parameters(self, rngs: nnx.Rngs, *, bidirectional: bool) -> nnx.Module:
    return RelativePositionBias(self.config, rngs, bidirectional=bidirectional)

  def values(self, shared: nnx.Module | None, key_length: int) -> DistanceBias:
    del key_length
    table: Any = shared
    return table()


class Alibi(ByDistance):
  """Bias that decreases linearly with the distance (Press et al. 2022)."""

  def values(self, shared: nnx.Module | None, key_length: int) -> DistanceBias:
    del shared
    return alibi(self.config.num_heads, self.reach(key_length))


class Rotary(Scheme):
  """Rotation of queries and keys by their positions (Su et al. 2021); its frequencies may be scaled.

  Raises:
    UserError: a field of the scaling has no effect, or is invalid.
  """

  relative = True
  rotates = True

  def __init__(self, config: TransformerConfig):
    super().__init__(config)
    scaling = ROTARY_SCALINGS[config.rotary_scaling] if config.rotary_scaling else None
    for field in dataclasses.fields(config):
      unread = field.name.startswith("rotary_scaling_") and field.name not in (scaling.reads if scaling else ())
      if unread and (value := getattr(config, field.name)) != field.default:
        raise UserError(
          f"config.model.{field.name}={value} has no effect with config.model.rotary_scaling={config.rotary_scaling!r}."
          f" Set config.model.rotary_scaling to a scaling that reads it, or config.model.{field.name}={field.default}."
        )
    self.scaling = scaling(config) if scaling else None

  def positions(self, shared: nnx.Module | None, call: Call) -> Callable[[jax.Array], Positions]:
    """Returns rotation angles; layers with a window use local_rotary_base, if set."""
    del shared
    config, local, (places, key_places) = self.config, None, self._query_and_key_positions(call)
    everywhere = self.angles(places), None if key_places is None else self.angles(key_places)
    if config.local_rotary_base and config.attention_window:
      frequencies = rotary_frequencies(config.head_dim, config.local_rotary_base)
      local = angles_at(places, frequencies), None if key_places is None else angles_at(key_places, frequencies)

    def of_layer(index: jax.Array) -> Positions:
      is_local, (angles, key_angles) = config.is_local(index), everywhere
      if local is not None:
        choose = lambda near, far: jnp.where(is_local, near, far)
        angles, key_angles = jax.tree.map(choose, local, everywhere)
      return Positions(angles=angles, key_angles=key_angles, is_local=is_local)

    return of_layer

  def cross_positions(self, mask: AttentionMask | None, key_length: int, *, front: int = 0) -> Positions:
    """Returns angles of the encoder's positions for keys, and of the positions that continue them for queries.

    Source: Zhang et al. 2025 (RedLLM), section 3.
    """
    if not self.config.rotary_cross_attention:
      return NOWHERE
    # One axis for the heads.
    queries = None if mask is None else self.angles((front + mask.positions_after_keys())[:, None])
    return Positions(angles=queries, key_angles=self.angles(jnp.arange(key_length)))

  def angles(self, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the scaled angles of positions, int [...]: cosine and sine, float32 [..., head_dim / 2] each."""
    frequencies = rotary_frequencies(self.config.head_dim, self.config.rotary_base)
    if self.scaling is None:
      return angles_at(positions, frequencies)
    cos, sin = angles_at(positions, self.scaling.frequencies(frequencies))
    return cos * self.scaling.attention_factor, sin * self.scaling.attention_factor

  def _query_and_key_positions(self, call: Call) -> tuple[jax.Array, jax.Array | None]:
    """Returns the positions of queries, and of a row's own keys if they differ from the queries' (None: they do not).

    Prefix keys are not rotated, so their distance matters.
    """
    mask, front = call.mask, call.front
    given = None if not front or mask.positions is None else (front + mask.positions)[:, None]
    places = mask.query_indices(call.query_length)[: call.query_positions] + front if given is None else given
    if mask.is_decoding or (mask.streams == 1 and not mask.memory):
      return places, None
    num_keys = call.key_length - front
    return places, jnp.asarray(mask.key_positions(num_keys)) + front if given is None else given[..., :num_keys]


class Learned(Scheme):
  """Learned vector for each position, added to the embedded tokens (Devlin et al. 2019); attention is unchanged."""

  embedded = True
