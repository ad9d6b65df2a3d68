"""Negative sampling: tells a word of the text from words drawn at random, given its context (word2vec)."""

from collections.abc import Collection, Mapping, Sequence
import dataclasses
import functools
import math
from typing import ClassVar

from absl import logging
from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from t2t import UserError, sharding
from t2t.configuration.schema import Config
from t2t.configuration.section_keys import key as config_key
from t2t.contrib.static import subwords, word_counts
from t2t.data import vocabularies
from t2t.losses.auxiliary_terms import AuxiliaryTerms
from t2t.losses.diffusion import row_hashes
from t2t.losses.protocol import Baseline, Weights
from t2t.metrics import Outputs, WeightedSum
from t2t.models import transformer
from t2t.models.architecture import Batch, segments_of
from t2t.models.config import TransformerConfig


@dataclasses.dataclass(frozen=True)
class NegativeSamplingConfig:
  """Settings of negative sampling: `config.negative_sampling`."""

  negatives: int = config_key(5, "words drawn at random for each prediction; 5 to 20 for small texts", least=1)
  power: float = config_key(0.75, "exponent of the counts in the distribution of negatives; 0: uniform")
  cbow: bool = config_key(False, "predict a word from the mean of its context (CBOW), not from each context word")


def check_objectives(names: Collection[str], run: Config, *, where: str) -> None:
  """Checks that all objectives of a run are those of word vectors, and that the loss predicts as they do.

  Raises:
    UserError: they are not, or do not; begins with `where`.
  """
  if run.train.loss != "negative_sampling":
    raise UserError(
      f"{where}: the examples are words with windows, which config.train.loss={run.train.loss} does not read. Set "
      "--config.train.loss=negative_sampling, or start from a config such as word2vec_skip_gram."
    )
  settings: NegativeSamplingConfig = run.negative_sampling or NegativeSamplingConfig()
  wanted = "cbow" if settings.cbow else "skip_gram"
  if set(names) != {wanted}:
    given = ", ".join(sorted(names)) or "no objective"
    raise UserError(
      f"{where}: config.train.loss=negative_sampling with config.negative_sampling.cbow={settings.cbow} needs the "
      f"objective {wanted} in every task, but the examples have {given}. Set --config.data.objective={wanted}, or "
      f"config.negative_sampling.cbow={not settings.cbow}."
    )


class WordTables(nnx.Module):
  """Two vectors for each word: the model's, which are kept, and those of predicted words, which begin at 0."""

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
    self.words = transformer.build(config, rngs)
    self.output = nnx.Param(jnp.zeros((config.vocab_size, config.embed_dim), jnp.float32), axes=("vocab", "embed"))


@functools.cache
def _noise(spec: str, extra_ids: int, size: int, power: float) -> tuple[np.ndarray, np.ndarray]:
  """Returns `word_counts.alias_table` of a vocabulary."""
  counts = word_counts.of_vocabulary(vocabularies.load(spec, extra_ids=extra_ids)) if spec else None
  if counts is None:
    logging.warning("the vocabulary has no counts of words, so that negatives are drawn by Zipf's law")
  return word_counts.alias_table(word_counts.noise_distribution(counts, size, power=power))


@functools.cache
def _subwords(spec: str, extra_ids: int, size: int, buckets: int, most: int) -> np.ndarray:
  """Returns `subwords.table` of a vocabulary; without one, as in a plan, no word has n-grams."""
  if not spec:
    return np.zeros((size, most), np.int32)
  vocabulary = vocabularies.load(spec, extra_ids=extra_ids)
  words = [text.strip() for text in vocabularies.token_texts(vocabulary)]
  special = vocabularies.special_ids(vocabulary)
  return subwords.table(words, special, rows=size, buckets=buckets, most=most)


def draw(key: jax.Array, shape: tuple[int, ...], thresholds: jax.Array, other: jax.Array) -> jax.Array:
  """Draws ids by `word_counts.alias_table`, int32 of this shape."""
  id_key, kept_key = jax.random.split(key)
  ids = jax.random.randint(id_key, shape, 0, thresholds.shape[0])
  kept = jax.random.uniform(kept_key, shape) < thresholds[ids]
  return jnp.where(kept, ids, other[ids])


