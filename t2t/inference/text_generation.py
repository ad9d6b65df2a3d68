"""Generates text for each line."""

from collections.abc import Mapping, Sequence
import re
from typing import Any

import jax

from t2t import UserError
from t2t.checkpoints import pretrained
from t2t.inference import batch_inference, decoding, jsonl_io, predictor, prompt_builder, prompt_features
from t2t.param_tree import Params
from t2t.runtime import numeric


class Writing:
  """The way of a generative model; see `batch_inference.Way`.

  Args:
    source: the checkpoint.
    mesh: on which its parameters are loaded.
    decode: decoding options.
    seed: of the samples.
    longest: maximum number of tokens of a line, EOS included.
    ends_prompts: whether EOS ends a prompt.
    batch_size: lines of a batch, over all devices.
    special_tokens: see `prompt_builder.special_tokens`.
  """

  asks, unit = "write", "new tokens"
  form, pairs = jsonl_io.Form(row_fields=("filled",)), False
  nothing: Mapping[str, Any] = {"prediction": None, "score": None}

  def __init__(
    self,
    source: pretrained.Source,
    mesh: jax.sharding.Mesh,
    *,
    decode: decoding.DecodeConfig,
    seed: int,
    longest: int,
    ends_prompts: bool,
    batch_size: int,
    special_tokens: str = "",
  ):
    special_tokens = prompt_builder.special_tokens(source, special_tokens)
    self.longest, self.cut_to, self._seed = longest, f"{longest:,} tokens", seed
    self._vocabulary = pretrained.vocabulary(source)
    self._prompts = prompt_builder.Prompts(
      self._vocabulary,
      ends=ends_prompts,
      longest=longest,
      special_tokens=special_tokens,
      prefix=prompt_builder.prefix(source),
    )
    model = pretrained.abstract(source, mesh)
    framing = prompt_features.framing(self._vocabulary, causal=pretrained.reads_causally(source))
    self._predictor = predictor.Predictor(
      model.config, model.graphdef, mesh, framing, decode=decode, batch_size=batch_size, max_inputs=longest
    )
    self.options = {"inputs_length": longest, "max_length": decode.max_length, "beam": decode.num_beams}
    if decode.num_beams > 1:
      self.options["length_penalty"] = decode.length_penalty
    # Default values are omitted, so that older outputs can be resumed.
    if ends_prompts != source.model.kind.has_encoder_and_decoder:
      self.options["prompt_eos"] = "yes" if ends_prompts else "no"
    self.options |= prompt_builder.said(special_tokens)
    if prefix := prompt_builder.prefix(source).text:
      self.options["prefix"] = prefix
    if decode.min_length:
      self.options["min_length"] = decode.min_length
    self.options["temperature"] = decode.temperature
    if decode.temperature:
      self.options |= {"top_k": decode.top_k, "top_p": decode.top_p, "seed": seed}

  def check(self, line: jsonl_io.Line, where: str) -> None:
    """Accepts any text."""

  @property
  def remarks(self) -> Sequence[str]:
    counts = self._predictor.counts
    if not counts["drafted"]:
      return ()
    share = counts["accepted"] / counts["drafted"]
    return (f"drafts         {share:.0%} of {counts['drafted']:,.0f} accepted",)

  def read(self, line: jsonl_io.Line) -> batch_inference.EncodedLine:
    tokens, cut = self._prompts(line.text)
    encoded = {"inputs": tokens, "text": line.text} if BLANK.search(line.text) else tokens
    return batch_inference.EncodedLine(encoded, len(tokens) + cut, cut)

  def without_prefix(self, text: str) -> batch_inference.EncodedLine:
    """Converts a text that has its own format to model input."""
    tokens, cut = self._prompts.without_prefix(text)
    return batch_inference.EncodedLine(tokens, len(tokens) + cut, cut)

  def answer(
    self, params: Params, inputs: Sequence[Any], *, numbers: Sequence[int], done: batch_inference.Done | None
  ) -> list[dict[str, Any]]:
    """Returns text and score, with beam search also alternatives; for a text with blanks also the filled text."""
    prompts = [prompt["inputs"] if isinstance(prompt, Mapping) else prompt for prompt in inputs]
    written = self._predictor.generate(params, prompts, seed=self._seed, numbers=numbers, on_batch=done)
    rows = [prompt_builder.answer(generation, self._vocabulary) for generation in written]
    return [
      row | {"filled": filled(line_input["text"], row["prediction"])} if isinstance(line_input, Mapping) else row
      for row, line_input in zip(rows, inputs, strict=True)
    ]


