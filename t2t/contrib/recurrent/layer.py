"""Recurrent layers of a stack, rows of `config.FEED_FORWARD` for `config.model.block=recurrent`.

The first layer of a stack maps embed_dim features to recurrent_hidden, inner layers keep these, and the last layer
returns to embed_dim. These are three rows, whose names sort in the order of the layers. In an encoder each layer has
two directions: the first half of the features reads from left to right, the other half from right to left.

The layers of an encoder-decoder are alike, with embed_dim features. The block gives its encoder or its decoder other
inputs, see `RecurrentLayer`.
"""

from collections.abc import Mapping
import types
from typing import ClassVar

from flax import nnx
import jax
import jax.numpy as jnp

from t2t.contrib.recurrent.cells import GruCell, LstmCell, QrnnCell, RecurrentCell, State, state_width
from t2t.models import layers
from t2t.models.auxiliary import Auxiliary, Carried, Hidden, Term
from t2t.models.config import TransformerConfig
from t2t.models.feed_forward import FeedForward

OUTPUT, CELL = "recurrent_output", "recurrent_cell"  # names of carried states
_SIZE, _CHANGE = "activation_size", "activation_change"  # names of auxiliary terms


def num_directions(config: TransformerConfig) -> int:
  """Returns 2 for an encoder and 1 for a decoder."""
  return 1 if config.kind.is_generative else 2


def empty_state(config: TransformerConfig, rows: int, directions: int) -> State:
  """Returns the state before a text, float32 [rows, directions * width] each."""
  zeros = jnp.zeros((rows, directions * state_width(config)), jnp.float32)
  return zeros, zeros


def text_starts(segments: jax.Array) -> jax.Array:
  """Returns the positions before which a state is zero: padding, and a segment's first position after another's last.

  In:  [[1, 1, 2, 2, 0]]
  Out: [[F, F, T, F, T]]

  Args:
    segments: int [batch, length]; 0 is padding.
  """
  changed = segments[:, 1:] != segments[:, :-1]
  return (segments == 0) | jnp.pad(changed, [(0, 0), (segments.shape[1] - changed.shape[1], 0)])


def _pairs(segments: jax.Array) -> jax.Array:
  """Returns the number of positions, int [batch, length], whose next position has a token of the same text."""
  return jnp.sum(((segments[:, 1:] > 0) & (segments[:, 1:] == segments[:, :-1])).astype(jnp.float32))


