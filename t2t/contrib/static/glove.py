"""GloVe (Pennington et al. 2014): vectors whose products are the logarithms of co-occurrence counts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
import dataclasses
import math
from typing import Any, ClassVar

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import UserError, sharding
from t2t.configuration.schema import Config
from t2t.configuration.section_keys import key as config_key
from t2t.contrib.static import negative_sampling
from t2t.losses.auxiliary_terms import AuxiliaryTerms
from t2t.losses.protocol import Baseline, Weights
from t2t.metrics import Outputs, WeightedSum
from t2t.models import transformer
from t2t.models.architecture import Batch, segments_of
from t2t.models.config import TransformerConfig
from t2t.runtime import data_packages
from t2t.runtime.lazy_table import load

seqio, tf = data_packages.lazy_module("seqio"), data_packages.lazy_module("tensorflow")

Features = dict[str, Any]  # tensors


# ---- Examples --------------------------------------------------------------------------------------------------------


def read_pairs(dataset: tf.data.Dataset, output_features: Mapping[str, seqio.Feature]) -> tf.data.Dataset:
  """Reads lines of `cooccurrence.count`.

  In:  {"text": "3 4 1.5 4 3 1.5"}
  Out: {"inputs": [3, 4], "targets": [4, 3], "pair_counts": [1069547520, 1069547520]}      bits of float32 1.5

  A line that is no list of pairs of the vocabulary's ids with counts above 0 raises an error.
  """
  size = output_features["targets"].vocabulary.vocab_size

  def read(features: Features) -> Features:
    values = tf.strings.to_number(tf.strings.split(tf.strings.strip(features["text"])), tf.float64)
    told = "config.data.files: a line is no list of ROW COLUMN COUNT; write the files with `t2t vocab pairs`"
    with tf.control_dependencies([tf.debugging.assert_equal(tf.size(values) % 3, 0, message=told)]):
      rows = tf.reshape(values, [-1, 3])
    first, second = (tf.cast(rows[:, i], tf.int32) for i in range(2))
    good = [tf.debugging.assert_less(tf.maximum(first, second), size, message=told)]
    good.append(tf.debugging.assert_positive(rows[:, 2], message=told))
    with tf.control_dependencies(good):
      bits = tf.bitcast(tf.cast(rows[:, 2], tf.float32), tf.int32)
    return {"inputs": first, "targets": second, "pair_counts": bits}

  return dataset.map(read, num_parallel_calls=tf.data.AUTOTUNE)


def glove(
  dataset: tf.data.Dataset, sequence_length: Mapping[str, int], *, merge_documents: bool = True
) -> tf.data.Dataset:
  """Cuts lines of pairs into rows.

  In:  {"inputs": [3, 4, 5], "targets": [4, 3, 3], "pair_counts": [a, b, c]}      with sequence_length {"inputs": 2}
  Out: {"inputs": [3, 4], "targets": [4, 3], "pair_counts": [a, b], "loss_weights": [1, 1]}, {"inputs": [5], ...}

  Args:
    dataset: see `read_pairs`.
    sequence_length: maximum length of "inputs" and of all other features.
    merge_documents: whether to join lines in groups, so that rows are full.
  """
  length = load("t2t.data.objectives.chunking:room")(sequence_length, {"inputs": 0})
  dataset = load("t2t.data.objectives.chunking:cut")(
    dataset, length=length, merge_documents=merge_documents, whole_documents=True
  )
  return dataset.map(lambda features: {**features, "loss_weights": tf.ones_like(features["targets"])})


# ---- Loss ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class GloVeConfig:
  """Settings of GloVe's loss: `config.glove`."""

  x_max: float = config_key(100.0, "count from which the weight of a pair is 1", least=0.0)
  alpha: float = config_key(0.75, "exponent of smaller counts in the weight of a pair", least=0.0)


def check_objectives(names: Collection[str], run: Config, *, where: str) -> None:
  """Checks that the objectives of a run of word vectors are those that its loss reads.

  Raises:
    UserError: they are not; begins with `where`.
  """
  if run.train.loss != "glove" and "glove" not in names:
    negative_sampling.check_objectives(names, run, where=where)
    return
  if run.train.loss != "glove":
    raise UserError(
      f"{where}: the examples are counted pairs of words, which config.train.loss={run.train.loss} does not read. Set "
      "--config.train.loss=glove, or start from the config glove."
    )
  if set(names) != {"glove"}:
    raise UserError(
      f"{where}: config.train.loss=glove needs counted pairs of words. Count them with `t2t vocab pairs`, and set "
      "--config.data.objective=glove."
    )


class GloVeVectors(nnx.Module):
  """Vectors of words and of context words, and a bias for each."""

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
    self.words = transformer.build(config, rngs)
    shape, scale = (config.vocab_size, config.embed_dim), config.init_scale or 1.0
    self.context = nnx.Param(scale * jax.random.normal(rngs.params(), shape), axes=("vocab", "embed"))
    self.bias = nnx.Param(jnp.zeros(config.vocab_size), axes=("vocab",))
    self.context_bias = nnx.Param(jnp.zeros(config.vocab_size), axes=("vocab",))


