"""LoRA (Hu et al. 2021): adds a low-rank product to a frozen matrix W, W + alpha / rank * down up.

With `rslora` the factor is alpha / sqrt(rank) (Kalajdzievski 2023), so that higher ranks do not learn more slowly. With
`dora` each column of the sum has a trained length, and the product changes its direction (Liu et al. 2024).
"""

from collections.abc import Mapping
import dataclasses
import functools
import math

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import UserError
from t2t.models import layers, quantized_matmul
from t2t.models.adapters import Adapter, patterns
from t2t.param_tree import matches

# Parameters of `LowRank`:
_KERNEL, _DOWN, _UP, _MAGNITUDE = "kernel", "lora_down", "lora_up", "lora_magnitude"
ADDED = f"/({_DOWN}|{_UP}|{_MAGNITUDE})$"


@dataclasses.dataclass(frozen=True)
class LoraConfig:
  """Options of LoRA.

  Raises:
    UserError: a field is out of range.
  """

  rank: int = 8  # rank of the product: a matrix [in, out] gets [in, rank] and [rank, out]
  alpha: float = 16.0  # numerator of the product's scale, alpha / rank
  rslora: bool = False  # scale alpha / sqrt(rank) instead
  dora: bool = False  # training of column lengths, too
  dropout: float = 0.0  # dropout of the narrow matrices' inputs in training
  targets: tuple[str, ...] = ("attention/query", "attention/value")  # patterns over paths of attention and mlp matrices
  also_train: tuple[str, ...] = ()  # patterns over paths of other trained parameters: "norm", "bias"

  @property
  def scale(self) -> float:
    """Returns the factor of the product."""
    return self.alpha / (self.rank**0.5 if self.rslora else self.rank)

  def __post_init__(self):
    if self.rank < 1:
      raise UserError(f"config.lora.rank={self.rank}: must be at least 1")
    if not 0 < self.alpha < math.inf:
      raise UserError(f"config.lora.alpha={self.alpha}: must be more than 0, and finite")
    if not 0.0 <= self.dropout < 1.0:
      raise UserError(f"config.lora.dropout={self.dropout}: must be at least 0 and below 1")
    for name in ("targets", "also_train"):  # lists, in a config.json
      object.__setattr__(self, name, tuple(getattr(self, name)))


class LowRank(nnx.Module):
  """A matrix with a low-rank addition, kernel + scale * down up; replaces a parameter in an adapted model.

  Inputs are multiplied by the two factors in turn, so that no matrix of the kernel's size is built. With a magnitude,
  each column of the sum has the length of the kernel's column plus the magnitude (Liu et al. 2024).

  Args:
    kernel: [in, out], with leading axes if layers are stacked, as for the others.
    lora_down, lora_up: [in, rank] and [rank, out].
    scale: factor of their product.
    magnitude: [out], difference of each column's length from the kernel's; None: lengths are not fixed.
    dropout_rate: dropout of the input of `lora_down` in training.
    number: index of this matrix among the model's; it is folded into the dropout key.
  """

  def __init__(
    self,
    kernel: nnx.Param,
    lora_down: nnx.Param,
    lora_up: nnx.Param,
    scale: float,
    *,
    magnitude: nnx.Param | None = None,
    dropout_rate: float = 0.0,
    number: int = 0,
  ):
    self.kernel = kernel
    self.lora_down = lora_down
    self.lora_up = lora_up
    self.lora_magnitude = magnitude
    self.scale = scale
    self.dropout_rate = dropout_rate
    self.number = number

  def factors(self) -> jax.Array:
    """Returns the factors of the sum's columns, float32 [out]; exactly 1 while the addition is zero.

    The square of a column's length grows from |w|^2 by 2 s (W^T A) b + s^2 b^T (A^T A) b. This needs no matrix of W's
    size and is exactly zero if b is; a quotient of two lengths could round differently. As in PEFT it has no gradient
    (Liu et al. 2024, section 4.3). Columns of zeros have no direction to keep.
    """
    assert self.lora_magnitude is not None
    dot = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)
    fixed = lambda x: jax.lax.stop_gradient(x[...].astype(jnp.float32))
    kernel, down, up = map(fixed, (self.kernel, self.lora_down, self.lora_up))
    square = jnp.sum(jnp.square(kernel), axis=0)
    crossed = jnp.sum(dot("ir,io->ro", down, kernel) * up, axis=0)
    added = jnp.sum(dot("rs,so->ro", dot("ir,is->rs", down, down), up) * up, axis=0)
    grown = 2 * self.scale * crossed + self.scale**2 * added
    there = square > 0
    square = jnp.where(there, square, 1.0)
    # The limit is for columns that the addition cancels, of which only rounding errors remain.
    shorter = jnp.sqrt(1.0 / jnp.maximum(1.0 + grown / square, 1e-12))
    longer = 1.0 + self.lora_magnitude[...].astype(jnp.float32) / jnp.sqrt(square)
    return jnp.where(there, longer * shorter, 1.0)

  def dense(
    self,
    x: jax.Array,
    bias: nnx.Param | None,
    *,
    gradient_dtype: str,
    quantization: str,
    dropout_key: jax.Array | None,
  ) -> jax.Array:
    """Maps [..., in] to [..., out]; see `layers.dense`."""
    product = functools.partial(quantized_matmul.product, gradient_dtype=gradient_dtype)
    y = product(x, self.kernel[...], quantization=quantization, axes=layers.matrix_axes(self.kernel))
    if dropout_key is not None and self.dropout_rate:
      x = layers.dropout(x, self.dropout_rate, jax.random.fold_in(dropout_key, self.number))
    added = self.scale * product(product(x, self.lora_down[...]), self.lora_up[...])
    if self.lora_magnitude is not None:
      # Computed as a difference from `y`, so that `y` is rounded as in the base model while the addition is zero.
      factors = self.factors()
      added = ((factors - 1.0) * y + factors * added).astype(y.dtype)
    return layers.add_bias(y + added, bias)