class RecurrentLayer(FeedForward):
  """Base class: dropout, residual sum and auxiliary terms of a cell's outputs.

  level: only, first, inner or last.

  Args:
    config: shape of the model.
    rngs: random keys of the initial values.
    reads_both: whether the layer has two directions, each of which reads all features of the layer below.
    memory: features of a vector that each position reads beside its input; 0: none.
  """

  reads_real = True
  cell_class: ClassVar[type[RecurrentCell]]
  level: ClassVar[str] = "only"

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs, *, reads_both: bool = False, memory: int = 0):
    sizes = self.sizes(config, reads_both=reads_both, memory=memory)
    has_two = reads_both or num_directions(config) == 2
    self.config, self.reads_both = config, reads_both
    self.forward = self.cell_class(config, rngs, sizes)
    self.backward = self.cell_class(config, rngs, sizes) if has_two else None

  @classmethod
  def sizes(cls, config: TransformerConfig, *, reads_both: bool = False, memory: int = 0) -> tuple[int, int, int]:
    """Returns the features of the input, the units and the features of the output of one direction."""
    width = config.embed_dim // (2 if reads_both else num_directions(config))
    read = memory + (config.embed_dim if reads_both else width)
    hidden = config.recurrent_hidden or width
    if config.recurrent_projection:
      return read, hidden, width
    inputs = read if cls.level in ("only", "first") else hidden
    outputs = width if cls.level in ("only", "last") else hidden
    return inputs, outputs, outputs

  def __call__(
    self,
    x: jax.Array,
    dropout_key: jax.Array | None = None,
    *,
    real: jax.Array | None = None,
    segments: jax.Array | None = None,
    state: State | None = None,
    memory: jax.Array | None = None,
    returns_state: bool = False,
  ) -> tuple[Hidden, State]:
    """Maps [batch, length, input] to [batch, length, output]; also returns the state after each row.

    Args:
      x: output of the layer below, or embedded tokens.
      dropout_key: None at evaluation.
      real: bool [batch, length], positions with a token; None: all.
      segments: int [batch, length], texts of packed rows, 0 for padding; None: one text.
      state: state before the row, see `empty_state`; None: empty.
      memory: [batch, length, memory], read beside `x`; None: the layer has none.
      returns_state: whether the auxiliary outputs contain the state, without a gradient.
    """
    config, length = self.config, x.shape[1]
    keys = layers.split_key(dropout_key, 3)
    segments = jnp.ones(x.shape[:2], jnp.int32) if segments is None else segments
    state = empty_state(config, x.shape[0], 1 if self.backward is None else 2) if state is None else state
    if self.backward is None:
      read = x if memory is None else jnp.concatenate([x, memory.astype(x.dtype)], axis=-1)
      y, state = self.forward(read, state, text_starts(segments), keys[0])
    else:
      states = [jnp.split(part, 2, axis=-1) for part in state]
      one, other = (x, x) if self.reads_both else jnp.split(x, 2, axis=-1)
      first, after = self.forward(one, (states[0][0], states[1][0]), text_starts(segments), keys[0])
      flip = lambda part: jnp.flip(part, axis=1)
      second, before = self.backward(flip(other), (states[0][1], states[1][1]), text_starts(flip(segments)), keys[1])
      y = jnp.concatenate([first, flip(second)], axis=-1)
      state = tuple(jnp.concatenate(pair, axis=-1) for pair in zip(after, before, strict=True))
    if length:
      is_text = segments[:, -1] > 0 if real is None else (segments[:, -1] > 0) & real[:, -1]
      state = (jnp.where(is_text[:, None], state[0], 0), jnp.where(is_text[:, None], state[1], 0))
    terms = self._terms(y, real, segments) if self.level in ("only", "last") else {}
    if self.level in ("first", "inner") or config.kind.has_encoder_and_decoder:
      axis = -2 if config.broadcast_dropout else None
      y = layers.dropout(y, config.recurrent_dropout, keys[2], broadcast_axis=axis)
    if config.recurrent_residual and self.level in ("inner", "last"):
      y = y + x
    states = {OUTPUT: state[0], CELL: state[1]} if returns_state else {}
    return Hidden(y, Auxiliary(terms, jax.lax.stop_gradient(states))), state

  def _terms(self, y: jax.Array, real: jax.Array | None, segments: jax.Array) -> dict[str, jax.Array]:
    """Returns sums over positions of the mean square of the last layer's output, and of its change.

    The first is the expectation over the dropout of the stack's output, whose mean square the published code takes.
    """
    names = type(self).terms(self.config)
    if not names:
      return {}
    y = y.astype(jnp.float32)
    real = segments > 0 if real is None else real & (segments > 0)
    dropped = self.config.dropout_rate if self.config.broadcast_dropout else 0.0
    size = jnp.sum(jnp.mean(jnp.square(y), axis=-1) * real) / (1.0 - dropped)
    same_text = real[:, 1:] & real[:, :-1] & (segments[:, 1:] == segments[:, :-1])
    change = jnp.sum(jnp.mean(jnp.square(y[:, 1:] - y[:, :-1]), axis=-1) * same_text)
    values = {_SIZE: size, _CHANGE: change}
    return {name: values[name] for name in names}

  @classmethod
  def terms(cls, config: TransformerConfig) -> Mapping[str, Term]:
    """Returns activation and temporal activation regularization (Merity et al. 2017, section 4.6)."""
    terms = {}
    if config.recurrent_size_loss:
      terms[_SIZE] = Term(config.recurrent_size_loss, per_layer=False)
    if config.recurrent_change_loss:
      terms[_CHANGE] = Term(config.recurrent_change_loss, weight=_pairs, per_layer=False)
    return terms

  @classmethod
  def carried(cls, config: TransformerConfig) -> Mapping[str, Carried]:
    if not config.recurrent_carry:
      return {}
    state = Carried((state_width(config),), evaluated=True)
    return {OUTPUT: state, CELL: state}

  @classmethod
  def pattern(cls, config: TransformerConfig) -> tuple[str, ...]:
    name, number = config.feed_forward, max(config.num_encoder_layers, config.num_decoder_layers)
    is_uniform = number == 1 or config.kind.has_encoder_and_decoder
    return (name,) if is_uniform else (f"{name}_first", *[f"{name}_inner"] * (number - 2), f"{name}_last")

  @classmethod
  def layer_multiply_adds(cls, config: TransformerConfig, *, reads_both: bool = False, memory: int = 0) -> float:
    """Returns multiplications with parameters per position of this layer."""
    sizes, directions = cls.sizes(config, reads_both=reads_both, memory=memory), num_directions(config)
    return (2 if reads_both else directions) * cls.cell_class.multiply_adds(sizes)

  @classmethod
  def multiply_adds(cls, config: TransformerConfig) -> float:
    """Returns the mean of all layers."""
    rows = [ROWS[row] for row in cls.pattern(config)]
    return sum(row.layer_multiply_adds(config) for row in rows) / len(rows)

  @classmethod
  def inner_features(cls, config: TransformerConfig) -> float:
    return num_directions(config) * cls.cell_class.gates * (config.recurrent_hidden or config.embed_dim)


def _rows(cell: type[RecurrentCell]) -> list[type[RecurrentLayer]]:
  """Returns the layer of a cell for each place in a stack: the only, first, inner and last one."""
  name = cell.__name__.removesuffix("Cell")
  row = lambda level, end: types.new_class(
    name + end,
    (RecurrentLayer,),
    exec_body=lambda fields: fields.update(__module__=__name__, cell_class=cell, level=level),
  )
  return [row("only", ""), row("first", "First"), row("inner", "Inner"), row("last", "Last")]


Lstm, LstmFirst, LstmInner, LstmLast = _rows(LstmCell)
Gru, GruFirst, GruInner, GruLast = _rows(GruCell)
Qrnn, QrnnFirst, QrnnInner, QrnnLast = _rows(QrnnCell)

# Row of `config.FEED_FORWARD` -> class
ROWS: dict[str, type[RecurrentLayer]] = {
  "lstm": Lstm,
  "lstm_first": LstmFirst,
  "lstm_inner": LstmInner,
  "lstm_last": LstmLast,
  "gru": Gru,
  "gru_first": GruFirst,
  "gru_inner": GruInner,
  "gru_last": GruLast,
  "qrnn": Qrnn,
  "qrnn_first": QrnnFirst,
  "qrnn_inner": QrnnInner,
  "qrnn_last": QrnnLast,
}
