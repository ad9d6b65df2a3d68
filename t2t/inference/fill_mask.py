"""Predicts the tokens in the blanks of each line, with a masked language model."""

from collections.abc import Callable, Mapping, Sequence
import functools
import re
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from t2t import UserError
from t2t.checkpoints import pretrained
from t2t.inference import batch_inference, jsonl_io, prompt_builder, prompt_features, row_batches, samples
from t2t.models.architecture import Batch
from t2t.param_tree import Params

BLANK = re.compile(r"\[MASK\]|<mask>|<extra_id_[0-9]+>")
_FEWEST = 4  # minimum padded number of blanks per row; padding below this costs next to nothing


class Blanks:
  """Converts text with blanks to model input, with a mask token for each blank.

  A blank is written [MASK], <mask> or <extra_id_0>, if the vocabulary has it.

  Args:
    vocabulary: of the model.
    architecture: of the model.
    special_tokens: "all" also parses the names of other control tokens; otherwise they are plain text.

  Raises:
    UserError: the vocabulary has no mask.
  """

  def __init__(self, vocabulary, architecture: str, *, special_tokens: str = "blanks"):
    from t2t.data import head_examples, vocabularies

    self._vocabulary, self.mask_id = vocabulary, vocabularies.mask_id(vocabulary)
    # Blanks are always parsed; without them there is nothing to fill.
    self._encode = functools.partial(
      vocabularies.encode_text, vocabulary, special_tokens="all" if special_tokens == "all" else "blanks"
    )
    framing = head_examples.Framing.of(vocabulary, architecture)
    self._begin, self._end = list(framing.begin), list(framing.end)
    names = {self.mask_id: vocabularies.token_texts(vocabulary)[self.mask_id].strip()}
    if vocabularies.num_sentinels(vocabulary):
      names = {vocabularies.sentinel_ids(vocabulary, 1)[0]: "<extra_id_0>"} | names
    # Only names that the vocabulary itself parses.
    self._names = {token: name for token, name in names.items() if self._encode(name).count(token) == 1}

  def __call__(self, text: str, longest: int) -> tuple[list[int], int]:
    """Returns ids with special tokens, truncated to `longest`, and the number of truncated ids."""
    ids = self.ids(text)
    room = longest - len(self._begin) - len(self._end)
    return [*self._begin, *ids[:room], *self._end], max(0, len(ids) - room)

  def ids(self, text: str) -> list[int]:
    """Returns ids without special tokens around them, with the mask in place of each blank."""
    pieces = BLANK.split(text)
    for token, name in self._names.items():
      ids = self._encode(name.join(pieces))
      if ids.count(token) == len(pieces) - 1:
        return [self.mask_id if token_id == token else token_id for token_id in ids]
    # The vocabulary cannot parse its mask token.
    encoded = [self._encode(piece) for piece in pieces]
    return [*encoded[0], *(token for piece_ids in encoded[1:] for token in (self.mask_id, *piece_ids))]

  def places(self, ids: Sequence[int]) -> list[int]:
    """Returns the positions of the masks."""
    return [index for index, token in enumerate(ids) if token == self.mask_id]


def _likeliest(
  graphdef: nnx.GraphDef, top: int, most: int, mask_id: int, params: Params, batch: Batch
) -> tuple[jax.Array, jax.Array]:
  """Returns ids and log-probabilities of the likeliest tokens at batch["places"], best first, [batch, places, top]."""
  model, batch = nnx.merge(graphdef, params), dict(batch)
  places = batch.pop("places")
  batch = prompt_features.predicted_last(model.config, batch, mask_id)
  hidden = jnp.take_along_axis(model(batch), places[..., None], axis=1)
  log_p = jax.nn.log_softmax(model.logits(hidden))
  # Embedding rows beyond the vocabulary have no token.
  values, ids = jax.lax.top_k(log_p[..., :most], top)
  return ids, values


