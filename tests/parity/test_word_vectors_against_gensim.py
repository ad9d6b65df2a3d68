"""Word vectors against gensim: an update of word2vec, fastText's hashes, and files that gensim reads."""

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t import losses
from t2t.configuration.loading import load_config, records
from t2t.contrib.static import negative_sampling, subwords, word_vectors

gensim = pytest.importorskip("gensim", reason="needs gensim: pip install -r tests/parity-requirements.txt")

NEGATIVE = 0  # the id that gensim draws each time
ALPHA = 1e-4  # so small that the updates of a sentence add up


def gensim_update(sentence, vectors, outputs, *, cbow):
  """Returns the updates of both tables by one sentence, divided by the learning rate."""
  words = [str(i) for i in range(len(vectors))]
  model = gensim.models.Word2Vec(
    vector_size=vectors.shape[1], window=3, min_count=1, sg=int(not cbow), negative=2, workers=1, sample=0,
    alpha=ALPHA, min_alpha=ALPHA, shrink_windows=False, cbow_mean=1, sorted_vocab=0,
  )  # fmt: skip
  model.build_vocab([words])
  assert model.wv.index_to_key == words
  model.wv.vectors[:], model.syn1neg[:] = vectors, outputs
  model.cum_table[:] = model.cum_table[-1]  # the first id covers the whole range
  text = [[str(i) for i in sentence]]
  model.train(text, total_examples=1, epochs=1, start_alpha=ALPHA, end_alpha=ALPHA)
  return (model.wv.vectors - vectors) / ALPHA, (model.syn1neg - outputs) / ALPHA


@pytest.mark.parametrize("cbow", [False, True])
def test_the_gradient_is_the_update_of_gensim(cbow, monkeypatch):
  random = np.random.default_rng(0)
  vectors, outputs = (random.normal(size=(6, 8)).astype(np.float32) for _ in range(2))
  sentence = [3, 1, 4, 2]
  run = records(load_config("word2vec_cbow" if cbow else "word2vec_skip_gram"))
  run = run.with_(
    model=dict(vocab_size=6, embed_dim=8), negative_sampling={"negatives": 2, "cbow": cbow}, data={"window": 3}
  )
  loss = losses.make(run)
  shape = lambda batch, number: (1, batch["encoder_input_tokens"].shape[1], number, 2)
  monkeypatch.setattr(
    negative_sampling.NegativeSampling,
    "_negatives",
    lambda self, batch, size, number: jnp.full(shape(batch, number), NEGATIVE),
  )
  tokens = jnp.array([sentence])
  ones = jnp.ones_like(tokens)
  batch = {"input_tokens": tokens, "windows": 3 * ones, "segment_ids": ones, "loss_weights": ones}
  batch = {f"encoder_{name}": x for name, x in batch.items()}
  module = loss.build(run.model, nnx.Rngs(0))
  module.words.embed.table = nnx.Param(jnp.asarray(vectors), axes=("vocab", "embed"))
  module.output = nnx.Param(jnp.asarray(outputs), axes=("vocab", "embed"))
  graphdef, params = nnx.split(module, graph=False)
  weights = {"negative_sampling": jnp.ones(())}
  summed = lambda params: loss(nnx.merge(graphdef, params), batch, weights, key=None, train=True)[0][
    "negative_sampling"
  ]
  gradients = nnx.to_pure_dict(jax.grad(summed)(params))
  to_vectors, to_outputs = gensim_update(sentence, vectors, outputs, cbow=cbow)
  assert np.abs(to_vectors).max() > 0.1
  # Each of the three context words gets the whole gradient of their mean in word2vec.c.
  factor = 3 if cbow else 1
  # gensim looks the sigmoid up in a table of 1,000 values.
  for found, update in ((factor * gradients["words"]["embed"]["table"], to_vectors), (gradients["output"], to_outputs)):
    assert np.linalg.norm(found + update) < 0.02 * np.linalg.norm(update)
    assert np.linalg.norm(np.delete(found + update, NEGATIVE, axis=0)) < 0.02 * np.linalg.norm(update)


def test_ngrams_have_the_rows_of_gensim():
  for word in ("where", "as", "Größe", "日本語", "a"):
    theirs = gensim.models.fasttext.ft_ngram_hashes(word, 3, 6, 2_000_000)
    assert sorted(theirs) == sorted(subwords.rows_of(word, 2_000_000))


def test_gensim_reads_exported_files(tmp_path):
  vectors = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
  word_vectors.write(word_vectors.WordVectors(("a", "Größe", "c."), vectors, "x"), tmp_path / "v.txt")
  back = gensim.models.KeyedVectors.load_word2vec_format(tmp_path / "v.txt")
  assert back.index_to_key == ["a", "Größe", "c."]
  np.testing.assert_array_equal(back.vectors, vectors)
