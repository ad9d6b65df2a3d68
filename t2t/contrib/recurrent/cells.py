"""Cells, each one direction of a recurrent layer: LSTM, also with a projection of the output, GRU and QRNN.

A state is two arrays of one width: the output and the cell of an LSTM, the output of a GRU and zeros, or the last input
and the cell of a QRNN.
Narrower values are padded with zeros, so that layers of different sizes have states of one shape. Columns of matrices
with several gates are in the order of units, and of gates within a unit, so that a mesh splits them by units.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import sharding
from t2t.models import layers
from t2t.models.config import TransformerConfig

State = tuple[jax.Array, jax.Array]  # float32 [batch, width] each
Carry = tuple[jax.Array, ...]  # values of a scan, [batch, features] each
Multiply = Callable[[str, jax.Array], jax.Array]  # name of a matrix, and [batch, in] -> product and what is added


def state_width(config: TransformerConfig) -> int:
  """Returns the width of each array of a state, the largest of all layers."""
  return max(config.embed_dim, config.recurrent_hidden)


def _padded(x: jax.Array, width: int) -> jax.Array:
  return jnp.pad(x.astype(jnp.float32), [(0, 0)] * (x.ndim - 1) + [(0, width - x.shape[-1])])


def loop_dtype(dtype: jnp.dtype) -> jnp.dtype:
  """Returns the dtype within a loop: float32 on a CPU, which would convert the matrix at each position."""
  return jnp.dtype(jnp.float32) if sharding.platform() == "cpu" else dtype


def scan(
  step: Callable[[Carry, jax.Array, Multiply], tuple[Carry, jax.Array]],
  begin: Carry,
  starts: jax.Array,
  matrices: Mapping[str, jax.Array],
  added: Mapping[str, jax.Array],
  inputs: jax.Array | None = None,
) -> tuple[Carry, jax.Array]:
  """Scans positions; gradients of matrices are one product over all positions instead of a sum in the loop.

  Args:
    step: (values before a position, inputs, multiply) -> (values after it, output). It calls multiply once for each
      matrix, and may not close over arrays with a gradient.
    begin: values before the first position; zeros replace them where a text starts.
    starts: bool [batch, length].
    matrices: name -> [in, ...].
    added: name -> [length, batch, ...], added to the products.
    inputs: [length, batch, ...]; None: none.

  Returns:
    values after the last position, and outputs, [length, batch, output].
  """

  def forward(begin, starts, matrices, added, inputs):
    def positions(begin, added, inputs):
      def body(carry, of_position):
        added, inputs, start = of_position
        carry = tuple(jnp.where(start[:, None], 0, value) for value in carry)
        read: dict[str, jax.Array] = {}

        def multiply(name: str, x: jax.Array) -> jax.Array:
          read[name] = x
          return jnp.tensordot(x, matrices[name], 1) + added[name]

        carry, y = step(carry, inputs, multiply)
        return carry, (y, read)

      carry, (y, read) = jax.lax.scan(body, begin, (added, inputs, starts.T))
      return (carry, y), read

    outputs, transposed, read = jax.vjp(positions, begin, added, inputs, has_aux=True)
    return outputs, (transposed, read, matrices)

  def backward(residuals, cotangents):
    transposed, read, matrices = residuals
    of_begin, of_added, of_inputs = transposed(cotangents)
    of_matrices = {}
    for name, matrix in matrices.items():
      product = jnp.einsum("lbi,lb...->i...", read[name], of_added[name], preferred_element_type=jnp.float32)
      of_matrices[name] = product.astype(matrix.dtype)
    return of_begin, None, of_matrices, of_added, of_inputs

  run = jax.custom_vjp(lambda *arguments: forward(*arguments)[0])
  run.defvjp(forward, backward)
  return run(begin, starts, dict(matrices), dict(added), inputs)


class RecurrentCell(nnx.Module):
  """Base class of one direction of a layer.

  gates: number of values that the input's matrix computes for each unit.

  Args:
    config: shape of the model.
    rngs: random keys of the initial values.
    sizes: features of the input, units, and features of the output.
  """

  gates: ClassVar[int]
  window: ClassVar[int] = 1  # positions of the input that a gate reads

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs, sizes: tuple[int, int, int]):
    inputs, units, _ = self.sizes = sizes
    self.width = state_width(config)
    self.gradient_dtype = config.gradient_dtype
    self.weight_dropout = config.recurrent_weight_dropout
    self.clip = config.recurrent_clip
    self.scale = config.init_scale or (3 * units) ** -0.5  # as uniform values up to units ** -0.5
    shape = (self.window * inputs, self.gates * units)
    self.input = layers.param(rngs, shape, ("embed", "mlp"), scale=self.scale)
    self.bias = nnx.Param(self._initial_bias(units), axes=("mlp",))

  def _initial_bias(self, units: int) -> jax.Array:
    raise NotImplementedError

  def _by_gate(self, x: jax.Array) -> jax.Array:
    """Returns the values of each gate, float32 [gates, ..., units], of [..., units * gates]."""
    return jnp.moveaxis(x.astype(jnp.float32).reshape(*x.shape[:-1], -1, self.gates), -1, 0)

  def _gates_first(self, x: jax.Array) -> jax.Array:
    """Returns [..., gates, units] of [..., units * gates], so that a loop reads each gate from adjacent memory."""
    return jnp.swapaxes(x.reshape(*x.shape[:-1], -1, self.gates), -1, -2)

  def dropped(self, parameter: nnx.Param, key: jax.Array | None) -> jax.Array:
    """Returns a matrix without a fraction of its entries, one mask for all rows and positions (DropConnect)."""
    return layers.dropout(parameter[...], self.weight_dropout, key)

  def gathered(self, parameter: nnx.Param, dtype: jnp.dtype, key: jax.Array | None = None) -> jax.Array:
    """Returns a matrix on every device of its rows; with a key some of its entries are dropped."""
    return sharding.gather(self.dropped(parameter, key).astype(dtype), layers.matrix_axes(parameter))

  def __call__(
    self, x: jax.Array, state: State, starts: jax.Array, dropout_key: jax.Array | None
  ) -> tuple[jax.Array, State]:
    """Returns the output of each position, [batch, length, output], and the state after the last.

    Args:
      x: [batch, length, input].
      state: state before the first position.
      starts: bool [batch, length], positions before which the state is zero.
      dropout_key: None at evaluation.
    """
    raise NotImplementedError

  @classmethod
  def multiply_adds(cls, sizes: tuple[int, int, int]) -> float:
    """Returns multiplications with parameters per position."""
    raise NotImplementedError


class LstmCell(RecurrentCell):
  """Long short-term memory with forget gates, optionally with a projection of its output.

  (i, f, g, o) = x W + h R + b;  c = sigmoid(f) c + sigmoid(i) tanh(g);  h = sigmoid(o) tanh(c), or that times P.

  Weight dropout acts on R (Merity et al. 2017, section 2). The initial bias of forget gates is 1 (Gers et al. 2000).
  Source: Hochreiter & Schmidhuber 1997; Sak et al. 2014 for the projection; Peters et al. 2018 for clipping.
  """

  gates = 4

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs, sizes: tuple[int, int, int]):
    super().__init__(config, rngs, sizes)
    _, units, outputs = sizes
    self.recurrent = layers.param(rngs, (outputs, self.gates * units), ("embed", "mlp"), scale=self.scale)
    projects = config.recurrent_projection
    scale = config.init_scale or units**-0.5
    self.projection = layers.param(rngs, (units, outputs), ("mlp", "embed"), scale=scale) if projects else None

  def _initial_bias(self, units: int) -> jax.Array:
    return jnp.tile(jnp.array([0.0, 1.0, 0.0, 0.0]), units)

  def __call__(
    self, x: jax.Array, state: State, starts: jax.Array, dropout_key: jax.Array | None
  ) -> tuple[jax.Array, State]:
    _, units, outputs = self.sizes
    dtype = x.dtype
    inner = loop_dtype(dtype)
    # All positions at once; the scan only adds the product with the output before.
    read = layers.dense(x, self.input, self.bias, gradient_dtype=self.gradient_dtype)
    matrices = {"recurrent": self._gates_first(self.gathered(self.recurrent, inner, dropout_key))}
    added = {"recurrent": jnp.moveaxis(self._gates_first(read), 1, 0).astype(inner)}
    if self.projection is not None:
      matrices["projection"] = self.gathered(self.projection, inner)
      added["projection"] = jnp.zeros((x.shape[1], x.shape[0], outputs), inner)

    def step(carry: Carry, inputs: jax.Array | None, multiply: Multiply) -> tuple[Carry, jax.Array]:
      output, cell = carry
      gates = multiply("recurrent", output)
      output, cell = self._after([gates[:, gate].astype(jnp.float32) for gate in range(self.gates)], cell)
      output = output.astype(inner)
      output = self._limit(multiply("projection", output)) if "projection" in matrices else output
      return (output, cell), output

    begin = state[0][:, :outputs].astype(inner), state[1][:, :units]
    (output, cell), y = scan(step, begin, starts, matrices, added)
    return jnp.moveaxis(y, 0, 1).astype(dtype), (_padded(output, self.width), _padded(cell, self.width))

  def _limit(self, y: jax.Array) -> jax.Array:
    return jnp.clip(y, -self.clip, self.clip) if self.clip else y

  def advance(self, gates: jax.Array, cell: jax.Array) -> State:
    """Returns output and cell after a position, [batch, units], from inputs of the gates, [batch, units * gates]."""
    output, cell = self._after(self._by_gate(gates), cell)
    return output.astype(gates.dtype), cell

  def _after(self, gates: Sequence[jax.Array] | jax.Array, cell: jax.Array) -> State:
    i, f, g, o = gates
    cell = self._limit(jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g))
    return jax.nn.sigmoid(o) * jnp.tanh(cell), cell

  @classmethod
  def multiply_adds(cls, sizes: tuple[int, int, int]) -> float:
    inputs, units, outputs = sizes
    return 4 * units * (inputs + outputs) + (units * outputs if outputs != units else 0)


class GruCell(RecurrentCell):
  """Gated recurrent unit, with the reset gate after the recurrent product, as in cuDNN and `torch.nn.GRU`.

  (r, z, n) = x W + b,  (r', z', n') = h R;  n = tanh(n + sigmoid(r + r') (n' + b_n));
  h = (1 - sigmoid(z + z')) n + sigmoid(z + z') h.

  Weight dropout acts on R. Source: Cho et al. 2014, which resets h before its product with R.
  """

  gates = 3

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs, sizes: tuple[int, int, int]):
    super().__init__(config, rngs, sizes)
    units = sizes[1]
    self.recurrent = layers.param(rngs, (units, self.gates * units), ("embed", "mlp"), scale=self.scale)
    self.recurrent_bias = nnx.Param(jnp.zeros(units), axes=("mlp",))

  def _initial_bias(self, units: int) -> jax.Array:
    return jnp.zeros(self.gates * units)

  def __call__(
    self, x: jax.Array, state: State, starts: jax.Array, dropout_key: jax.Array | None
  ) -> tuple[jax.Array, State]:
    units, dtype, inner = self.sizes[1], x.dtype, loop_dtype(x.dtype)
    read = layers.dense(x, self.input, self.bias, gradient_dtype=self.gradient_dtype)
    read = jnp.moveaxis(self._gates_first(read), 1, 0).astype(inner)
    matrices = {"recurrent": self._gates_first(self.gathered(self.recurrent, inner, dropout_key))}
    bias = self.recurrent_bias[...].astype(inner)  # of the candidate
    bias = jnp.broadcast_to(jnp.stack([jnp.zeros_like(bias), jnp.zeros_like(bias), bias]), read.shape)

    def step(carry: Carry, inputs: jax.Array | None, multiply: Multiply) -> tuple[Carry, jax.Array]:
      assert inputs is not None
      (output,) = carry
      r, z, n = (inputs[:, gate].astype(jnp.float32) for gate in range(self.gates))
      product = multiply("recurrent", output)
      of_r, of_z, of_n = (product[:, gate].astype(jnp.float32) for gate in range(self.gates))
      candidate = jnp.tanh(n + jax.nn.sigmoid(r + of_r) * of_n)
      kept = jax.nn.sigmoid(z + of_z)
      output = ((1 - kept) * candidate + kept * output).astype(inner)
      return (output,), output

    begin = (state[0][:, :units].astype(inner),)
    (output,), y = scan(step, begin, starts, matrices, {"recurrent": bias}, read)
    return jnp.moveaxis(y, 0, 1).astype(dtype), (_padded(output, self.width), jnp.zeros_like(state[1], jnp.float32))

  @classmethod
  def multiply_adds(cls, sizes: tuple[int, int, int]) -> float:
    inputs, units, _ = sizes
    return cls.gates * units * (inputs + units)


class QrnnCell(RecurrentCell):
  """Quasi-recurrent layer with a convolution of two positions and fo-pooling, which scans only elementwise products.

  (z, f, o) = [x before, x] W + b;  c = sigmoid(f) c + (1 - sigmoid(f)) tanh(z);  h = sigmoid(o) c.

  Weight dropout acts on W, as in the AWD-QRNN of Merity et al. 2018. Source: Bradbury et al. 2017, sections 2 and 2.1.
  """

  gates = 3
  window = 2

  def _initial_bias(self, units: int) -> jax.Array:
    return jnp.zeros(self.gates * units)

  def __call__(
    self, x: jax.Array, state: State, starts: jax.Array, dropout_key: jax.Array | None
  ) -> tuple[jax.Array, State]:
    inputs, units, _ = self.sizes
    last = state[0][:, None, :inputs].astype(x.dtype)
    before = jnp.where(starts[..., None], 0, jnp.concatenate([last, x], axis=1)[:, :-1])
    matrix = self.dropped(self.input, dropout_key).astype(x.dtype)
    matrix = sharding.gather(matrix, layers.matrix_axes(self.input))
    z, f, o = self._by_gate(layers.add_bias(jnp.concatenate([before, x], axis=-1) @ matrix, self.bias))
    forget = jax.nn.sigmoid(f)
    kept = jnp.where(starts[..., None], 0, forget)
    added = (1 - forget) * jnp.tanh(z)
    joined = lambda left, right: (left[0] * right[0], right[0] * left[1] + right[1])
    factors, sums = jax.lax.associative_scan(joined, (kept, added), axis=1)
    cell = factors * state[1][:, None, :units] + sums
    y = (jax.nn.sigmoid(o) * cell).astype(x.dtype)
    if not x.shape[1]:
      return y, state
    return y, (_padded(x[:, -1], self.width), _padded(cell[:, -1], self.width))

  @classmethod
  def multiply_adds(cls, sizes: tuple[int, int, int]) -> float:
    inputs, units, _ = sizes
    return cls.gates * cls.window * inputs * units
