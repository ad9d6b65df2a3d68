"""What a loss is: terms, each with a denominator of its own, so that a batch may be cut and counts as one."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Protocol

from flax import nnx
import jax

from t2t.configuration.schema import Config, DataclassRecord
from t2t.losses.auxiliary_terms import AuxiliaryTerms
from t2t.metrics import Outputs
from t2t.models.architecture import Batch
from t2t.models.config import TransformerConfig

LogitsFn = Callable[[jax.Array], jax.Array]  # a pytree that holds its weights: [..., embed] -> [..., vocab]
Weights = Mapping[str, jax.Array]  # term -> float32 [], what it is divided by


@dataclasses.dataclass(frozen=True)
class Baseline:
  """The loss of who has learned nothing, or next to nothing.

  knows: what that is, in a few words.
  is_exact: whether a model that knows no more, fitted on other text, has the same loss, so that a loss that stays there
    is recognized.
  cause: of a loss that stays there, and what to try.
  """

  name: str
  loss: float
  knows: str
  is_exact: bool = True
  cause: str = ""


class Loss(DataclassRecord, Protocol):
  """What training makes smaller.

  supports_microbatching: whether each row's loss depends on that row alone; if not, there can be no microbatches.
  heads: those of the model, by name, that it makes something of; others are not trained.
  unit: what the metric "loss" is a number of, in a few words.
  part: where, in what it builds, the model is that is evaluated, converted and decoded: a prefix of paths; "": all.
  auxiliary: terms that the model's layers return, which it adds to its own.
  """

  supports_microbatching: bool
  heads: tuple[str, ...]
  unit: str
  part: str
  auxiliary: AuxiliaryTerms

  @classmethod
  def from_config(cls, run: Config) -> "Loss":
    """The loss of a run, made once for training and evaluation.

    Raises:
      UserError: the run's settings do not go with the loss.
    """

  def build(self, config: TransformerConfig, rngs: nnx.Rngs) -> nnx.Module:
    """All that is trained: the model, and whatever the loss needs beside it."""

  def untrained_params(self, model: TransformerConfig) -> tuple[str, ...]:
    """Patterns over the paths of parameters that it makes nothing of, besides heads: they are not trained."""

  def weights(self, batch: Batch) -> Weights:
    """What each term is divided by, of a whole batch, however it is cut afterwards; from the batch alone."""

  def __call__(
    self, module: nnx.Module, batch: Batch, weights: Weights, *, key: jax.Array | None, train: bool
  ) -> tuple[dict[str, jax.Array], Outputs]:
    """The terms, each a sum over the rows of `batch` divided by its weight: those of all parts of a batch just add up.

    Args:
      module: what `build` made.
      batch: model features, [rows, length]; all of a batch, or a part of it.
      weights: of the whole batch.
      key: of what is drawn: dropout in training, and whatever a loss samples.
      train: whether there is dropout, and what only training has, as label smoothing.

    Returns:
      What the gradient is of, by name; and metrics, which have none, "loss" and "accuracy" among them.  Where the batch
      has features carried/SIDE/NAME, those of the next step are among the metrics, by the same names.
    """

  def flops(self, config: TransformerConfig, *, batch_size: int, lengths: Mapping[str, int], predicted: float) -> float:
    """Of a step; see `models.flops.model_flops`."""

  def baselines(self, batches: Sequence[Batch], vocab_size: int) -> Sequence[Baseline]:
    """What the metric "loss" comes to on these batches without having learned anything."""

  def chance(self, values: Mapping[str, float], *, batch_size: int, vocab_size: int) -> Mapping[str, Baseline]:
    """Losses of a model whose output is the same for every input, exact for any batch, by the name of the metric.

    Args:
      values: metrics of one training step.
      batch_size: rows of a training batch.
      vocab_size: of the model.
    """
