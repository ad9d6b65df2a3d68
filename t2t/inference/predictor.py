"""Generates and scores token sequences: batches of similar lengths, one program per shape."""

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
from typing import NamedTuple

from flax import nnx
import jax
from jax.experimental import multihost_utils
import numpy as np

from t2t import UserError, sharding
from t2t.inference import decoding
from t2t.inference.prompt_features import PromptFraming, Tokens, padded, predicted_last, prompt_features
from t2t.models.architecture import ARCHITECTURES
from t2t.models.config import TransformerConfig
from t2t.param_tree import Params

_SMALLEST_BUCKET = 16  # padding below this length costs next to nothing
_NO_LIMIT = 1 << 30


@dataclasses.dataclass(frozen=True)
class Generation:
  """Generated token sequences of one prompt, best first and without EOS, and their scores (see decoding.py)."""

  tokens: list[list[int]]
  scores: list[float]


def bucket(length: int, longest: int) -> int:
  """Returns the power of two that `length` is padded to, at least 16 and at most `longest`."""
  return min(max(_SMALLEST_BUCKET, 1 << (length - 1).bit_length()), longest)


class ScoredRow(NamedTuple):
  """Token ids of a prompt and its target, and the tokens of the target that are scored.

  scored: positions in the target; None: all.
  masked: positions in the target that an encoder reads as masks; None: those of `scored`.
  start: first input of a decoder-only model; None: BOS. A window within a text starts with the token before it.
  """

  prompt: Tokens
  target: Tokens
  scored: Sequence[int] | None = None
  masked: Sequence[int] | None = None
  start: int | None = None

  @property
  def weights(self) -> list[int]:
    """Lists 1 for each scored token of the target, else 0."""
    return [1] * len(self.target) if self.scored is None else _marks(self.scored, len(self.target))

  def hidden(self, mask_id: int) -> list[int]:
    """Returns the target with masks, as an encoder reads it."""
    masked = self.scored if self.masked is None else self.masked
    if masked is None:
      return [mask_id] * len(self.target)
    marks = _marks(masked, len(self.target))
    return [mask_id if mark else int(token) for token, mark in zip(self.target, marks, strict=True)]


def _marks(positions: Sequence[int], length: int) -> list[int]:
  marks = [0] * length
  for position in positions:
    marks[position] = 1
  return marks


def _scored_lengths(row: ScoredRow, *, architecture: str, framing: PromptFraming) -> tuple[int, ...]:
  """Returns the positions of a row: of encoder and decoder, or of the single row of a one-stack model."""
  kind = ARCHITECTURES[architecture]
  if kind.has_encoder_and_decoder:
    return len(row.prompt), len(row.target)
  return (len(row.prompt) + len(row.target) + (0 if kind.is_generative else len(framing.around)),)


