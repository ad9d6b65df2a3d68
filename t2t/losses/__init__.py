"""Losses: what training makes smaller, one file for each."""

import dataclasses

from t2t import UserError, did_you_mean
from t2t.configuration.schema import Config
from t2t.losses.auxiliary_terms import AuxiliaryTerms
from t2t.losses.cross_entropy import (
  CrossEntropy,
  CrossEntropyConfig,
  share_of_weights,
  token_cross_entropy,
  token_sums,
  unigram,
  unigram_loss,
)
from t2t.losses.protocol import Baseline, LogitsFn, Loss, Weights
from t2t.runtime.lazy_table import LazyTable

__all__ = [
  "LOSSES",
  "SECTIONS",
  "Baseline",
  "CrossEntropy",
  "CrossEntropyConfig",
  "LogitsFn",
  "Loss",
  "Weights",
  "answered_by_heads",
  "compares_texts",
  "make",
  "share_of_weights",
  "token_cross_entropy",
  "token_sums",
  "unigram",
  "unigram_loss",
  "without_auxiliary",
]


@dataclasses.dataclass(frozen=True)
class LossRow:
  """Facts on a loss that are known before its file is imported.

  path: of its class, a `Loss`.
  answered_by_heads: whether a batch has what heads are asked.
  compares_texts: whether a batch has pairs of texts.
  """

  path: str
  answered_by_heads: bool = False
  compares_texts: bool = False


# config.train.loss -> the loss of a run; a file is imported when a config names its loss
_ROWS = {
  "contrastive": LossRow("t2t.losses.contrastive:Contrastive", compares_texts=True),
  "cross_entropy": LossRow("t2t.losses.cross_entropy:CrossEntropy"),
  "electra": LossRow("t2t.losses.electra:Electra"),
  "heads": LossRow("t2t.losses.head_losses:HeadLosses", answered_by_heads=True),
  "tokens_and_heads": LossRow("t2t.losses.head_losses:HeadLosses", answered_by_heads=True),
}
LOSSES: LazyTable[type[Loss]] = LazyTable({name: row.path for name, row in _ROWS.items()})

# Section of the config, which no other loss has -> its record
SECTIONS = {
  "electra": "t2t.losses.electra:ElectraConfig",
  "contrastive": "t2t.losses.contrastive:ContrastiveConfig",
}


def answered_by_heads(name: str) -> bool:
  """Whether a batch of this loss has what heads are asked."""
  return name in _ROWS and _ROWS[name].answered_by_heads


def compares_texts(name: str) -> bool:
  """Whether a batch of this loss has pairs of texts."""
  return name in _ROWS and _ROWS[name].compares_texts


def without_auxiliary(loss: Loss) -> Loss:
  """The loss without the terms that layers return."""
  return dataclasses.replace(loss, auxiliary=AuxiliaryTerms())


def make(run: Config) -> Loss:
  """The loss that a config names.

  Raises:
    UserError: there is none of that name; or it cannot be cut into the microbatches that are asked for.
  """
  name = run.train.loss or "cross_entropy"
  if name not in LOSSES:
    raise UserError(
      f"config.train.loss={name}: no such loss{did_you_mean(name, LOSSES)}; there are {', '.join(LOSSES)}"
    )
  loss = LOSSES[name].from_config(run)
  if run.train.microbatches > 1 and not loss.supports_microbatching:
    raise UserError(
      f"config.train.microbatches={run.train.microbatches}: the loss {name} compares the rows of a whole batch, which"
      " cannot be cut; set it to 1, and config.train.batch_size to what fits"
    )
  return loss
