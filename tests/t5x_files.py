"""Checkpoints in T5X's format, written by its description: folders of zarr arrays and single msgpack files."""

import pathlib

from flax import serialization, traverse_util
import numpy as np
import tensorstore

# All sizes differ, so that no two axes can be confused.
VOCAB, EMBED, HEADS, KV, MLP, BUCKETS = 37, 10, 5, 3, 14, 8
LAYERS = {"encoder": 2, "decoder": 4}


def parameters(*, gated: bool = True, tied: bool = False) -> dict[str, np.ndarray]:
  """Returns random parameters of T5X's minimal model by name."""
  random = np.random.default_rng(0)
  params = {}

  def add(name, *shape):
    params[name] = random.normal(size=shape, scale=0.4).astype(np.float32)

  add("token_embedder/embedding", VOCAB, EMBED)
  for stack, number in LAYERS.items():
    attentions = ["attention"] if stack == "encoder" else ["self_attention", "encoder_decoder_attention"]
    norms = ["attention"] if stack == "encoder" else ["self_attention", "cross_attention"]
    add(f"{stack}/relpos_bias/rel_embedding", HEADS, BUCKETS)
    for layer in [f"{stack}/layers_{index}" for index in range(number)]:
      for norm in [*norms, "mlp"]:
        add(f"{layer}/pre_{norm}_layer_norm/scale", EMBED)
      for attention in attentions:
        for kernel in ("query", "key", "value"):
          add(f"{layer}/{attention}/{kernel}/kernel", EMBED, HEADS * KV)
        add(f"{layer}/{attention}/out/kernel", HEADS * KV, EMBED)
      for kernel in ("wi_0", "wi_1") if gated else ("wi",):
        add(f"{layer}/mlp/{kernel}/kernel", EMBED, MLP)
      add(f"{layer}/mlp/wo/kernel", MLP, EMBED)
    add(f"{stack}/{stack}_norm/scale", EMBED)
  if not tied:
    add("decoder/logits_dense/kernel", EMBED, VOCAB)
  return params


def heads_apart(params: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Splits kernels of attention along an axis for the heads."""
  split_params = dict(params)
  for name, x in params.items():
    if name.endswith(("query/kernel", "key/kernel", "value/kernel")):
      split_params[name] = x.reshape(EMBED, HEADS, KV)
    elif name.endswith("out/kernel"):
      split_params[name] = x.reshape(HEADS, KV, EMBED)
  return split_params


def scanned(params: dict[str, np.ndarray], *, axis: int, name: str = "layers") -> dict[str, np.ndarray]:
  """Stacks the layers of each stack along `axis`; `name` may contain {stack}."""
  stacked = {key: x for key, x in params.items() if "/layers_" not in key}
  for key in params:
    if "/layers_0/" in key:
      stack = key.split("/")[0]
      layers = [params[key.replace("layers_0", f"layers_{index}")] for index in range(LAYERS[stack])]
      stacked[key.replace("layers_0", name.format(stack=stack))] = np.stack(layers, axis=axis)
  return stacked


def relative_positions_in_layers(params: dict[str, np.ndarray], name: str, *, differ: bool = False):
  """Copies the table of each stack into its layers."""
  layered = {key: x for key, x in params.items() if "rel_embedding" not in key}
  for stack, number in LAYERS.items():
    for index in range(number):
      table = params[f"{stack}/relpos_bias/rel_embedding"]
      layered[f"{stack}/layers_{index}/{name}/rel_embedding"] = table + index * differ
  return layered


STORED = {
  "joined": lambda params: params,
  "heads apart": heads_apart,
  "scanned": lambda params: scanned(heads_apart(params), axis=1),
  "scanned, heads joined": lambda params: scanned(params, axis=1),
  "scanned in front": lambda params: scanned(heads_apart(params), axis=0),
  "scanned by Flaxformer": lambda params: scanned(heads_apart(params), axis=1, name="{stack}"),
  "a table in each layer": lambda params: relative_positions_in_layers(params, "relpos_bias"),
  "a table in each scanned layer": lambda params: scanned(
    relative_positions_in_layers(params, "relative_posemb"), axis=1
  ),
}


def zarr(folder: pathlib.Path, x: np.ndarray, *, compressor: str | None = "gzip") -> None:
  """Writes an array to a folder, in several chunks if it has several rows."""
  spec = {
    "driver": "zarr",
    "dtype": x.dtype.name,
    "context": {"file_io_sync": False},
    "kvstore": {"driver": "file", "path": str(folder)},
    "metadata": {
      "compressor": compressor and {"id": compressor},
      "shape": x.shape,
      "chunks": [max(1, -(-x.shape[0] // 2)), *x.shape[1:]] if x.ndim else [],
    },
  }
  tensorstore.open(spec, create=True, open=True).result().write(x).result()


def specification(path: str, driver: str) -> dict:
  """Returns the entry of T5X's msgpack file that replaces an array."""
  if driver == "gcs":
    return {"driver": "zarr", "dtype": "float32", "kvstore": {"driver": "gcs", "bucket": "gone"}, "path": path}
  return {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{path}/"}, "metadata": {"chunks": [3, 4]}}


OPTIMIZER = {"step": np.int32(7), "param_states": {"decoder": {"v": np.ones(3, np.float32), "m": None, "empty": {}}}}


def write(
  folder: pathlib.Path, params: dict[str, np.ndarray], *, reference: str = "file", optimizer: bool = True, inline=()
) -> pathlib.Path:
  """Writes a folder in T5X's format; `inline` arrays are in the msgpack file."""
  folder.mkdir(parents=True)
  tree = {}
  for name, x in params.items():
    path = "target." + name.replace("/", ".")
    if name in inline:
      tree[name] = x
      continue
    zarr(folder / path, x)
    tree[name] = f"PLACEHOLDER://{path}" if reference == "placeholder" else specification(path, reference)
  state = {"target": traverse_util.unflatten_dict(tree, sep="/")}
  state |= {"state": OPTIMIZER if optimizer else {}}
  content = state if reference == "placeholder" else {"version": 3, "optimizer": state}
  (folder / "checkpoint").write_bytes(serialization.to_bytes(content))
  return folder


def single_file(path: pathlib.Path, params: dict[str, np.ndarray]) -> pathlib.Path:
  """Writes T5X's older format: all arrays in one file."""
  state = {"target": traverse_util.unflatten_dict(params, sep="/"), "state": OPTIMIZER}
  path.write_bytes(serialization.to_bytes({"version": 3, "optimizer": state}))
  return path
