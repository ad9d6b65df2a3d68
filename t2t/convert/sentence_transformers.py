"""Files with which sentence-transformers loads an exported encoder and pools its states."""

import json
from typing import Any

from t2t.models.config import TransformerConfig

# Pool of t2t, which is also what a vector head reads -> key of 1_Pooling/config.json in all releases from 2 on.
_POOLS = {"mean": "pooling_mode_mean_tokens", "first": "pooling_mode_cls_token", "last": "pooling_mode_lasttoken"}
_DEFAULT = "mean"  # pool of `t2t embed`
_PACKAGE = "sentence_transformers.models"


def trained_pool(model: TransformerConfig) -> str:
  """Returns the pool that a model was trained with: what its vector head reads, or the default of `t2t embed`.

  In:  an encoder with {"kind": "vector"} in config.model.heads
  Out: "first"
  """
  vector_heads = [head for head in model.heads if head.kind == "vector"]
  return vector_heads[0].spelled_out(model.kind).reads if len(vector_heads) == 1 else _DEFAULT


def files(model: TransformerConfig) -> dict[str, bytes]:
  """Returns file name -> content; {} for a generative model, or a pool that sentence-transformers lacks.

  The model is loaded without its heads, so its vectors are those of `t2t embed` with `trained_pool`.
  """
  pool = trained_pool(model)
  if model.kind.is_generative or pool not in _POOLS:
    return {}
  modules = (("", "Transformer"), ("1_Pooling", "Pooling"))
  contents: dict[str, Any] = {
    "modules.json": [
      {"idx": index, "name": str(index), "path": path, "type": f"{_PACKAGE}.{name}"}
      for index, (path, name) in enumerate(modules)
    ],
    "1_Pooling/config.json": {"word_embedding_dimension": model.embed_dim}
    | {key: key == _POOLS[pool] for key in _POOLS.values()},
  }
  return {name: f"{json.dumps(content, indent=2)}\n".encode() for name, content in contents.items()}
