"""Shared parts of Transformer blocks: dense layers, embeddings, norms, dropout."""

from collections.abc import Callable
import functools
from typing import Any, ClassVar, Protocol

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import sharding
from t2t.models import quantized_matmul
from t2t.models.config import TransformerConfig
from t2t.runtime.lazy_table import LazyTable

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
  "relu": jax.nn.relu,
  "gelu": functools.partial(jax.nn.gelu, approximate=False),
  "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
  "silu": jax.nn.silu,
  # T5 1.1's "gelu" is the approximation, ModernBERT's is not.
  "gated_gelu": functools.partial(jax.nn.gelu, approximate=True),
  "gated_gelu_exact": functools.partial(jax.nn.gelu, approximate=False),
  "gated_silu": jax.nn.silu,
}


_FUNCTIONS = {name: f"t2t.models.fake_quantization:{name}" for name in ("check", "operands", "ranges", "weight")}
FAKE_QUANTIZATION: LazyTable[Any] = LazyTable(_FUNCTIONS)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def activate(name: str, x: jax.Array) -> jax.Array:
  """Applies one of `ACTIVATIONS` elementwise, at least in float32, and saves only the derivative for the backward pass.

  Plain automatic differentiation saves five arrays of the size of `x` for a gelu. A bfloat16 gelu also rounds ten
  times, which on a CPU takes longer than the gelu itself.
  """
  return ACTIVATIONS[name](_wide(x)).astype(x.dtype)


def _wide(x: jax.Array) -> jax.Array:
  return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _activate_forward(name, x):
  wide = _wide(x)
  value, derivative = jax.jvp(ACTIVATIONS[name], (wide,), (jnp.ones_like(wide),))
  return value.astype(x.dtype), derivative.astype(x.dtype)


def _activate_backward(_name, derivative, cotangent):
  return (derivative * cotangent,)


activate.defvjp(_activate_forward, _activate_backward)


def split_key(key: jax.Array | None, num: int) -> list[jax.Array | None]:
  """Splits a key into `num` keys; None gives a list of None."""
  return [None] * num if key is None else list(jax.random.split(key, num))


def param(rngs: nnx.Rngs, shape: tuple[int, ...], axes: tuple[str | None, ...], *, scale: float) -> nnx.Param:
  """Returns a float32 parameter, normal with standard deviation `scale`, with a logical name for each axis."""
  return nnx.Param(scale * jax.random.normal(rngs.params(), shape, jnp.float32), axes=axes)


def bias(config: TransformerConfig, size: int, axis: str) -> nnx.Param | None:
  """Returns a zero-initialized bias vector, or None if the model has no biases."""
  return nnx.Param(jnp.zeros(size, jnp.float32), axes=(axis,)) if config.biases else None


def qkv_bias(config: TransformerConfig, size: int) -> nnx.Param | None:
  """Returns a zero-initialized bias of queries, keys or values, or None if the model has none."""
  has_bias = (config.biases and config.attention_biases) or config.qkv_biases
  return nnx.Param(jnp.zeros(size, jnp.float32), axes=("heads",)) if has_bias else None


def fan_in_scale(config: TransformerConfig, fan_in: int) -> float:
  """Returns the standard deviation of initial weights of a layer with `fan_in` inputs."""
  return config.init_scale or fan_in**-0.5


def residual_scale(config: TransformerConfig, fan_in: int) -> float:
  """Returns the standard deviation of initial weights of a branch's last layer, before the residual sum.

  In pre-norm models with one initial scale for all weights, the residual stream would grow with the number of layers.
  GPT-2 divides by its square root (Radford et al. 2019, section 2.3).
  """
  if config.init_scale and not config.post_norm:
    return config.init_scale * (2 * max(config.num_encoder_layers, config.num_decoder_layers)) ** -0.5
  return fan_in_scale(config, fan_in)


class AdaptedMatrix(Protocol):
  """A module that replaces a matrix parameter in an adapted model."""

  def dense(
    self,
    x: jax.Array,
    bias: nnx.Param | None,
    *,
    gradient_dtype: str,
    quantization: str,
    dropout_key: jax.Array | None,
  ) -> jax.Array:
    """Computes `layers.dense` with the adapted matrix."""


