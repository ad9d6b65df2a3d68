"""Ranks the answers of each line by log-probability: the classes of a table, or the candidates of a line."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from t2t import UserError
from t2t.checkpoints import pretrained
from t2t.inference import (
  batch_inference,
  head_predictor,
  jsonl_io,
  option_scores,
  predictor,
  prompt_builder,
  prompt_features,
  text_scores,
)
from t2t.models.head_config import HeadConfig
from t2t.param_tree import Params


class LineRanker:
  """Scores the answers of lines by log-probability after the tokens of the line.

  Args:
    source: the checkpoint.
    mesh: on which its parameters are loaded.
    prompts: of the model; encodes the answers, too.
    longest: maximum number of tokens of a line.
    batch_size: pairs of a line and an answer in a batch, over all devices.
    normalize: key of `option_scores.NORMALIZATIONS`; "": the default.
    neutral_context: text of the neutral context of normalize="unconditional".

  Raises:
    UserError: the normalization is unknown, or does not fit the model or the neutral context.
  """

  def __init__(
    self,
    source: pretrained.Source,
    mesh: jax.sharding.Mesh,
    prompts: prompt_builder.Prompts,
    *,
    longest: int,
    batch_size: int,
    normalize: str,
    neutral_context: str,
  ):
    model, vocabulary = pretrained.abstract(source, mesh), pretrained.vocabulary(source)
    framing = prompt_features.framing(vocabulary, causal=pretrained.reads_causally(source))
    reader = predictor.Predictor(
      model.config, model.graphdef, mesh, framing, decode=None, batch_size=batch_size, max_inputs=longest
    )
    chosen = option_scores.choose(normalize, is_generative=model.config.kind.is_generative, where="--normalize")
    option_scores.check_neutral(chosen, neutral_context, where="--neutral_context")
    self._ranker = option_scores.Ranker(
      text_scores.Scorer(reader, vocabulary), normalize=chosen, neutral=prompts(neutral_context)[0]
    )
    self._prompts = prompts
    self._end = [vocabulary.eos_id] if model.config.kind.has_encoder_and_decoder else []
    given = {"normalize": normalize, "neutral_context": neutral_context}
    self.options = {name: value for name, value in given.items() if value}

  @property
  def note(self) -> str:
    """Sentence on long texts of the last call; "" without them."""
    return self._ranker.note

  def __call__(
    self,
    params: Params,
    inputs: Sequence[Sequence[int]],
    answers: Sequence[Sequence[str]],
    *,
    suffixes: Sequence[Sequence[int]] = (),
    done: batch_inference.Done | None,
  ) -> list[np.ndarray]:
    """Returns the scores of the answers of each line, float64 [answers].

    Args:
      params: nested dict.
      inputs: token ids of each line.
      answers: texts of each line.
      suffixes: token ids that an encoder reads behind an answer; empty: nothing.
      done: called after each batch.

    Raises:
      UserError: a score is NaN or Inf.
    """
    encoded = {text: (*self._prompts.encode(text), *self._end) for texts in answers for text in texts}
    options = [[option_scores.Option(text, encoded[text]) for text in texts] for texts in answers]
    on_batch = done and batch_inference.by_lines(done, np.arange(1, len(inputs) + 1))
    scores = self._ranker(params, inputs, options, suffixes=suffixes, on_batch=on_batch)
    if not all(np.isfinite(of_line).all() for of_line in scores):
      raise UserError("--checkpoint: the score of an answer is NaN or Inf; use a different checkpoint")
    return scores


class Ranking:
  """The way of a text-to-text model that ranks given answers; see `batch_inference.Way`.

  Args:
    source: the checkpoint.
    mesh: on which its parameters are loaded.
    classes: the answers; if empty, each line has "candidates" and the answers are "choice1", "choice2", ...
    longest: maximum number of tokens of a line, EOS included.
    ends_prompts: whether EOS ends a prompt.
    batch_size: pairs of a line and an answer in a batch, over all devices.
    special_tokens: see `prompt_builder.special_tokens`.
    normalize: key of `option_scores.NORMALIZATIONS`; "": the default.
    neutral_context: text of the neutral context of normalize="unconditional".
  """

  unit, pairs, remarks = "tokens", False, ()
  nothing: Mapping[str, Any] = {"prediction": None, "score": None}

  def __init__(
    self,
    source: pretrained.Source,
    mesh: jax.sharding.Mesh,
    *,
    classes: Sequence[str],
    longest: int,
    ends_prompts: bool,
    batch_size: int,
    special_tokens: str = "",
    normalize: str = "",
    neutral_context: str = "",
  ):
    self.asks, self._classes = ("class" if classes else "choice"), tuple(classes)
    self.form = jsonl_io.Form(needs=() if classes else ("candidates",))
    self.longest, self.cut_to = longest, f"{longest:,} tokens"
    special_tokens = prompt_builder.special_tokens(source, special_tokens)
    self._prompts = prompt_builder.Prompts(
      pretrained.vocabulary(source),
      ends=ends_prompts,
      longest=longest,
      special_tokens=special_tokens,
      prefix=prompt_builder.prefix(source),
    )
    scoring = {"normalize": normalize, "neutral_context": neutral_context}
    self._ranker = LineRanker(source, mesh, self._prompts, longest=longest, batch_size=batch_size, **scoring)
    self.options = {"inputs_length": longest, "method": "rank"} | prompt_builder.said(special_tokens)
    self.options |= self._ranker.options

  def check(self, line: jsonl_io.Line, where: str) -> None:
    """Checks that the line has candidates, if there are no classes."""
    if not self._classes:
      if "candidates" not in line.others:
        raise UserError(f"{where} has no field 'candidates'; give a list: {{'candidates': ['...', '...']}}")
      jsonl_io.texts(line.others, "candidates", where)

  def read(self, line: jsonl_io.Line) -> batch_inference.EncodedLine:
    tokens, cut = self._prompts(line.text)
    encoded = {"inputs": tokens}
    if not self._classes:
      encoded["candidates"] = list(line.others["candidates"])
    return batch_inference.EncodedLine(encoded, len(tokens) + cut, cut)

  def answer(
    self, params: Params, inputs: Sequence[Any], *, numbers: Sequence[int], done: batch_inference.Done | None
  ) -> list[dict[str, Any]]:
    """Returns the likeliest answer and the probabilities of all answers."""
    del numbers
    answers = [self._options(example) for example in inputs]
    ranked = self._ranker(params, [example["inputs"] for example in inputs], answers, done=done)
    return [self._fields(example, scores) for example, scores in zip(inputs, ranked, strict=True)]

  def _options(self, example: Mapping[str, Any]) -> list[str]:
    if self._classes:
      return list(self._classes)
    return [f"choice{number}" for number in range(1, len(example["candidates"]) + 1)]

  def _fields(self, example: Mapping[str, Any], log_p: np.ndarray) -> dict[str, Any]:
    if not self._classes:
      return head_predictor.fields(HeadConfig("choice", 1, "choice"), example, log_p[:, None])
    head = HeadConfig("class", len(self._classes), "class", self._classes)
    return head_predictor.fields(head, example, log_p[None])
