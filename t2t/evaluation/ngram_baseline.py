"""The loss of an n-gram model on the held-out targets of a causal run, counted from the run's training text."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np

from t2t import UserError, losses
from t2t.configuration.schema import Config
from t2t.data import pipeline, registry, train_data, vocabularies
from t2t.evaluation import kneser_ney
from t2t.losses import text_figures
from t2t.training import recipe

MOST_TOKENS = 10_000_000  # takes about 1.2 GB of memory and 10 seconds with order 3


@dataclasses.dataclass(frozen=True)
class NgramLoss:
  """Loss of an n-gram model.

  Attributes:
    order: tokens of the longest n-grams.
    loss: nats per target token, the mean over the targets of the run's held-out loss.
    figures: perplexity, and bits per byte if the bytes of a token are known.
    num_tokens: number of training tokens that were counted.
    num_targets: number of held-out targets.
    num_ngrams: number of distinct n-grams of each length.
    is_whole: whether all training text was counted, and not only its beginning.
  """

  order: int
  loss: float
  figures: Mapping[str, float]
  num_tokens: int
  num_targets: int
  num_ngrams: Sequence[int]
  is_whole: bool

  @property
  def baseline(self) -> losses.Baseline:
    """The loss as a baseline of the run."""
    part = "of the training text" if self.is_whole else "at the beginning of the training text"
    knows = f"predicts each token from the {self.order - 1} before it, by counts of {self.num_tokens:,} tokens {part}"
    return losses.Baseline(f"{self.order}-gram model", self.loss, knows, is_exact=False)


def check(config: Config) -> None:
  """Checks that a run predicts each token from those before it, as an n-gram model does.

  Raises:
    UserError: the objective or the loss is another one.
  """
  data, model, needs = config.data, config.model, "an n-gram model predicts each token from the tokens before it"
  if config.train.loss != "cross_entropy" or not model.kind.is_decoder_only:
    raise UserError(
      f"config.train.loss={config.train.loss}, config.model.architecture={model.architecture}: {needs}, so its loss "
      "is comparable only with the cross_entropy of a decoder_only model. Give a run with config.data.objective="
      "causal_lm."
    )
  if not data.is_named:
    raise UserError("the run trained on batches of a program, which cannot be read again. Give a run on config.data.")
  if recipe.task_features(config) != ("targets",):
    raise UserError(
      f"config.data.objective={data.objective}, {data.named}: the examples have inputs or a mask, but {needs}. Give a "
      "run with config.data.objective=causal_lm."
    )


def measure(config: Config, *, order: int = 3, most_tokens: int = MOST_TOKENS) -> NgramLoss:
  """Counts the beginning of a run's training text, and measures the n-gram model on the run's held-out batches.

  Texts are the training examples: an n-gram has no context from before its example, like the model.

  Args:
    config: of the run; of the last stage.
    order: tokens of the longest n-grams, see `kneser_ney.KneserNey`.
    most_tokens: maximum number of counted tokens, which bounds memory and time.

  Raises:
    UserError: see `check`; or the data cannot be read.
  """
  if why := registry.why_untrusted(config.data.task_modules):
    raise UserError(why)
  config = train_data.resolved_stages(config)[-1].config
  check(config)
  if most_tokens < 1:
    raise UserError(f"--tokens {most_tokens}: must be at least 1.")
  data, architecture = config.data, config.model.architecture
  held_out = pipeline.eval_rows(
    data,
    architecture,
    batch_size=config.eval.batch_size or config.train.batch_size,
    max_batches=config.eval.batches,
  )
  sequences, weights = _targets(held_out)
  texts = _Limited(_training_texts(config), most_tokens)
  model = kneser_ney.KneserNey(texts, order=order, vocab_size=config.model.vocab_size)
  nats = -np.log(model.probabilities(sequences))
  loss = float(np.sum(nats * weights) / np.sum(weights))
  sizes = vocabularies.token_bytes(pipeline.vocabulary(data))
  bytes_per_target = 0.0
  if sizes is not None:
    of_ids = np.pad(np.asarray(sizes, np.float64), (0, max(config.model.vocab_size - len(sizes), 0)))
    bytes_per_target = float(np.sum(of_ids[np.concatenate(sequences)] * weights) / np.sum(weights))
  return NgramLoss(
    *(order, loss, text_figures.of_loss(loss, bytes_per_target), model.num_tokens, len(weights), model.num_ngrams),
    is_whole=texts.is_whole,
  )


class _Limited:
  """Sequences up to a number of tokens; the last one is cut.

  Attributes:
    is_whole: whether nothing was left out.
  """

  def __init__(self, sequences: Iterator[np.ndarray], most: int):
    self._sequences, self._most, self.is_whole = sequences, most, True

  def __iter__(self) -> Iterator[np.ndarray]:
    left = self._most
    for sequence in self._sequences:
      if len(sequence) > left:
        self.is_whole = False
      if not left:
        return
      yield sequence[:left]
      left -= len(sequence[:left])


def _training_texts(config: Config) -> Iterator[np.ndarray]:
  """Yields the targets of the training examples of one epoch, in the order of the source."""
  data, architecture = config.data, config.model.architecture
  task = pipeline.load_task(data, architecture)
  examples = pipeline.task_examples(data, architecture, task, split=pipeline.split_of(data, train=True))
  for example in examples.as_numpy_iterator():
    yield example["targets"]


def _targets(batches: Sequence[Mapping[str, Any]]) -> tuple[list[np.ndarray], np.ndarray]:
  """Returns the texts of the rows of batches, and the loss weight of each of their tokens.

  In:  targets [[5, 6, 7, 0]], weights [[1, 1, 1, 0]], segments [[1, 1, 2, 0]]
  Out: [[5, 6], [7]], [1, 1, 1]

  Args:
    batches: with decoder_target_tokens, decoder_loss_weights and, if packed, decoder_segment_ids, [rows, length].
  """
  sequences, weights = [], []
  for batch in batches:
    row_weights = batch["decoder_loss_weights"]
    segments = batch.get("decoder_segment_ids", (row_weights > 0).astype(np.int32))
    for tokens, token_weights, ids in zip(batch["decoder_target_tokens"], row_weights, segments, strict=True):
      for number in np.unique(ids[ids > 0]):
        sequences.append(tokens[ids == number])
        weights.append(token_weights[ids == number])
  return sequences, np.concatenate(weights)
