"""The protocol of losses: terms with separate denominators, so that microbatches sum to the loss of the batch."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Protocol

from flax import nnx
import jax

from t2t.configuration.schema import Config
from t2t.configuration.section_keys import DataclassRecord
from t2t.losses.auxiliary_terms import AuxiliaryTerms
from t2t.metrics import Outputs
from t2t.models.architecture import Batch
from t2t.models.config import TransformerConfig

LogitsFn = Callable[[jax.Array], jax.Array]  # a pytree with its weights: [..., embed] -> [..., vocab]
Weights = Mapping[str, jax.Array]  # term -> its denominator, float32 []


@dataclasses.dataclass(frozen=True)
class Baseline:
  """The loss of a trivial predictor.

  knows: description of the predictor, a verb phrase.
  is_exact: whether such a predictor has the same loss on other text, so that a plateau at this loss is recognized.
  cause: likely cause of a plateau at this loss, and a remedy.
  """

  name: str
  loss: float
  knows: str
  is_exact: bool = True
  cause: str = ""


class Loss(DataclassRecord, Protocol):
  """A training loss.

  supports_microbatching: whether each row's loss depends on that row alone.
  heads: names of the model's heads that the loss trains.
  unit: unit of the metric "loss", in a few words.
  part: path prefix, in the built module, of the model that is evaluated, converted and decoded; "": all.
  auxiliary: auxiliary terms of the model's layers, added to the loss.
  """

  supports_microbatching: bool
  heads: tuple[str, ...]
  unit: str
  part: str
  auxiliary: AuxiliaryTerms

  @classmethod
  def from_config(cls, run: Config) -> "Loss":
    """Builds the loss of a run, for training and evaluation.

    Raises:
      UserError: the run's settings do not fit the loss.
    """

  def build(self, config: TransformerConfig, rngs: nnx.Rngs) -> nnx.Module:
    """Builds the trained module: the model, and further modules that the loss needs."""

  def untrained_params(self, model: TransformerConfig) -> tuple[str, ...]:
    """Returns path patterns of parameters that the loss does not use, besides heads; they are frozen."""

  def weights(self, batch: Batch) -> Weights:
    """Returns the denominator of each term for a whole batch, from the batch alone."""

  def __call__(
    self, module: nnx.Module, batch: Batch, weights: Weights, *, key: jax.Array | None, train: bool
  ) -> tuple[dict[str, jax.Array], Outputs]:
    """Returns the terms, each a sum over rows divided by its weight; terms of microbatches add up.

    Args:
      module: result of `build`.
      batch: model features, [rows, length]; a batch or a microbatch.
      weights: weights of the whole batch.
      key: random key of dropout and of samples of the loss.
      train: whether to apply dropout and label smoothing.

    Returns:
      Terms with gradients, by name; and metrics without gradients, including "loss" and "accuracy". If the batch has
      features carried/SIDE/NAME, the metrics have their values for the next step under the same names.
    """

  def flops(self, config: TransformerConfig, *, batch_size: int, lengths: Mapping[str, int], predicted: float) -> float:
    """Returns the FLOPs of a training step; see `models.flops.model_flops`."""

  def baselines(self, batches: Sequence[Batch], vocab_size: int) -> Sequence[Baseline]:
    """Returns values of the metric "loss" on these batches for trivial predictors."""

  def chance(self, values: Mapping[str, float], *, batch_size: int, vocab_size: int) -> Mapping[str, Baseline]:
    """Returns losses of a constant output, exact for any batch, by name of the metric.

    Args:
      values: metrics of one training step.
      batch_size: rows of a training batch.
      vocab_size: size of the model's vocabulary.
    """
