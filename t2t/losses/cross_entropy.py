"""Token cross-entropy as weighted sums, normalized by the weight of the whole batch over all microbatches."""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import math
from typing import Any, ClassVar

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from t2t import sharding
from t2t.configuration.schema import Config
from t2t.losses.auxiliary_terms import AuxiliaryTerms
from t2t.losses.protocol import Baseline, LogitsFn, Weights
from t2t.metrics import Outputs, WeightedSum
from t2t.models import cpu_ops, transformer
from t2t.models.architecture import Batch, ModelProtocol, predicted_side
from t2t.models.auxiliary import Hidden
from t2t.models.config import TransformerConfig
from t2t.models.flops import model_flops


def future_layers(model: TransformerConfig) -> tuple[str, ...]:
  """Returns patterns of the layers that predict later tokens, which only `multi_token.MultiToken` trains."""
  return ("^future/",) if model.future_tokens else ()


@dataclasses.dataclass(frozen=True)
class CrossEntropyConfig:
  """Settings of the cross-entropy. configs/default.py has the defaults."""

  z_loss: float  # coefficient of log(Z)**2; keeps logits near zero (Mesh-TensorFlow; T5 1.1 used 1e-4)
  label_smoothing: float  # fraction of the target distribution spread evenly over the vocabulary
  logits_chunk_tokens: int  # target positions per batch shard with logits in memory at one time


