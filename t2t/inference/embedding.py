"""Text embeddings: pooled hidden states of one layer or of all layers, for any architecture."""

from collections.abc import Callable, Mapping, Sequence
import functools
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from t2t import UserError
from t2t.checkpoints import pretrained
from t2t.inference import batch_inference, jsonl_io, row_batches
from t2t.models.architecture import Batch, real_positions
from t2t.models.config import TransformerConfig
from t2t.param_tree import Params


def _mean(states: jax.Array, real: jax.Array) -> jax.Array:
  """Averages over all positions of a text, including special tokens."""
  share = real / jnp.maximum(jnp.sum(real, axis=-1, keepdims=True), 1)
  return jnp.einsum("bl,...ble->...be", share.astype(jnp.float32), states.astype(jnp.float32), precision="highest")


def _first(states: jax.Array, real: jax.Array) -> jax.Array:
  del real
  return states[..., 0, :].astype(jnp.float32)


def _last(states: jax.Array, real: jax.Array) -> jax.Array:
  last_index = jnp.sum(real, axis=-1) - 1
  return jax.vmap(lambda row, index: row[..., index, :], in_axes=(-3, 0), out_axes=-2)(states, last_index).astype(
    jnp.float32
  )


# Name -> (states [..., batch, length, embed], bool [batch, length]) -> float32 [..., batch, embed]
POOLS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {"mean": _mean, "first": _first, "last": _last}


def layer_states(model: nnx.Module, layers: Sequence[int], batch: Batch) -> jax.Array:
  """Returns hidden states of the requested layers, [layers, batch, length, embed]."""
  if tuple(layers) == (num_layers(model.config),):
    return model.states(batch)[None]
  return model.states(batch, every_layer=True)[jnp.array(layers)]


def _vectors(graphdef: nnx.GraphDef, pool: str, layers: Sequence[int], params: Params, batch: Batch) -> jax.Array:
  """Computes embeddings, float32 [batch, layers, embed]."""
  model = nnx.merge(graphdef, params)
  real = real_positions(batch, model.architecture.answers)
  return jnp.swapaxes(POOLS[pool](layer_states(model, layers, batch), real), 0, 1)


def num_layers(model: TransformerConfig) -> int:
  """Returns the number of layers of the stack that is pooled; state 0 is the output of the embedding layer."""
  return model.num_encoder_layers if model.kind.answers == "encoder" else model.num_decoder_layers


def layers_of(model: TransformerConfig, wanted: str) -> tuple[int, ...]:
  """Returns the numbers of the requested hidden states.

  Args:
    model: config of the model.
    wanted: a number, "all", or "" for the last layer.

  Raises:
    UserError: the layer does not exist.
  """
  last = num_layers(model)
  if wanted == "all":
    return tuple(range(last + 1))
  if not wanted:
    return (last,)
  if not wanted.isdecimal() or int(wanted) > last:
    raise UserError(f"--layer {wanted}: no such layer; give 0 (embedding layer) to {last} (last layer), or 'all'")
  return (int(wanted),)


def run_options(longest: int, *, pool: str, layer: str, layers: Sequence[int]) -> dict[str, Any]:
  """Returns the options that embeddings depend on, as the record of a run has them."""
  return {"inputs_length": longest, "pool": pool, "layer": layer or str(layers[0])}


class Embedder:
  """Computes embeddings with one model; compiles once for each batch shape.

  Every host calls it with the same examples, and gets all embeddings.

  Args:
    config: of the model.
    graphdef: structure of the model.
    mesh: on which its parameters are loaded.
    pool: a key of `POOLS`.
    layers: see `layers_of`.
    pad_id: padding token.
    batch_size: rows of a batch, over all devices.
  """

  def __init__(
    self,
    config: TransformerConfig,
    graphdef: nnx.GraphDef,
    mesh: jax.sharding.Mesh,
    *,
    pool: str,
    layers: Sequence[int],
    pad_id: int,
    batch_size: int,
  ):
    self._shape = (len(layers), config.of_stack(config.kind.answers).embed_dim)
    self._batches = row_batches.RowBatches(config, mesh, pad_id=pad_id, batch_size=batch_size)
    self._program = jax.jit(functools.partial(_vectors, graphdef, pool, tuple(layers)))

  def vectors(
    self, params: Params, examples: Sequence[row_batches.Example], *, on_batch: batch_inference.Done | None = None
  ) -> np.ndarray:
    """Returns embeddings, float32 [examples, layers, embed].

    Args:
      params: nested dict.
      examples: inputs, token_types, texts: int [length].
      on_batch: called after each batch.

    Raises:
      UserError: an embedding has NaN or Inf.
    """
    all_vectors = np.zeros((len(examples), *self._shape), np.float32)
    for indices, vectors in self._batches.run(self._program, params, examples, on_batch=on_batch):
      all_vectors[indices] = vectors[: len(indices)]
    if not np.isfinite(all_vectors).all():
      raise UserError("--checkpoint: the model produced an embedding with NaN or Inf; use a different checkpoint")
    return all_vectors


class Embedding:
  """The way of `t2t embed`; see `batch_inference.Way`.

  Texts get the same special tokens as in pre-training: [CLS] a [SEP], a EOS, or BOS a for a decoder-only model.

  Args:
    source: the checkpoint.
    mesh: on which its parameters are loaded.
    pool: a key of `POOLS`.
    layer: see `layers_of`.
    longest: maximum number of tokens of a line, including special tokens.
    batch_size: lines of a batch, over all devices.
  """

  asks, unit, remarks = "embed", "tokens", ()
  form, pairs = jsonl_io.Form(lists=("parts",)), True
  nothing: Mapping[str, Any] = {"vector": None}

  def __init__(
    self, source: pretrained.Source, mesh: jax.sharding.Mesh, *, pool: str, layer: str, longest: int, batch_size: int
  ):
    from t2t.data import head_examples, vocabularies

    vocabulary, model = vocabularies.as_text(pretrained.vocabulary(source)), pretrained.abstract(source, mesh)
    self.longest, self.cut_to = longest, f"{longest:,} tokens"
    layers = layers_of(model.config, layer)
    self._converter = head_examples.HeadFeatureConverter(vocabulary, model.config.architecture, None, longest)
    self._embedder = Embedder(
      model.config,
      model.graphdef,
      mesh,
      pool=pool,
      layers=layers,
      pad_id=max(vocabulary.pad_id, 0),
      batch_size=batch_size,
    )
    vector_shape = (model.config.of_stack(model.config.kind.answers).embed_dim,)
    self.shape = (len(layers), *vector_shape) if layer == "all" else vector_shape
    self.options = run_options(longest, pool=pool, layer=layer, layers=layers)

  def check(self, line: jsonl_io.Line, where: str) -> None:
    """Accepts any text."""

  def read(self, line: jsonl_io.Line) -> batch_inference.EncodedLine:
    features, cut = self._converter({"parts": line.others.get("parts", [line.text])})
    encoded = {name: features[name].tolist() for name in ("inputs", "token_types", "texts")}
    return batch_inference.EncodedLine(encoded, len(features["inputs"]) + cut, cut)

  def answer(
    self, params: Params, inputs: Sequence[Any], *, numbers: Sequence[int], done: batch_inference.Done | None
  ) -> list[dict[str, Any]]:
    """Returns an embedding for each line, float32 of shape `self.shape`."""
    del numbers
    vectors = self._embedder.vectors(params, inputs, on_batch=done)
    return [{"vector": vector.reshape(self.shape)} for vector in vectors]