BLANK = re.compile(r"<extra_id_[0-9]+>")


def filled(text: str, prediction: str) -> str:
  """Fills the blanks of a text with the prediction of a span corruption model.

  In:  "The default <extra_id_0> is None.", "<extra_id_0> value <extra_id_1> the <extra_id_2> of"
  Out: "The default value is None."

  Blanks that the text lacks are ignored; a blank without a prediction stays.
  """
  names = BLANK.findall(prediction)
  texts = dict(zip(reversed(names), (part.strip() for part in reversed(BLANK.split(prediction)[1:])), strict=True))

  def fill(match: re.Match[str]) -> str:
    filling = texts.get(match[2])
    return match[0] if filling is None else f"{match[1]}{filling}" if filling else ""

  return re.sub(rf"([ \t]*)({BLANK.pattern})", fill, text).strip()


def decode_config(
  *,
  max_length: int,
  min_length: int | None = None,
  beam: int = 1,
  length_penalty: float | None = None,
  temperature: float | None = None,
  top_p: float | None = None,
  top_k: int | None = None,
  steps: int | None = None,
  remasking: str = "",
  block_length: int | None = None,
) -> decoding.DecodeConfig:
  """Returns the decoding options of the command's flags; None: flag not given.

  The default `min_length` for beam search is 1. The likeliest text is often empty; greedy decoding does not
  choose it, but a search finds it (Stahlberg & Byrne 2019).

  Raises:
    UserError: a value is out of range, or flags contradict each other.
  """
  unmasking = {"steps": steps, "block_length": block_length}
  unmasking = {name: value for name, value in unmasking.items() if value is not None}
  for name, value in unmasking.items():
    if not 1 <= value <= max_length:
      raise UserError(
        f"--{name} {value} must be 1 to {max_length}, the value of --max_length: each step fills at least one token"
      )
  counts = {"max_length": max_length, "min_length": min_length, "beam": beam, "top_k": top_k}
  for name, value in counts.items():
    if value is not None:
      numeric.check(name, value, whole=True)
  if length_penalty is not None:
    numeric.check("length_penalty", length_penalty, -decoding.MOST_PENALTY, decoding.MOST_PENALTY)
  drawing = {"temperature": temperature, "top_p": top_p, "top_k": top_k}
  drawing = {name: value for name, value in drawing.items() if value is not None}
  if beam > 1 and drawing:
    name, value = next(iter(drawing.items()))
    raise UserError(
      f"--beam {beam} and --{name} {value}: beam search does not sample; give only --beam, or only --{name}"
    )
  if not 1 <= beam <= decoding.MOST_BEAMS:
    raise UserError(f"--beam {beam} must be at least 1 (no beam search) and at most {decoding.MOST_BEAMS:,}")
  if length_penalty is not None and beam == 1:
    raise UserError(
      f"--length_penalty {length_penalty} needs beam search; give --beam 4, or leave out --length_penalty"
    )
  if drawing:
    drawing = {"temperature": 1.0, **drawing}
    if not drawing["temperature"] and len(drawing) > 1:
      names = " and ".join(f"--{name}" for name in drawing if name != "temperature")
      raise UserError(f"--temperature 0 turns off sampling; leave out {names}, or give --temperature 1")
  if min_length is None:
    min_length = 1 if beam > 1 else 0
  elif not 0 <= min_length <= max_length:
    raise UserError(f"--min_length {min_length} must be 0 to {max_length}, the value of --max_length")
  penalty = {} if length_penalty is None else {"length_penalty": length_penalty}
  of_unmasking: dict[str, Any] = unmasking | ({"remasking": remasking} if remasking else {})
  return decoding.DecodeConfig(
    max_length=max_length, min_length=min_length, num_beams=beam, **penalty, **drawing, **of_unmasking
  )