def scored_features(
  rows: Sequence[ScoredRow], widths: Sequence[int], *, architecture: str, framing: PromptFraming
) -> dict[str, np.ndarray]:
  """Returns the features for scoring each target after its prompt.

  In:  [ScoredRow([7, 8, 1], [5, 1])], widths (4, 3), an encoder-decoder that starts with 0
  Out: {"encoder_input_tokens": [[7, 8, 1, 0]], "encoder_segment_ids": [[1, 1, 1, 0]],
        "decoder_input_tokens": [[0, 5, 0]], "decoder_target_tokens": [[5, 1, 0]],
        "decoder_loss_weights": [[1, 1, 0]]}

  A decoder-only model reads prompt and target in one row. An encoder-only model reads masks in place of target tokens.

  Args:
    rows: prompts and targets.
    widths: positions of the encoder and of the decoder, or of the one row.
    architecture: of the model.
    framing: special ids of the vocabulary.
  """
  prompts, targets = [list(row.prompt) for row in rows], [list(row.target) for row in rows]
  kind = ARCHITECTURES[architecture]
  if kind.has_encoder_and_decoder:
    inputs = [[framing.bos_id, *target[:-1]] for target in targets]
    return prompt_features(prompts, widths[0], architecture=architecture, framing=framing) | {
      "decoder_input_tokens": padded(inputs, widths[1], framing.pad_id),
      "decoder_target_tokens": padded(targets, widths[1], framing.pad_id),
      "decoder_loss_weights": padded([row.weights for row in rows], widths[1], 0, np.float32),
    }
  (width,) = widths
  if kind.is_decoder_only:
    whole = [prompt + target for prompt, target in zip(prompts, targets, strict=True)]
    read = [[0 if framing.causal else 1] * (len(prompt) + 1) for prompt in prompts]
    starts = [framing.bos_id if row.start is None else row.start for row in rows]
    inputs = [[start, *tokens[:-1]] for start, tokens in zip(starts, whole, strict=True)]
    return {
      "decoder_input_tokens": padded(inputs, width, framing.pad_id),
      "decoder_target_tokens": padded(whole, width, framing.pad_id),
      "decoder_segment_ids": padded([[1] * len(tokens) for tokens in whole], width, 0),
      "decoder_causal_attention": padded(read, width, 0),
      "decoder_loss_weights": padded(
        [[0] * len(prompt) + row.weights for prompt, row in zip(prompts, rows, strict=True)], width, 0, np.float32
      ),
    }
  assert framing.mask_id is not None
  around = lambda middle: [x for x in (framing.cls_id, *middle, framing.sep_id) if x is not None]
  truth = [around([*prompt, *target]) for prompt, target in zip(prompts, targets, strict=True)]
  hidden = [around([*prompt, *row.hidden(framing.mask_id)]) for prompt, row in zip(prompts, rows, strict=True)]
  before = int(framing.cls_id is not None)
  weights = [[0] * (before + len(prompt)) + row.weights for prompt, row in zip(prompts, rows, strict=True)]
  return {
    "encoder_input_tokens": padded(hidden, width, framing.pad_id),
    "encoder_target_tokens": padded(truth, width, framing.pad_id),
    "encoder_segment_ids": padded([[1] * len(row) for row in truth], width, 0),
    "encoder_loss_weights": padded(weights, width, 0, np.float32),
  }


