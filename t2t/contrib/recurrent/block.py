"""The block of recurrent models: one recurrent layer, without attention and norms; a row of `config.BLOCKS`.

In an encoder-decoder the last state of the encoder is one vector of the text, which the decoder's layers read at each
position (Cho et al. 2014; Kiros et al. 2015).
"""

from collections.abc import Mapping
import dataclasses
from typing import Any, ClassVar

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import UserError
from t2t.contrib.recurrent import layer
from t2t.contrib.recurrent.cells import State, state_width
from t2t.models import attention, auxiliary
from t2t.models.auxiliary import Auxiliary
from t2t.models.config import TransformerConfig
from t2t.models.masks import AttentionMask


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RecurrentCache(attention.KVCache):
  """States instead of keys and values, [batch, beams, width] each: of an LSTM the outputs and the cells."""

  def follow(self, parents: jax.Array) -> "RecurrentCache":
    """Returns the states in which each beam continues another beam, `parents` int [batch, beams]."""
    taken = lambda x: jnp.take_along_axis(x, parents.reshape(*[1] * (x.ndim - 3), *parents.shape, 1), axis=-2)
    return jax.tree.map(taken, self)


def last_states(states: jax.Array, mask: AttentionMask) -> jax.Array:
  """Returns the state at the last token of the text that each query reads, [batch, query, embed]; zeros without one.

  In:  states of key segments [1, 1, 2, 0], query segments [2, 2, 1]
  Out: states at positions [2, 2, 1]

  Args:
    states: [batch, key, embed].
    mask: mask of a cross-attention, with segments of queries and keys.
  """
  queries, keys = mask.query_segments, mask.key_segments
  assert queries is not None and keys is not None
  is_own = (queries[:, :, None] == keys[:, None, :]) & (keys > 0)[:, None, :]
  numbers = jnp.arange(1, keys.shape[1] + 1)
  is_read = jnp.max(jnp.where(is_own, numbers, 0), axis=-1, keepdims=True) == numbers
  return jnp.einsum("bqs,bse->bqe", is_read.astype(states.dtype), states, precision="highest")


class RecurrentBlock(nnx.Module):
  """A recurrent layer as the block of a stack; parameters are under mlp/, see `layer`."""

  is_recurrent: ClassVar[bool] = True

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs, *, cross: bool, only_cross: bool = False):
    del only_cross  # `check` refuses shared stacks
    options = {"memory": config.of_stack("encoder").embed_dim} if cross else {}
    is_uniform = len(config.feed_forward_pattern) == 1
    self.mlp: Any = config.feed_forward_class(config, rngs, **options) if is_uniform else None

  def __call__(
    self,
    x: jax.Array,
    *,
    mask: AttentionMask,
    memory: jax.Array | attention.KVCache | None = None,
    memory_mask: AttentionMask | None = None,
    cache: attention.KVCache | None = None,
    probe: object = None,
    real: jax.Array | None = None,
    carried: Mapping[str, jax.Array] | None = None,
    dropout_key: jax.Array | None = None,
    **unread: object,
  ) -> tuple[jax.Array, attention.KVCache | jax.Array | None, Auxiliary]:
    """Maps [batch, length, input] to [batch, length, output]; see `stack.Layer.__call__`, which has the arguments.

    With a cache, `x` has a position of each beam. The returned cache has one beam of each row without a cache.
    """
    del unread
    if probe is not None:
      raise UserError(
        "config.model.block=recurrent has no attention probabilities and no states for distillation, and "
        "recurrent_attention returns none. Give a model with config.model.block=transformer."
      )
    vectors = None
    if memory is not None:
      assert memory_mask is not None
      vectors = last_states(memory.keys if isinstance(memory, attention.KVCache) else memory, memory_mask)
    if cache is not None:
      rows, beams = x.shape[:2]
      flat = lambda y: y.reshape(rows * beams, *y.shape[2:])
      read = None if vectors is None else flat(vectors)[:, None]
      hidden, state = self.mlp(flat(x)[:, None], state=(flat(cache.keys), flat(cache.values)), memory=read)
      states = (y.reshape(rows, beams, -1) for y in state)
      return hidden.x.reshape(rows, beams, -1), RecurrentCache(*states), hidden.aux
    before: State | None = None
    if carried:
      before = carried[layer.OUTPUT], carried[layer.CELL]
    options = {"real": real, "segments": mask.query_segments, "memory": vectors}
    hidden, state = self.mlp(x, dropout_key, state=before, returns_state=bool(carried), **options)
    hidden = auxiliary.hidden_of(hidden)
    return hidden.x, RecurrentCache(*(y[:, None] for y in state)), hidden.aux

  @classmethod
  def empty_cache(cls, config: TransformerConfig, rows: int, beams: int) -> RecurrentCache:
    """Returns the states of a decoder's layer before a text."""
    zeros = jnp.zeros((rows, beams, state_width(config)), jnp.float32)
    return RecurrentCache(zeros, zeros)

  @classmethod
  def condensed(cls, memory: jax.Array, segments: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the part of the encoder's output that decoding reads, [batch, few, embed], and its segments.

    Args:
      memory: [batch, length, embed].
      segments: int [batch, length], 1 at tokens, 0 at padding.
    """
    ones = jnp.ones((memory.shape[0], 1), jnp.int32)
    return last_states(memory, AttentionMask(ones, segments)), ones

  @classmethod
  def check_reads_both(cls, config: TransformerConfig, *, where: str) -> None:
    """Checks that logits are computed from all features, thus from the tokens on both sides, or by a decoder.

    Raises:
      UserError: the model was trained with config.train.loss=bilm; begins with `where`.
    """
    if not config.is_generative and config.logits_width != config.embed_dim and not config.logits_transform:
      raise UserError(
        f"{where} is two language models, which predict a token from one side each (config.train.loss=bilm), so it "
        "fills no blanks and scores no texts. Run `t2t embed` for vectors, `t2t eval --config.eval.method=loss` for "
        "the held-out loss, or train heads with config.init.checkpoint."
      )

  @classmethod
  def multiply_adds(cls, config: TransformerConfig) -> float:
    """Returns multiplications with parameters per position, for `model_flops`."""
    return config.feed_forward_class.multiply_adds(config)

  @classmethod
  def cross_multiply_adds(cls, config: TransformerConfig, encoder_length: int, decoder_length: int) -> float:
    """Returns multiplications of a decoder's layer in a row, beside `multiply_adds`: those with the vector."""
    del encoder_length
    memory, row = config.of_stack("encoder").embed_dim, config.feed_forward_class
    return decoder_length * (row.layer_multiply_adds(config, memory=memory) - row.layer_multiply_adds(config))

  @classmethod
  def inner_features(cls, config: TransformerConfig) -> float:
    """Returns features per position of matrix outputs inside of the layers."""
    return config.feed_forward_class.inner_features(config)