def token_cross_entropy(
  logits: jax.Array, targets: jax.Array, *, z_loss: float = 0.0, label_smoothing: float = 0.0
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Computes cross-entropy, z-loss and accuracy of each target.

  Args:
    logits: [..., vocab]; the softmax is taken in float32.
    targets: int [...].
    z_loss: coefficient of log(Z)**2.
    label_smoothing: fraction of the target distribution spread evenly over the vocabulary. The entropy of the smoothed
      distribution is not subtracted: a perfect prediction has a loss above zero.

  Returns:
    cross-entropy, float32 [...] in nats; z-loss, float32 [...]; accuracy, float32 [...]: 1 if the target alone is the
    likeliest token, 1/k if k tokens tie, else 0.
  """
  logits = logits.astype(jnp.float32)
  log_z = jax.nn.logsumexp(logits, axis=-1)
  target_logit = _target_logit(logits, targets)
  loss = log_z - (1.0 - label_smoothing) * target_logit
  if label_smoothing:
    loss = loss - label_smoothing * jnp.mean(logits, axis=-1)
  # log(Z) already needs the maximum; an argmax would cost more than counting the tokens that tie.
  most = jnp.max(logits, axis=-1)
  number = jnp.sum(logits == most[..., None], axis=-1, dtype=jnp.float32)
  right = jnp.where(target_logit >= most, 1.0 / jnp.maximum(number, 1.0), 0.0)
  return loss, z_loss * jnp.square(log_z), right


def _target_logit(logits: jax.Array, targets: jax.Array) -> jax.Array:
  """Returns the logit of each target; 0 for a target outside the vocabulary."""
  if cpu_ops.is_fast(logits) and sharding.is_alone():
    return cpu_ops.select(logits, targets)
  # A comparison runs on the shard with that part of the vocabulary; a gather would not.
  is_target = targets[..., None] == jnp.arange(logits.shape[-1])
  return jnp.sum(jnp.where(is_target, logits, 0.0), axis=-1)


def _chunk_loss(
  config: CrossEntropyConfig,
  seed: jax.Array | None,
  logits_fn: LogitsFn,
  hidden: jax.Array,
  targets: jax.Array,
  weights: jax.Array,
  positions: jax.Array | None = None,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array | None]]:
  """Returns the summed loss of [tokens, embed]; sums of cross-entropy, z-loss, accuracy; and sampled tokens."""
  logits = sharding.shard(logits_fn(hidden), None, "vocab")
  loss, z_term, right = token_cross_entropy(
    logits, targets, z_loss=config.z_loss, label_smoothing=config.label_smoothing
  )
  sums = jnp.stack([jnp.sum(x * weights) for x in (loss, z_term, right)])
  drawn = None
  if seed is not None:
    assert positions is not None
    drawn = _drawn(seed, logits, positions)
  return sums[0] + sums[1], (sums, drawn)


def _drawn(seed: jax.Array, logits: jax.Array, positions: jax.Array) -> jax.Array:
  """Samples a token from each softmax, int32 [tokens], by the Gumbel trick.

  Samples do not depend on the mesh, unless a run has both microbatches and copies of the parameters.
  """
  key = jax.random.key(seed, impl="threefry2x32")
  noise = jax.vmap(lambda i: jax.random.gumbel(jax.random.fold_in(key, i), logits.shape[-1:]))(positions)
  return jnp.argmax(logits + noise, axis=-1).astype(jnp.int32)


def _chunks(config: CrossEntropyConfig, *arrays: jax.Array) -> tuple[jax.Array, ...]:
  """Reshapes [shards, tokens, ...] to [chunks, shards, chunk, ...], so that all shards work on each chunk."""
  tokens = arrays[0].shape[1]
  num_chunks = -(-tokens // config.logits_chunk_tokens)
  size = -(-tokens // num_chunks)

  def split(x):
    x = jnp.pad(x, [(0, 0), (0, num_chunks * size - tokens)] + [(0, 0)] * (x.ndim - 2))
    x = jnp.moveaxis(x.reshape(x.shape[0], num_chunks, size, *x.shape[2:]), 1, 0)
    return sharding.shard(x, None, "tokens", *[None] * (x.ndim - 2))

  return tuple(split(x) for x in arrays)


def _grid(shape: tuple[int, ...]) -> tuple[int, int]:
  """Returns the numbers of shards of rows and of positions of [batch, length, ...]."""
  columns = sharding.num_shards("length")
  return sharding.num_shards("batch"), 1 if shape[1] % columns else columns


def _by_shard(x: jax.Array) -> jax.Array:
  """Reshapes [batch, length, ...] to [shards, tokens, ...]: the tokens on each device."""
  rows, columns = _grid(x.shape)
  split = x.reshape(rows, x.shape[0] // rows, columns, x.shape[1] // columns, *x.shape[2:])
  return jnp.moveaxis(split, 2, 1).reshape(rows * columns, -1, *x.shape[2:])


def _whole(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
  """Inverts `_by_shard`, for an array of this shape."""
  rows, columns = _grid(shape)
  split = x.reshape(rows, columns, shape[0] // rows, shape[1] // columns, *shape[2:])
  return jnp.moveaxis(split, 1, 2).reshape(shape)


def _weighted_first(weights: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns an order of each shard's tokens, [shards, tokens], weighted tokens first, and their maximum number per
  shard.
  """
  counts = weights != 0
  return jnp.argsort(~counts, axis=1, stable=True), sharding.most_of_copies(jnp.max(jnp.sum(counts, axis=1)))


def _loop(body, carry, chunks, num_used: jax.Array | None):
  """Runs `jax.lax.scan`; with `num_used`, over that many chunks, with zeros as outputs of the others."""
  if num_used is None:
    return jax.lax.scan(body, carry, chunks)
  at = lambda index: jax.tree.map(lambda x: x[index], chunks)
  outputs = jax.eval_shape(body, carry, at(0))[1]
  outputs = jax.tree.map(lambda x: jnp.zeros((chunks[0].shape[0], *x.shape), x.dtype), outputs)

  def step(index, state):
    carry, output = body(state[0], at(index))
    return carry, jax.tree.map(lambda all, value: all.at[index].set(value), state[1], output)

  return jax.lax.fori_loop(0, num_used, step, (carry, outputs))


def _prepared(config: CrossEntropyConfig, sparse: bool, *arrays: jax.Array):
  """Returns the chunks of arrays, the third of them weights; the number of chunks to run; the order of tokens."""
  arrays = tuple(_by_shard(x) for x in arrays)
  if not sparse:
    return _chunks(config, *arrays), None, None
  order, num = _weighted_first(arrays[2])
  sorted_by = lambda x: jnp.take_along_axis(x, order.reshape(*order.shape, *[1] * (x.ndim - 2)), axis=1)
  chunks = _chunks(config, *(sorted_by(x) for x in arrays))
  return chunks, -(-num // chunks[0].shape[2]), order


def _unchunked(x: jax.Array, shape: tuple[int, ...], order: jax.Array | None) -> jax.Array:
  """Reshapes outputs [chunks, shards, chunk, ...] to the original shape and order."""
  rows, columns = _grid(shape)
  merged = jnp.moveaxis(x, 0, 1).reshape(rows * columns, -1, *x.shape[3:])[:, : shape[0] * shape[1] // (rows * columns)]
  if order is not None:
    back = jnp.argsort(order, axis=1)
    merged = jnp.take_along_axis(merged, back.reshape(*back.shape, *[1] * (merged.ndim - 2)), axis=1)
  return _whole(merged, shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _summed(
  config: CrossEntropyConfig,
  sparse: bool,
  logits_fn: LogitsFn,
  hidden: jax.Array,
  targets: jax.Array,
  weights: jax.Array,
  seed: jax.Array | None,
  positions: jax.Array | None,
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
  """Computes loss and sums of [batch, length, embed] in chunks, see `_chunk_loss`; `sparse` skips tokens without
  weight.
  """

  def body(total, chunk):
    loss, (sums, drawn) = jax.vmap(functools.partial(_chunk_loss, config, seed, logits_fn))(*chunk)
    return jax.tree.map(lambda a, b: a + jnp.sum(b, axis=0), total, (loss, sums)), drawn

  arrays: Any = (hidden, targets, weights) if seed is None else (hidden, targets, weights, positions)
  chunks, num_used, order = _prepared(config, sparse, *arrays)
  (loss, sums), drawn = _loop(body, (jnp.zeros(()), jnp.zeros(3)), chunks, num_used)
  return loss, sums, None if drawn is None else _unchunked(drawn, targets.shape, order)


def _summed_forward(config, sparse, logits_fn, hidden, targets, weights, seed, positions):
  # The loss is a sum, so each chunk's gradient is known up to one factor. Each chunk yields loss and gradients at once.
  # Its logits are computed once (not again in the backward pass) and never stored.
  def of_shard(hidden, *arrays):
    loss_fn = lambda f, h: _chunk_loss(config, seed, f, h, *arrays)
    loss, vjp, (sums, drawn) = jax.vjp(loss_fn, logits_fn, hidden, has_aux=True)
    return (loss, sums), drawn, *vjp(jnp.ones_like(loss))

  def body(carry, chunk):
    total, gradient = carry
    outputs, drawn, weights_gradient, hidden_gradient = jax.vmap(of_shard)(*chunk)
    total = jax.tree.map(lambda a, b: a + jnp.sum(b, axis=0), total, outputs)
    return (total, by_shard(jax.tree.map(jnp.add, gradient, weights_gradient))), (hidden_gradient, drawn)

  # Each batch shard sums its gradient of the projection; shards are summed once, after the last chunk.
  by_shard = lambda tree: jax.tree.map(lambda x: sharding.shard(x, "tokens", *["any"] * (x.ndim - 1)), tree)
  arrays: Any = (hidden, targets, weights) if seed is None else (hidden, targets, weights, positions)
  chunks, num_used, order = _prepared(config, sparse, *arrays)
  zeros = by_shard(jax.tree.map(lambda w: jnp.zeros((chunks[0].shape[1], *w.shape), jnp.float32), logits_fn))
  start = ((jnp.zeros(()), jnp.zeros(3)), zeros)
  ((loss, sums), gradient), (hidden_gradient, drawn) = _loop(body, start, chunks, num_used)
  gradient = jax.tree.map(lambda g, w: jnp.sum(g, axis=0).astype(w.dtype), gradient, logits_fn)
  drawn = None if drawn is None else _unchunked(drawn, targets.shape, order)
  # The barrier forces the sum over shards here. Otherwise each device would hold its unreduced gradient through the
  # backward pass of the decoder.
  residuals = jax.lax.optimization_barrier((gradient, _unchunked(hidden_gradient, hidden.shape, order)))
  return (loss, sums, drawn), residuals


def _summed_backward(config, sparse, residuals, cotangents):
  # Metric sums and sampled tokens have no gradient (see `token_sums`).
  del config, sparse
  return *jax.tree.map(lambda x: (x * cotangents[0]).astype(x.dtype), residuals), None, None, None, None


_summed.defvjp(_summed_forward, _summed_backward)


def is_sparse(batch: Batch) -> bool:
  """Returns True if many tokens have no weight: masked language models, and prefix language models."""
  return predicted_side(batch) == "encoder" or "decoder_causal_attention" in batch


@dataclasses.dataclass(frozen=True)
class CrossEntropy:
  """Cross-entropy of weighted targets plus the z-loss, for language models of every kind.

  The vocabulary projection runs over chunks of tokens: logits of a whole batch never exist, forward or backward.
  In masked and prefix language models, tokens without weight are skipped.
  Metrics: loss (nats per target, without z-loss), z_loss, accuracy.
  """

  config: CrossEntropyConfig
  auxiliary: AuxiliaryTerms = AuxiliaryTerms()
  supports_microbatching: ClassVar[bool] = True
  heads: ClassVar[tuple[str, ...]] = ()
  unit: ClassVar[str] = "nats per target token"
  part: ClassVar[str] = ""

  @classmethod
  def from_config(cls, run: Config) -> "CrossEntropy":
    config = CrossEntropyConfig(run.train.z_loss, run.train.label_smoothing, run.train.logits_chunk_tokens)
    return cls(config, AuxiliaryTerms.from_config(run, only_states=False))

  def build(self, config: TransformerConfig, rngs: nnx.Rngs) -> ModelProtocol:
    return transformer.build(config, rngs)

  def untrained_params(self, model: TransformerConfig) -> tuple[str, ...]:
    """Returns patterns of layers that predict only later tokens."""
    return future_layers(model)

  def weights(self, batch: Batch) -> Weights:
    target_weight = {"loss": jnp.sum(batch[f"{predicted_side(batch)}_loss_weights"].astype(jnp.float32))}
    return target_weight | self.auxiliary.weights(batch)

  def __call__(
    self, module: ModelProtocol, batch: Batch, weights: Weights, *, key: jax.Array | None, train: bool
  ) -> tuple[dict[str, jax.Array], Outputs]:
    hidden = module.hidden(batch, dropout_key=key if train else None)
    return self.of_hidden(module, hidden, batch, weights, train=train)

  def settings(self, *, train: bool) -> CrossEntropyConfig:
    """Returns the settings of a step; evaluation has no label smoothing."""
    return self.config if train else dataclasses.replace(self.config, label_smoothing=0.0)

  def of_hidden(
    self, module: ModelProtocol, hidden: Hidden, batch: Batch, weights: Weights, *, train: bool
  ) -> tuple[dict[str, jax.Array], Outputs]:
    """Returns the terms and metrics of the model's hidden states; see `Loss`."""
    config, side = self.settings(train=train), predicted_side(batch)
    loss_weights = batch[f"{side}_loss_weights"].astype(jnp.float32)
    summed, sums, _ = token_sums(
      config, module.logits_fn(), hidden.x, batch[f"{side}_target_tokens"], loss_weights, sparse=is_sparse(batch)
    )
    weight = jnp.sum(loss_weights)
    metrics = {name: WeightedSum(sums[i], weight) for i, name in enumerate(("loss", "z_loss", "accuracy"))}
    terms = {"loss": summed / jnp.maximum(weights["loss"], 1.0)}
    return self.auxiliary.joined(terms, metrics, hidden.aux, batch, weights)

  def flops(self, config: TransformerConfig, *, batch_size: int, lengths: Mapping[str, int], predicted: float) -> float:
    return model_flops(config, batch_size=batch_size, lengths=lengths, predicted=predicted)

  def baselines(self, batches: Sequence[Batch], vocab_size: int) -> Sequence[Baseline]:
    return [unigram(batches, vocab_size)]

  def chance(self, values: Mapping[str, float], *, batch_size: int, vocab_size: int) -> Mapping[str, Baseline]:
    del values, batch_size
    return {"loss": uniform(vocab_size)}


def uniform(vocab_size: int) -> Baseline:
  """Returns the loss of a model that gives every token the same probability."""
  cause = (
    "every token has the same probability, whatever the input; check config.optimizer.learning_rate, which may "
    "be too low to learn or so high that activations saturate, and config.train.freeze"
  )
  knows = f"gives each of {vocab_size:,} tokens the same probability"
  return Baseline("uniform", math.log(vocab_size), knows, cause=cause)


def token_sums(
  config: CrossEntropyConfig,
  logits_fn: LogitsFn,
  hidden: jax.Array,
  targets: jax.Array,
  weights: jax.Array,
  *,
  sparse: bool,
  draw: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
  """Computes the differentiable summed loss of all tokens, sums for metrics, and sampled tokens.

  Args:
    config: settings of the loss, and number of tokens with logits at one time.
    logits_fn: maps hidden states to logits of the vocabulary.
    hidden: [batch, length, embed].
    targets, weights: int and float32 [batch, length].
    sparse: whether to skip tokens with weight 0.
    draw: key for sampling a token from the softmax of each weighted token; None: no sampling.

  Returns:
    loss, float32 []; sums of cross-entropy, z-loss and accuracy, float32 [3], without gradient; and sampled tokens,
    int32 [batch, length], or None.
  """
  seed = None if draw is None else jax.random.bits(draw, dtype=jnp.uint32)
  positions = None if draw is None else jnp.arange(targets.size, dtype=jnp.int32).reshape(targets.shape)
  summed, sums, drawn = _summed(config, sparse, logits_fn, hidden, targets, weights, seed, positions)
  return summed, jax.lax.stop_gradient(sums), drawn


def share_of_weights(batches: Sequence[Batch]) -> float:
  """Returns the fraction of positions with computed logits: 1 unless tokens without weight are skipped.

  Args:
    batches: with decoder_loss_weights or encoder_loss_weights, [batch, length].
  """
  if f"{predicted_side(batches[0])}_loss_weights" not in batches[0]:
    return 0.0  # only heads predict
  if not is_sparse(batches[0]):
    return 1.0
  weights = [batch[f"{predicted_side(batch)}_loss_weights"] for batch in batches]
  return float(sum(jnp.sum(x > 0) for x in weights)) / sum(x.size for x in weights)


def target_weights(batch: Batch) -> jax.Array:
  """Returns the weight of each target of a batch in its loss; for masked diffusion in expectation over the masks."""
  side = predicted_side(batch)
  levels = batch.get(f"{side}_noise_levels")
  return batch[f"{side}_loss_weights"] if levels is None else levels > 0


def mean_over_targets(batches: Sequence[Batch], numbers: np.ndarray) -> float:
  """Returns the mean of a number of each id over the target tokens, weighted as in the loss; 0.0 without targets.

  Args:
    batches: with decoder_target_tokens and decoder_loss_weights, or those of an encoder, [batch, length].
    numbers: of each id; ids beyond have 0.
  """
  side = predicted_side(batches[0])
  if f"{side}_loss_weights" not in batches[0]:
    return 0.0  # only heads predict

  @jax.jit
  def sums(targets: jax.Array, weights: jax.Array) -> jax.Array:
    values = jnp.take(np.asarray(numbers, np.float32), targets, mode="fill", fill_value=0)
    return jnp.stack([jnp.sum(values * weights), jnp.sum(weights)])

  arrays = [(batch[f"{side}_target_tokens"], target_weights(batch).astype(jnp.float32)) for batch in batches]
  total, weight = np.asarray([jax.device_get(sums(*pair)) for pair in arrays], np.float64).sum(axis=0).tolist()
  return total / weight if weight else 0.0


def unigram_loss(batches: Sequence[Batch], vocab_size: int) -> jax.Array:
  """Returns the loss of the best unigram model: the entropy of the targets' token frequencies.

  Args:
    batches: with decoder_target_tokens and decoder_loss_weights, or those of an encoder, [batch, length].
    vocab_size: at least the largest id plus one.

  Returns:
    float32 [], nats per target token; a lower bound for every unigram model on these targets.
  """
  return _entropy(_counts(batches, vocab_size))


def unigram(batches: Sequence[Batch], vocab_size: int) -> Baseline:
  """Returns the loss of a unigram model: `unigram_loss`, or for few targets a leave-one-out estimate.

  The frequencies of few targets fit these targets far better than frequencies of other text.
  """
  weights = [target_weights(batch) for batch in batches]
  number = sum(int(jnp.sum(x > 0)) for x in weights)
  counts = _counts(batches, vocab_size)
  is_exact = number >= _OFTEN * int(jnp.sum(counts > 0))
  loss = _entropy(counts) if is_exact else _left_out(counts, _occurrences(batches, vocab_size))
  knows = f"predicts each token by its frequency in {'these' if is_exact else 'the others of these'} {number:,} targets"
  cause = "the model predicts token frequencies and ignores its input; give more steps, or another learning rate"
  return Baseline("unigram model", float(loss), knows, is_exact, cause)


_OFTEN = 10  # occurrences per distinct token, on average, for reliable frequencies


def _entropy(counts: jax.Array) -> jax.Array:
  shares = counts / jnp.sum(counts)
  return -jnp.sum(jax.scipy.special.xlogy(shares, shares))


# Pseudo-counts to try.
_SMOOTHING = (0.01, 0.03, 0.1, 0.3, 1.0)


def _left_out(counts: jax.Array, occurrences: jax.Array) -> jax.Array:
  """Returns the leave-one-out loss of the unigram model, with the best additive smoothing.

  Args:
    counts: weight of each token, float32 [vocab_size].
    occurrences: number of targets of each token, float32 [vocab_size].
  """
  added = jnp.array(_SMOOTHING)[:, None]
  other_count = jnp.sum(occurrences) - 1
  shares = jnp.maximum(occurrences - 1 + added, added) / (other_count + added * counts.size)
  return jnp.min(-jnp.sum(counts * jnp.log(shares), axis=1)) / jnp.sum(counts)


def _occurrences(batches: Sequence[Batch], vocab_size: int) -> jax.Array:
  """Returns the number of weighted targets of each id, float32 [vocab_size]."""
  weights = lambda batch: f"{predicted_side(batch)}_loss_weights"
  return _counts([{**batch, weights(batch): batch[weights(batch)] > 0} for batch in batches], vocab_size)


def _counts(batches: Sequence[Batch], vocab_size: int) -> jax.Array:
  """Returns the total weight of each id as a target, float32 [vocab_size]."""
  counts = jnp.zeros(vocab_size, jnp.float32)
  for batch in batches:
    side = predicted_side(batch)
    counts = counts.at[batch[f"{side}_target_tokens"]].add(target_weights(batch).astype(jnp.float32))
  return counts
