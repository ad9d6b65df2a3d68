"""Contrastive losses: match the first text of each pair to the second texts of the whole batch.

SimCSE (Gao et al. 2021) pairs a text with itself under two dropout masks. Quick-Thought (Logeswaran & Lee 2018) pairs
neighbouring sentences. Translation ranking (LaBSE, Feng et al. 2022) pairs translations, with a margin.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import ClassVar

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import UserError, sharding
from t2t.configuration.schema import Config
from t2t.losses.auxiliary_terms import AuxiliaryTerms
from t2t.losses.head_losses import reads_every_layer, without_tokens
from t2t.losses.protocol import Baseline, Weights
from t2t.metrics import Outputs, WeightedSum
from t2t.models import layers, task_heads, transformer
from t2t.models.architecture import Batch, segments_of, sides
from t2t.models.auxiliary import Hidden
from t2t.models.config import TransformerConfig
from t2t.models.flops import model_flops
from t2t.models.head_config import HeadConfig

SIMILARITIES = ("cosine", "dot")

_NOT_THERE = -1e30  # logit of padding


@dataclasses.dataclass(frozen=True)
class ContrastiveConfig:
  """Settings of the contrastive loss: `config.contrastive`.

  The defaults are from SimCSE (Gao et al. 2021). Quick-Thought (Logeswaran & Lee 2018) has similarity=dot and
  temperature=1.0. LaBSE (Feng et al. 2022) has margin=0.3 and symmetric=True.
  """

  similarity: str = "cosine"  # similarity of two vectors: cosine or dot
  temperature: float = 0.05  # divisor of the similarities; must be above 0
  margin: float = 0.0  # margin subtracted from the similarity of the right pair; 0: none
  symmetric: bool = False  # average the losses of finding the second text and the first; False: only the second


def is_pair(batch: Batch) -> jax.Array:
  """Returns which rows have two texts, bool [batch]; other rows are padding."""
  segments = segments_of(batch, sides(batch)[0])
  return jnp.any(segments == 1, axis=1) & jnp.any(segments == 2, axis=1)


def similarities(vectors: jax.Array, kind: str) -> jax.Array:
  """Computes similarities of each first with each second text over all devices, float32 [batch, batch].

  Args:
    vectors: float32 [batch, 2, width].
    kind: one of `SIMILARITIES`.
  """
  if kind == "cosine":
    # The epsilon is far below the squared norm of any text; zero vectors of padding stay zero.
    vectors = vectors * jax.lax.rsqrt(jnp.maximum(jnp.sum(jnp.square(vectors), axis=-1, keepdims=True), 1e-12))
  # Each device compares its first texts with all second texts, which are replicated.
  first = sharding.shard(vectors[:, 0], "batch", None)
  second = sharding.shard(vectors[:, 1], None, None)
  # A TPU would round to bfloat16 by default; a low temperature amplifies small differences.
  return sharding.shard(jnp.einsum("ie,je->ij", first, second, precision="highest"), "batch", None)


def _missed(logits: jax.Array, right: jax.Array, *, axis: int) -> jax.Array:
  """Returns minus the log-probability of the right partner under a softmax along `axis`: [batch]."""
  return jax.nn.logsumexp(logits, axis=axis) - jnp.sum(jnp.where(right, logits, 0.0), axis=axis)


@dataclasses.dataclass(frozen=True)
class Contrastive:
  """The InfoNCE loss (van den Oord et al. 2018): cross-entropy over all second texts of the batch.

  The right second text is in the same row. The model and its one vector head encode both texts.

  Metrics: loss, and accuracy, the fraction of first texts with the right partner as the nearest second text.
  """

  config: ContrastiveConfig
  head: HeadConfig
  auxiliary: AuxiliaryTerms = AuxiliaryTerms()
  supports_microbatching: ClassVar[bool] = False  # a row's loss depends on all second texts
  unit: ClassVar[str] = "nats per pair, by which text of the batch goes with which"
  part: ClassVar[str] = ""

  @property
  def heads(self) -> tuple[str, ...]:
    return (self.head.name,)

  @classmethod
  def from_config(cls, run: Config) -> "Contrastive":
    """Builds the loss of a run.

    Raises:
      UserError: the model does not have exactly one vector head, rows are packed, a batch has one row, or a number is
        out of range.
    """
    config = run.contrastive or ContrastiveConfig()
    if config.similarity not in SIMILARITIES:
      raise UserError(
        f"config.contrastive.similarity={config.similarity}: unknown similarity. Known values: "
        f"{', '.join(SIMILARITIES)}"
      )
    if not (math.isfinite(config.temperature) and config.temperature > 0):
      raise UserError(f"config.contrastive.temperature={config.temperature}: must be above 0 (SimCSE uses 0.05)")
    if not (math.isfinite(config.margin) and config.margin >= 0):
      raise UserError(f"config.contrastive.margin={config.margin}: must be 0 or more (LaBSE uses 0.3)")
    vector_heads = [head for head in run.model.heads if head.kind == "vector"]
    if len(vector_heads) != 1:
      names = ", ".join(head.name for head in vector_heads) or "none"
      raise UserError(
        f"config.train.loss=contrastive needs exactly one vector head, but config.model.heads has {names}. Give"
        ' config.model.heads={"name": "text", "kind": "vector", "num_classes": 0}.'
      )
    if run.data.pack:
      raise UserError(
        "config.data.pack=True: config.train.loss=contrastive compares one pair per row. Set config.data.pack=False, "
        "and config.data.inputs_length to the length of two texts."
      )
    if run.train.batch_size < 2 or run.eval.batch_size == 1:
      key = "train" if run.train.batch_size < 2 else "eval"
      raise UserError(f"config.{key}.batch_size=1: a pair needs other pairs of the batch as negatives. Give 2 or more.")
    return cls(config, vector_heads[0], AuxiliaryTerms.from_config(run, only_states=True))

  def build(self, config: TransformerConfig, rngs: nnx.Rngs) -> transformer.Transformer:
    return transformer.build(config, rngs)

  def untrained_params(self, model: TransformerConfig) -> tuple[str, ...]:
    """Returns patterns of the vocabulary head, and of a decoder that the loss does not run."""
    return without_tokens(model)

  def weights(self, batch: Batch) -> Weights:
    return {"contrastive": jnp.sum(is_pair(batch).astype(jnp.float32))} | self.auxiliary.weights(batch)

  def vectors(self, module: transformer.Transformer, batch: Batch, *, key: jax.Array | None) -> Hidden:
    """Encodes both texts of each row: float32 [batch, 2, width], with auxiliary outputs.

    Args:
      module: the model.
      batch: model features; the first text of a row is segment 1, the second is segment 2.
      key: dropout key, with independent masks for both texts; None: no dropout.
    """
    body_key, head_key = layers.split_key(key, 2)
    outputs = module.hidden_states(batch, every_layer=reads_every_layer(module.config), dropout_key=body_key)
    states, head = outputs.x, module.heads[self.head.name]
    hidden = states if head.layers == "mix" or states.ndim == 3 else states[-1]
    read = task_heads.read_texts(hidden, segments_of(batch, sides(batch)[0]), number=2, reads=head.reads)
    return Hidden(module.head_logits(self.head.name, read.astype(hidden.dtype), dropout_key=head_key), outputs.aux)

  def __call__(
    self, module: transformer.Transformer, batch: Batch, weights: Weights, *, key: jax.Array | None, train: bool
  ) -> tuple[dict[str, jax.Array], Outputs]:
    config, real = self.config, is_pair(batch)
    vectors = self.vectors(module, batch, key=key if train else None)
    near = similarities(vectors.x, config.similarity)
    right = jnp.eye(len(real), dtype=bool)
    logits = jnp.where(right, near - config.margin, near) / config.temperature
    logits = jnp.where(real[:, None] & real[None, :], logits, _NOT_THERE)
    loss = _missed(logits, right, axis=1)
    if config.symmetric:
      loss = 0.5 * (loss + _missed(logits, right, axis=0))
    loss, number = jnp.sum(jnp.where(real, loss, 0.0)), jnp.sum(real.astype(jnp.float32))
    candidates = jnp.where(real[None, :], near, _NOT_THERE)
    is_nearest = candidates >= jnp.max(candidates, axis=1, keepdims=True)
    # k texts that tie count 1/k each.
    correct = jnp.any(is_nearest & right, axis=1) / jnp.maximum(jnp.sum(is_nearest, axis=1), 1)
    correct = jnp.where(real, correct, 0.0)
    metrics = {
      "loss": WeightedSum(loss, number),
      "accuracy": WeightedSum(jnp.sum(correct), number),
    }
    terms = {"contrastive": loss / jnp.maximum(weights["contrastive"], 1.0)}
    return self.auxiliary.joined(terms, metrics, vectors.aux, batch, weights)

  def flops(self, config: TransformerConfig, *, batch_size: int, lengths: Mapping[str, int], predicted: float) -> float:
    """Returns the FLOPs of the model without logits; comparisons are negligible."""
    del predicted
    return model_flops(config, batch_size=batch_size, lengths=lengths, predicted=0.0)

  def baselines(self, batches: Sequence[Batch], vocab_size: int) -> Sequence[Baseline]:
    """Returns the loss of equal similarities, so that the right text loses by the margin."""
    del vocab_size
    numbers = [float(self.weights(batch)["contrastive"]) for batch in batches]
    # The loss of a single pair is zero.
    loss = sum(number * self._equal(number) for number in numbers if number > 1) / max(sum(numbers), 1.0)
    return [self._chance(loss)]

  def chance(self, values: Mapping[str, float], *, batch_size: int, vocab_size: int) -> Mapping[str, Baseline]:
    del values, vocab_size
    return {"loss": self._chance(self._equal(batch_size))}

  def _equal(self, number: float) -> float:
    """Returns the loss of one pair among `number` pairs with equal vectors."""
    behind = self.config.margin / self.config.temperature
    # Logarithm of the sum over all candidates; the right one contributes exp(-behind).
    return behind + math.log(number - 1.0 + math.exp(-behind))

  def _chance(self, loss: float) -> Baseline:
    cause = (
      "all vectors are equal, whatever the text; give a lower config.optimizer.learning_rate or a longer "
      "warm-up, or start from a trained model (config.init.checkpoint)"
    )
    return Baseline("chance", loss, "gives all texts of the batch the same similarity", cause=cause)