def pair_weights(counts: jax.Array, *, x_max: float, alpha: float) -> jax.Array:
  """Returns min(1, (count / x_max) ** alpha), float32 in the shape of `counts`.

  Source: Pennington et al. 2014, equation 9.
  """
  return jnp.minimum(1.0, (counts / x_max) ** alpha)


@dataclasses.dataclass(frozen=True)
class GloVe:
  """Weighted least squares between products of vectors and logarithms of counts, a mean over pairs.

  The vectors that are exported are sums of both tables (section 4.2).

  Metrics: loss, and error, the mean absolute difference of the logarithms.

  Source: Pennington et al. 2014, equation 8.
  """

  config: GloVeConfig
  auxiliary: AuxiliaryTerms = AuxiliaryTerms()
  supports_microbatching: ClassVar[bool] = True
  heads: ClassVar[tuple[str, ...]] = ()
  unit: ClassVar[str] = "weighted squared error per pair"
  part: ClassVar[str] = "words"

  @classmethod
  def from_config(cls, run: Config) -> GloVe:
    """Builds the loss of a run.

    Raises:
      UserError: the model is no encoder, or a number is out of range.
    """
    config: GloVeConfig = run.glove or GloVeConfig()
    if run.model.kind.is_generative:
      raise UserError(
        f"config.train.loss=glove needs config.model.architecture=encoder_only, not {run.model.architecture}. Start "
        "from the config glove."
      )
    for name, least in (("x_max", "above 0 (GloVe uses 100)"), ("alpha", "0 or more (GloVe uses 0.75)")):
      value = getattr(config, name)
      if not math.isfinite(value) or value < 0 or (name == "x_max" and not value):
        raise UserError(f"config.glove.{name}={value}: must be {least}. Set config.glove.{name} to such a number.")
    return cls(config, AuxiliaryTerms.from_config(run, only_states=True))

  def build(self, config: TransformerConfig, rngs: nnx.Rngs) -> GloVeVectors:
    return GloVeVectors(config, rngs)

  def untrained_params(self, model: TransformerConfig) -> tuple[str, ...]:
    """Returns patterns of the vocabulary head, which the loss does not read."""
    return ("^words/head/",) if model.vocabulary_head else ()

  def weights(self, batch: Batch) -> Weights:
    return {"glove": jnp.sum(batch["encoder_loss_weights"].astype(jnp.float32))} | self.auxiliary.weights(batch)

  def __call__(
    self, module: GloVeVectors, batch: Batch, weights: Weights, *, key: jax.Array | None, train: bool
  ) -> tuple[dict[str, jax.Array], Outputs]:
    hidden = module.words.hidden(batch, dropout_key=key if train else None)
    rows, columns = batch["encoder_input_tokens"], batch["encoder_target_tokens"]
    real = (segments_of(batch, "encoder") > 0) & (batch["encoder_loss_weights"] > 0)
    bits = jnp.where(real, batch["encoder_pair_counts"], jax.lax.bitcast_convert_type(jnp.float32(1.0), jnp.int32))
    counts = jax.lax.bitcast_convert_type(bits, jnp.float32)
    context = jnp.take(sharding.shard(module.context[...], "vocab", "embed"), columns, axis=0)
    product = jnp.einsum("ble,ble->bl", hidden.x.astype(jnp.float32), context, precision="highest")
    bias = jnp.take(module.bias[...], rows) + jnp.take(module.context_bias[...], columns)
    difference = product + bias - jnp.log(counts)
    weighted = pair_weights(counts, x_max=self.config.x_max, alpha=self.config.alpha) * jnp.square(difference)
    loss, number = jnp.sum(jnp.where(real, weighted, 0.0)), jnp.sum(real.astype(jnp.float32))
    metrics = {
      "loss": WeightedSum(loss, number),
      "error": WeightedSum(jnp.sum(jnp.where(real, jnp.abs(difference), 0.0)), number),
      "accuracy": WeightedSum(jnp.sum(jnp.where(real, jnp.abs(difference) < math.log(2), False) * 1.0), number),
    }
    terms = {"glove": loss / jnp.maximum(weights["glove"], 1.0)}
    return self.auxiliary.joined(terms, metrics, hidden.aux, batch, weights)

  def flops(self, config: TransformerConfig, *, batch_size: int, lengths: Mapping[str, int], predicted: float) -> float:
    """Returns the FLOPs of the products, forward and backward."""
    del predicted
    return 6.0 * batch_size * lengths["encoder"] * config.embed_dim

  def baselines(self, batches: Sequence[Batch], vocab_size: int) -> Sequence[Baseline]:
    del batches, vocab_size
    return []

  def chance(self, values: Mapping[str, float], *, batch_size: int, vocab_size: int) -> Mapping[str, Baseline]:
    del values, batch_size, vocab_size
    return {}
