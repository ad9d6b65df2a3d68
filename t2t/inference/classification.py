"""What a head says of each line as a whole: its class, a number, or which of several candidates."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from t2t import UserError, did_you_mean
from t2t.checkpoints import pretrained
from t2t.inference import batch_inference, head_predictor, jsonl_io, prompt_builder
from t2t.models.config import ANSWERED_HEADS, HeadConfig, TransformerConfig
from t2t.param_tree import Params


class HeadWay:
  """The way of a model with heads, whatever is read and asked of a line; see `batch_inference.Way`.

  Args:
    source: the checkpoint.
    mesh: on which its parameters are.
    head: that is asked, see `choose_head`.
    longest: tokens of a line, or of a window of its context, at most, special tokens included.
    batch_size: lines or windows of a batch, over all devices.

  Raises:
    UserError: there is no room for what the head is asked.
  """

  unit = "tokens"

  def __init__(
    self, source: pretrained.Source, mesh: jax.sharding.Mesh, *, head: HeadConfig, longest: int, batch_size: int
  ):
    from t2t.data import head_examples, vocabularies

    self.asks, self.longest, self.cut_to, self._head = head.kind, longest, f"{longest:,} tokens", head
    vocabulary, model = vocabularies.as_text(pretrained.vocabulary(source)), pretrained.abstract(source, mesh)
    number = [model_head.name for model_head in model.config.heads].index(head.name)
    architecture = model.config.architecture
    self._converter = head_examples.HeadFeatureConverter(vocabulary, architecture, head, longest, number=number)
    self._converter.check("--inputs_length")
    pad_id = max(vocabulary.pad_id, 0)
    self._answerer = head_predictor.Answerer(model.config, model.graphdef, mesh, pad_id=pad_id, batch_size=batch_size)
    self.options: Mapping[str, Any] = {"inputs_length": longest, "head": head.name}

  def _encoded(self, example: Mapping[str, Any], extra: Mapping[str, Any]) -> batch_inference.EncodedLine:
    """An example without an answer as the model reads it, and what its row is made of besides."""
    features, cut = self._converter(example)
    rows = [{name: x.tolist() for name, x in row.items()} for row in head_predictor.rows_of(features)]
    encoded = {"windows": rows} if "windows" in features else rows[0]
    return batch_inference.EncodedLine(encoded | extra, sum(len(row["inputs"]) for row in rows) + cut, cut)

  def answer(
    self, params: Params, inputs: Sequence[Any], *, numbers: Sequence[int], done: batch_inference.Done | None
  ) -> list[dict[str, Any]]:
    """What the head says, and how likely it and other answers are."""
    del numbers
    ends = np.cumsum([len(head_predictor.rows_of(example)) for example in inputs])
    logits = self._answerer.logits(params, self._head, inputs, on_batch=done and batch_inference.by_lines(done, ends))
    return [head_predictor.fields(self._head, example, x) for example, x in zip(inputs, logits, strict=True)]


class Answering(HeadWay):
  """The way of a model whose head answers for a line as a whole; see `HeadWay`."""

  def __init__(self, source: pretrained.Source, mesh: jax.sharding.Mesh, *, head: HeadConfig, **options: Any):
    super().__init__(source, mesh, head=head, **options)
    self.form = jsonl_io.Form(lists=("parts",), needs=("candidates",) if head.kind == "choice" else ())
    self.pairs = not self._converter.reading.whole
    self._prefix = prompt_builder.TaskPrefix() if self.pairs else prompt_builder.prefix(source)
    self.nothing: Mapping[str, Any] = {"prediction": None} | ({} if head.kind == "score" else {"score": None})

  def check(self, line: jsonl_io.Line, where: str) -> None:
    """See `batch_inference.Way`."""
    fields = line.others
    if "parts" in fields and not self.pairs and len(jsonl_io.texts(fields, "parts", where)) > 1:
      raise UserError(
        f"{where}: has several 'parts', but the head {self._head.name} was trained on a text that its task had put"
        " together, with the names of the parts; give it so in one text"
      )
    if self._head.kind != "choice":
      return
    if "candidates" not in fields:
      raise UserError(
        f"{where}: has no 'candidates' for the head {self._head.name} to choose among; give a .jsonl file with lines"
        ' like {"inputs": "...", "candidates": ["...", "..."]}'
      )
    number, most = len(jsonl_io.texts(fields, "candidates", where)), self._converter.most_candidates
    if number > most:
      raise UserError(
        f"{where}: has {number:,} 'candidates', and in {self.longest:,} tokens there is room for {most:,}; give a"
        " longer --inputs_length"
      )

  def read(self, line: jsonl_io.Line) -> batch_inference.EncodedLine:
    """See `batch_inference.Way`."""
    parts = list(line.others.get("parts", [line.text]))
    if not self.pairs:  # it was trained on the texts with their prefix
      parts = [self._prefix.before(parts[0])]
    extra = {name: line.others[name] for name in self._converter.fields if name in line.others}
    return self._encoded({"inputs": parts[0], "parts": parts} | extra, extra)


def choose_head(model: TransformerConfig, wanted: str, *, where: str) -> HeadConfig:
  """The head that is asked.

  Args:
    model: whose it is.
    wanted: its name; "" where there is but one.
    where: what the user named the model with, for messages.

  Raises:
    UserError: there is none of that name, or there are several.
  """
  heads = {head.name: head for head in model.heads if head.kind in ANSWERED_HEADS}
  names = ", ".join(heads)
  if heads and wanted and wanted not in heads:
    raise UserError(f"--head {wanted}: {where} has no such head; it has {names}{did_you_mean(wanted, heads)}")
  if not heads:
    does = "it writes: leave out --head" if model.is_generative else "`t2t embed` gives vectors"
    raise UserError(f"{where} has no head to ask; fine-tune it on a task with config.train.loss=heads, or {does}")
  if not wanted and len(heads) > 1:
    raise UserError(f"{where} has several heads: {names}; say which by --head")
  return heads[wanted or next(iter(heads))]
