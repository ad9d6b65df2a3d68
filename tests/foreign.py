"""Helpers for tests of conversion: models in memory as checkpoints, and files read byte by byte."""

from collections.abc import Mapping
import dataclasses
import functools
import json
import pathlib

from etils import epath
from flax import nnx, traverse_util
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import toy

from t2t.convert.lazy_tensors import Foreign, Tensor, expected
from t2t.inference import decoding
from t2t.models import transformer
from t2t.models.config import TransformerConfig

MAX_LENGTH, LENGTH_PENALTY = 12, 0.8  # of generated text

_DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}


def random_params(config: TransformerConfig) -> dict[str, np.ndarray]:
  """Returns path -> float32 values of each parameter, all different, with norms not at one and biases not at zero."""
  random = np.random.default_rng(0)
  shapes = {path: x.shape for path, x in expected(config).items()}
  is_norm = lambda path: path.endswith("norm/scale")
  scale = 0.22 if config.norm == "affine" else 0.3  # without statistics, states would grow with each layer
  params = {
    path: (is_norm(path) + scale * random.normal(size=shape)).astype(np.float32) for path, shape in shapes.items()
  }
  if config.embedding_norm and not config.post_norm:
    # The embedding's norm is not followed by another norm, so this scale is unused and never trained.
    side = "decoder" if config.kind.is_decoder_only else "encoder"
    params[f"{side}/layers/self_attention_norm/scale"][0] = 1.0
  return params


def in_memory(config: TransformerConfig, params: Mapping[str, np.ndarray], *, vocabulary="", extra_ids=0) -> Foreign:
  """Returns a model as a checkpoint that can be written in any format."""

  def tensor(path: str, x: np.ndarray) -> Tensor:
    stacked = "/layers/" in path
    parts = [functools.partial(np.asarray, layer) for layer in (x if stacked else [x])]
    return Tensor(x.shape, x.dtype, tuple(parts), stacked=stacked)

  tensors = {path: tensor(path, x) for path, x in params.items()}
  return Foreign(epath.Path("memory"), "t2t", config, str(vocabulary), extra_ids, {}, tensors)


def read(foreign: Foreign) -> dict[str, np.ndarray]:
  """Returns path -> full array of all parameters."""
  return {path: tensor.read() for path, tensor in foreign.tensors.items()}


def graphdef(config: TransformerConfig) -> nnx.GraphDef:
  """Returns the structure of a model without parameters."""
  return toy.split(jax.eval_shape(lambda: transformer.build(config, nnx.Rngs(0))))[0]


def nested(params: Mapping[str, np.ndarray]) -> dict:
  """Returns parameters by path as the model's nested dict."""
  return traverse_util.unflatten_dict({path: jnp.asarray(x) for path, x in params.items()}, sep="/")


def model(foreign: Foreign, *, dtype: str) -> nnx.Module:
  """Returns the checkpoint as a model that computes in `dtype`."""
  return nnx.merge(graphdef(dataclasses.replace(foreign.model, dtype=dtype)), nested(read(foreign)))


def writes(
  graphdef: nnx.GraphDef, params: dict, batch: transformer.Batch, *, num_beams: int, eos_id: int, min_length: int = 0
) -> np.ndarray:
  """Returns the model's output, greedy or by beam search with transformers' penalty: int [batch, MAX_LENGTH]."""
  options = dict(length_penalty=LENGTH_PENALTY, length_penalty_form="power") if num_beams > 1 else {}
  config = decoding.DecodeConfig(MAX_LENGTH, min_length=min_length, num_beams=num_beams, **options)
  return np.asarray(decoding.make_decode(graphdef, config, eos_id=eos_id)(params, batch).tokens[:, 0])


def safetensors(folder: pathlib.Path) -> dict[str, np.ndarray]:
  """Returns every tensor of a folder's files, read by the format's description."""
  tensors = {}
  for path in sorted(folder.glob("*.safetensors")):
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    for name, entry in json.loads(content[8:start]).items():
      if name != "__metadata__":
        begin, end = (start + offset for offset in entry["data_offsets"])
        tensors[name] = np.frombuffer(content[begin:end], _DTYPES[entry["dtype"]]).reshape(entry["shape"])
  return tensors


def write_safetensors(path: pathlib.Path, tensors: Mapping[str, np.ndarray]) -> None:
  """Writes a file of float32 tensors by the format's description."""
  header, data = {}, b""
  for name, x in tensors.items():
    header[name] = {"dtype": "F32", "shape": x.shape, "data_offsets": [len(data), len(data) + x.nbytes]}
    data += x.tobytes()
  text = json.dumps(header).encode()
  path.write_bytes(len(text).to_bytes(8, "little") + text + data)
