"""(IA)3 (Liu et al. 2022): learned vectors scale keys, values and the hidden features of feed-forward layers."""

from collections.abc import Mapping
import dataclasses
import re
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import UserError
from t2t.models import layers
from t2t.models.adapters import Adapter, patterns
from t2t.param_tree import matches

_KERNEL, _VECTOR = "kernel", "ia3"  # parameters of `Scaled`
ADDED = f"/{_VECTOR}$"
_ENDS_BRANCH = r"(attention/out|(^|/)mlp/(.+/)?down)$"  # also matches each part of a composite feed-forward layer


@dataclasses.dataclass(frozen=True)
class Ia3Config:
  """Options of (IA)3.

  Raises:
    UserError: `targets` is empty.
  """

  #: patterns over paths of attention and mlp matrices; their outputs are scaled, for mlp/down and attention/out their
  #: inputs; default as in the paper
  targets: tuple[str, ...] = ("attention/key", "attention/value", "mlp/down")
  also_train: tuple[str, ...] = ()  # patterns over paths of other trained parameters: "norm", "bias"

  def __post_init__(self):
    for name in ("targets", "also_train"):  # lists, in a config.json
      object.__setattr__(self, name, tuple(getattr(self, name)))
    if not self.targets:
      raise UserError(
        "config.ia3.targets=(): nothing would be adapted. Give patterns, for example "
        "--config.ia3.targets=attention/key,attention/value,mlp/down."
      )


class Scaled(nnx.Module):
  """A matrix with a learned scale of each of its outputs, or of its inputs with `reads`."""

  def __init__(self, kernel: nnx.Param, ia3: nnx.Param, *, reads: bool):
    self.kernel = kernel
    self.ia3 = ia3
    self.reads = reads

  def scale(self, x: jax.Array) -> jax.Array:
    """Scales [..., size], in the dtype of `x`."""
    return (x * (1.0 + self.ia3[...])).astype(x.dtype)

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
    options: dict[str, Any] = dict(gradient_dtype=gradient_dtype, quantization=quantization, dropout_key=dropout_key)
    y = layers.dense(self.scale(x) if self.reads else x, self.kernel, bias, **options)
    return y if self.reads else self.scale(y)


def adapt(model: nnx.Module, config: Ia3Config, rngs: nnx.Rngs) -> nnx.Module:
  """Returns the model with `Scaled` in place of the matrices that match `config.targets`.

  Raises:
    UserError: a pattern matches no matrix, or a pattern of `also_train` matches no parameter.
  """
  del rngs
  model = patterns.copy_of(model)
  matrices = list(patterns.matrices(model))
  patterns.check(config.targets, "config.ia3.targets", [path for path, _, _ in matrices])
  for path, module, name in matrices:
    if matches(config.targets, path):
      kernel, is_read = getattr(module, name), reads(path)
      *stack, rows, columns = kernel[...].shape
      axis = kernel.get_metadata()["axes"][0 if is_read else 1]
      # Stored as the difference from one, so that training starts from the unchanged model.
      vector = nnx.Param(jnp.zeros((*stack, rows if is_read else columns), jnp.float32), axes=(axis,))
      setattr(module, name, Scaled(kernel, vector, reads=is_read))
  patterns.check(config.also_train, "config.ia3.also_train", patterns.paths_of(model))
  return model


def reads(path: str) -> bool:
  """Returns True if the vector scales the inputs of this matrix, which must be the last of a branch."""
  return bool(re.search(_ENDS_BRANCH, path))


def base_path(path: str) -> str | None:
  """Returns the path of a parameter in the base model; None: the adapter added it."""
  owner, _, name = path.rpartition("/")
  return {_KERNEL: owner, _VECTOR: None}.get(name, path)


def merged_into(path: str) -> tuple[str, ...]:
  """Returns the parameters that a vector is merged into: its matrix, and its bias if outputs are scaled."""
  owner = path.rpartition("/")[0]
  return (owner,) if reads(owner) else (owner, f"{owner}_bias")


def merge(params: Mapping[str, jax.Array], config: Ia3Config) -> dict[str, jax.Array]:
  """Returns path -> array of a model with plain matrices, of one layer or stacked."""
  del config
  merged = {}
  for path, x in params.items():
    base = base_path(path)
    if base is not None:
      vector = params.get(f"{base.removesuffix('_bias')}/{_VECTOR}")
      if base != path:
        assert vector is not None
        x = x * (1.0 + (vector[..., :, None] if reads(base) else vector[..., None, :]))
      elif vector is not None and base.endswith("_bias") and not reads(base.removesuffix("_bias")):
        x = x * (1.0 + vector)
      merged[base] = x
  return merged


ADAPTER = Adapter(Ia3Config, adapt, ADDED, base_path, merge, merged_into)
