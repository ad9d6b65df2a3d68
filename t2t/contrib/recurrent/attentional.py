"""The block of attentional encoder-decoders of LSTM layers, such as CoVe's; a row of `config.BLOCKS`.

The encoder reads in both directions, and each direction reads all features of the layer below. Each layer of the
decoder attends to the encoder's output, and reads its own output at the position before (input feeding).
"""

from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import sharding
from t2t.contrib.recurrent import layer
from t2t.contrib.recurrent.block import RecurrentBlock, RecurrentCache
from t2t.contrib.recurrent.cells import LstmCell
from t2t.models import attention, layers
from t2t.models.auxiliary import Auxiliary
from t2t.models.config import TransformerConfig
from t2t.models.masks import AttentionMask

States = tuple[jax.Array, jax.Array, jax.Array]  # output and cell of the LSTM, and the layer's output: [batch, units]


class AttentionalLayer(nnx.Module):
  """LSTM with global attention to a memory M, and input feeding.

  h, c = LSTM([x, a], h, c) with the layer's output a at the position before;  w = softmax(M (h W_q + b_q));
  a = tanh([w M, h] W_a + b_a).

  Source: Luong et al. 2015, sections 3.1 (the score "general") and 3.3; McCann et al. 2017, section 3.
  """

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
    units, read = self.sizes(config)
    self.gradient_dtype = config.gradient_dtype
    self.forward = LstmCell(config, rngs, (2 * units, units, units))
    scale = layers.fan_in_scale(config, units)
    self.query = layers.param(rngs, (units, read), ("embed", "mlp"), scale=scale)
    self.query_bias = nnx.Param(jnp.zeros(read), axes=("mlp",))
    scale = layers.fan_in_scale(config, read + units)
    self.combined = layers.param(rngs, (read + units, units), ("embed", "mlp"), scale=scale)
    self.combined_bias = nnx.Param(jnp.zeros(units), axes=("mlp",))

  @classmethod
  def sizes(cls, config: TransformerConfig) -> tuple[int, int]:
    """Returns the units, and the features of the memory."""
    return config.embed_dim, config.of_stack("encoder").embed_dim

  def __call__(
    self,
    x: jax.Array,
    states: States,
    starts: jax.Array,
    memory: jax.Array,
    allowed: jax.Array,
    dropout_key: jax.Array | None,
  ) -> tuple[jax.Array, States]:
    """Returns the output of each position, [batch, length, units], and the states after the last.

    Args:
      x: [batch, length, units].
      states: states before the first position.
      starts: bool [batch, length], positions before which the states are zero.
      memory: [batch, key, read].
      allowed: bool [batch, length, key], the part of the memory that each position reads.
      dropout_key: None at evaluation.
    """
    units, dtype, cell = x.shape[-1], x.dtype, self.forward
    gathered = lambda matrix: sharding.gather(matrix[...].astype(dtype), layers.matrix_axes(matrix))
    of_x, of_fed = jnp.split(gathered(cell.input), 2)
    read = layers.add_bias(x @ of_x, cell.bias)
    recurrent = sharding.gather(cell.dropped(cell.recurrent, dropout_key), layers.matrix_axes(cell.recurrent))
    recurrent = jnp.concatenate([of_fed, recurrent.astype(dtype)])
    query, combined, memory = gathered(self.query), gathered(self.combined), memory.astype(dtype)

    def step(states: States, inputs: tuple[jax.Array, ...]) -> tuple[States, jax.Array]:
      gates, start, is_read = inputs
      output, inner, fed = (jnp.where(start[:, None], 0, value) for value in states)
      output, inner = cell.advance(gates + jnp.concatenate([fed, output], axis=-1) @ recurrent, inner)
      queries = layers.add_bias(output @ query, self.query_bias)
      scores = jnp.einsum("be,bse->bs", queries, memory, preferred_element_type=jnp.float32)
      scores = jnp.where(is_read, scores, jnp.finfo(jnp.float32).min)
      weights = jnp.where(is_read, jax.nn.softmax(scores), 0).astype(dtype)  # zeros without a memory
      context = jnp.einsum("bs,bse->be", weights, memory)
      read = jnp.concatenate([context, output], axis=-1) @ combined
      fed = jnp.tanh(layers.add_bias(read, self.combined_bias))
      return (output, inner, fed), fed

    output, inner, fed = states
    begin = output.astype(dtype), inner[:, :units], fed.astype(dtype)
    of_positions = (jnp.moveaxis(read, 1, 0), starts.T, jnp.moveaxis(allowed, 1, 0))
    states, y = jax.lax.scan(step, begin, of_positions)
    return jnp.moveaxis(y, 0, 1), states

  @classmethod
  def multiply_adds(cls, config: TransformerConfig) -> float:
    """Returns multiplications with parameters per position."""
    units, read = cls.sizes(config)
    return LstmCell.multiply_adds((2 * units, units, units)) + units * read + (read + units) * units


