"""Losses: what training makes smaller, one file for each."""

from t2t import UserError, did_you_mean
from t2t.losses.contrastive import Contrastive
from t2t.losses.cross_entropy import (
  CrossEntropy,
  CrossEntropyConfig,
  share_of_weights,
  token_cross_entropy,
  token_sums,
  unigram,
  unigram_loss,
)
from t2t.losses.electra import Electra
from t2t.losses.heads import ASKED as ASKED_KINDS
from t2t.losses.heads import KINDS as ANSWERED_KINDS
from t2t.losses.heads import Heads, all_answers, answers, scores_of
from t2t.losses.protocol import Baseline, LogitsFn, Loss, Weights
from t2t.sections import Config

__all__ = [
  "ANSWERED_KINDS",
  "ASKED_KINDS",
  "LOSSES",
  "Baseline",
  "Contrastive",
  "CrossEntropy",
  "CrossEntropyConfig",
  "Electra",
  "Heads",
  "LogitsFn",
  "Loss",
  "Weights",
  "all_answers",
  "answered_by_heads",
  "answers",
  "compares_texts",
  "make",
  "scores_of",
  "share_of_weights",
  "token_cross_entropy",
  "token_sums",
  "unigram",
  "unigram_loss",
]

# config.train.loss -> the loss of a run
LOSSES: dict[str, type[Loss]] = {
  "contrastive": Contrastive,
  "cross_entropy": CrossEntropy,
  "electra": Electra,
  "heads": Heads,
  "tokens_and_heads": Heads,
}


def answered_by_heads(name: str) -> bool:
  """Whether a batch of this loss has what heads are asked."""
  return LOSSES.get(name) is Heads


def compares_texts(name: str) -> bool:
  """Whether a batch of this loss has pairs of texts."""
  return LOSSES.get(name) is Contrastive


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
  loss = LOSSES[name].of(run)
  if run.train.microbatches > 1 and not loss.splits:
    raise UserError(
      f"config.train.microbatches={run.train.microbatches}: the loss {name} compares the rows of a whole batch, which"
      " cannot be cut; set it to 1, and config.train.batch_size to what fits"
    )
  return loss
