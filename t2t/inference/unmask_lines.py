"""Completes lines with a model of masked diffusion: fills their blanks, or writes a continuation."""

from collections.abc import Sequence
from typing import Any

import jax

from t2t import UserError
from t2t.checkpoints import pretrained
from t2t.inference import batch_inference, decoding, fill_mask, jsonl_io, prompt_builder, samples, text_generation
from t2t.inference.unmasking import blocks
from t2t.param_tree import Params


class UnmaskedLines(text_generation.Writing):
  """The way of a model of masked diffusion; see `batch_inference.Way`.

  A line without a blank is continued by `max_length` tokens, up to EOS. In a line with blanks, [MASK] or <extra_id_0>,
  each blank becomes one token, and the prediction is the whole text.

  Args: see `text_generation.Writing`.

  Raises:
    UserError: the model was not trained by masked diffusion, or an option does not apply.
  """

  form = jsonl_io.Form(row_fields=("fillings",))

  def __init__(
    self,
    source: pretrained.Source,
    mesh: jax.sharding.Mesh,
    *,
    decode: decoding.DecodeConfig,
    special_tokens: str = "",
    **options: Any,
  ):
    if not pretrained.is_diffusion(source):
      raise UserError(
        f"--decoder unmask: {source.name} was not trained by masked diffusion. Train with "
        "--config.train.loss=diffusion --config.data.objective=masked_diffusion, or leave out --decoder."
      )
    blocks(decode, source.model.block_length)
    super().__init__(source, mesh, decode=decode, special_tokens=special_tokens, **options)
    self._blanks = fill_mask.Blanks(
      self._vocabulary, source.model.architecture, special_tokens=prompt_builder.special_tokens(source, special_tokens)
    )
    self._most = decode.max_length
    defaults = decoding.DecodeConfig(decode.max_length)
    names = ("steps", "remasking", "block_length")
    changed = {name: getattr(decode, name) for name in names if getattr(decode, name) != getattr(defaults, name)}
    self.options |= {"decoder": "unmask"} | changed
    if decode.remasking == "random":
      self.options["seed"] = self._seed

  def check(self, line: jsonl_io.Line, where: str) -> None:
    number = len(fill_mask.BLANK.findall(line.text))
    if number > self._most:
      raise UserError(f"{where}: the text has {number} blanks. Give --max_length {number} or more.")

  def read(self, line: jsonl_io.Line) -> batch_inference.EncodedLine:
    if not fill_mask.BLANK.search(line.text):
      return super().read(line)
    ids = self._blanks.ids(line.text)
    kept = ids[: self.longest]
    error = "" if self._blanks.mask_id in kept else batch_inference.NO_BLANK
    return batch_inference.EncodedLine(kept, len(ids), len(ids) - len(kept), error)

  def answer(
    self, params: Params, inputs: Sequence[Any], *, numbers: Sequence[int], done: batch_inference.Done | None
  ) -> list[dict[str, Any]]:
    """Returns the continuation of each text, or the text with its blanks filled and the fillings; and the score."""
    written = self._predictor.generate(params, inputs, seed=self._seed, numbers=numbers, on_batch=done)
    mask_id, rows = self._blanks.mask_id, []
    for ids, generation in zip(inputs, written, strict=True):
      row = prompt_builder.answer(generation, self._vocabulary)
      if mask_id in ids:
        filled = iter(generation.tokens[0])
        tokens = [next(filled) if token == mask_id else token for token in ids]
        fillings = [self._token_text(new) for new, old in zip(tokens, ids, strict=True) if old == mask_id]
        row |= {"prediction": samples.named_text(self._vocabulary, tokens), "fillings": fillings}
      rows.append(row)
    return rows

  def _token_text(self, token: int) -> str:
    return samples.named_text(self._vocabulary, [token])
