"""Soft targets of tokens: the KL divergence from teachers' distributions, in chunks, so that logits are never whole."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from t2t import sharding
from t2t.losses import cross_entropy, transfer_terms
from t2t.losses.cross_entropy import CrossEntropyConfig
from t2t.losses.protocol import LogitsFn

# Of each: a function to logits, and its arguments, [batch, length, ...]: hidden states, or logits that were written.
Teachers = tuple[tuple[LogitsFn, object], ...]


def soft_sums(
  config: CrossEntropyConfig,
  logits_fn: LogitsFn,
  hidden: jax.Array,
  teachers: Teachers,
  weights: jax.Array,
  *,
  temperature: float,
  sparse: bool,
  normalizer: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Computes `transfer_terms.soft_targets` of all tokens, with the mean of the teachers' logits.

  Args:
    config: number of tokens with logits at one time.
    logits_fn: maps the student's hidden states to logits of the vocabulary.
    hidden: of the student, [batch, length, embed].
    teachers: constants. Rows of the vocabulary that one of the models lacks are left out; no text has such ids.
    weights: float32 [batch, length].
    temperature: divides the logits.
    sparse: whether to skip tokens with weight 0.
    normalizer: float32 [batch, length]; see `transfer_terms.soft_targets_of_few`, which is used if it is given.

  Returns:
    Weighted sums, float32 []: the differentiable loss; and without gradient the number of tokens of which student and
    teachers have the same likeliest token.
  """
  teachers, normalizer = jax.lax.stop_gradient((teachers, normalizer))
  loss, agreed = _summed(config, (temperature, sparse), logits_fn, hidden, weights, teachers, normalizer)
  return loss, jax.lax.stop_gradient(agreed)


def _chunk(temperature, teacher_fns, logits_fn, hidden, teacher_hidden, normalizer, weights):
  """Returns loss and agreement of [tokens, embed]."""
  logits = [sharding.shard(fn(x), None, "vocab") for fn, x in zip(teacher_fns, teacher_hidden, strict=True)]
  student = sharding.shard(logits_fn(hidden), None, "vocab")
  rows = min(x.shape[-1] for x in (student, *logits))
  teacher: Any = sum(x[..., :rows] for x in logits) / len(logits)
  student = student[..., :rows]
  same = jnp.argmax(student, axis=-1) == jnp.argmax(teacher, axis=-1)
  if normalizer is None:
    divergence = transfer_terms.soft_targets(student, teacher, temperature)
  else:
    divergence = transfer_terms.soft_targets_of_few(student, teacher, normalizer, temperature)
  return jnp.sum(weights * divergence), jnp.sum(weights * same)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _summed(config, options, logits_fn, hidden, weights, teachers, normalizer):
  return _forward(config, options, logits_fn, hidden, weights, teachers, normalizer)[0]


def _forward(config, options, logits_fn, hidden, weights, teachers, normalizer):
  # As in `cross_entropy`: each chunk yields loss and gradients at once, so its logits are computed once.
  temperature, sparse = options
  functions = [fn for fn, _ in teachers]
  states, structure = jax.tree.flatten(([x for _, x in teachers], normalizer))

  def of_shard(hidden, first, weights, *others):
    teacher_hidden, normalizer = jax.tree.unflatten(structure, (first, *others))
    loss_fn = lambda fn, x: _chunk(temperature, functions, fn, x, teacher_hidden, normalizer, weights)
    loss, vjp, agreed = jax.vjp(loss_fn, logits_fn, hidden, has_aux=True)
    return (loss, agreed), *vjp(jnp.ones_like(loss))

  def body(carry, chunk):
    total, gradient = carry
    outputs, weights_gradient, hidden_gradient = jax.vmap(of_shard)(*chunk)
    total = jax.tree.map(lambda a, b: a + jnp.sum(b, axis=0), total, outputs)
    return (total, by_shard(jax.tree.map(jnp.add, gradient, weights_gradient))), hidden_gradient

  by_shard = lambda tree: jax.tree.map(lambda x: sharding.shard(x, "tokens", *["any"] * (x.ndim - 1)), tree)
  chunks, num_used, order = cross_entropy._prepared(config, sparse, hidden, states[0], weights, *states[1:])
  zeros = by_shard(jax.tree.map(lambda w: jnp.zeros((chunks[0].shape[1], *w.shape), jnp.float32), logits_fn))
  start = ((jnp.zeros(()), jnp.zeros(())), zeros)
  (sums, gradient), hidden_gradient = cross_entropy._loop(body, start, chunks, num_used)
  gradient = jax.tree.map(lambda g, w: jnp.sum(g, axis=0).astype(w.dtype), gradient, logits_fn)
  hidden_gradient = cross_entropy._unchunked(hidden_gradient, hidden.shape, order)
  return sums, jax.lax.optimization_barrier((gradient, hidden_gradient))


def _backward(config, options, residuals, cotangents):
  del config, options
  return *jax.tree.map(lambda x: (x * cotangents[0]).astype(x.dtype), residuals), None, None, None


_summed.defvjp(_forward, _backward)


def written(
  config: CrossEntropyConfig,
  logits_fn: LogitsFn,
  hidden: jax.Array,
  weights: jax.Array,
  *,
  width: int,
  vocab_size: int,
  temperature: float,
  sparse: bool,
) -> dict[str, jax.Array]:
  """Computes a teacher's logits for a file, in the chunks of `soft_sums`, so that whole ones are equal to the bit.

  Args:
    config, weights, temperature, sparse: see `soft_sums`.
    logits_fn, hidden: of the teacher.
    width: number of logits of each token, the largest first; `vocab_size`: all in order.
    vocab_size: rows of the vocabulary that count.

  Returns:
    values, float32 [batch, length, width]; and if width is less than vocab_size ids, int32 [batch, length, width], and
    normalizer, float32 [batch, length]: the logarithm of the sum of exp(logit / temperature) over the vocabulary.
    Tokens with weight 0 may have 0.
  """

  def of_shard(hidden, first, weights):
    del first, weights  # as many arrays as `soft_sums` has
    logits = sharding.shard(logits_fn(hidden), None, "vocab")[..., :vocab_size].astype(jnp.float32)
    if width == vocab_size:
      return {"values": logits}
    values, ids = jax.lax.top_k(logits, width)
    return {"values": values, "ids": ids, "normalizer": jax.nn.logsumexp(logits / temperature, axis=-1)}

  chunks, num_used, order = cross_entropy._prepared(config, sparse, hidden, weights, weights)
  _, outputs = cross_entropy._loop(lambda carry, chunk: (carry, jax.vmap(of_shard)(*chunk)), (), chunks, num_used)
  whole = lambda x: cross_entropy._unchunked(x, (*hidden.shape[:2], *x.shape[3:]), order)
  return jax.tree.map(whole, outputs)