class AttentionalBlock(RecurrentBlock):
  """A recurrent layer of both directions in an encoder, `AttentionalLayer` in a decoder; parameters are under mlp/."""

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs, *, cross: bool, only_cross: bool = False):
    del only_cross  # `check` refuses shared stacks
    self.dropout_rate = config.recurrent_dropout
    self.dropout_axis = -2 if config.broadcast_dropout else None
    self.mlp: Any = (
      AttentionalLayer(config, rngs) if cross else config.feed_forward_class(config, rngs, reads_both=True)
    )

  def __call__(
    self,
    x: jax.Array,
    *,
    mask: AttentionMask,
    memory: jax.Array | attention.KVCache | None = None,
    memory_mask: AttentionMask | None = None,
    cache: attention.KVCache | None = None,
    probe: object = None,
    dropout_key: jax.Array | None = None,
    **others: Any,
  ) -> tuple[jax.Array, attention.KVCache | jax.Array | None, Auxiliary]:
    if memory is None or probe is not None:
      return super().__call__(x, mask=mask, probe=probe, dropout_key=dropout_key, **others)
    assert memory_mask is not None and memory_mask.query_segments is not None and memory_mask.key_segments is not None
    memory = memory.keys if isinstance(memory, attention.KVCache) else memory
    queries, keys = memory_mask.query_segments, memory_mask.key_segments
    allowed = (queries[:, :, None] == keys[:, None, :]) & (keys > 0)[:, None, :]
    if cache is not None:
      rows, beams = x.shape[:2]
      flat = lambda y: y.reshape(rows * beams, *y.shape[2:])
      fed, output = jnp.split(flat(cache.keys), 2, axis=-1)
      y, (output, inner, fed) = self.mlp(
        flat(x)[:, None],
        (output, flat(cache.values), fed),
        jnp.zeros((rows * beams, 1), bool),
        jnp.repeat(memory, beams, axis=0),
        flat(allowed)[:, None],
        None,
      )
      of_beams = lambda y: y.astype(jnp.float32).reshape(rows, beams, -1)
      states = RecurrentCache(of_beams(jnp.concatenate([fed, output], axis=-1)), of_beams(inner))
      return y.reshape(rows, beams, -1), states, Auxiliary()
    keys_of = layers.split_key(dropout_key, 2)
    segments = jnp.ones(x.shape[:2], jnp.int32) if mask.query_segments is None else mask.query_segments
    zeros = jnp.zeros((x.shape[0], x.shape[-1]), jnp.float32)
    y, _ = self.mlp(x, (zeros, zeros, zeros), layer.text_starts(segments), memory, allowed, keys_of[0])
    return layers.dropout(y, self.dropout_rate, keys_of[1], broadcast_axis=self.dropout_axis), None, Auxiliary()

  @classmethod
  def empty_cache(cls, config: TransformerConfig, rows: int, beams: int) -> RecurrentCache:
    zeros = jnp.zeros((rows, beams, config.embed_dim), jnp.float32)
    return RecurrentCache(jnp.concatenate([zeros, zeros], axis=-1), zeros)

  @classmethod
  def condensed(cls, memory: jax.Array, segments: jax.Array) -> tuple[jax.Array, jax.Array]:
    return memory, segments

  @classmethod
  def multiply_adds(cls, config: TransformerConfig) -> float:
    return config.feed_forward_class.layer_multiply_adds(config, reads_both=True)

  @classmethod
  def cross_multiply_adds(cls, config: TransformerConfig, encoder_length: int, decoder_length: int) -> float:
    beside = AttentionalLayer.multiply_adds(config) - cls.multiply_adds(config)
    return decoder_length * (beside + 2 * encoder_length * AttentionalLayer.sizes(config)[1])
