"""Transfers the rows of a vocabulary by their pieces, to continue training with another vocabulary."""

from collections.abc import Collection, Sequence
import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np

from t2t.models.config import TransformerConfig

# Parameters with a row for each id -> dimension of the rows.
_ROWS = {"embed/table": 0, "head/table": 0, "head/projection": 1, "head/bias": 0}


def dimensions(paths: Collection[str], model: TransformerConfig | None) -> dict[str, int]:
  """Returns path -> dimension of the model's parameters with a row for each id."""
  of_heads = {f"heads/{head.name}/bias": 0 for head in model.heads if head.kind == "boundary"} if model else {}
  known = _ROWS | of_heads
  name_of = lambda path: next((name for name in known if re.search(rf"(^|/){name}$", path)), "")
  return {path: known[name_of(path)] for path in paths if name_of(path)}


@dataclasses.dataclass(frozen=True)
class Pieces:
  """Mapping from the rows of a new vocabulary to old rows.

  old: the old pieces of each id: one; several, which are averaged; or none, and the row is initialized at random.
  """

  old: Sequence[Sequence[int]]

  @property
  def changes(self) -> bool:
    """Returns whether any id has another piece than before."""
    return any(list(old) != [new] for new, old in enumerate(self.old))

  def rows(self, table: jax.Array, fresh: jax.Array, dimension: int) -> jax.Array:
    """Returns the new parameter: `fresh` with rows copied or averaged from `table`.

    Rows after the vocabulary, without an id, stay fresh.
    """
    table, new_table = jnp.moveaxis(table, dimension, 0), jnp.moveaxis(fresh, dimension, 0)
    # One gather for all copied rows, and one for each position in the spelling of the others, which are few.
    kept_ids = np.array([(new, old[0]) for new, old in enumerate(self.old) if len(old) == 1], np.int32).reshape(-1, 2)
    new_table = new_table.at[kept_ids[:, 0]].set(table[kept_ids[:, 1]])
    several = [(new, old) for new, old in enumerate(self.old) if len(old) > 1]
    if several:
      most = max(len(old) for _, old in several)
      spelled = np.array([[*old, *[0] * (most - len(old))] for _, old in several], np.int32)
      weights = np.array([[1 / len(old)] * len(old) + [0.0] * (most - len(old)) for _, old in several], np.float32)

      def add(total: jax.Array, spelling: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        rows, weight = spelling
        return total + table[rows] * weight.reshape(-1, *[1] * (table.ndim - 1)), None

      total = jnp.zeros((len(several), *table.shape[1:]), table.dtype)
      mean, _ = jax.lax.scan(add, total, (jnp.asarray(spelled.T), jnp.asarray(weights.T)))
      new_table = new_table.at[np.array([new for new, _ in several])].set(mean)
    return jnp.moveaxis(new_table, 0, dimension)

  def __str__(self) -> str:
    numbers = [len(old) for old in self.old]
    several = [number for number in numbers if number > 1]
    new = f", {len(several):,} as the mean of {np.mean(several):.1f} old pieces" if several else ""
    counts = f"{numbers.count(1):,} unchanged{new}, {numbers.count(0):,} fresh"
    return f"of {len(numbers):,} ids, including special pieces and config.data.extra_ids, {counts}"
