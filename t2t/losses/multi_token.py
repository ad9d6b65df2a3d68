"""Multi-token prediction (Gloeckle et al. 2024): cross-entropy of the next token and of later tokens."""

from collections.abc import Mapping
import dataclasses

import jax
import jax.numpy as jnp

from t2t import UserError
from t2t.configuration.schema import Config
from t2t.losses.cross_entropy import CrossEntropy, is_sparse, token_sums
from t2t.losses.protocol import Weights
from t2t.metrics import Outputs, WeightedSum
from t2t.models import layers
from t2t.models.architecture import Batch, ModelProtocol
from t2t.models.config import TransformerConfig
from t2t.models.flops import model_flops
from t2t.models.transformer import DecoderOnly


@dataclasses.dataclass(frozen=True)
class MultiTokenConfig:
  """Settings of multi-token prediction: `config.multi_token`."""

  weight: float = 1.0  # factor of each later token's loss; the next token's has 1


def later_weights(batch: Batch, distance: int) -> tuple[jax.Array, jax.Array]:
  """Returns the targets `distance` positions after the next token, and their loss weights.

  A target counts if it is in the row and in the segment of its input token.

  In:  targets [5, 6, 1, 7, 1], weights [1, 1, 1, 1, 1], segments [1, 1, 1, 2, 2], distance 1
  Out: targets [6, 1, 7, 1, 0], weights [1, 1, 0, 1, 0]

  Args:
    batch: decoder_target_tokens, decoder_loss_weights, optional decoder_segment_ids, each [batch, length].
    distance: 1 for the token after the next.

  Returns:
    int32 and float32 [batch, length].
  """
  shift = lambda x: jnp.pad(x[:, distance:], [(0, 0), (0, min(distance, x.shape[1]))])
  weights = shift(batch["decoder_loss_weights"].astype(jnp.float32))
  segments = batch.get("decoder_segment_ids")
  if segments is not None:
    weights = jnp.where(segments == shift(segments), weights, 0.0)
  return shift(batch["decoder_target_tokens"]), weights


@dataclasses.dataclass(frozen=True)
class MultiToken(CrossEntropy):
  """Cross-entropy of the next token, plus a term for each later token, each with its own denominator.

  Metrics: those of the cross-entropy for the next token; future_1_loss, future_1_accuracy, ... for later tokens.
  """

  future_tokens: int = 0
  weight: float = 1.0

  @classmethod
  def from_config(cls, run: Config) -> "MultiToken":
    if not run.model.future_tokens:
      raise UserError(
        "config.train.loss=multi_token needs layers that predict later tokens, but config.model.future_tokens=0. Set "
        "for example --config.model.future_tokens=3."
      )
    if unsupported := [name for name in ("prefix", "pals") if name in run.adapters]:
      raise UserError(
        f"config.train.loss=multi_token does not support config.{unsupported[0]}. Remove the section, or set "
        "--config.train.loss=cross_entropy."
      )
    settings: MultiTokenConfig = run.multi_token or MultiTokenConfig()
    if not settings.weight > 0.0:
      raise UserError(f"config.multi_token.weight={settings.weight}: must be above 0")
    base = CrossEntropy.from_config(run)
    return cls(base.config, base.auxiliary, future_tokens=run.model.future_tokens, weight=settings.weight)

  def untrained_params(self, model: TransformerConfig) -> tuple[str, ...]:
    """Returns no patterns: the loss trains the whole model."""
    del model
    return ()

  @property
  def _names(self) -> dict[int, str]:
    return {distance: f"future_{distance}" for distance in range(1, self.future_tokens + 1)}

  def weights(self, batch: Batch) -> Weights:
    later = {name: jnp.sum(later_weights(batch, distance)[1]) for distance, name in self._names.items()}
    return {**super().weights(batch), **later}

  def __call__(
    self, module: ModelProtocol, batch: Batch, weights: Weights, *, key: jax.Array | None, train: bool
  ) -> tuple[dict[str, jax.Array], Outputs]:
    """Computes the terms of the next and of later tokens; see `Loss`."""
    key, future_key = layers.split_key(key if train else None, 2)
    hidden = module.hidden(batch, dropout_key=key)
    terms, metrics = self.of_hidden(module, hidden, batch, weights, train=train)
    assert isinstance(module, DecoderOnly)
    states = module.future_states(batch, hidden, dropout_key=future_key)
    later: dict[str, WeightedSum] = {}
    for distance, name in self._names.items():
      targets, target_weights = later_weights(batch, distance)
      summed, sums, _ = token_sums(
        self.settings(train=train),
        module.logits_fn(),
        states[distance - 1],
        targets,
        target_weights,
        sparse=is_sparse(batch),
      )
      terms[name] = self.weight * summed / jnp.maximum(weights[name], 1.0)
      weight = jnp.sum(target_weights)
      later |= {f"{name}_loss": WeightedSum(sums[0], weight), f"{name}_accuracy": WeightedSum(sums[2], weight)}
    return terms, {**metrics, **later}

  def flops(self, config: TransformerConfig, *, batch_size: int, lengths: Mapping[str, int], predicted: float) -> float:
    """Returns the FLOPs of a training step, with the later tokens' layers and logits."""
    count = lambda **fields: model_flops(
      dataclasses.replace(config, **fields), batch_size=batch_size, lengths=lengths, predicted=predicted
    )
    depth = config.num_decoder_layers
    # The last layer of the model, or of a model with one more layer.
    layer = count() - count(num_decoder_layers=depth - 1) if depth > 1 else count(num_decoder_layers=2) - count()
    logits = count() - count(vocabulary_head=False)
    return count() + self.future_tokens * (layer + logits)
