"""fastText's words: a vector of the word plus vectors of its character n-grams, which share rows by their hashes."""

from collections.abc import Sequence

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from t2t import UserError, sharding
from t2t.models import layers
from t2t.models.config import TransformerConfig

SHORTEST, LONGEST = 3, 6  # characters of an n-gram
BEGIN, END = "<", ">"


def fnv1a(content: bytes) -> int:
  """Returns the 32-bit FNV-1a hash as fastText computes it: bytes above 127 are extended by their sign.

  In:  b"a"
  Out: 0xe40c292c
  """
  value = 2166136261
  for byte in content:
    value ^= byte if byte < 128 else byte | 0xFFFFFF00
    value = value * 16777619 & 0xFFFFFFFF
  return value


def ngrams(word: str) -> list[str]:
  """Returns the character n-grams of a word between marks, in fastText's order.

  In:  "as"
  Out: ["<as", "<as>", "as>"]

  Source: Bojanowski et al. 2017, section 3.2.
  """
  marked = f"{BEGIN}{word}{END}"
  starts = ((start, marked[start : start + LONGEST]) for start in range(len(marked)))
  return [longest[:size] for _, longest in starts for size in range(SHORTEST, len(longest) + 1)]


def rows_of(word: str, buckets: int) -> list[int]:
  """Returns the rows of a word's n-grams among `buckets`."""
  return [fnv1a(ngram.encode()) % buckets for ngram in ngrams(word)]


def table(words: Sequence[str], special: set[int], *, rows: int, buckets: int, most: int) -> np.ndarray:
  """Returns the rows of the n-grams of each word plus one, int32 [rows, most]; 0: none.

  Args:
    words: text of each id; special ids have no n-grams.
    special: ids of no word.
    rows: rows of the embedding.
    buckets: see `rows_of`.
    most: n-grams of a word; further ones are left out.
  """
  made = np.zeros((rows, most), np.int32)
  for i, word in enumerate(words):
    if i not in special:
      of_word = rows_of(word, buckets)[:most]
      made[i, : len(of_word)] = np.array(of_word, np.int32) + 1
  return made


class SubwordEmbed(layers.Embed):
  """Token vectors plus the sum of the vectors of their n-grams.

  `subwords` has the rows of each token's n-grams, see `table`. It is no weight: the loss fills it from the vocabulary,
  it is frozen, and checkpoints keep it.

  Raises:
    UserError: there are no buckets.

  Source: Bojanowski et al. 2017, section 3.2. The released code divides the sum by its number of terms.
  """

  constants = ("(^|/)embed/subwords$",)

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs, *, owns_table: bool = True):
    super().__init__(config, rngs, owns_table=owns_table)
    if config.subword_buckets < 1:
      raise UserError(
        "config.model.embedding=subword needs rows for n-grams, but config.model.subword_buckets=0. Set "
        "config.model.subword_buckets=2000000."
      )
    scale, axes = config.init_scale or 1.0, self.table.get_metadata()["axes"]
    self.buckets = layers.param(rngs, (config.subword_buckets, config.embedding_width), axes, scale=scale)
    self.subwords = nnx.Param(jnp.zeros((config.vocab_size, config.most_subwords), jnp.int32), axes=("vocab", None))

  def vectors(self, tokens: jax.Array, table: nnx.Param | None = None) -> jax.Array:
    rows = jnp.take(self.subwords[...], tokens, axis=0)
    of_rows = jnp.take(sharding.shard(self.buckets[...], "vocab", "embed"), jnp.maximum(rows - 1, 0), axis=0)
    added = jnp.sum(jnp.where(rows[..., None] > 0, of_rows, 0.0), axis=-2)
    return super().vectors(tokens, table) + added.astype(self.dtype)


class Composer:
  """Vectors of any word from the n-grams' vectors.

  Args:
    buckets: float32 [buckets, width].
    most: n-grams of a word that were trained.
  """

  def __init__(self, buckets: np.ndarray, most: int):
    self.buckets, self.most = buckets, most

  def __call__(self, word: str) -> np.ndarray | None:
    """Returns the sum of a word's n-grams, float32 [width]; None for a word without one."""
    rows = rows_of(word, len(self.buckets))[: self.most]
    return self.buckets[rows].sum(axis=0) if word and rows else None

  def added(self, vectors: np.ndarray, words: Sequence[str]) -> np.ndarray:
    """Adds the n-grams of words to their vectors, float32 [words, width]."""
    return np.stack([vector + self(word) for vector, word in zip(vectors, words, strict=True)])
