"""Contrastive losses: of two texts, which second one of the whole batch goes with which first one.

SimCSE (Gao et al. 2021): the same text twice, by two draws of dropout.  Quick-Thought (Logeswaran & Lee 2018):
neighbouring sentences.  Translation ranking (LaBSE, Feng et al. 2022): a sentence in two languages, with a margin.
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
from t2t.models.config import HeadConfig, TransformerConfig
from t2t.models.flops import model_flops

SIMILARITIES = ("cosine", "dot")

_NOT_THERE = -1e30  # as a logit


@dataclasses.dataclass(frozen=True)
class ContrastiveConfig:
  """How pairs of texts are compared: `config.contrastive`, which no other loss has.

  The defaults are those of SimCSE (Gao et al. 2021).  Quick-Thought (Logeswaran & Lee 2018) compares by dot products,
  similarity=dot and temperature=1.0; LaBSE (Feng et al. 2022) has margin=0.3 and symmetric=True.
  """

  similarity: str = "cosine"  # of two vectors; or dot, which their lengths count in
  temperature: float = 0.05  # similarities are divided by it
  margin: float = 0.0  # is taken off the similarity of the right pair, so that it must be nearer by as much
  symmetric: bool = False  # the first of a pair is looked for as well, given the second; the loss is the mean of both


def is_pair(batch: Batch) -> jax.Array:
  """Which rows have two texts, bool [batch]; the others fill up a batch."""
  segments = segments_of(batch, sides(batch)[0])
  return jnp.any(segments == 1, axis=1) & jnp.any(segments == 2, axis=1)


def similarities(vectors: jax.Array, kind: str) -> jax.Array:
  """float32 [batch, batch], of each first with each second text, whatever devices they are on.

  Args:
    vectors: float32 [batch, 2, width].
    kind: one of `SIMILARITIES`.
  """
  if kind == "cosine":
    # Far below any vector's own square; what is no text has a vector of zeros, which stays one.
    vectors = vectors * jax.lax.rsqrt(jnp.maximum(jnp.sum(jnp.square(vectors), axis=-1, keepdims=True), 1e-12))
  # Each device compares its own first texts with all second ones, which are sent to all.
  first = sharding.shard(vectors[:, 0], "batch", None)
  second = sharding.shard(vectors[:, 1], None, None)
  # Not rounded to bfloat16 on its way, as a TPU does: a temperature makes much of small differences.
  return sharding.shard(jnp.einsum("ie,je->ij", first, second, precision="highest"), "batch", None)


def _missed(logits: jax.Array, right: jax.Array, *, axis: int) -> jax.Array:
  """Minus the log-probability of the right partner, by a softmax along `axis`: [batch]."""
  return jax.nn.logsumexp(logits, axis=axis) - jnp.sum(jnp.where(right, logits, 0.0), axis=axis)


@dataclasses.dataclass(frozen=True)
class Contrastive:
  """The cross-entropy of a softmax over all second texts of the batch, whose right one stands in the same row.

  So is it of InfoNCE (van den Oord et al. 2018).  Both texts are read by the model and by its one head of kind vector.

  Metrics: loss, and accuracy, the share of the first texts whose nearest second text is the right partner.
  """

  config: ContrastiveConfig
  head: HeadConfig
  auxiliary: AuxiliaryTerms = AuxiliaryTerms()
  supports_microbatching: ClassVar[bool] = False  # a row's loss depends on the second texts of all
  unit: ClassVar[str] = "nats per pair, by which text of the batch goes with which"
  part: ClassVar[str] = ""

  @property
  def heads(self) -> tuple[str, ...]:
    """The one that gives a vector."""
    return (self.head.name,)

  @classmethod
  def from_config(cls, run: Config) -> "Contrastive":
    """The loss of a run.

    Raises:
      UserError: a model without a vector, or with several; packed rows; a batch of one; numbers out of range.
    """
    config = run.contrastive or ContrastiveConfig()
    if config.similarity not in SIMILARITIES:
      raise UserError(f"config.contrastive.similarity={config.similarity}: there are {' and '.join(SIMILARITIES)}")
    if not (math.isfinite(config.temperature) and config.temperature > 0):
      raise UserError(f"config.contrastive.temperature={config.temperature}: must be above 0; SimCSE's is 0.05")
    if not (math.isfinite(config.margin) and config.margin >= 0):
      raise UserError(f"config.contrastive.margin={config.margin}: must be 0 or more; LaBSE's is 0.3")
    vector_heads = [head for head in run.model.heads if head.kind == "vector"]
    if len(vector_heads) != 1:
      names = ", ".join(head.name for head in vector_heads) or "none"
      raise UserError(
        f"config.train.loss=contrastive: compares the vectors of one head, and config.model.heads has {names} of kind"
        ' vector; give config.model.heads={"name": "text", "kind": "vector", "num_classes": 0}'
      )
    if run.data.pack:
      raise UserError(
        "config.data.pack=True: config.train.loss=contrastive compares one pair of each row; set it to False, and"
        " config.data.inputs_length to what two texts need"
      )
    if run.train.batch_size < 2 or run.eval.batch_size == 1:
      key = "train" if run.train.batch_size < 2 else "eval"
      raise UserError(f"config.{key}.batch_size=1: there is nothing to tell a pair from; give 2 or more")
    return cls(config, vector_heads[0], AuxiliaryTerms.from_config(run, only_states=True))

  def build(self, config: TransformerConfig, rngs: nnx.Rngs) -> transformer.Transformer:
    """The model alone."""
    return transformer.build(config, rngs)

  def untrained_params(self, model: TransformerConfig) -> tuple[str, ...]:
    """The head over the vocabulary, and a decoder behind the encoder that is read."""
    return without_tokens(model)

  def weights(self, batch: Batch) -> Weights:
    """How many pairs there are."""
    return {"contrastive": jnp.sum(is_pair(batch).astype(jnp.float32))} | self.auxiliary.weights(batch)

  def vectors(self, module: transformer.Transformer, batch: Batch, *, key: jax.Array | None) -> Hidden:
    """Of both texts of each row, float32 [batch, 2, width], with what layers return beside.

    Args:
      module: the model.
      batch: model features; the first text of a row is its segment 1, the second its segment 2.
      key: of dropout, which both texts draw for themselves; None: there is none.
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
    """See `Loss`."""
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
    # Of k texts that are equally near each counts 1/k.
    correct = jnp.any(is_nearest & right, axis=1) / jnp.maximum(jnp.sum(is_nearest, axis=1), 1)
    correct = jnp.where(real, correct, 0.0)
    metrics = {
      "loss": WeightedSum(loss, number),
      "accuracy": WeightedSum(jnp.sum(correct), number),
    }
    terms = {"contrastive": loss / jnp.maximum(weights["contrastive"], 1.0)}
    return self.auxiliary.joined(terms, metrics, vectors.aux, batch, weights)

  def flops(self, config: TransformerConfig, *, batch_size: int, lengths: Mapping[str, int], predicted: float) -> float:
    """The model's without logits; the comparisons are few beside it."""
    del predicted
    return model_flops(config, batch_size=batch_size, lengths=lengths, predicted=0.0)

  def baselines(self, batches: Sequence[Batch], vocab_size: int) -> Sequence[Baseline]:
    """Of who finds all of the batch's second texts equally near, so that the right one is behind by the margin."""
    del vocab_size
    numbers = [float(self.weights(batch)["contrastive"]) for batch in batches]
    # A pair alone costs nothing.
    loss = sum(number * self._equal(number) for number in numbers if number > 1) / max(sum(numbers), 1.0)
    return [self._chance(loss)]

  def chance(self, values: Mapping[str, float], *, batch_size: int, vocab_size: int) -> Mapping[str, Baseline]:
    """See `Loss`: all vectors are equal."""
    del values, vocab_size
    return {"loss": self._chance(self._equal(batch_size))}

  def _equal(self, number: float) -> float:
    """Loss of a pair among `number` pairs whose vectors are all equal."""
    behind = self.config.margin / self.config.temperature
    # The logarithm of what all others and the right one come to, of which the right one has exp(-behind).
    return behind + math.log(number - 1.0 + math.exp(-behind))

  def _chance(self, loss: float) -> Baseline:
    cause = (
      "all vectors are equal, whatever the text; give a lower config.optimizer.learning_rate or a longer warm-up, or"
      " begin from a trained model (config.init.checkpoint)"
    )
    return Baseline("chance", loss, "finds all texts of the batch equally near", cause=cause)