class Predictor:
  """Generates and scores with one model; compiles once for each batch shape.

  Every host calls it with the same sequences, and gets all results.

  Args:
    config: of the model.
    graphdef: structure of the model; each call takes the parameters, which may change during training.
    mesh: on which the parameters are loaded.
    framing: special ids around a text.
    decode: decoding options; None for scoring only.
    batch_size: rows of a batch, over all devices.
    max_inputs: maximum number of prompt tokens, EOS included.
  """

  def __init__(
    self,
    config: TransformerConfig,
    graphdef: nnx.GraphDef,
    mesh: jax.sharding.Mesh,
    framing: PromptFraming,
    *,
    decode: decoding.DecodeConfig | None,
    batch_size: int,
    max_inputs: int,
  ):
    self._config = config
    self._mesh = mesh
    self._framing = framing
    self._sharding = sharding.batch_sharding(mesh)
    shards = sharding.num_shards("batch", mesh)
    self._rows = -(-batch_size // shards) * shards
    self._max_inputs = max_inputs
    self.graphdef = graphdef
    self._likelihoods = decoding.make_likelihoods(graphdef)
    self._decode = None
    self.counts: collections.Counter[str] = collections.Counter()  # sums of `decoding.Decoded.counts`
    self._max_length = 0 if decode is None else decode.max_length
    if decode is not None and config.is_generative:
      config.text_decoder.check(config, max_inputs + int(config.kind.is_decoder_only), decode.max_length)
      self._decode = decoding.make_decode(graphdef, decode, eos_id=framing.eos_id)

  @property
  def config(self) -> TransformerConfig:
    """Configuration of the model."""
    return self._config

  @property
  def mesh(self) -> jax.sharding.Mesh:
    """Mesh on which the parameters are loaded."""
    return self._mesh

  @property
  def framing(self) -> PromptFraming:
    """Special ids around a text."""
    return self._framing

  @property
  def max_inputs(self) -> int:
    """Maximum number of prompt tokens, EOS included."""
    return self._max_inputs

  def generate(
    self,
    params: Params,
    prompts: Sequence[Tokens],
    *,
    seed: int = 0,
    numbers: Sequence[int] | None = None,
    on_batch: Callable | None = None,
  ) -> list[Generation]:
    """Generates a text for each prompt, in order.

    Args:
      params: nested dict.
      prompts: token ids, `max_inputs` at most.
      seed: of the samples.
      numbers: of the prompts, from 0 by default; sampling depends on the number of a prompt, not on its batch.
      on_batch: called with the numbers of prompts and of generated tokens after each batch.
    """
    extra = int(self._config.kind.is_decoder_only)
    widths = [bucket(len(prompt) + extra, self._max_inputs + extra) for prompt in prompts]
    generations: list[Generation | None] = [None] * len(prompts)
    for width, indices in by_width(widths, self._rows):
      rows = [prompts[i] for i in indices]
      features = self._config.text_decoder.features(
        rows, width, architecture=self._config.architecture, framing=self._framing, max_length=self._max_length
      )
      row_numbers = np.array(indices if numbers is None else [numbers[i] for i in indices], np.uint32)
      features = self._placed(features | {"row_number": row_numbers})
      row_numbers = features.pop("row_number")
      with jax.set_mesh(self._mesh):
        keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), row_numbers)
        decoded = self._decode(params, features, keys)
      tokens, scores = (gathered(x)[: len(indices)] for x in (decoded.tokens, decoded.scores))
      self.counts.update({name: float(np.sum(gathered(x)[: len(indices)])) for name, x in decoded.counts.items()})
      for i, beams, of_beams in zip(indices, tokens, scores, strict=True):
        generations[i] = Generation([self._trimmed(beam) for beam in beams], [float(score) for score in of_beams])
      if on_batch is not None:
        ends = np.any(tokens[:, 0] == self._framing.eos_id, axis=1)  # the others reached max_length
        on_batch(len(indices), sum(len(generations[i].tokens[0]) for i in indices) + int(np.sum(ends)))
    return generations

  def likelihoods(
    self, params: Params, rows: Sequence[ScoredRow], *, on_batch: Callable | None = None
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns the log-probability of each target after its prompt, summed over its scored tokens.

    Each row is padded to a width that depends on the row alone, so that scores do not depend on the batch.

    Args:
      params: nested dict.
      rows: prompts and targets.
      on_batch: called with the numbers of rows and of scored tokens after each batch.

    Returns:
      float32 [rows]; bool [rows], whether each scored token is the likeliest.

    Raises:
      UserError: a row has more tokens than the model has positions.
    """
    if not rows:
      return np.zeros(0, np.float32), np.ones(0, bool)
    log_p, is_greedy = self.scored(self._likelihoods, params, rows, on_batch=on_batch)
    return log_p, is_greedy

  def scored(
    self, program: Callable, params: Params, rows: Sequence[ScoredRow], *, on_batch: Callable | None = None
  ) -> list[np.ndarray]:
    """Returns the outputs of a program of (params, features) for the rows, each [rows, ...]; see `likelihoods`.

    Args:
      program: compiled; each output has a row for each row of the features.
      params: nested dict.
      rows: prompts and targets, at least one.
      on_batch: called with the numbers of rows and of scored tokens after each batch.

    Raises:
      UserError: a row has more tokens than the model has positions.
    """
    outputs: list[np.ndarray] = []
    for indices, features in self.scored_batches(rows):
      with jax.set_mesh(self._mesh):
        arrays = [gathered(x)[: len(indices)] for x in program(params, features)]
      outputs = outputs or [np.zeros((len(rows), *x.shape[1:]), x.dtype) for x in arrays]
      for output, x in zip(outputs, arrays, strict=True):
        output[indices] = x
      if on_batch is not None:
        batch = [rows[i] for i in indices]
        on_batch(len(indices), sum(len(row.target) if row.scored is None else len(row.scored) for row in batch))
    return outputs

  def scored_batches(
    self, rows: Sequence[ScoredRow], *, most_tokens: int = 0
  ) -> Iterator[tuple[list[int], dict[str, jax.Array]]]:
    """Yields the indices of the rows of each batch, which have one width, and the features on the mesh.

    Args:
      rows: prompts and targets.
      most_tokens: maximum positions of a batch, which has a row for each index, up to a power of two; 0: all batches
        have `batch_size` rows.

    Raises:
      UserError: a row has more tokens than the model has positions.
    """
    architecture, framing, most = self._config.architecture, self._framing, self._config.most_positions
    lengths = [_scored_lengths(row, architecture=architecture, framing=framing) for row in rows]
    longest = max((max(row_lengths) for row_lengths in lengths), default=0)
    if most and longest > most:
      raise UserError(
        f"a prompt and its answer have {longest} tokens together, but the model has only {most} positions; set "
        f"config.data.inputs_length={max(1, self._max_inputs - longest + most)}"
      )
    widths = [tuple(bucket(max(length, 1), most or _NO_LIMIT) for length in row_lengths) for row_lengths in lengths]
    shards = sharding.num_shards("batch", self._mesh)
    for width, same_width in by_width(widths, max(1, len(rows) if most_tokens else self._rows)):
      size = self._rows
      if most_tokens:
        size = min(1 << (len(same_width) - 1).bit_length(), max(1, most_tokens // max(width)))
        size = -(-size // shards) * shards
      for start in range(0, len(same_width), size):
        indices = same_width[start : start + size]
        features = scored_features([rows[i] for i in indices], width, architecture=architecture, framing=framing)
        features = predicted_last(self._config, features, framing.mask_id)
        yield indices, placed(features, size, self._sharding)

  def _trimmed(self, tokens: np.ndarray) -> list[int]:
    ends = np.flatnonzero(tokens == self._framing.eos_id)
    return tokens[: ends[0]].tolist() if ends.size else tokens.tolist()

  def _placed(self, features: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
    return placed(features, self._rows, self._sharding)


def placed(features: Mapping[str, np.ndarray], rows: int, where: jax.sharding.Sharding) -> dict[str, jax.Array]:
  """Places features on the mesh, padded to `rows` rows with copies of the first."""

  def put_on_mesh(x):
    x = np.concatenate([x, np.repeat(x[:1], rows - len(x), axis=0)])
    return jax.make_array_from_callback(x.shape, where, lambda index: x[index])

  return {name: put_on_mesh(x) for name, x in features.items()}


def gathered(x: jax.Array) -> np.ndarray:
  """Gathers a global array on every host."""
  return np.asarray(multihost_utils.process_allgather(x, tiled=True))


def by_width(widths: Sequence, rows: int) -> Iterator[tuple]:
  """Yields (width, indices) of at most `rows` sequences of one width; the widest come first, to run out of memory
  early.
  """
  for width in sorted(set(widths), reverse=True):
    indices = [i for i, sequence_width in enumerate(widths) if sequence_width == width]
    for start in range(0, len(indices), rows):
      yield width, indices[start : start + rows]


def check_predicts_tokens(config: TransformerConfig, *, where: str) -> None:
  """Checks that a model was trained to predict tokens.

  Raises:
    UserError: the model is ELECTRA's discriminator, which only detects replaced tokens, or ELMo.
  """
  if config.block_class.is_recurrent:
    config.block_class.check_reads_both(config, where=where)
  detectors = [head.name for head in config.heads if head.kind == "detector"]
  if detectors:
    raise UserError(
      f"{where} is a discriminator, which detects {detectors[0]} tokens and cannot predict tokens; use this checkpoint "
      "only to start fine-tuning, with config.init.checkpoint"
    )
