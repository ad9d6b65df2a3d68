"""What a head says of each line as a whole: its class, a number, or which of several candidates."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from t2t import UserError, did_you_mean
from t2t.checkpoints import pretrained
from t2t.generation import answerer, line_files, lines, prompting
from t2t.models.config import ANSWERED_HEADS, HeadConfig, TransformerConfig
from t2t.params import Params

if TYPE_CHECKING:  # it comes with TensorFlow
  from t2t.data import answering


class Answering:
  """The way of a model with heads; see `lines.Way`.

  Args:
    source: the checkpoint.
    mesh: on which its parameters are.
    head: that is asked, see `choose_head`.
    longest: tokens of a line at most, special tokens included.
    batch_size: lines of a batch, over all devices.
  """

  unit = "tokens"

  def __init__(
    self, source: pretrained.Source, mesh: jax.sharding.Mesh, *, head: HeadConfig, longest: int, batch_size: int
  ):
    from t2t.data import answering

    self.asks, self.longest, self.cut_to, self._head = head.kind, longest, f"{longest:,} tokens", head
    self.form = line_files.Form(lists=("parts",), needs=("candidates",) if head.kind == "choice" else ())
    self._questions, self._answerer = asked(source, mesh, head=head, longest=longest, batch_size=batch_size)
    self.pairs = not answering.reads_whole(source.model.architecture, head)
    self._prefix = prompting.Prefix() if self.pairs else prompting.prefix(source)
    self.options = {"inputs_length": longest, "head": head.name}
    self.nothing: Mapping[str, Any] = {"prediction": None} | ({} if head.kind == "score" else {"score": None})

  def check(self, line: line_files.Line, where: str) -> None:
    """See `lines.Way`."""
    fields = line.others
    if "parts" in fields and not self.pairs and len(line_files.texts(fields, "parts", where)) > 1:
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
    number, most = len(line_files.texts(fields, "candidates", where)), self._questions.most_candidates
    if number > most:
      raise UserError(
        f"{where}: has {number:,} 'candidates', and in {self.longest:,} tokens there is room for {most:,}; give a"
        " longer --inputs_length"
      )

  def read(self, line: line_files.Line) -> lines.Asked:
    """See `lines.Way`."""
    candidates = line.others["candidates"] if self._head.kind == "choice" else ()
    parts = line.others.get("parts", [line.text])
    if not self.pairs and self._head.kind != "choice":  # it was trained on the texts with their prefix
      parts = [self._prefix.before(parts[0])]
    features, cut = self._questions(parts, candidates)
    given = {name: x.tolist() for name, x in features.items()} | {"candidates": list(candidates)}
    return lines.Asked(given, len(features["inputs"]) + cut, cut)

  def answer(
    self, params: Params, given: Sequence[Any], *, numbers: Sequence[int], done: lines.Done | None
  ) -> list[dict[str, Any]]:
    """The answer, and how likely it and the others are."""
    del numbers
    logits = self._answerer.logits(params, self._head, given, on_batch=done)
    return [answerer.fields(self._head, each, np.asarray(x)) for each, x in zip(given, logits, strict=True)]


def asked(
  source: pretrained.Source, mesh: jax.sharding.Mesh, *, head: HeadConfig, longest: int, batch_size: int
) -> tuple["answering.Questions", answerer.Answerer]:
  """How texts become what a head is asked, and who answers; see `Answering` for the arguments."""
  from t2t.data import answering, vocabularies

  vocabulary, model = vocabularies.as_text(pretrained.vocabulary(source)), pretrained.abstract(source, mesh)
  number = [each.name for each in model.config.heads].index(head.name)
  questions = answering.Questions(vocabulary, model.config.architecture, head=head, number=number, length=longest)
  pad_id = max(vocabulary.pad_id, 0)
  return questions, answerer.Answerer(model.config, model.graphdef, mesh, pad_id=pad_id, batch_size=batch_size)


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