def dense(
  x: jax.Array,
  kernel: nnx.Param | AdaptedMatrix,
  bias: nnx.Param | None = None,
  *,
  gradient_dtype: str = "",
  quantization: str = "",
  input_range: nnx.Param | None = None,
  dropout_key: jax.Array | None = None,
) -> jax.Array:
  """Computes x @ kernel + bias for [..., in], [in, out] and [out], in the dtype of `x`.

  Args:
    x: input with any number of leading axes.
    kernel, bias: parameters.
    gradient_dtype, quantization: see `TransformerConfig`; an adapter's addition is not quantized.
    input_range: range of `x`; with it both operands are rounded, see `fake_quantization`.
    dropout_key: key of an adapted kernel's dropout; None at evaluation.
  """
  if not isinstance(kernel, nnx.Param):
    options: dict[str, Any] = {} if input_range is None else {"input_range": input_range}  # only of int8 matrices
    options |= {"gradient_dtype": gradient_dtype, "quantization": quantization}
    return kernel.dense(x, bias, dropout_key=dropout_key, **options)
  weights = kernel[...]
  if input_range is not None:
    x, weights = FAKE_QUANTIZATION["operands"](x, input_range[...], weights)
  y = quantized_matmul.product(
    x, weights, gradient_dtype=gradient_dtype, quantization=quantization, axes=matrix_axes(kernel)
  )
  return add_bias(y, bias)


def add_bias(y: jax.Array, bias: nnx.Param | None) -> jax.Array:
  """Returns y + bias in the dtype of `y`; sum and gradient of the bias are computed in float32."""
  return y if bias is None else (y + bias[...]).astype(y.dtype)


def matrix_axes(kernel: nnx.Param) -> tuple[str | None, str | None]:
  """Returns the logical axis names of a matrix; (None, None), which is not sharded, if it has no metadata."""
  return kernel.get_metadata().get("axes", (None, None))


def dropout(x: jax.Array, rate: float, key: jax.Array | None, *, broadcast_axis: int | None = None) -> jax.Array:
  """Sets a fraction `rate` of `x` to zero and scales the rest by 1 / (1 - rate); returns `x` without a key.

  Args:
    x: any shape.
    rate: in [0, 1).
    key: None at evaluation.
    broadcast_axis: an axis along which all entries share one mask.
  """
  if key is None or rate == 0.0:
    return x
  shape = list(x.shape)
  if broadcast_axis is not None:
    shape[broadcast_axis] = 1
  keep = jax.random.bernoulli(key, 1.0 - rate, tuple(shape))
  return jnp.where(keep, x / (1.0 - rate), 0).astype(x.dtype)


def softcap(logits: jax.Array, cap: float) -> jax.Array:
  """Limits logits to (-cap, cap) by a scaled tanh; 0: no change (Gemma team 2024, section 2)."""
  return cap * jnp.tanh(logits / cap) if cap else logits


def normalise(x: jax.Array, scale: jax.Array, bias: jax.Array | None = None, *, kind: str, epsilon: float) -> jax.Array:
  """Applies a norm to float32 [..., size] over the last axis; see `Norm` for the kinds."""
  if kind == "layer":
    x = x - jnp.mean(x, axis=-1, keepdims=True)
  if kind != "affine":
    variance = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
    x = x * jax.lax.rsqrt(variance + epsilon)
  normed = x * scale
  return normed if bias is None else normed + bias