def neighbours(x: jax.Array, offsets: Sequence[int]) -> jax.Array:
  """Returns for each position the values at other positions, 0 beyond the row.

  In:  [[1, 2, 3]], offsets (-1, 1)
  Out: [[[0, 2], [1, 3], [2, 0]]]

  Args:
    x: [batch, length, ...].
    offsets: positions to the right; below 0: to the left.

  Returns:
    [batch, length, offsets, ...].
  """
  reach = max(map(abs, offsets))
  padded = jnp.pad(x, [(0, 0), (reach, reach), *[(0, 0)] * (x.ndim - 2)])
  return jnp.stack([padded[:, reach + d : reach + d + x.shape[1]] for d in offsets], axis=2)


def pairs(batch: Batch, offsets: Sequence[int]) -> jax.Array:
  """Returns which neighbours are the context of each word, bool [batch, length, offsets]."""
  segments = segments_of(batch, "encoder")
  distance = np.abs(np.array(offsets))
  in_reach = distance <= batch["encoder_windows"][..., None]
  return in_reach & (segments > 0)[..., None] & (neighbours(segments, offsets) == segments[..., None])


def sampled_loss(scores: jax.Array, negative_scores: jax.Array, counts: jax.Array) -> jax.Array:
  """Returns -log sigmoid(score) - sum of log sigmoid(-negative score), float32 [...].

  Args:
    scores: products of the predicted words' vectors with the contexts', float32 [...].
    negative_scores: products of the negatives' vectors, float32 [..., negatives].
    counts: which negatives count, bool; a negative that is the predicted word does not.

  Source: Mikolov et al. 2013b, equation 4.
  """
  noise = jnp.where(counts, jax.nn.softplus(negative_scores), 0.0)
  return jax.nn.softplus(-scores) + jnp.sum(noise, axis=-1)


