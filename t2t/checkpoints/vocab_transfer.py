"""Rows of the vocabulary taken by their pieces: a model goes on in another vocabulary than it was trained with."""

from collections.abc import Collection, Sequence
import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np

from t2t.models.config import TransformerConfig

# Parameters with a row for each id -> the dimension of the rows.
_ROWS = {"embed/table": 0, "head/projection": 1, "head/bias": 0}


def dimensions(paths: Collection[str], model: TransformerConfig | None) -> dict[str, int]:
  """Path -> dimension, of those parameters of a model that have a row for each id."""
  of_heads = {f"heads/{head.name}/bias": 0 for head in model.heads if head.kind == "boundary"} if model else {}
  known = _ROWS | of_heads
  name_of = lambda path: next((name for name in known if re.search(rf"(^|/){name}$", path)), "")
  return {path: known[name_of(path)] for path in paths if name_of(path)}


@dataclasses.dataclass(frozen=True)
class Pieces:
  """Of which old rows each row of a vocabulary is made.

  old: for each id its old pieces: one, several whose mean it is, or none, and it begins fresh.
  """

  old: Sequence[Sequence[int]]

  @property
  def changes(self) -> bool:
    """Whether any id is not the piece that it was."""
    return any(list(old) != [new] for new, old in enumerate(self.old))

  def rows(self, table: jax.Array, fresh: jax.Array, dimension: int) -> jax.Array:
    """The new parameter: rows that were taken or averaged of `table`, in place of those of `fresh`.

    Rows behind the vocabulary, which no id has, are fresh ones.
    """
    table, new_table = jnp.moveaxis(table, dimension, 0), jnp.moveaxis(fresh, dimension, 0)
    # One gather of all that are kept, and one for each place in the spelling of the others, of which there are few.
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
    counts = f"{numbers.count(1):,} as they were{new}, {numbers.count(0):,} fresh"
    return f"of {len(numbers):,} ids, special pieces and config.data.extra_ids included, {counts}"
