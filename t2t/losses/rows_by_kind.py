"""Cross-entropy with a term for each kind of row: rows read from left to right, and rows read in both directions."""

import dataclasses

import jax
import jax.numpy as jnp

from t2t import UserError
from t2t.configuration.schema import Config
from t2t.losses.cross_entropy import CrossEntropy, token_sums
from t2t.losses.protocol import Weights
from t2t.metrics import Outputs, WeightedSum
from t2t.models.architecture import Batch, ModelProtocol
from t2t.models.auxiliary import Hidden


def weights_by_kind(batch: Batch) -> dict[str, jax.Array]:
  """Returns the loss weights of each kind of row, by its term.

  In:  decoder_loss_weights [[1, 1], [0, 1]], decoder_causal_attention [[0, 0], [1, 1]]
  Out: {"causal": [[1, 1], [0, 0]], "masked": [[0, 0], [0, 1]]}

  Args:
    batch: decoder_loss_weights, and decoder_causal_attention (1 where attention is bidirectional), [batch, length].
      Without the second feature, all rows are causal.

  Returns:
    float32 [batch, length].
  """
  loss_weights = batch["decoder_loss_weights"].astype(jnp.float32)
  is_masked = batch.get("decoder_causal_attention", jnp.zeros_like(loss_weights)) > 0
  return {"causal": jnp.where(is_masked, 0.0, loss_weights), "masked": jnp.where(is_masked, loss_weights, 0.0)}


@dataclasses.dataclass(frozen=True)
class RowsByKind(CrossEntropy):
  """Cross-entropy with the terms "causal" and "masked", each a mean over the targets of its kind of row.

  `config.train.term_weights` has the factors of the terms. A kind thus has a fixed share of the loss, although causal
  rows predict every token and masked rows only some. The authors' code averages the means of GPUs, each with one kind
  of row: the factors are the shares of rows.

  Metrics: causal_loss, causal_accuracy, masked_loss, masked_accuracy; and those of the cross-entropy, over all targets.

  Source: Charpentier & Samuel 2024 (GPT-BERT), section 2, and their code without token_weighted_loss.
  """

  @classmethod
  def from_config(cls, run: Config) -> "RowsByKind":
    """Builds the loss of a run.

    Raises:
      UserError: the model does not read rows in both directions.
    """
    model = run.model
    if not model.kind.is_decoder_only or not model.bidirectional_prefix:
      key = "bidirectional_prefix=False" if model.kind.is_decoder_only else f"architecture={model.architecture}"
      raise UserError(
        "config.train.loss=rows_by_kind needs a decoder with rows in one and in both directions, but "
        f"config.model.{key}. Set config.train.loss=cross_entropy, or use a decoder_only model with "
        "config.model.bidirectional_prefix=True."
      )
    base = CrossEntropy.from_config(run)
    return cls(base.config, base.auxiliary)

  def weights(self, batch: Batch) -> Weights:
    return {kind: jnp.sum(x) for kind, x in weights_by_kind(batch).items()} | self.auxiliary.weights(batch)

  def of_hidden(
    self, module: ModelProtocol, hidden: Hidden, batch: Batch, weights: Weights, *, train: bool
  ) -> tuple[dict[str, jax.Array], Outputs]:
    config, targets = self.settings(train=train), batch["decoder_target_tokens"]
    terms, metrics, everything = {}, {}, []
    for kind, loss_weights in weights_by_kind(batch).items():
      # Targets of the other kind have no weight and are skipped, so each logit is computed once.
      summed, sums, _ = token_sums(config, module.logits_fn(), hidden.x, targets, loss_weights, sparse=True)
      weight = jnp.sum(loss_weights)
      everything.append([WeightedSum(x, weight) for x in sums])
      metrics |= {f"{kind}_loss": everything[-1][0], f"{kind}_accuracy": everything[-1][2]}
      terms[kind] = summed / jnp.maximum(weights[kind], 1.0)
    metrics |= {name: everything[0][i] + everything[1][i] for i, name in enumerate(("loss", "z_loss", "accuracy"))}
    return self.auxiliary.joined(terms, metrics, hidden.aux, batch, weights)
