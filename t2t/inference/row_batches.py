"""Batches for models that read texts without generating: one example per row, one program per shape."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from t2t import feature_spec as features_lib
from t2t import sharding
from t2t.inference import predictor, prompt_features
from t2t.models.architecture import Batch
from t2t.models.config import TransformerConfig
from t2t.param_tree import Params

Example = Mapping[str, Any]  # inputs; token_types, texts and answer_heads if not 0: int [length]


def features_of(examples: Sequence[Example], width: int, *, side: str, pad_id: int) -> dict[str, np.ndarray]:
  """Returns a batch with one example per row; texts of an example that do not attend to each other are segments.

  In:  [{"inputs": [101, 7, 101, 8], "token_types": [0, 0, 0, 0], "texts": [0, 0, 1, 1]}], width 5, side "encoder"
  Out: {"encoder_input_tokens": [[101, 7, 101, 8, 0]], "encoder_segment_ids": [[1, 1, 2, 2, 0]],
        "encoder_positions": [[0, 1, 0, 1, 0]], "encoder_token_types": [[0, 0, 0, 0, 0]]}

  A decoder has decoder_causal_attention instead of token types: 1 for every token, a bidirectional prefix.
  """
  of_tokens = lambda name: [np.asarray(x.get(name, [0] * len(x["inputs"])), np.int32) for x in examples]
  segments_and_positions = [features_lib.texts_apart(np.ones_like(texts), texts) for texts in of_tokens("texts")]
  segments, positions = zip(*segments_and_positions, strict=True)
  unprefixed = {
    "input_tokens": prompt_features.padded([example["inputs"] for example in examples], width, pad_id),
    "segment_ids": prompt_features.padded(segments, width, 0),
    "positions": prompt_features.padded(positions, width, 0),
  }
  if side == "encoder":
    unprefixed["token_types"] = prompt_features.padded(of_tokens("token_types"), width, 0)
  else:
    unprefixed["causal_attention"] = (unprefixed["segment_ids"] > 0).astype(np.int32)
  return {f"{side}_{name}": x for name, x in unprefixed.items()}


class RowBatches:
  """Runs programs on examples in batches of similar lengths.

  Every host calls it with the same examples, and gets all results.

  Args:
    config: of the model.
    mesh: on which the parameters are loaded.
    pad_id: padding token.
    batch_size: rows of a batch, over all devices.
    longest: maximum number of tokens of a row, for models without learned positions; 0: unlimited.
  """

  def __init__(
    self, config: TransformerConfig, mesh: jax.sharding.Mesh, *, pad_id: int, batch_size: int, longest: int = 0
  ):
    self._mesh, self._side, self._pad_id = mesh, config.kind.answers, pad_id
    self._longest = config.most_positions or longest or 1 << 30
    self._sharding = sharding.batch_sharding(mesh)
    shards = sharding.num_shards("batch", mesh)
    self._rows = -(-batch_size // shards) * shards

  def width(self, number: int) -> int:
    """Returns the number of positions of a row with an example of `number` tokens."""
    return predictor.bucket(number, self._longest)

  def run(
    self,
    program: Callable[[Params, Batch], Any],
    params: Params,
    examples: Sequence[Example],
    *,
    beside: Mapping[str, tuple[Sequence[Sequence[int]], Callable[[int], int]]] | None = None,
    on_batch: Callable[[int, int], None] | None = None,
  ) -> Iterator[tuple[list[int], Any]]:
    """Yields the indices of the examples of a batch, and the program's output for the batch, on the host.

    Args:
      program: compiled once for each shape.
      params: nested dict.
      examples: see `Example`.
      beside: further features: name -> values of each example, and a function from their number to its padded
        size.
      on_batch: called with the number of examples and of their tokens after each batch.
    """
    beside = beside or {}
    shapes = [
      (self.width(len(example["inputs"])), *(size(len(x[i])) for x, size in beside.values()))
      for i, example in enumerate(examples)
    ]
    for (width, *sizes), indices in predictor.by_width(shapes, self._rows):
      rows = [examples[i] for i in indices]
      features = features_of(rows, width, side=self._side, pad_id=self._pad_id)
      for (name, (x, _)), size in zip(beside.items(), sizes, strict=True):
        features[name] = prompt_features.padded([x[i] for i in indices], size, 0)
      with jax.set_mesh(self._mesh):
        batch = predictor.placed(features, self._rows, self._sharding)
        outputs = jax.tree.map(predictor.gathered, program(params, batch))
      yield indices, outputs
      if on_batch is not None:
        on_batch(len(indices), sum(len(row["inputs"]) for row in rows))