@dataclasses.dataclass(frozen=True)
class NegativeSampling:
  """Skip-gram and CBOW with negative sampling.

  CBOW has the gradient of the mean; word2vec.c gives each context word the mean's whole gradient instead.
  A context word's vector is the model's, a predicted word's is of `WordTables.output`, as in word2vec.c. The negatives
  of a row depend on the row's content alone, its words and their drawn windows. So they do not depend on microbatches,
  meshes or processes, and a resumed run draws them again.

  Metrics: loss, and accuracy, the fraction of predictions with a higher score than all of their negatives.

  Source: Mikolov et al. 2013b, section 2.2.
  """

  config: NegativeSamplingConfig
  window: int  # largest distance of a context word
  vocabulary: tuple[str, int]  # config.data.vocabulary and its sentinels
  auxiliary: AuxiliaryTerms = AuxiliaryTerms()
  supports_microbatching: ClassVar[bool] = True
  heads: ClassVar[tuple[str, ...]] = ()
  unit: ClassVar[str] = "nats per prediction, with its negatives"
  part: ClassVar[str] = "words"

  @classmethod
  def from_config(cls, run: Config) -> "NegativeSampling":
    """Builds the loss of a run.

    Raises:
      UserError: the model is no encoder, or a number is out of range.
    """
    config: NegativeSamplingConfig = run.negative_sampling or NegativeSamplingConfig()
    if run.model.kind.is_generative:
      raise UserError(
        f"config.train.loss=negative_sampling needs config.model.architecture=encoder_only, not "
        f"{run.model.architecture}. Start from a config such as word2vec_skip_gram."
      )
    if config.negatives < 1:
      raise UserError(
        f"config.negative_sampling.negatives={config.negatives}: must be 1 or more (word2vec uses 5). Set "
        "config.negative_sampling.negatives=5."
      )
    if not (math.isfinite(config.power) and config.power >= 0):
      raise UserError(
        f"config.negative_sampling.power={config.power}: must be 0 or more. Set config.negative_sampling.power=0.75."
      )
    window = 5 if run.data.window == -1 else run.data.window
    vocabulary = (run.data.vocabulary, run.data.extra_ids)
    return cls(config, window, vocabulary, AuxiliaryTerms.from_config(run, only_states=True))

  def build(self, config: TransformerConfig, rngs: nnx.Rngs) -> WordTables:
    module = WordTables(config, rngs)
    if config.embedding == "subword":
      rows = _subwords(*self.vocabulary, config.vocab_size, config.subword_buckets, config.most_subwords)
      module.words.embed.subwords = nnx.Param(jnp.asarray(rows), axes=("vocab", None))
    return module

  def untrained_params(self, model: TransformerConfig) -> tuple[str, ...]:
    """Returns the pattern of the vocabulary head, which the loss does not read."""
    return ("^words/head/",) if model.vocabulary_head else ()

  def weights(self, batch: Batch) -> Weights:
    number = jnp.sum(batch["encoder_loss_weights"].astype(jnp.float32))
    return {"negative_sampling": number} | self.auxiliary.weights(batch)

  def __call__(
    self, module: WordTables, batch: Batch, weights: Weights, *, key: jax.Array | None, train: bool
  ) -> tuple[dict[str, jax.Array], Outputs]:
    offsets = [d for d in range(-self.window, self.window + 1) if d]
    hidden = module.words.hidden(batch, dropout_key=key if train else None)
    real = pairs(batch, offsets)
    context = neighbours(hidden.x.astype(jnp.float32), offsets)
    if self.config.cbow:
      number = jnp.sum(real, axis=2, keepdims=True)
      mean = jnp.sum(jnp.where(real[..., None], context, 0.0), axis=2, keepdims=True)
      context, real = mean / jnp.maximum(number, 1)[..., None], number > 0
    targets = batch["encoder_input_tokens"]
    negatives = self._negatives(batch, module.output[...].shape[0], context.shape[2])
    table = sharding.shard(module.output[...], "vocab", "embed")
    # A TPU would round to bfloat16 by default.
    product = functools.partial(jnp.einsum, precision="highest")
    scores = product("blce,ble->blc", context, jnp.take(table, targets, axis=0))
    negative_scores = product("blce,blcne->blcn", context, jnp.take(table, negatives, axis=0))
    counts = negatives != targets[..., None, None]
    loss = jnp.sum(jnp.where(real, sampled_loss(scores, negative_scores, counts), 0.0))
    above = jnp.all((scores[..., None] > negative_scores) | ~counts, axis=-1)
    total = jnp.sum(real.astype(jnp.float32))
    metrics = {
      "loss": WeightedSum(loss, total),
      "accuracy": WeightedSum(jnp.sum(jnp.where(real, above, False).astype(jnp.float32)), total),
    }
    terms = {"negative_sampling": loss / jnp.maximum(weights["negative_sampling"], 1.0)}
    return self.auxiliary.joined(terms, metrics, hidden.aux, batch, weights)

  def _negatives(self, batch: Batch, size: int, number: int) -> jax.Array:
    """Draws the negatives of each row, int32 [batch, length, number, negatives]."""
    thresholds, other = map(jnp.asarray, _noise(*self.vocabulary, size, self.config.power))
    tokens = batch["encoder_input_tokens"]
    hashes = row_hashes(tokens, batch["encoder_windows"], segments_of(batch, "encoder"))
    keys = jax.vmap(lambda x: jax.random.fold_in(jax.random.key(0, impl="threefry2x32"), x))(hashes)
    shape = (tokens.shape[1], number, self.config.negatives)
    drawn = jax.vmap(lambda row: draw(row, shape, thresholds, other))(keys)
    return sharding.shard(drawn, "batch", "length", None, None)

  def flops(self, config: TransformerConfig, *, batch_size: int, lengths: Mapping[str, int], predicted: float) -> float:
    """Returns the FLOPs of the products, forward and backward, with `predicted` words of each row."""
    del predicted
    words = batch_size * lengths["encoder"]
    contexts = 1 if self.config.cbow else self.window + 1  # on average
    return 6.0 * words * contexts * (1 + self.config.negatives) * config.embed_dim

  def baselines(self, batches: Sequence[Batch], vocab_size: int) -> Sequence[Baseline]:
    del batches, vocab_size
    return [self._chance()]

  def chance(self, values: Mapping[str, float], *, batch_size: int, vocab_size: int) -> Mapping[str, Baseline]:
    del values, batch_size, vocab_size
    return {"loss": self._chance()}

  def _chance(self) -> Baseline:
    cause = "all scores are 0; give a higher config.optimizer.learning_rate or more steps"
    loss = (1 + self.config.negatives) * math.log(2)
    return Baseline("chance", loss, "gives every word the score 0", is_exact=False, cause=cause)
