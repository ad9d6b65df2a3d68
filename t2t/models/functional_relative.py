"""A fixed vector for each distance, added to keys and values: functional relative positions (NEZHA, Wei 2019)."""

from collections.abc import Callable
import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from t2t import UserError
from t2t.models.config import TransformerConfig
from t2t.models.positions import Call, Positions, Scheme
from t2t.models.relative_vectors import Pairs


def sinusoids(num_rows: int, head_dim: int) -> np.ndarray:
  """Returns a fixed vector for each row, float32 [rows, head_dim]: sines at even features, cosines at odd ones.

  In:  2 rows, head_dim 4
  Out: [[0, 1, 0, 1], [sin(1), cos(1), sin(0.01), cos(0.01)]]

  Source: Wei et al. 2019, equations 5 and 6.
  """
  angles = np.arange(num_rows)[:, None] * 10_000.0 ** -(np.arange(0, head_dim, 2) / head_dim)
  return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(num_rows, -1).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class FunctionalPositions(Positions):
  """Adds vectors of distances to keys and values.

  pairs: rows of the vectors for each pair of positions.
  vectors: [rows, kv].
  """

  adds_values = True
  pairs: Pairs | None = None
  vectors: jax.Array | None = None

  def _of_heads(self, num_heads: int) -> tuple[Pairs, jax.Array]:
    assert self.pairs is not None and self.vectors is not None
    return self.pairs, jnp.broadcast_to(self.vectors, (num_heads, *self.vectors.shape))

  def on_logits(self, queries: jax.Array, keys: jax.Array, parameters: nnx.Module | None) -> jax.Array:
    del keys, parameters
    pairs, vectors = self._of_heads(queries.shape[1])
    return pairs.with_queries(queries, vectors.astype(queries.dtype))

  def on_probabilities(self, probabilities: jax.Array) -> jax.Array:
    pairs, vectors = self._of_heads(probabilities.shape[1])
    return pairs.weighted(probabilities, vectors.astype(probabilities.dtype))


class FunctionalRelative(Scheme):
  """Fixed sinusoids of distances up to relative_position_max_distance, the same in all heads and layers.

  Raises:
    UserError: an odd number of features.
  """

  bias = "rows"

  def __init__(self, config: TransformerConfig):
    super().__init__(config)
    if config.head_dim % 2:
      raise UserError(
        f"config.model.head_dim={config.head_dim}: must be even, because functional relative positions have "
        "pairs of sines and cosines"
      )

  def multiply_adds(self, length: int, batch_size: int) -> float:
    """Returns the products of queries and of probabilities with the distances that occur."""
    config = self.config
    rows = min(2 * config.relative_position_max_distance + 1, 2 * length - 1)
    return 2 * batch_size * length * rows * config.num_heads * config.head_dim

  def positions(self, shared: nnx.Module | None, call: Call) -> Callable[[jax.Array], Positions]:
    del shared
    config, reach = self.config, self.config.relative_position_max_distance
    pairs = Pairs(call, lambda distances: jnp.clip(distances, -reach, reach) + reach)
    vectors = jnp.asarray(sinusoids(2 * reach + 1, config.head_dim))
    return lambda index: FunctionalPositions(is_local=config.is_local(index), pairs=pairs, vectors=vectors)
