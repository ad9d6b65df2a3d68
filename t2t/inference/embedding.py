"""Vectors of texts: hidden states of a model of any architecture, pooled over positions, of one layer or of all."""

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
  """Of all positions of a text, special tokens included."""
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


def _vectors(graphdef: nnx.GraphDef, pool: str, layers: Sequence[int], params: Params, batch: Batch) -> jax.Array:
  """float32 [batch, layers, embed]."""
  model = nnx.merge(graphdef, params)
  last = num_layers(model.config)
  states = model.states(batch, every_layer=True) if tuple(layers) != (last,) else model.states(batch)[None]
  real = real_positions(batch, model.architecture.answers)
  chosen = states[jnp.array(layers)] if len(states) > 1 else states
  return jnp.swapaxes(POOLS[pool](chosen, real), 0, 1)


def num_layers(model: TransformerConfig) -> int:
  """Of the side that is read; the state of this number is the last, and that of 0 what was embedded."""
  return model.num_encoder_layers if model.kind.answers == "encoder" else model.num_decoder_layers


def layers_of(model: TransformerConfig, wanted: str) -> tuple[int, ...]:
  """The numbers of the states that are wanted.

  Args:
    model: whose they are.
    wanted: a number, "all", or "" for the last.

  Raises:
    UserError: there is no such layer.
  """
  last = num_layers(model)
  if wanted == "all":
    return tuple(range(last + 1))
  if not wanted:
    return (last,)
  if not wanted.isdecimal() or int(wanted) > last:
    raise UserError(f"--layer {wanted}: give 0, which is what was embedded, to {last}, the last, or all")
  return (int(wanted),)


class Embedder:
  """Reads texts with one model; each shape of a batch is compiled once.

  Every host calls it with the same examples, and gets all vectors.

  Args:
    config: of the model.
    graphdef: its structure.
    mesh: on which its parameters lie.
    pool: a key of `POOLS`.
    layers: see `layers_of`.
    pad_id: fills a row.
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
    self._shape = (len(layers), config.embed_dim)
    self._batches = row_batches.RowBatches(config, mesh, pad_id=pad_id, batch_size=batch_size)
    self._program = jax.jit(functools.partial(_vectors, graphdef, pool, tuple(layers)))

  def vectors(
    self, params: Params, examples: Sequence[row_batches.Example], *, on_batch: batch_inference.Done | None = None
  ) -> np.ndarray:
    """float32 [examples, layers, embed].

    Args:
      params: nested dict.
      examples: inputs, token_types, texts: int [length].
      on_batch: called after each batch.

    Raises:
      UserError: they are not finite.
    """
    all_vectors = np.zeros((len(examples), *self._shape), np.float32)
    for indices, vectors in self._batches.run(self._program, params, examples, on_batch=on_batch):
      all_vectors[indices] = vectors[: len(indices)]
    if not np.isfinite(all_vectors).all():
      raise UserError("--checkpoint: a vector is not finite: its training had gone wrong; take another")
    return all_vectors


class Embedding:
  """The way of a model that is asked for vectors; see `batch_inference.Way`.

  A text is framed as the model reads it in pre-training: [CLS] a [SEP], a EOS, or of a decoder alone BOS a.

  Args:
    source: the checkpoint.
    mesh: on which its parameters are.
    pool: a key of `POOLS`.
    layer: see `layers_of`.
    longest: tokens of a line at most, special tokens included.
    batch_size: lines of a batch, over all devices.
  """

  asks, unit = "embed", "tokens"
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
    vector_shape = (model.config.embed_dim,)
    self.shape = (len(layers), *vector_shape) if layer == "all" else vector_shape
    self.options = {"inputs_length": longest, "pool": pool, "layer": layer or str(layers[0])}

  def check(self, line: jsonl_io.Line, where: str) -> None:
    """Any text will do."""

  def read(self, line: jsonl_io.Line) -> batch_inference.EncodedLine:
    """See `batch_inference.Way`."""
    features, cut = self._converter({"parts": line.others.get("parts", [line.text])})
    encoded = {name: features[name].tolist() for name in ("inputs", "token_types", "texts")}
    return batch_inference.EncodedLine(encoded, len(features["inputs"]) + cut, cut)

  def answer(
    self, params: Params, inputs: Sequence[Any], *, numbers: Sequence[int], done: batch_inference.Done | None
  ) -> list[dict[str, Any]]:
    """A vector, float32 in the shape that `shape` says."""
    del numbers
    vectors = self._embedder.vectors(params, inputs, on_batch=done)
    return [{"vector": vector.reshape(self.shape)} for vector in vectors]
