"""Matrices of int8 values for inference.

`with_integers`: products of integers, as a model with fake quantization rounds them. `weight_only`: matrices of any
model are stored in int8, a quarter of float32's bytes; see `product`.
"""

from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import sharding
from t2t.models import cpu_ops, fake_quantization, heads, layers
from t2t.models.adapters import patterns

VALUES, SCALE = "values", "scale"  # parameters of `Int8Matrix` and `Int8Table`


class _Integers(nnx.Module):
  """Int8 values with float32 scales; read with [...] or `get_metadata` like the parameter that it replaces."""

  def __init__(self, values: nnx.Param, scale: nnx.Param):
    self.values = values
    self.scale = scale

  def __getitem__(self, index: Any) -> jax.Array:
    return (self.values[...].astype(jnp.float32) * self.scale[...])[index]

  def get_metadata(self) -> dict[str, Any]:
    """Returns the metadata of the values, with their logical axes."""
    return self.values.get_metadata()

  def _gathered(self) -> jax.Array:
    return sharding.gather(self.values[...], tuple(self.get_metadata()["axes"]))


class Int8Table(_Integers):
  """A token embedding, int8 [rows, width], with a float32 scale for each row, [rows, 1]."""

  def rows(self, tokens: jax.Array) -> jax.Array:
    """Returns the rows of tokens, float32 [..., width]."""
    look_up = lambda table: jnp.take(table[...], tokens, axis=0)
    return look_up(self.values).astype(jnp.float32) * look_up(self.scale)

  def logits_weights(self) -> dict[str, jax.Array]:
    """Returns the weights of `heads.Logits`; transposed in memory, as products of integers are fast."""
    return {"projection": jax.lax.optimization_barrier(self._gathered().T), "int8_scale": self.scale[...][:, 0]}


class Int8Matrix(_Integers):
  """A matrix, int8 [in, out], with a float32 scale for each output, [1, out]; a `layers.AdaptedMatrix`."""

  def dense(
    self,
    x: jax.Array,
    bias: nnx.Param | None,
    *,
    gradient_dtype: str,
    quantization: str,
    dropout_key: jax.Array | None,
    input_range: nnx.Param | None = None,
  ) -> jax.Array:
    """Maps [..., in] to [..., out]; see `layers.dense`. With a range, sums are exact, in int32."""
    if input_range is None:
      return layers.add_bias(product(x, self.values[...], self.scale[...][0]).astype(x.dtype), bias)
    # The range of a model that has not been trained yet is 0: each row has the scale of its largest value.
    scale = fake_quantization.scale_of_range(input_range[...])
    scale = jnp.where(scale > 0, scale, fake_quantization.scale_of(x, -1))
    y = _of_integers(fake_quantization.integers(x, scale), self.values[...])
    return layers.add_bias((y * scale * self.scale[...][0]).astype(x.dtype), bias)

  def logits_weights(self) -> dict[str, jax.Array]:
    """Returns the weights of `heads.Logits`."""
    return {"projection": self._gathered(), "int8_scale": self.scale[...][0]}


def product(x: jax.Array, values: jax.Array, scale: jax.Array) -> jax.Array:
  """Multiplies an input with a matrix in int8.

  On CPUs each row of the input is rounded to int8 too, because products of integers are the fast ones. Elsewhere the
  values are read in the dtype of the input.

  Args:
    x: float [..., in].
    values: int8 [in, out].
    scale: float32 [out].

  Returns:
    float32 [..., out].
  """
  if _rounds_inputs():
    of_rows = fake_quantization.scale_of(x, -1)
    return _of_integers(fake_quantization.integers(x, of_rows), values) * of_rows * scale
  # Without the barrier, the compiler converts the values before a loop, whose steps would read more bytes.
  values = jax.lax.optimization_barrier((values, x))[0]
  return jnp.einsum("...i,io->...o", x, values.astype(x.dtype), preferred_element_type=jnp.float32) * scale


def _rounds_inputs() -> bool:
  return sharding.platform() == "cpu"


def _of_integers(x: jax.Array, values: jax.Array) -> jax.Array:
  """Returns the product of integers [..., in] and int8 [in, out], summed in int32, as float32."""
  rows = x.astype(jnp.int8).reshape(-1, x.shape[-1])
  padded = jnp.pad(rows, ((0, max(0, cpu_ops.LEAST_ROWS - len(rows))), (0, 0)))
  y = jax.lax.dot_general(padded, values, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)
  return y[: len(rows)].astype(jnp.float32).reshape(*x.shape[:-1], values.shape[1])


def integers(x: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
  """Returns the int8 values and float32 scales of weights, with one scale along `axis`."""
  scale = fake_quantization.scale_of(x, axis)
  return fake_quantization.integers(x, scale).astype(jnp.int8), scale


def _stored(kernel: nnx.Param, axis: int) -> tuple[nnx.Param, nnx.Param]:
  """Returns `integers` of a parameter as parameters; `axis` is -1 or -2."""
  axes = kernel.get_metadata()["axes"]
  values, scale = integers(kernel[...], axis)
  return nnx.Param(values, axes=axes), nnx.Param(scale, axes=(axes[0], None) if axis == -1 else (None, axes[1]))


def with_integers(model: nnx.Module) -> nnx.Module:
  """Returns a model with fake quantization with `Int8Matrix` in place of the matrices that it rounds."""
  model = patterns.copy_of(model)
  for _, module, name in list(patterns.matrices(model)):
    ranges = getattr(module, fake_quantization.RANGES, None)
    if ranges is None or name not in ranges:
      continue
    setattr(module, name, Int8Matrix(*_stored(getattr(module, name), -2)))
  return model


def weight_only(model: nnx.Module) -> nnx.Module:
  """Returns a model with int8 matrices of attention and feed-forward layers, token tables and logits.

  Matrices with an unmerged adapter, experts, and a tied output table of another width stay as they are.
  """
  model = patterns.copy_of(model)
  vocabulary_heads = [head for _, head in patterns.modules(model, heads.VocabularyHead)]
  is_one_table = all(head.table is None for head in vocabulary_heads)
  tables = patterns.modules(model, layers.Embed) if is_one_table else ()
  places = [(Int8Matrix, -2, module, name) for _, module, name in patterns.matrices(model)]
  places += [(Int8Matrix, -2, head, "projection") for head in vocabulary_heads]
  places += [(Int8Table, -1, embed, "table") for _, embed in tables]
  for stored_as, axis, module, name in places:
    parameter = getattr(module, name)
    if isinstance(parameter, nnx.Param):
      setattr(module, name, stored_as(*_stored(parameter, axis)))
  return model


def axis_of(value_path: str) -> int:
  """Returns the axis with a common scale of the values at a path of the model's parameters."""
  return -1 if value_path.endswith(f"table/{VALUES}") else -2
