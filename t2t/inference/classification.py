"""Predicts a class, a number or one of several candidates for each line, with a head."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from t2t import UserError, did_you_mean
from t2t.checkpoints import pretrained
from t2t.inference import batch_inference, head_predictor, jsonl_io, prompt_builder
from t2t.models.config import TransformerConfig
from t2t.models.head_config import ANSWERED_HEADS, HeadConfig
from t2t.param_tree import Params


class HeadWay:
  """Base of the ways of models with heads; see `batch_inference.Way`.

  Args:
    source: the checkpoint.
    mesh: on which its parameters are loaded.
    head: used for prediction; see `choose_head`.
    longest: maximum number of tokens of a line, or of a window of its context, including special tokens.
    batch_size: lines or windows of a batch, over all devices.
    exits: entropy and patience by which a line leaves before the last layer, see `head_predictor.of_model`; its row has
      the field "layers".

  Raises:
    UserError: `longest` is too small for the fields that the head reads.
  """

  unit = "tokens"
  remarks: Sequence[str] = ()

  def __init__(
    self,
    source: pretrained.Source,
    mesh: jax.sharding.Mesh,
    *,
    head: HeadConfig,
    longest: int,
    batch_size: int,
    exits: tuple[float, int] = (0.0, 0),
  ):
    from t2t.data import head_examples, vocabularies

    self.asks, self.longest, self.cut_to, self._head = head.answers_as, longest, f"{longest:,} tokens", head
    vocabulary, model = vocabularies.as_text(pretrained.vocabulary(source)), pretrained.abstract(source, mesh)
    number = [model_head.name for model_head in model.config.heads].index(head.name)
    architecture = model.config.architecture
    self._converter = head_examples.HeadFeatureConverter(vocabulary, architecture, head, longest, number=number)
    self._converter.check("--inputs_length")
    pad_id = max(vocabulary.pad_id, 0)
    self._answerer = head_predictor.of_model(
      model.config, model.graphdef, mesh, exits=exits, pad_id=pad_id, batch_size=batch_size
    )
    self._layers, self._num_layers = list[int](), model.config.num_encoder_layers
    self.options: Mapping[str, Any] = {"inputs_length": longest, "head": head.name}
    if any(exits):
      self._answerer.check(head)
      self.options = {**self.options, "exit_entropy": exits[0], "exit_patience": exits[1]}

  def _encoded(self, example: Mapping[str, Any], extra: Mapping[str, Any]) -> batch_inference.EncodedLine:
    """Converts an unlabelled example to model input; `extra` has the fields that only its row needs."""
    features, cut = self._converter(example)
    rows = [{name: x.tolist() for name, x in row.items()} for row in head_predictor.rows_of(features)]
    encoded = {"windows": rows} if "windows" in features else rows[0]
    return batch_inference.EncodedLine(encoded | extra, sum(len(row["inputs"]) for row in rows) + cut, cut)

  def answer(
    self, params: Params, inputs: Sequence[Any], *, numbers: Sequence[int], done: batch_inference.Done | None
  ) -> list[dict[str, Any]]:
    """Returns the prediction of the head and the probabilities of the answers."""
    del numbers
    ends = np.cumsum([len(head_predictor.rows_of(example)) for example in inputs])
    logits = self._answerer.logits(params, self._head, inputs, on_batch=done and batch_inference.by_lines(done, ends))
    rows = [head_predictor.fields(self._head, example, x) for example, x in zip(inputs, logits, strict=True)]
    if not self._answerer.layers:
      return rows
    self._layers += self._answerer.layers
    self.remarks = (f"{'layers':<14} {np.mean(self._layers):.2f} of {self._num_layers} on average",)
    return [row | {"layers": number} for row, number in zip(rows, self._answerer.layers, strict=True)]


class Answering(HeadWay):
  """The way of a head with one answer for a line; see `HeadWay`."""

  def __init__(self, source: pretrained.Source, mesh: jax.sharding.Mesh, *, head: HeadConfig, **options: Any):
    super().__init__(source, mesh, head=head, **options)
    self.form = jsonl_io.Form(lists=("parts",), needs=("candidates",) if head.kind == "choice" else ())
    self.pairs = not self._converter.reading.whole
    self._prefix = prompt_builder.TaskPrefix() if self.pairs else prompt_builder.prefix(source)
    self.nothing: Mapping[str, Any] = {"prediction": None} | ({} if head.kind == "score" else {"score": None})

  def check(self, line: jsonl_io.Line, where: str) -> None:
    fields = line.others
    if "parts" in fields and not self.pairs and len(jsonl_io.texts(fields, "parts", where)) > 1:
      raise UserError(
        f"{where} has several 'parts', but the head {self._head.name} was trained on a single joined text. Join the "
        "parts, with their names, in one text."
      )
    if self._head.kind != "choice":
      return
    if "candidates" not in fields:
      raise UserError(
        f"{where} has no field 'candidates' for the head {self._head.name}; give an object like"
        ' {"inputs": "...", "candidates": ["...", "..."]} (in a file: as a line of .jsonl)'
      )
    number, most = len(jsonl_io.texts(fields, "candidates", where)), self._converter.most_candidates
    if number > most:
      raise UserError(
        f"{where} has {number:,} 'candidates', more than the {most:,} that fit in {self.longest:,} tokens; raise "
        "--inputs_length or remove candidates"
      )

  def read(self, line: jsonl_io.Line) -> batch_inference.EncodedLine:
    parts = list(line.others.get("parts", [line.text]))
    if not self.pairs:  # trained on texts with the task's prefix
      parts = [self._prefix.before(parts[0])]
    extra = {name: line.others[name] for name in self._converter.fields if name in line.others}
    return self._encoded({"inputs": parts[0], "parts": parts} | extra, extra)


def choose_head(model: TransformerConfig, wanted: str, *, where: str) -> HeadConfig:
  """Returns the head to use.

  Args:
    model: config of the model.
    wanted: name of the head; may be "" if the model has only one.
    where: location of the model in messages.

  Raises:
    UserError: the name is unknown, or is missing where the model has several heads.
  """
  heads = {head.name: head for head in model.heads if head.kind in ANSWERED_HEADS}
  names = ", ".join(heads)
  if heads and wanted and wanted not in heads:
    raise UserError(f"--head {wanted}: {where} has no such head. Known heads: {names}{did_you_mean(wanted, heads)}")
  if not heads:
    does = "leave out --head to generate text" if model.is_generative else "run `t2t embed` for embeddings"
    raise UserError(f"{where} has no head; fine-tune the model on a task with config.train.loss=heads, or {does}")
  if not wanted and len(heads) > 1:
    raise UserError(f"{where} has several heads; give --head with one of {names}")
  return heads[wanted or next(iter(heads))]
