"""Bidirectional language model of ELMo: one loss of each direction, and an embedding that both share.

Source: Peters et al. 2018, section 3.1.
"""

from collections.abc import Mapping, Sequence

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import UserError, sharding
from t2t.configuration.schema import Config
from t2t.losses.cross_entropy import CrossEntropy, token_sums, unigram
from t2t.losses.protocol import Baseline, Weights
from t2t.metrics import Outputs, WeightedSum
from t2t.models import layers
from t2t.models.architecture import Batch, ModelProtocol, segments_of
from t2t.models.config import TransformerConfig
from t2t.models.flops import model_flops


class BothDirections(layers.Embed):
  """Token embedding whose vector is the input of both directions, [vector, vector], without a projection.

  Raises:
    UserError: the embedding is not half as wide as the model.
  """

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs, *, owns_table: bool = True):
    if 2 * config.embedding_dim != config.embed_dim:
      raise UserError(
        f"config.model.embedding={config.embedding} needs config.model.embedding_dim={config.embed_dim // 2}, half of "
        f"config.model.embed_dim={config.embed_dim}, not {config.embedding_dim}"
      )
    super().__init__(config, rngs, owns_table=owns_table)
    self.projection = self.projection_bias = None

  def project(self, x: jax.Array) -> jax.Array:
    return sharding.shard(jnp.concatenate([x, x], axis=-1), "batch", "length", "embed")

  @classmethod
  def multiply_adds(cls, config: TransformerConfig) -> float:
    del config
    return 0.0


def _pairs(batch: Batch) -> jax.Array:
  """Returns which positions have a next token in the same text, bool [batch, length - 1]."""
  segments = segments_of(batch, "encoder")
  return (segments[:, 1:] > 0) & (segments[:, 1:] == segments[:, :-1])


def _unmasked(batch: Batch) -> dict[str, jax.Array]:
  """Returns the batch with the texts as inputs, in place of masked texts."""
  return {**batch, "encoder_input_tokens": batch["encoder_target_tokens"]}


class BiLm(CrossEntropy):
  """Mean cross-entropy of each token from the tokens before it, and from the tokens after it.

  Texts are the targets of any objective of an encoder; masks of the inputs are ignored. The first token of a text is
  predicted from the right only, and the last from the left only. Metrics are those of `CrossEntropy`.
  """

  @classmethod
  def from_config(cls, run: Config) -> "BiLm":
    model = run.model
    if model.block != "recurrent" or model.kind.sides != ("encoder",) or 2 * model.logits_width != model.embed_dim:
      raise UserError(
        "config.train.loss=bilm needs config.model.block=recurrent, config.model.architecture=encoder_only and "
        f"config.model.embedding_dim={model.embed_dim // 2}, not {model.block}, {model.architecture} and "
        f"{model.embedding_dim}. Set these keys, or another config.train.loss."
      )
    plain = CrossEntropy.from_config(run)
    return cls(plain.config, plain.auxiliary)

  def weights(self, batch: Batch) -> Weights:
    return {"loss": 2.0 * jnp.sum(_pairs(batch).astype(jnp.float32)), **self.auxiliary.weights(batch)}

  def __call__(
    self, module: ModelProtocol, batch: Batch, weights: Weights, *, key: jax.Array | None, train: bool
  ) -> tuple[dict[str, jax.Array], Outputs]:
    batch = _unmasked(batch)
    hidden = module.hidden(batch, dropout_key=key if train else None)
    left, right = jnp.split(hidden.x, 2, axis=-1)
    tokens, has_pair = batch["encoder_target_tokens"], _pairs(batch).astype(jnp.float32)
    states = jnp.concatenate([left[:, :-1], right[:, 1:]], axis=1)
    targets = jnp.concatenate([tokens[:, 1:], tokens[:, :-1]], axis=1)
    of_pairs = jnp.concatenate([has_pair, has_pair], axis=1)
    summed, sums, _ = token_sums(
      self.settings(train=train), module.logits_fn(), states, targets, of_pairs, sparse=False
    )
    weight = jnp.sum(of_pairs)
    metrics = {name: WeightedSum(sums[i], weight) for i, name in enumerate(("loss", "z_loss", "accuracy"))}
    terms = {"loss": summed / jnp.maximum(weights["loss"], 1.0)}
    return self.auxiliary.joined(terms, metrics, hidden.aux, batch, weights)

  def flops(self, config: TransformerConfig, *, batch_size: int, lengths: Mapping[str, int], predicted: float) -> float:
    del predicted  # each position has logits of both directions
    return model_flops(config, batch_size=batch_size, lengths=lengths, predicted=2.0)

  def baselines(self, batches: Sequence[Batch], vocab_size: int) -> Sequence[Baseline]:
    real = lambda batch: (segments_of(batch, "encoder") > 0).astype(jnp.float32)
    return [unigram([{**batch, "encoder_loss_weights": real(batch)} for batch in batches], vocab_size)]
