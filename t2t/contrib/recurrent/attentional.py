"""The block of attentional encoder-decoders of LSTM layers, such as CoVe's; a row of `config.BLOCKS`.

The encoder reads in both directions, and each direction reads all features of the layer below. Each layer of the
decoder has one or several LSTMs, whose last output attends to the encoder's output. The first LSTM also reads the
layer's output at the position before (input feeding).
"""

from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp

from t2t.contrib.recurrent import layer
from t2t.contrib.recurrent.block import RecurrentBlock, RecurrentCache
from t2t.contrib.recurrent.cells import LstmCell
from t2t.models import attention, layers
from t2t.models.auxiliary import Auxiliary
from t2t.models.config import TransformerConfig
from t2t.models.masks import AttentionMask

# Outputs and cells of the LSTMs, [batch, LSTMs * units] each, and the layer's output, [batch, units]
States = tuple[jax.Array, jax.Array, jax.Array]


class AttentionalLayer(nnx.Module):
  """LSTMs, one on another, with global attention of the last to a memory M, and input feeding.

  h, c = LSTM([x, a], h, c) with the layer's output a at the position before; further LSTMs read h;
  w = softmax(M (h W_q + b_q)) with the last h;  a = tanh([w M, h] W_a + b_a).

  As in OpenNMT, whose decoder has as many LSTMs as the encoder: a decoder of one layer has `num_encoder_layers` LSTMs,
  and several layers share this number, at least one each. Each layer of several attends.

  Source: Luong et al. 2015, sections 3.1 (the score "general") and 3.3; McCann et al. 2017, section 3.
  """

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
    units, read = self.sizes(config)
    self.num_above = self.depth(config) - 1
    self.gradient_dtype = config.gradient_dtype
    self.dropout_rate, self.dropout_axis = config.recurrent_dropout, -2 if config.broadcast_dropout else None
    self.forward = LstmCell(config, rngs, (2 * units, units, units))
    scale = layers.fan_in_scale(config, units)
    self.query = layers.param(rngs, (units, read), ("embed", "mlp"), scale=scale)
    self.query_bias = nnx.Param(jnp.zeros(read), axes=("mlp",))
    scale = layers.fan_in_scale(config, read + units)
    self.combined = layers.param(rngs, (read + units, units), ("embed", "mlp"), scale=scale)
    self.combined_bias = nnx.Param(jnp.zeros(units), axes=("mlp",))
    for index in range(self.num_above):
      setattr(self, f"above_{index}", LstmCell(config, rngs, (units, units, units)))

  @classmethod
  def sizes(cls, config: TransformerConfig) -> tuple[int, int]:
    """Returns the units, and the features of the memory."""
    return config.embed_dim, config.of_stack("encoder").embed_dim

  @classmethod
  def depth(cls, config: TransformerConfig) -> int:
    """Returns the number of LSTMs of a layer."""
    return max(1, config.num_encoder_layers // config.num_decoder_layers)

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
    dtype, cell = x.dtype, self.forward
    above: list[LstmCell] = [getattr(self, f"above_{index}") for index in range(self.num_above)]
    of_x, of_fed = jnp.split(cell.gathered(cell.input, dtype), 2)
    read = layers.add_bias(x @ of_x, cell.bias)
    recurrent = jnp.concatenate([of_fed, cell.gathered(cell.recurrent, dtype, dropout_key)])
    keys = [None if dropout_key is None else jax.random.fold_in(dropout_key, index) for index in range(2 * len(above))]
    matrices = [
      jnp.concatenate([lstm.gathered(lstm.input, dtype), lstm.gathered(lstm.recurrent, dtype, key)])
      for lstm, key in zip(above, keys[::2], strict=True)
    ]
    # Dropout between the LSTMs, factors [batch, length, units] of each.
    drop = lambda key: layers.dropout(jnp.ones_like(x), self.dropout_rate, key, broadcast_axis=self.dropout_axis)
    factors = [] if dropout_key is None else [jnp.moveaxis(drop(key), 1, 0) for key in keys[1::2]]
    query, combined = (cell.gathered(matrix, dtype) for matrix in (self.query, self.combined))
    memory = memory.astype(dtype)

    def step(states: States, inputs: tuple[Any, ...]) -> tuple[States, jax.Array]:
      gates, start, is_read, kept = inputs
      before = [jnp.where(start[:, None], 0, value) for value in states]
      outputs, inners = (jnp.split(value, 1 + len(above), axis=-1) for value in before[:2])
      fed = before[2]
      gates = gates + jnp.concatenate([fed, outputs[0]], axis=-1) @ recurrent
      outputs[0], inners[0] = cell.advance(gates, inners[0])
      for index, lstm in enumerate(above):
        below = outputs[index] * kept[index] if kept else outputs[index]
        gates = layers.add_bias(jnp.concatenate([below, outputs[index + 1]], axis=-1) @ matrices[index], lstm.bias)
        outputs[index + 1], inners[index + 1] = lstm.advance(gates, inners[index + 1])
      output = outputs[-1]
      queries = layers.add_bias(output @ query, self.query_bias)
      scores = jnp.einsum("be,bse->bs", queries, memory, preferred_element_type=jnp.float32)
      scores = jnp.where(is_read, scores, jnp.finfo(jnp.float32).min)
      weights = jnp.where(is_read, jax.nn.softmax(scores), 0).astype(dtype)  # zeros without a memory
      context = jnp.einsum("bs,bse->be", weights, memory)
      attended = jnp.concatenate([context, output], axis=-1) @ combined
      fed = jnp.tanh(layers.add_bias(attended, self.combined_bias))
      return (jnp.concatenate(outputs, axis=-1), jnp.concatenate(inners, axis=-1), fed), fed

    output, inner, fed = states
    begin = output.astype(dtype), inner, fed.astype(dtype)
    of_positions = (jnp.moveaxis(read, 1, 0), starts.T, jnp.moveaxis(allowed, 1, 0), factors)
    states, y = jax.lax.scan(step, begin, of_positions)
    return jnp.moveaxis(y, 0, 1), states

  @classmethod
  def multiply_adds(cls, config: TransformerConfig) -> float:
    """Returns multiplications with parameters per position."""
    units, read = cls.sizes(config)
    above = (cls.depth(config) - 1) * LstmCell.multiply_adds((units, units, units))
    return LstmCell.multiply_adds((2 * units, units, units)) + above + units * read + (read + units) * units


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
      fed, output = jnp.split(flat(cache.keys), [x.shape[-1]], axis=-1)
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
    fed = jnp.zeros((x.shape[0], x.shape[-1]), jnp.float32)
    zeros = jnp.tile(fed, 1 + self.mlp.num_above)
    y, _ = self.mlp(x, (zeros, zeros, fed), layer.text_starts(segments), memory, allowed, keys_of[0])
    return layers.dropout(y, self.dropout_rate, keys_of[1], broadcast_axis=self.dropout_axis), None, Auxiliary()

  @classmethod
  def empty_cache(cls, config: TransformerConfig, rows: int, beams: int) -> RecurrentCache:
    zeros = lambda number: jnp.zeros((rows, beams, number * config.embed_dim), jnp.float32)
    depth = AttentionalLayer.depth(config)
    return RecurrentCache(zeros(1 + depth), zeros(depth))

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
