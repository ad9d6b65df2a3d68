"""Attention maps: attention probabilities of one layer and head for one text, shown on the page."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from t2t import UserError
from t2t.inference import predictor
from t2t.models.architecture import Batch
from t2t.models.config import TransformerConfig
from t2t.param_tree import Params
from t2t.serving import request_schema, routes

# Maximum tokens of each side: a map is quadratic in them, and each call computes all layers of a head.
MOST = 128
_NO_LIMIT = 1 << 30


@dataclasses.dataclass(frozen=True)
class AttentionMapKey:
  """Selects a map: a kind of `Architecture.attentions`, a layer and a head, both from 1."""

  which: str
  layer: int
  head: int


def sizes(config: TransformerConfig, kinds: Sequence[str]) -> dict[str, dict[str, int]]:
  """Returns the numbers of layers and heads of each kind of attention."""
  layers = {"encoder": config.num_encoder_layers}
  heads = {"encoder": config.of_stack("encoder").num_heads}
  return {
    kind: {"layers": layers.get(kind, config.num_decoder_layers), "heads": heads.get(kind, config.num_heads)}
    for kind in kinds
  }


def place_fields(kind: str, size: Mapping[str, int]) -> tuple[request_schema.Field, ...]:
  """Returns the request fields that select a map of one kind of attention."""
  return (
    request_schema.Field("which", "string", "Kind of attention.", choices=(kind,), required=True),
    request_schema.Field("layer", "integer", "Layer, from 1.", least=1, most=size["layers"], default=1),
    request_schema.Field("head", "integer", "Head, from 1.", least=1, most=size["heads"], default=1),
  )


def taken(values: dict[str, Any], of: Mapping[str, Mapping[str, int]]) -> AttentionMapKey:
  """Removes the fields that select a map from a request, and returns the selection.

  Raises:
    FieldError: a field is missing or invalid.
  """
  which_field = request_schema.Field("which", "string", "", choices=tuple(of), required=True)
  map_fields = {name: values.pop(name) for name in ("which", "layer", "head") if name in values}
  kind = request_schema.check({name: x for name, x in map_fields.items() if name == "which"}, [which_field])["which"]
  checked = request_schema.check(map_fields, place_fields(kind, of[kind]))
  return AttentionMapKey(kind, checked.get("layer", 1), checked.get("head", 1))


REPLIES = routes.record(
  which=routes.TEXT,
  layer=routes.COUNT,
  head=routes.COUNT,
  queries=routes.listed(routes.TEXT | {"description": "Query tokens, one for each row."}),
  keys=routes.listed(routes.TEXT | {"description": "Key tokens, one for each column."}),
  weights=routes.listed(routes.listed(routes.number(0) | {"maximum": 1})),
)


class Maps:
  """Computes attention maps of one model, with its training forward pass and without a cache.

  Args:
    graphdef: of the model; each call takes the parameters.
    mesh: on which they are loaded.
  """

  def __init__(self, graphdef: nnx.GraphDef, mesh: jax.sharding.Mesh):
    self._mesh = mesh
    self._program: Callable = jax.jit(functools.partial(_map, graphdef), static_argnums=0)

  def __call__(
    self, params: Params, batch: Mapping[str, np.ndarray], map_key: AttentionMapKey, *, tokens: Mapping[str, list[str]]
  ) -> dict[str, Any]:
    """Returns the tokens and attention probabilities, in the format of `REPLIES`.

    Args:
      params: nested dict.
      batch: model features of one text.
      map_key: selects the map.
      tokens: side -> names of its positions, without padding.
    """
    queries, keys = ("decoder", "encoder") if map_key.which == "cross" else (map_key.which, map_key.which)
    with jax.set_mesh(self._mesh):
      arrays = {name: jnp.asarray(x) for name, x in batch.items()}
      attention = self._program(
        map_key.which, params, arrays, jnp.asarray(map_key.layer - 1), jnp.asarray(map_key.head - 1)
      )
      attention = np.asarray(attention, np.float32)
    if not np.isfinite(attention).all():
      raise UserError(
        "--checkpoint: the model produced attention probabilities of NaN or Inf; use a different checkpoint"
      )
    labels = []
    for axis, side in enumerate((queries, keys)):
      # Learned positions come first, padding last.
      in_front = attention.shape[axis] - batch[f"{side}_input_tokens"].shape[1]
      labels.append([*(f"[learned {number + 1}]" for number in range(in_front)), *tokens[side]])
    weights = attention[: len(labels[0]), : len(labels[1])]
    return {
      **dataclasses.asdict(map_key),
      "queries": labels[0],
      "keys": labels[1],
      "weights": [[round(float(x), 4) for x in row] for row in weights],
    }


def _map(graphdef: nnx.GraphDef, kind: str, params: Params, batch: Batch, layer: jax.Array, head: jax.Array):
  return jnp.take(nnx.merge(graphdef, params).attention_map(batch, kind, head), layer, axis=0)[0]


def named(ids: Sequence[int], texts: Sequence[str]) -> list[str]:
  """Returns the names of tokens; `texts` has the text of each vocabulary id."""
  return [texts[x] if x < len(texts) else f"[{x}]" for x in map(int, ids)]


def width(length: int, config: TransformerConfig, side: str) -> int:
  """Returns the padded length.

  Raises:
    UserError: the text is too long for a map.
  """
  if length > MOST:
    raise UserError(
      f"the {side} input has {length:,} tokens, more than the {MOST} of an attention map; shorten the text"
    )
  return predictor.bucket(length, min(MOST, config.most_positions or _NO_LIMIT))
