"""Log-probabilities of each token of a text given the previous tokens, and the likeliest alternatives."""

from collections.abc import Sequence
import dataclasses
import functools
import os
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from t2t import UserError
from t2t.inference import decoding, predictor, prompt_features
from t2t.models.architecture import Batch
from t2t.models.config import TransformerConfig
from t2t.param_tree import Params

TOP = 5  # number of likeliest tokens per position
_CHUNK_TOKENS = 512  # positions with logits in memory at one time
_ROWS_TOKENS = 2_048  # positions per batch; attention probabilities take memory quadratic in the row length
_NO_LIMIT = 1 << 30


@dataclasses.dataclass(frozen=True)
class Likelihoods:
  """Log-probabilities of the tokens of one text.

  log_p: float32 [tokens], of each token.
  ids, log_p_of: int32 and float32 [tokens, `TOP`], the likeliest tokens at each position, best first.
  """

  log_p: np.ndarray
  ids: np.ndarray
  log_p_of: np.ndarray


def _log_probabilities(graphdef: nnx.GraphDef, most: int, params: Params, batch: Batch) -> tuple[jax.Array, ...]:
  """Returns log-probabilities of the targets, [batch, length], and ids and values of the likeliest, [batch, length,
  top].
  """
  model = nnx.merge(graphdef, params)
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

  chunked = jax.lax.map(score_chunk, (split(hidden), split(batch["decoder_target_tokens"])))
  return tuple(jnp.moveaxis(x, 0, 1).reshape(rows, chunks * size, *x.shape[3:])[:, :length] for x in chunked)


class Teller:
  """Computes token log-probabilities with one generative model; compiles once for each batch shape.

  Args:
    config: of the model.
    graphdef: structure of the model; each call takes the parameters.
    mesh: on which the parameters are loaded.
    framing: special ids around a text.
    vocab_size: number of ids with a token.
  """

  def __init__(
    self,
    config: TransformerConfig,
    graphdef: nnx.GraphDef,
    mesh: jax.sharding.Mesh,
    framing: prompt_features.PromptFraming,
    *,
    vocab_size: int,
  ):
    self._config, self._mesh, self._framing = config, mesh, framing
    self._program = jax.jit(functools.partial(_log_probabilities, graphdef, min(vocab_size, config.vocab_size)))

  def __call__(self, params: Params, prompt: Sequence[int], targets: Sequence[Sequence[int]]) -> list[Likelihoods]:
    """Returns the log-probabilities of each target after the prompt; EOS counts if the target has it.

    Args:
      params: nested dict.
      prompt: token ids; empty to score a decoder-only model from its first token.
      targets: token ids of several texts.
    """
    reads_apart = self._config.kind.has_encoder_and_decoder
    longest = max(map(len, targets))
    lengths = (len(prompt), longest) if reads_apart else (len(prompt) + longest,)
    most = self._config.most_positions or _NO_LIMIT
    widths = [predictor.bucket(max(length, 1), most) for length in lengths]
    rows = min(max(1, _ROWS_TOKENS // max(widths)), 1 << (len(targets) - 1).bit_length())
    start, results = 0 if reads_apart else len(prompt), []
    for first in range(0, len(targets), rows):
      batch_targets = targets[first : first + rows]
      arrays = self._tell(params, [predictor.ScoredRow(prompt, target) for target in batch_targets], widths, rows)
      for row, target in enumerate(batch_targets):
        results.append(Likelihoods(*(x[row, start : start + len(target)] for x in arrays)))
    if not all(np.isfinite(result.log_p).all() for result in results):
      raise UserError("--checkpoint: the model produced a token probability of NaN or Inf; use a different checkpoint")
    return results

  def _tell(
    self, params: Params, scored_rows: list, widths: Sequence[int], rows: int
  ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    scored_rows = scored_rows + scored_rows[:1] * (rows - len(scored_rows))
    batch = predictor.scored_features(
      scored_rows, widths, architecture=self._config.architecture, framing=self._framing
    )
    with jax.set_mesh(self._mesh):
      return jax.device_get(self._program(params, batch))


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
