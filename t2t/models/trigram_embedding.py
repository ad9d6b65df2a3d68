"""MobileBERT's embedding: each position reads the token vectors of itself and both neighbours (Sun et al. 2020)."""

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import UserError, sharding
from t2t.models import layers
from t2t.models.config import TransformerConfig


def trigrams(
  vectors: jax.Array, padding: jax.Array, tokens: jax.Array, positions: jax.Array | None = None
) -> jax.Array:
  """Concatenates the vectors of the next, the same and the previous token of each position.

  In:  vectors a, b, c of one text, padding p, and a position of padding
  Out: bax with x=0, cba, pcb, ...

  Zeros stand before the first token of a text and after the end of the row. A text that ends before reads the vector of
  padding behind its last token, as in the authors' code. So each text of a packed row has the values that it has alone
  in a longer row.

  Args:
    vectors: [batch, length, width].
    padding: [width], vector of the padding id.
    tokens: int [batch, length], 0 for padding.
    positions: int [batch, length], positions in a text; a text ends where they do not go on. None: one text.

  Returns:
    [batch, length, 3 * width].
  """
  goes_on = tokens[:, 1:] > 0
  if positions is not None:
    goes_on &= positions[:, 1:] == positions[:, :-1] + 1
  goes_on = goes_on[..., None]
  zeros = jnp.zeros_like(vectors[:, :1])
  following = jnp.concatenate([jnp.where(goes_on, vectors[:, 1:], padding), zeros], axis=1)
  previous = jnp.concatenate([zeros, jnp.where(goes_on, vectors[:, :-1], 0.0)], axis=1)
  return jnp.concatenate([following, vectors, previous], axis=-1)


class TrigramEmbed(layers.Embed):
  """Token vectors of three neighbours, projected to the model's width, plus positions and segments, and a norm.

  Raises:
    UserError: the model is not encoder-only, or embedding_dim is 0.
  """

  parts = 3
  reads_neighbors = True

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
    if config.kind.is_generative or not config.embedding_dim:
      raise UserError(
        f"config.model.embedding=trigram needs config.model.architecture=encoder_only, because each position reads the "
        f"next token, and config.model.embedding_dim above 0. This model is {config.architecture} with "
        f"embedding_dim={config.embedding_dim}."
      )
    super().__init__(config, rngs)

  def look_up(
    self,
    tokens: jax.Array,
    *,
    positions: jax.Array | None = None,
    segments: jax.Array | None = None,
    decoder_positions: layers.DecoderPositions | None = None,
    perturbation: jax.Array | None = None,
    table: nnx.Param | None = None,
  ) -> jax.Array:
    """Returns the embedded tokens, [batch, length, embed]; `project` changes nothing."""
    padding = self.vectors(jnp.zeros_like(tokens[:1, :1]), table)[0, 0]
    x = trigrams(self.vectors(tokens, table), padding, tokens, positions)
    assert self.projection is not None
    x = layers.dense(x, self.projection, self.projection_bias, gradient_dtype=self.gradient_dtype)
    added = decoder_positions or self
    return self.with_positions(x, positions=positions, segments=segments, perturbation=perturbation, added=added)

  def project(self, x: jax.Array) -> jax.Array:
    return sharding.shard(x, "batch", "length", "embed")