class Norm(nnx.Module):
  """Norm over the last axis, in float32.

  Kinds: rms, the root mean square norm (Zhang & Sennrich 2019); layer, the layer norm (Ba et al. 2016); affine, only
  scale and bias (NoNorm, Sun et al. 2020).
  """

  def __init__(self, config: TransformerConfig, size: int, *, axis: str = "embed", kind: str = ""):
    self.kind = kind or config.norm
    self.epsilon = config.norm_epsilon
    self.offset = config.norm_offset
    start = jnp.zeros if self.offset else jnp.ones
    self.scale = nnx.Param(start(size, jnp.float32), axes=(axis,))
    self.bias = None if self.kind == "rms" else bias(config, size, axis)

  @property
  def factor(self) -> jax.Array:
    """Returns the multiplier, float32 [size]."""
    return 1.0 + self.scale[...] if self.offset else self.scale[...]

  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps [..., size] to the same shape, in the dtype of `x`."""
    shift = None if self.bias is None else self.bias[...]
    normed = normalise(x.astype(jnp.float32), self.factor, shift, kind=self.kind, epsilon=self.epsilon)
    return normed.astype(x.dtype)


class DecoderPositions(nnx.Module):
  """Separate learned positions and embedding norm of the decoder (BART)."""

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
    width = config.embedding_dim or config.embed_dim
    axis = "embed" if width == config.embed_dim else "factor"
    rows, scale = config.max_length + config.position_offset, config.init_scale or 1.0
    self.positions = param(rngs, (rows, width), ("positions", axis), scale=scale)
    self.segments = None
    self.norm = Norm(config, width, axis=axis) if config.embedding_norm else None


def perturbed(x: jax.Array, perturbation: jax.Array) -> jax.Array:
  """Adds a perturbation in units of each vector's standard deviation; no gradient reaches `x`.

  A layer norm of the result equals that of the normalized vectors plus the perturbation, because it ignores offset and
  scale of its input. So vectors of any scale are perturbed alike (He et al. 2021, section 4).

  Args:
    x: [batch, length, width].
    perturbation: float32, same shape.

  Returns:
    float32, so that small perturbations are not rounded before a norm.
  """
  x = jax.lax.stop_gradient(x.astype(jnp.float32))
  return x + jnp.std(x, axis=-1, keepdims=True) * perturbation


class Embed(nnx.Module):
  """Token embedding; optionally adds learned embeddings of positions and segments.

  parts: number of token vectors that are concatenated before the projection to the model's width; with several, they
    are projected first, and positions, segments and the norm have the model's width.
  constants: patterns of parameters that are no weights, and are frozen.

  Args:
    config: shape of the model.
    rngs: random keys of the initial values.
    owns_table: whether the module has a table; otherwise calls take the table of another module.
  """

  parts: ClassVar[int] = 1
  constants: ClassVar[tuple[str, ...]] = ()

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs, *, owns_table: bool = True):
    if config.fake_quantization:
      FAKE_QUANTIZATION["check"](config)
    width = config.embedding_width
    added_width = width if self.parts == 1 else config.embed_dim
    axis, added_axis = ("embed" if size == config.embed_dim else "factor" for size in (width, added_width))
    # Default standard deviation 1: T5 does not scale embeddings at the input.
    scale = config.init_scale or 1.0
    shape, axes = (config.vocab_size, width), ("vocab", axis)
    table: Any = param(rngs, shape, axes, scale=scale) if owns_table else None
    self.table: nnx.Param = table
    has_difference = owns_table and config.embedding_difference
    self.difference = nnx.Param(jnp.zeros(shape, jnp.float32), axes=axes) if has_difference else None
    added = lambda rows, name: param(rngs, (rows, added_width), (name, added_axis), scale=scale)
    rows, types = config.max_length + config.position_offset, config.segment_types
    self.positions = added(rows, "positions") if config.position_scheme.embedded else None
    self.segments = added(types, "segments") if types else None
    self.added_width = added_width  # of the vectors that the norm reads
    # Input of the query stream at every position (Yang et al. 2019).
    self.query_stream = param(rngs, (added_width,), (added_axis,), scale=scale) if config.two_streams else None
    self.norm = Norm(config, added_width, axis=added_axis) if config.embedding_norm else None
    factored = bool(config.embedding_dim)
    shape, axes = (self.parts * width, config.embed_dim), ("factor", None)
    self.projection = param(rngs, shape, axes, scale=fan_in_scale(config, shape[0])) if factored else None
    self.projection_bias = bias(config, config.embed_dim, "embed") if factored else None
    self.prompt: nnx.Param | None = None  # adapted models: [length, width], for ids after the table
    self.config = config
    self.position_offset = config.position_offset
    self.max_length = config.max_length
    self.scale = config.embed_dim**0.5 if config.scale_embedding else 1.0
    self.dtype = config.dtype
    self.gradient_dtype = config.gradient_dtype

  def __call__(
    self,
    tokens: jax.Array,
    *,
    positions: jax.Array | None = None,
    segments: jax.Array | None = None,
    decoder_positions: DecoderPositions | None = None,
    perturbation: jax.Array | None = None,
  ) -> jax.Array:
    """Maps int [batch, length] to [batch, length, embed].

    Args:
      tokens: ids.
      positions: int [batch, length]; None: 0, 1, 2, ...
      segments: int [batch, length], segment type of each token; None: 0.
      decoder_positions: module whose positions and norm replace this module's.
      perturbation: float32 [batch, length, width], added before the norm; see `perturbed`.

    Raises:
      ValueError: more positions than are learned.
    """
    return self.project(
      self.look_up(
        tokens,
        positions=positions,
        segments=segments,
        decoder_positions=decoder_positions,
        perturbation=perturbation,
      )
    )

  @property
  def prompt_ids(self) -> jax.Array:
    """Returns the ids of the prompt vectors before a text, int32 [length], which follow the vocabulary's ids."""
    size = 0 if self.prompt is None else self.prompt[...].shape[0]
    return self.table[...].shape[0] + jnp.arange(size, dtype=jnp.int32)

  def look_up(
    self,
    tokens: jax.Array,
    *,
    positions: jax.Array | None = None,
    segments: jax.Array | None = None,
    decoder_positions: DecoderPositions | None = None,
    perturbation: jax.Array | None = None,
    table: nnx.Param | None = None,
  ) -> jax.Array:
    """Looks up the embedding tables, followed by the norm if any: [batch, length, embedding width]; see `__call__`.

    Args:
      tokens, positions, segments, decoder_positions, perturbation: see `__call__`.
      table: the token table of another module; None: this module's, with its difference.
    """
    return self.with_positions(
      self.vectors(tokens, table),
      positions=positions,
      segments=segments,
      perturbation=perturbation,
      added=decoder_positions or self,
    )

  def vectors(self, tokens: jax.Array, table: nnx.Param | None = None) -> jax.Array:
    """Looks up the tokens of a batch, int [batch, length] -> [batch, length, embedding width]; see `look_up`."""
    # Rows are looked up in float32 and then cast, so that gradients of many positions are summed in float32. In
    # bfloat16 a sum stops growing at 256 equal terms, and the gradient of a token with 9,913 occurrences was wrong by
    # half. Devices also all-reduce the tables of positions and segments in float32: 845 MB a step instead of 754 for
    # BERT base on 4 x 4 v5e chips. The table is gathered over its embed axis first, because sharded rows would have to
    # be reassembled.
    gathered = lambda table: jnp.take(sharding.shard(table[...], "vocab", "embed"), tokens, axis=0)
    rows = lambda table: gathered(table) if isinstance(table, nnx.Param) else table.rows(tokens)
    own = self.table if table is None else table
    x = rows(own)
    x = FAKE_QUANTIZATION["weight"](x, -1) if self.config.fake_quantization else x
    if table is None and self.difference is not None:
      x = jax.lax.stop_gradient(x) + rows(self.difference)
    if self.prompt is not None:
      behind = tokens - own[...].shape[0]
      x = jnp.where(behind[..., None] < 0, x, jnp.take(self.prompt[...], jnp.maximum(behind, 0), axis=0))
    x = sharding.shard(x.astype(self.dtype), "batch", "length", "embed")
    # Rounded as in Gemma's training, where the factor had the dtype of the activations.
    return x if self.scale == 1.0 else x * jnp.asarray(self.scale, self.dtype)

  def unread(
    self, tokens: jax.Array, *, positions: jax.Array | None = None, segments: jax.Array | None = None
  ) -> jax.Array:
    """Returns the input of the query stream, the same for every token: the shape of `look_up`, with its arguments."""
    assert self.query_stream is not None
    vector = self.query_stream[...].astype(self.dtype)
    x = sharding.shard(jnp.broadcast_to(vector, (*tokens.shape, vector.shape[0])), "batch", "length", "embed")
    return self.with_positions(x, positions=positions, segments=segments, added=self)

  def with_positions(
    self,
    x: jax.Array,
    *,
    positions: jax.Array | None,
    segments: jax.Array | None,
    perturbation: jax.Array | None = None,
    added: "DecoderPositions | Embed",
  ) -> jax.Array:
    """Adds positions and segments of the module `added` to [batch, length, width], followed by the norm if any."""
    small = lambda table: sharding.shard(table[...], None, None)
    if added.positions is not None:
      if positions is None and x.shape[1] > self.max_length:
        raise ValueError(
          f"config.model.max_length={self.max_length}: a sequence has {x.shape[1]} positions, but only "
          f"{self.max_length} positions are learned. Shorten the sequence."
        )
      # A slice instead of a gather if all sequences have the same positions; its gradient is small, too.
      learned = small(added.positions)[self.position_offset :]
      x = x + (learned[: x.shape[1]] if positions is None else jnp.take(learned, positions, axis=0))
    else:
      places = jnp.arange(x.shape[1]) if positions is None else positions
      fixed = self.config.position_scheme.embedding(places, x.shape[-1])
      x = x if fixed is None else x + fixed
    if added.segments is not None:
      types = small(added.segments)
      x = x + (types[0] if segments is None else jnp.take(types, segments, axis=0))
    if perturbation is not None:
      x = perturbed(x, perturbation)
    if added.norm is not None:
      x = added.norm(x)
    return x.astype(self.dtype)

  @classmethod
  def multiply_adds(cls, config: TransformerConfig) -> float:
    """Returns multiplications with parameters per position, for `model_flops`."""
    return cls.parts * config.embedding_dim * config.embed_dim

  def project(self, x: jax.Array) -> jax.Array:
    """Maps [batch, length, embedding width] to [batch, length, embed]."""
    if self.projection is not None:
      x = dense(x, self.projection, self.projection_bias, gradient_dtype=self.gradient_dtype)
    return sharding.shard(x, "batch", "length", "embed")
