"""Losses: what training makes smaller, one file for each."""

from t2t.losses.cross_entropy import (
  CrossEntropyConfig,
  LogitsFn,
  LossFn,
  make_loss_fn,
  share_of_weights,
  token_cross_entropy,
  unigram_loss,
)

__all__ = [
  "CrossEntropyConfig",
  "LogitsFn",
  "LossFn",
  "make_loss_fn",
  "share_of_weights",
  "token_cross_entropy",
  "unigram_loss",
]
