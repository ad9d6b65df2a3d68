"""Helpers for tests of adapters in other formats: an adapter with random values for any model."""

from collections.abc import Mapping
import dataclasses
import functools
from typing import Any

from flax import nnx, traverse_util
import jax
import numpy as np
import toy

from t2t import sharding
from t2t.configs import default
from t2t.configuration.loading import override, records
from t2t.convert.lazy_tensors import Tensor
from t2t.models import adapters as adapters_lib
from t2t.models import transformer
from t2t.models.config import TransformerConfig
from t2t.training import recipe


def adapted_shapes(config: TransformerConfig, adapters: adapters_lib.Adapters) -> dict[str, tuple[int, ...]]:
  """Returns path and shape of each parameter of an adapted model."""

  def build():
    rngs = nnx.Rngs(0)
    return adapters_lib.adapt(transformer.build(config, rngs), adapters, rngs)

  state = nnx.split(jax.eval_shape(build), graph=False)[1]
  return {path: x.shape for path, x in traverse_util.flatten_dict(nnx.to_pure_dict(state), sep="/").items()}


def random_adapter(
  config: TransformerConfig, adapters: adapters_lib.Adapters, *, seed: int = 1
) -> dict[str, np.ndarray]:
  """Returns path -> float32 of all parameters of an adapter, and of heads."""
  random = np.random.default_rng(seed)
  shapes = adapted_shapes(config, adapters)
  trained = [path for path in shapes if adapters_lib.base_path(path, adapters) is None or path.startswith("heads/")]
  return {path: (random.normal(size=shapes[path]) / 4).astype(np.float32) for path in trained}


def with_adapter(
  config: TransformerConfig,
  adapters: adapters_lib.Adapters,
  params: Mapping[str, np.ndarray],
  arrays: Mapping[str, np.ndarray],
) -> nnx.Module:
  """Returns the adapted model with parameters of its base and of the adapter."""

  def build():
    rngs = nnx.Rngs(0)
    return adapters_lib.adapt(transformer.build(config, rngs), adapters, rngs)

  graphdef = nnx.split(jax.eval_shape(build), graph=False)[0]
  all_params = {path: np.asarray(x) for path, x in (dict(params) | dict(arrays)).items()}
  return nnx.merge(graphdef, traverse_util.unflatten_dict(all_params, sep="/"))


def tensors(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
  """Returns arrays as parameters that are read one by one."""

  def tensor(path: str, x: np.ndarray) -> Tensor:
    stacked = "/layers/" in path
    parts = [functools.partial(np.asarray, layer) for layer in (x if stacked else [x])]
    return Tensor(x.shape, x.dtype, tuple(parts), stacked=stacked)

  return {path: tensor(path, x) for path, x in arrays.items()}


def merged(params: Mapping[str, np.ndarray], adapter: Mapping[str, np.ndarray], adapters: Any) -> dict[str, np.ndarray]:
  """Returns the parameters of an equivalent model without an adapter; heads are the adapter's."""
  base_paths = {path: adapters_lib.base_path(path, adapters) for path in adapter_paths(params, adapters, adapter)}
  below = {path: params[name] for path, name in base_paths.items()}
  return {path: np.asarray(x) for path, x in adapters_lib.merge(below | dict(adapter), adapters).items()}


def adapter_paths(params: Mapping[str, np.ndarray], adapters: Any, adapter: Mapping[str, np.ndarray]) -> list[str]:
  """Returns the paths of the base's parameters in the adapted model."""
  owners = {path.rpartition("/")[0] for path in adapter}
  return [f"{path}/kernel" if path in owners else path for path in params]


def program(*arguments, **model):
  """Returns the programs of the default config with these options, at toy size, without compiling."""
  run_config = override(default.get_config(), ["--config.train.batch_size=8", *arguments])
  run_config.model.update(dataclasses.asdict(toy.config(**model)))
  mesh = sharding.make_mesh({"data": 8})
  with jax.set_mesh(mesh):
    return recipe.make(records(run_config)).build(mesh)
