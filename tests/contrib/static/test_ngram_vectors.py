"""fastText's n-grams and hashes: published values, brute force, and the embedding against sums in loops."""

from flax import nnx
import hypothesis
from hypothesis import strategies
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t import UserError
from t2t.configuration.loading import load_config, records
from t2t.contrib.static import subwords, word_vectors
from t2t.models import transformer


def test_hashes_are_the_published_ones():
  """Test vectors of FNV-1a, 32 bits (Fowler, Noll, Vo)."""
  assert [subwords.fnv1a(x) for x in (b"", b"a", b"foobar")] == [0x811C9DC5, 0xE40C292C, 0xBF9CF968]


def test_bytes_above_127_are_extended_by_their_sign():
  """fastText computes `h ^= uint32_t(int8_t(byte))`, so that the upper bits change, too."""
  by_int8 = np.uint64(2166136261) ^ np.uint64(np.array([0xC3], np.uint8).view(np.int8).astype(np.uint32)[0])
  assert subwords.fnv1a(b"\xc3") == int(by_int8) * 16777619 % 2**32 != (2166136261 ^ 0xC3) * 16777619 % 2**32


def test_ngrams_of_the_paper():
  """Section 3.2 has <wh, whe, her, ere, re> as the trigrams of "where"."""
  assert [x for x in subwords.ngrams("where") if len(x) == 3] == ["<wh", "whe", "her", "ere", "re>"]
  assert subwords.ngrams("as") == ["<as", "<as>", "as>"]


@hypothesis.given(strategies.text(min_size=1, max_size=12))
def test_ngrams_are_all_parts_of_the_marked_word(word):
  marked = f"<{word}>"
  parts = [marked[i:j] for i in range(len(marked)) for j in range(i + 3, min(i + 6, len(marked)) + 1)]
  assert subwords.ngrams(word) == parts


def small(**changed):
  fields = dict(vocab_size=8, embed_dim=4, subword_buckets=50, most_subwords=12, init_scale=0.5) | changed
  return records(load_config("fasttext_skip_gram")).with_(model=fields).model


def test_a_word_is_the_sum_of_its_row_and_its_ngrams():
  model, words = small(), ["<pad>", "</s>", "<unk>", "where", "as", "é"]
  module = transformer.build(model, nnx.Rngs(0))
  rows = subwords.table(words, {0, 1, 2}, rows=8, buckets=50, most=12)
  module.embed.subwords = nnx.Param(jnp.asarray(rows), axes=("vocab", None))
  own, buckets = (np.asarray(x[...]) for x in (module.embed.table, module.embed.buckets))
  ids = jnp.array([[2, 3, 4, 5, 7]])
  found = np.asarray(module.hidden({"encoder_input_tokens": ids}).x[0])
  for place, i in enumerate(ids[0].tolist()):
    word = words[i] if i < len(words) and i > 2 else ""
    hashed = [subwords.fnv1a(x.encode()) % 50 for x in subwords.ngrams(word)][:12] if word else []
    np.testing.assert_allclose(found[place], own[i] + sum(buckets[row] for row in hashed), rtol=1e-5, atol=1e-6)


def test_an_unknown_word_has_the_vector_of_its_ngrams():
  buckets = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
  composer = subwords.Composer(buckets, 64)
  table = word_vectors.WordVectors(("where",), np.ones((1, 4), np.float32), "toy", composer)
  expected = sum(buckets[row] for row in subwords.rows_of("here", 50))
  np.testing.assert_allclose(table.unit_vector("here"), expected / np.linalg.norm(expected), rtol=1e-5)
  with pytest.raises(UserError, match="'' is not among the 1 words"):
    table.unit_vector("")


def test_ngrams_need_rows():
  with pytest.raises(UserError, match="config.model.subword_buckets=0"):
    transformer.build(small(subword_buckets=0), nnx.Rngs(0))


def test_the_gradient_reaches_shared_rows():
  model = small()
  module = transformer.build(model, nnx.Rngs(0))
  rows = subwords.table(["", "", "", "abc", "abx"], {0, 1, 2}, rows=8, buckets=50, most=12)
  module.embed.subwords = nnx.Param(jnp.asarray(rows), axes=("vocab", None))

  graphdef, params = nnx.split(module, graph=False)
  params = nnx.to_pure_dict(params)

  def total(buckets):
    changed = {"embed": params["embed"] | {"buckets": buckets}}
    return nnx.merge(graphdef, changed).hidden({"encoder_input_tokens": jnp.array([[3, 4]])}).x.sum()

  gradient = jax.grad(total)(params["embed"]["buckets"])
  expected = np.zeros(50)
  for word in ("abc", "abx"):
    np.add.at(expected, subwords.rows_of(word, 50), 1.0)
  np.testing.assert_allclose(gradient[:, 0], expected)
