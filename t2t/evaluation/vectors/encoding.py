"""Vectors of sentences, as `t2t embed` computes them, and of words in sentences."""

from collections.abc import Callable, Sequence
import functools
from typing import Any, NamedTuple

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from t2t import UserError
from t2t.checkpoints import pretrained
from t2t.inference import embedding, predictor, row_batches
from t2t.models.architecture import Batch
from t2t.param_tree import Params

_MOST_WORDS = 1 << 30  # words of a sentence, which its length bounds


class Sentence(NamedTuple):
  """Sentence, or words of it.

  text: of the sentence.
  words: first character and end of each word; None: the sentence.
  where: location, for messages.
  """

  text: str
  words: Sequence[tuple[int, int]] | None = None
  where: str = ""


class EncodedSentence(NamedTuple):
  """Sentence as model input.

  example: see `row_batches.Example`.
  spans: first token and end of each word that the model reads; None for a sentence.
  read: indices of these words.
  cut: number of tokens removed by truncation.
  """

  example: row_batches.Example
  spans: Sequence[tuple[int, int]] | None = None
  read: Sequence[int] = ()
  cut: int = 0


class TextEncoder:
  """Computes vectors with one model; a word has the mean of the states of its tokens.

  Args:
    source: the checkpoint.
    mesh: on which its parameters are loaded.
    pool: a key of `embedding.POOLS`, for sentences.
    layer: see `embedding.layers_of`.
    longest: maximum number of tokens of a sentence, including special tokens.
    batch_size: sentences of a batch, over all devices.

  Raises:
    UserError: the layer does not exist.
  """

  def __init__(
    self, source: pretrained.Source, mesh: jax.sharding.Mesh, *, pool: str, layer: str, longest: int, batch_size: int
  ):
    from t2t.data import head_examples, vocabularies

    model = pretrained.abstract(source, mesh)
    self.longest, self.layers = longest, embedding.layers_of(model.config, layer)
    self._vocabulary = vocabularies.as_text(pretrained.vocabulary(source))
    self._converter = head_examples.HeadFeatureConverter(self._vocabulary, model.config.architecture, None, longest)
    self._framing = head_examples.Framing.of(self._vocabulary, model.config.architecture)
    pad_id = max(self._vocabulary.pad_id, 0)
    self._embedder = embedding.Embedder(
      model.config, model.graphdef, mesh, pool=pool, layers=self.layers, pad_id=pad_id, batch_size=batch_size
    )
    self._batches = row_batches.RowBatches(model.config, mesh, pad_id=pad_id, batch_size=batch_size)
    self._program = jax.jit(functools.partial(_word_vectors, model.graphdef, self.layers))

  # ---- Encoding ------------------------------------------------------------------------------------------------------

  def encode(self, text: Sentence) -> EncodedSentence:
    """Converts a text to model input; a word that is not read to its end is left out."""
    if text.words is None:
      features, cut = self._converter({"parts": [text.text]})
      example = {name: features[name].tolist() for name in ("inputs", "token_types", "texts")}
      return EncodedSentence(example, cut=cut)
    from t2t.data.vocabularies import offsets

    tokens = offsets.tokens_of(self._vocabulary, text.text)
    room = self.longest - self._framing.size(1)
    begin, spans, read = len(self._framing.begin), [], []
    for index, (start, end) in enumerate(text.words):
      (inside,) = np.nonzero((tokens.starts < end) & (tokens.ends > start) & (tokens.ends > tokens.starts))
      if len(inside) and inside[-1] < room:
        spans.append((begin + int(inside[0]), begin + int(inside[-1]) + 1))
        read.append(index)
    inputs = [*self._framing.begin, *tokens.ids[:room].tolist(), *self._framing.end]
    return EncodedSentence({"inputs": inputs}, spans, read, max(0, len(tokens.ids) - room))

  def encode_whole(self, text: Sentence) -> EncodedSentence:
    """Converts a text to model input like `encode`, but refuses a word that is not read.

    Raises:
      UserError: a word has no token among those that the model reads.
    """
    encoded = self.encode(text)
    for index, (start, end) in enumerate(text.words or ()):
      if index not in encoded.read:
        raise UserError(
          f"{text.where}: the word {text.text[start:end]!r} is not within the {self.longest:,} tokens that the model "
          "reads. Shorten the sentence before the word, or raise --inputs_length."
        )
    return encoded

  # ---- Vectors -------------------------------------------------------------------------------------------------------

  def vectors(
    self, params: Params, texts: Sequence[EncodedSentence], *, on_batch: Callable[[int, int], None] | None = None
  ) -> np.ndarray:
    """Returns vectors, float32 [sentences or words, layers, embed].

    Every host calls it with the same texts, and gets all vectors.

    Args:
      params: nested dict.
      texts: at least one; all sentences, or all texts with words, whose vectors are in the order of the words.
      on_batch: called with the numbers of sentences and tokens after each batch.

    Raises:
      UserError: a vector has NaN or Inf.
    """
    examples = [text.example for text in texts]
    spans = [text.spans for text in texts if text.spans is not None]
    if not spans:
      return self._embedder.vectors(params, examples, on_batch=on_batch)
    ends = np.cumsum([0, *map(len, spans)])
    size = functools.partial(predictor.bucket, longest=_MOST_WORDS)
    beside = {
      f"word_{name}s": ([[span[i] for span in of_text] for of_text in spans], size)
      for i, name in enumerate(("start", "end"))
    }
    word_vectors: Any = None
    for indices, vectors in self._batches.run(self._program, params, examples, beside=beside, on_batch=on_batch):
      if word_vectors is None:
        word_vectors = np.zeros((ends[-1], *np.delete(vectors.shape, (0, 1))), np.float32)
      for row, index in enumerate(indices):
        word_vectors[ends[index] : ends[index + 1]] = vectors[row, : len(spans[index])]
    if not np.isfinite(word_vectors).all():
      raise UserError("--checkpoint: the model produced a vector with NaN or Inf; use a different checkpoint")
    return word_vectors


def _word_vectors(graphdef: nnx.GraphDef, layers: Sequence[int], params: Params, batch: Batch) -> jax.Array:
  """Averages states over the tokens of each word: float32 [batch, words, layers, embed]."""
  word_starts, word_ends = (batch[name][..., None] for name in ("word_starts", "word_ends"))
  sentences = {name: x for name, x in batch.items() if not name.startswith("word_")}
  states = embedding.layer_states(nnx.merge(graphdef, params), layers, sentences)
  positions = jnp.arange(states.shape[-2])
  inside = (word_starts <= positions) & (positions < word_ends)
  share = inside / jnp.maximum(word_ends - word_starts, 1)
  return jnp.einsum("bwl,nble->bwne", share.astype(jnp.float32), states.astype(jnp.float32), precision="highest")


def unit(vectors: np.ndarray) -> np.ndarray:
  """Returns vectors of length 1, whose products are cosines."""
  lengths = np.linalg.norm(vectors.astype(np.float64), axis=-1, keepdims=True)
  return (vectors / np.maximum(lengths, np.finfo(np.float32).tiny)).astype(np.float32)
