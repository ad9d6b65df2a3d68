"""What turns a trained model to something else by few new parameters: a file for each way, and the table of them.

A run has an adapter where its config has the adapter's section, `config.lora` for example, which is absent elsewhere.
The model's own parameters stay as they are; what the adapter adds is trained.
"""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

from flax import nnx
import jax

from t2t.models.adapt import lora

Adapters = Mapping[str, Any]  # section of the config -> its record; at most one, or none


@dataclasses.dataclass(frozen=True)
class Adapter:
  """One way.

  config: the record of its section; has `also_train`, patterns over paths.
  adapt: (model, config, rngs) -> the adapted model; gives the same as the model before anything is trained.
  added: pattern of the paths of the parameters that it adds.
  base_path: path of a parameter -> where it was before; None: it is added.
  merge: (path -> array, config) -> path -> array, as the model has them that needs no adapter.
  """

  config: type
  adapt: Callable[[nnx.Module, Any, nnx.Rngs], nnx.Module]
  added: str
  base_path: Callable[[str], str | None]
  merge: Callable[[Mapping[str, jax.Array], Any], dict[str, jax.Array]]


ADAPTERS: dict[str, Adapter] = {
  "lora": Adapter(lora.LoraConfig, lora.adapt, lora.ADDED, lora.base_path, lora.merge),
}


def adapt(model: nnx.Module, adapters: Adapters, rngs: nnx.Rngs) -> nnx.Module:
  """The model with what the config adapts it by.

  Raises:
    UserError: patterns that match nothing of the model.
  """
  for name, config in adapters.items():
    model = ADAPTERS[name].adapt(model, config, rngs)
  return model


def base_path(path: str, adapters: Adapters) -> str | None:
  """Where a parameter of an adapted model is in the model itself; None: the adapter added it."""
  for name in adapters:
    path = path if path is None else ADAPTERS[name].base_path(path)
  return path


def merge(params: Mapping[str, jax.Array], adapters: Adapters) -> dict[str, jax.Array]:
  """Path -> array of the model that computes the same without an adapter."""
  for name, config in adapters.items():
    params = ADAPTERS[name].merge(params, config)
  return dict(params)


def frozen(adapters: Adapters) -> tuple[str, ...]:
  """Patterns of the parameters that an adapter leaves as they are: all but its own, heads by name and `also_train`."""
  trained = [(ADAPTERS[name].added, "(^|/)heads/", *config.also_train) for name, config in adapters.items()]
  # One that is found where none of the others is.
  return tuple(f"^(?!.*({'|'.join(patterns)}))" for patterns in trained)
