"""Log-probabilities of each token of a text, and the likeliest alternatives."""

from collections.abc import Sequence
import dataclasses
import functools
import os
from typing import Any, NamedTuple

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from t2t import UserError
from t2t.inference import decoding, predictor, text_scores
from t2t.models.architecture import Batch, predicted_side
from t2t.param_tree import Params

TOP = 5  # number of likeliest tokens per position
_CHUNK_TOKENS = 512  # positions with logits in memory at one time
ROWS_TOKENS = 2_048  # positions per batch; attention probabilities take memory quadratic in the row length


@dataclasses.dataclass(frozen=True)
class Likelihoods:
  """Log-probabilities of the tokens of one text.

  log_p: float32 [tokens], of each token.
  ids, log_p_of: int32 and float32 [tokens, `TOP`], the likeliest tokens at each position, best first.
  """

  log_p: np.ndarray
  ids: np.ndarray
  log_p_of: np.ndarray


class TokenScorer:
  """Scores each token of continuations with the model and the framing of a scorer.

  Args:
    scorer: of the model.
    vocab_size: number of ids with a token; embedding rows beyond have none.
  """

  def __init__(self, scorer: text_scores.Scorer, *, vocab_size: int):
    self._scorer, config = scorer, scorer.reader.config
    most = min(vocab_size, config.vocab_size)
    self._program = jax.jit(functools.partial(_log_probabilities, scorer.reader.graphdef, most))

  def __call__(self, params: Params, items: Sequence[text_scores.ScoredText]) -> list[Likelihoods]:
    """Returns the log-probabilities of the tokens of each continuation; EOS counts if the continuation has it.

    Args:
      params: nested dict.
      items: prefixes and continuations, as the scorer takes them.

    Raises:
      UserError: a text has more tokens than the model has positions, or a log-probability is NaN or Inf.
    """
    groups = [self._scorer.rows(self._scorer.layout(item)) for item in items]
    rows = [row for group in groups for row in group]
    parts = [joined([])] * len(rows)
    reader = self._scorer.reader
    for indices, features in reader.scored_batches(rows, most_tokens=ROWS_TOKENS):
      with jax.set_mesh(reader.mesh):
        outputs = self._program(params, features)
      weights, *arrays = (predictor.gathered(x) for x in outputs)
      for row, index in enumerate(indices):
        parts[index] = Likelihoods(*(x[row][weights[row] > 0] for x in arrays))
    if not all(np.isfinite(part.log_p).all() for part in parts):
      raise UserError("--checkpoint: the model produced a token probability of NaN or Inf; use a different checkpoint")
    ordered = iter(parts)
    return [joined([next(ordered) for _ in group]) for group in groups]


def joined(parts: Sequence[Likelihoods]) -> Likelihoods:
  """Returns the tokens of several parts of a text in order; no tokens without parts."""
  if not parts:
    return Likelihoods(np.zeros(0, np.float32), np.zeros((0, TOP), np.int32), np.zeros((0, TOP), np.float32))
  columns = zip(*((part.log_p, part.ids, part.log_p_of) for part in parts), strict=True)
  return Likelihoods(*map(np.concatenate, columns))


def _log_probabilities(graphdef: nnx.GraphDef, most: int, params: Params, batch: Batch) -> tuple[jax.Array, ...]:
  """Returns loss weights and log-probabilities of the targets, [batch, length], and ids and values of the likeliest,
  [batch, length, top].
  """
  model = nnx.merge(graphdef, params)
  side = predicted_side(batch)
  hidden, logits_fn = model(batch), model.logits_fn()
  rows, length = hidden.shape[:2]
  size = max(1, min(length, _CHUNK_TOKENS // rows))
  chunks = -(-length // size)

  def split(x: jax.Array) -> jax.Array:
    # [batch, length, ...] -> [chunks, batch, size, ...]
    x = jnp.pad(x, [(0, 0), (0, chunks * size - length)] + [(0, 0)] * (x.ndim - 2))
    return jnp.moveaxis(x.reshape(rows, chunks, size, *x.shape[2:]), 1, 0)

  def score_chunk(chunk):
    hidden, targets = chunk
    log_p = jax.nn.log_softmax(logits_fn(hidden))
    # Embedding rows beyond the vocabulary have no token.
    values, ids = decoding.largest(log_p[..., :most], min(TOP, most))
    return jnp.take_along_axis(log_p, targets[..., None], axis=-1)[..., 0], ids, values

  chunked = jax.lax.map(score_chunk, (split(hidden), split(batch[f"{side}_target_tokens"])))
  outputs = (jnp.moveaxis(x, 0, 1).reshape(rows, chunks * size, *x.shape[3:])[:, :length] for x in chunked)
  return batch[f"{side}_loss_weights"], *outputs


class TokenNames(NamedTuple):
  """Names of the rows of an embedding; rows beyond the vocabulary have no token, but a model can generate them.

  texts: of each row; for rows without a token "[ID]".
  names: unique names of the rows, see `unique`.
  known: number of ids with a token.
  """

  texts: list[str]
  names: list[str]
  known: int


def token_names(vocabulary: Any, rows: int) -> TokenNames:
  """Returns the names of `rows` rows of an embedding."""
  from t2t.data import vocabularies

  texts = vocabularies.token_texts(vocabulary)
  behind = [f"[{number}]" for number in range(len(texts), rows)]
  exact = vocabularies.token_texts(vocabulary, errors="surrogateescape")
  return TokenNames(texts + behind, unique(exact + behind), len(texts))


def unique(texts: Sequence[str]) -> list[str]:
  r"""Returns a distinct name for each token.

  In:  ["a", "\\udce2", "a"], of which the second is the byte 0xe2, as `bytes.decode` escapes it
  Out: ["a", "bytes:\\xe2", "token_id:2"]
  """
  ids_by_name: dict[str, int] = {}
  for number, text in enumerate(texts):
    name = text
    if any("\udc80" <= character <= "\udcff" for character in text):
      name = "bytes:" + "".join(f"\\x{byte:02x}" for byte in text.encode(errors="surrogateescape"))
    ids_by_name[f"token_id:{number}" if name in ids_by_name else name] = number
  return list(ids_by_name)


def pieces(decode: Any, ids: Sequence[int]) -> list[str]:
  """Returns the part that each token adds to the decoded text; "" for a token that ends within a character.

  In:  [72, 105, 195, 169], of bytes that are "Hié"
  Out: ["H", "i", "", "é"]

  Args:
    decode: token ids -> their text.
    ids: of the text.
  """
  text, ends = decode(list(ids)), [0]
  for end in range(1, len(ids)):
    num_common = len(os.path.commonprefix([decode(list(ids[:end])), text]))
    ends.append(max(ends[-1], num_common))
  ends.append(len(text))
  return [text[start:end] for start, end in zip(ends, ends[1:], strict=False)] if len(ids) else []
