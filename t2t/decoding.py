"""Writing a target token by token, with what was computed for earlier positions kept in a cache."""

from collections.abc import Callable

from flax import nnx
import jax
import jax.numpy as jnp

from t2t.models.transformer import Batch


def greedy(model: nnx.Module, batch: Batch, *, max_length: int, eos_id: int) -> jax.Array:
  """The likeliest token at each position, until every sequence has ended.

  Args:
    model: has `start_decode` and `decode_step`.
    batch: the model's inputs, int [batch, length].
    max_length: positions at most.
    eos_id: ends a sequence; what follows is 0.

  Returns:
    int32 [batch, max_length].
  """
  tokens, state = model.start_decode(batch, max_length)
  batch_size = tokens.shape[0]

  def unfinished(carry):
    position, _, done, *_ = carry
    return (position < max_length) & ~jnp.all(done)

  def write(carry):
    position, tokens, done, written, state = carry
    logits, state = model.decode_step(tokens, state)
    tokens = jnp.where(done, 0, jnp.argmax(logits, axis=-1).astype(jnp.int32))
    written = jax.lax.dynamic_update_slice_in_dim(written, tokens[:, None], position, axis=1)
    return position + 1, tokens, done | (tokens == eos_id), written, state

  written = jnp.zeros((batch_size, max_length), jnp.int32)
  start = (jnp.zeros((), jnp.int32), tokens, jnp.zeros(batch_size, bool), written, state)
  return jax.lax.while_loop(unfinished, write, start)[3]


def make_greedy(graphdef: nnx.GraphDef, *, max_length: int, eos_id: int) -> Callable[..., jax.Array]:
  """The compiled `greedy` of a training state: (state, batch) -> int32 [batch, max_length]."""
  return jax.jit(lambda state, batch: greedy(state.model(graphdef), batch, max_length=max_length, eos_id=eos_id))
