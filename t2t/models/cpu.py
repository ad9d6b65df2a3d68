"""The same mathematics, said so that XLA's CPU backend runs it fast; other platforms never see it.

On a CPU a matrix product reaches the machine's speed when it is a plain [m, k] x [k, n] product, or a batch of them
over leading axes, that nothing is fused into; an `optimization_barrier` keeps the neighbours out.  Memory is slow, so
what is cheap to compute again is not saved.  Each function of arrays equals its plain counterpart (a test).
"""

import jax
import jax.numpy as jnp

_barrier = jax.lax.optimization_barrier

# Queries that share the keys up to the last of them: small enough to leave out much of what a causal mask hides.
_CAUSAL_BLOCK = 128


def dense(x: jax.Array, kernel: jax.Array) -> jax.Array:
  """x @ kernel for [..., in] and [in, out], as one two-dimensional product, so that its gradient is one, too."""
  return (x.reshape(-1, x.shape[-1]) @ kernel).reshape(*x.shape[:-1], kernel.shape[-1])


def _scores(query, keys, bias, allowed):
  scores = _barrier(jnp.einsum("bhqk,bhsk->bhqs", query, keys))
  if bias is not None:
    scores = scores + bias
  return scores if allowed is None else jnp.where(allowed, scores, jnp.finfo(jnp.float32).min)


@jax.custom_vjp
def attend(
  query: jax.Array, keys: jax.Array, values: jax.Array, bias: jax.Array | None, allowed: jax.Array | None
) -> jax.Array:
  """softmax(query keys^T + bias) values; shapes as in `attention.attend`, float32, without dropout.

  The softmax divides after the values are weighted, [batch, heads, query, kv] instead of [batch, heads, query, key],
  and the backward pass computes the scores again instead of reading them back.
  """
  return _attend_forward(query, keys, values, bias, allowed)[0]


def _attend_forward(query, keys, values, bias, allowed):
  scores = _scores(query, keys, bias, allowed)
  largest = jnp.max(scores, axis=-1, keepdims=True)
  exponentials = _barrier(jnp.exp(scores - largest))
  total = jnp.sum(exponentials, axis=-1, keepdims=True)
  attended = jnp.einsum("bhqs,bhsk->bhqk", exponentials, values) / total
  # Not their logarithm in one: where a query may see nothing, `largest` is so low that it would swallow it.
  return attended, (query, keys, values, bias, allowed, attended, largest, 1.0 / total)


def _attend_backward(residuals, cotangent):
  query, keys, values, bias, allowed, attended, largest, share = residuals
  probabilities = _barrier(jnp.exp(_scores(query, keys, bias, allowed) - largest) * share)
  d_values = _barrier(jnp.einsum("bhqk,bhqs->bhks", cotangent, probabilities))
  d_probabilities = _barrier(jnp.einsum("bhqk,bhsk->bhqs", cotangent, values))
  d_scores = probabilities * (d_probabilities - jnp.sum(cotangent * attended, axis=-1, keepdims=True))
  d_scores = _barrier(d_scores if allowed is None else jnp.where(allowed, d_scores, 0.0))
  d_query = jnp.einsum("bhqs,bhsk->bhqk", d_scores, keys)
  d_keys = _barrier(jnp.einsum("bhqk,bhqs->bhks", query, d_scores))
  # A sum over the batch as a product with ones: XLA's own reduction over a leading axis runs at a fifth of the speed.
  rows = d_scores.reshape(d_scores.shape[0], -1)
  d_bias = None if bias is None else (jnp.ones((1, rows.shape[0])) @ rows).reshape(1, *d_scores.shape[1:])
  swap = lambda x: jnp.swapaxes(x, -1, -2)
  return d_query, swap(d_keys), swap(d_values), d_bias, None


attend.defvjp(_attend_forward, _attend_backward)


def attend_causally(
  query: jax.Array, keys: jax.Array, values: jax.Array, bias: jax.Array | None, allowed: jax.Array
) -> jax.Array:
  """`attend` where no query sees a key to its right: blocks of queries, each with the keys up to its end."""
  length, blocks = query.shape[2], []
  for start in range(0, length, _CAUSAL_BLOCK):
    end = min(start + _CAUSAL_BLOCK, length)
    part = lambda x, start=start, end=end: None if x is None else x[:, :, start:end, :end]
    queries = query[:, :, start:end]
    blocks.append(attend(queries, keys[:, :, :end], values[:, :, :end], part(bias), part(allowed)))
  return jnp.concatenate(blocks, axis=2)