def _low_rank(kernel: nnx.Param, config: LoraConfig, rngs: nnx.Rngs, *, number: int) -> LowRank:
  *stack, rows, columns = kernel[...].shape  # all stacked layers at once
  row_axis, column_axis = kernel.get_metadata()["axes"]
  down = rows**-0.5 * jax.random.normal(rngs.params(), (*stack, rows, config.rank), jnp.float32)
  # Zeros, so that training starts from the unchanged model.
  up = jnp.zeros((*stack, config.rank, columns), jnp.float32)
  longer = nnx.Param(jnp.zeros((*stack, columns), jnp.float32), axes=(column_axis,)) if config.dora else None
  return LowRank(
    kernel,
    nnx.Param(down, axes=(row_axis, "rank")),
    nnx.Param(up, axes=("rank", column_axis)),
    config.scale,
    magnitude=longer,
    dropout_rate=config.dropout,
    number=number,
  )


def adapt(model: nnx.Module, config: LoraConfig, rngs: nnx.Rngs) -> nnx.Module:
  """Returns the model with `LowRank` in place of the matrices that match `config.targets`.

  Raises:
    UserError: a pattern matches no matrix, or a pattern of `also_train` matches no parameter.
  """
  if not config.targets:
    raise UserError(
      "config.lora.targets=(): nothing would be adapted. Give patterns, for example "
      "--config.lora.targets=attention/query,attention/value."
    )
  model = patterns.copy_of(model)
  matrices = list(patterns.matrices(model))
  patterns.check(config.targets, "config.lora.targets", [path for path, _, _ in matrices])
  for number, (path, module, name) in enumerate(matrices):
    if matches(config.targets, path):
      setattr(module, name, _low_rank(getattr(module, name), config, rngs, number=number))
  patterns.check(config.also_train, "config.lora.also_train", patterns.paths_of(model))
  return model


def base_path(path: str) -> str | None:
  """Returns the path of a parameter in the base model; None: the adapter added it."""
  owner, _, name = path.rpartition("/")
  return {_KERNEL: owner, _DOWN: None, _UP: None, _MAGNITUDE: None}.get(name, path)


def merge(params: Mapping[str, jax.Array], config: LoraConfig) -> dict[str, jax.Array]:
  """Returns path -> array of a model with plain matrices, W + scale * down up, with the trained lengths if `dora`.

  Arrays may be of one layer or stacked.
  """
  merged = {}
  for path, x in params.items():
    base = base_path(path)
    if base is not None and base != path:
      down, up = params[f"{base}/{_DOWN}"], params[f"{base}/{_UP}"]
      both = x + config.scale * jnp.matmul(down, up, precision=jax.lax.Precision.HIGHEST)
      if config.dora:
        before, now = (jnp.linalg.norm(matrix, axis=-2) for matrix in (x, both))
        factors = (before + params[f"{base}/{_MAGNITUDE}"]) / jnp.maximum(now, 1e-6 * before)
        both = both * jnp.where(before > 0, factors, 1.0)[..., None, :]
      x = both
    if base is not None:
      merged[base] = x
  return merged


ADAPTER = Adapter(LoraConfig, adapt, ADDED, base_path, merge)
