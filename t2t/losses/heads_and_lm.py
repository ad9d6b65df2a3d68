"""Heads of answered tasks with a language-model loss beside them, on the same texts (GPT, Radford et al. 2018)."""

from collections.abc import Mapping
import dataclasses

import jax
import jax.numpy as jnp

from t2t import UserError
from t2t.configuration.schema import Config
from t2t.losses.cross_entropy import CrossEntropy, CrossEntropyConfig, future_layers, token_sums
from t2t.losses.head_losses import HeadLosses
from t2t.losses.protocol import Weights
from t2t.metrics import WeightedSum
from t2t.models.architecture import Batch, segments_of
from t2t.models.config import TransformerConfig
from t2t.models.flops import model_flops


def next_tokens(batch: Batch) -> tuple[jax.Array, jax.Array]:
  """Returns the token after each token of a text, and its loss weight: 0 at the end of a text.

  In:  tokens [5, 6, 7, 8, 0], segments [1, 1, 2, 2, 0]
  Out: [6, 7, 8, 0, 0], [1, 0, 1, 0, 0]

  Args:
    batch: decoder_input_tokens and decoder_segment_ids, [batch, length]; each token is read in its own position.

  Returns:
    int32 and float32 [batch, length].
  """
  segments = segments_of(batch, "decoder")
  shift = lambda x: jnp.pad(x[:, 1:], [(0, 0), (0, 1)])
  weights = (segments > 0) & (segments == shift(segments))
  return shift(batch["decoder_input_tokens"]), weights.astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class HeadsAndLm(HeadLosses):
  """Terms of heads, as in `HeadLosses`, and the term "lm": the mean cross-entropy of the texts' next tokens.

  Metrics: those of `HeadLosses`; and lm_loss, lm_accuracy. `config.train.term_weights.lm` is the factor of the term,
  lambda in the paper.
  """

  lm: CrossEntropyConfig | None = None

  @classmethod
  def from_config(cls, run: Config) -> "HeadsAndLm":
    """Builds the loss of a run.

    Raises:
      UserError: the model does not predict next tokens of a text that it reads from left to right.
    """
    model = run.model
    if not model.kind.is_decoder_only or model.bidirectional_prefix:
      key = "bidirectional_prefix=True" if model.bidirectional_prefix else f"architecture={model.architecture}"
      raise UserError(
        f"config.train.loss=heads_and_lm predicts the next tokens of a text, but config.model.{key} reads texts in "
        "both directions. Set config.train.loss=heads, or use a decoder_only model without bidirectional_prefix."
      )
    if not model.vocabulary_head:
      raise UserError(
        "config.train.loss=heads_and_lm predicts tokens, but config.model.vocabulary_head=False. Set "
        "config.train.loss=heads, or config.model.vocabulary_head=True."
      )
    base = HeadLosses.from_config(run)
    return cls(base.config, None, base.auxiliary, lm=CrossEntropy.from_config(run).config)

  def untrained_params(self, model: TransformerConfig) -> tuple[str, ...]:
    return future_layers(model)

  def weights(self, batch: Batch) -> Weights:
    return {**super().weights(batch), "lm": jnp.sum(next_tokens(batch)[1])}

  def _with_tokens(self, module, hidden, batch, weights, terms, metrics, *, train: bool):
    assert self.lm is not None
    config = self.lm if train else dataclasses.replace(self.lm, label_smoothing=0.0)
    targets, loss_weights = next_tokens(batch)
    summed, sums, _ = token_sums(config, module.logits_fn(), hidden, targets, loss_weights, sparse=True)
    weight = jnp.sum(loss_weights)
    of_lm = {"lm_loss": WeightedSum(sums[0], weight), "lm_accuracy": WeightedSum(sums[2], weight)}
    return terms | {"lm": summed / jnp.maximum(weights["lm"], 1.0)}, metrics | of_lm

  def flops(self, config: TransformerConfig, *, batch_size: int, lengths: Mapping[str, int], predicted: float) -> float:
    """Returns the FLOPs of the model with logits of all tokens."""
    del predicted
    return model_flops(config, batch_size=batch_size, lengths=lengths, predicted=1.0)