class Filling:
  """The way of a masked language model; see `batch_inference.Way`.

  Args:
    source: the checkpoint.
    mesh: on which its parameters are loaded.
    top: number of predictions for each blank.
    longest: maximum number of tokens of a line, including special tokens.
    batch_size: lines of a batch, over all devices.
    special_tokens: see `Blanks`.

  Raises:
    UserError: `top` is out of range, or the vocabulary has no mask.
  """

  asks, unit, remarks = "fill", "tokens", ()
  form, pairs = jsonl_io.TEXTS, False
  nothing: Mapping[str, Any] = {"prediction": None, "score": None, "fillings": None}

  def __init__(
    self,
    source: pretrained.Source,
    mesh: jax.sharding.Mesh,
    *,
    top: int,
    longest: int,
    batch_size: int,
    special_tokens: str = "",
  ):
    from t2t.data import vocabularies

    special_tokens = prompt_builder.special_tokens(source, special_tokens)
    model = pretrained.abstract(source, mesh)
    self._vocabulary = pretrained.vocabulary(source)
    self._texts = vocabularies.token_texts(self._vocabulary)
    if not 1 <= top <= len(self._texts):
      raise UserError(f"--top {top} must be 1 to {len(self._texts):,}, the size of the vocabulary")
    self.longest, self.cut_to = longest, f"{longest:,} tokens"
    self._blanks = Blanks(self._vocabulary, model.config.architecture, special_tokens=special_tokens)
    self._hidden = vocabularies.framing_ids(self._vocabulary)
    pad_id = max(self._vocabulary.pad_id, 0)
    self._batches = row_batches.RowBatches(model.config, mesh, pad_id=pad_id, batch_size=batch_size, longest=longest)
    most = min(len(self._texts), model.config.vocab_size)
    self._program: Callable = jax.jit(functools.partial(_likeliest, model.graphdef, top, most, self._blanks.mask_id))
    self.options = {"inputs_length": longest, "top": top} | prompt_builder.said(special_tokens)

  def check(self, line: jsonl_io.Line, where: str) -> None:
    """Accepts any text; a line without a blank gets an error in its row."""

  def read(self, line: jsonl_io.Line) -> batch_inference.EncodedLine:
    ids, cut = self._blanks(line.text, self.longest)
    positions = BLANK.search(line.text) and self._blanks.places(ids)
    return batch_inference.EncodedLine(ids, len(ids) + cut, cut, "" if positions else batch_inference.NO_BLANK)

  def answer(
    self, params: Params, inputs: Sequence[Any], *, numbers: Sequence[int], done: batch_inference.Done | None
  ) -> list[dict[str, Any]]:
    """Returns each text with its blanks filled, and the likeliest tokens of each blank."""
    del numbers
    places = [self._blanks.places(ids) for ids in inputs]
    rows: list[dict[str, Any]] = [{}] * len(inputs)
    examples = [{"inputs": ids} for ids in inputs]
    extra_features = {"places": (places, _number)}
    for indices, (ids, log_p) in self._batches.run(
      self._program, params, examples, beside=extra_features, on_batch=done
    ):
      for i, of_ids, of_log_p in zip(indices, ids, log_p, strict=False):
        rows[i] = self._fields(inputs[i], places[i], of_ids, of_log_p)
    return rows

  def _fields(
    self, ids: Sequence[int], places: Sequence[int], filling_ids: np.ndarray, log_p: np.ndarray
  ) -> dict[str, Any]:
    score = prompt_builder.rounded(float(log_p[: len(places), 0].sum()))
    if not np.isfinite(score):
      raise UserError(f"--checkpoint: the model produced {score} as the score of a filling; use a different checkpoint")
    filled = list(ids)
    for position, likeliest in zip(places, filling_ids, strict=False):
      filled[position] = int(likeliest[0])
    text = samples.named_text(self._vocabulary, [token for token in filled if token not in self._hidden])
    fillings = [
      [
        {"text": self._texts[token].strip(), "id": int(token), "probability": prompt_builder.rounded(float(np.exp(x)))}
        for token, x in zip(*of_blank, strict=True)
      ]
      for of_blank in zip(filling_ids[: len(places)], log_p, strict=False)
    ]
    return {"prediction": text, "score": score, "fillings": fillings}


def _number(places: int) -> int:
  """Returns the padded number of blanks."""
  return max(_FEWEST, 1 << (places - 1).bit_length())
