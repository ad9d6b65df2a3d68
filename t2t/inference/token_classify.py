"""Token-level predictions of heads: tags of words, and spans of a context that answer a question."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from t2t import UserError
from t2t.checkpoints import pretrained
from t2t.inference import batch_inference, classification, jsonl_io
from t2t.models.config import HeadConfig


class Tagging(classification.HeadWay):
  """The way of a model with a tag head; see `classification.HeadWay`."""

  pairs = False
  form = jsonl_io.Form(lists=("words",), row_fields=("words", "tags"), reads="a tag head")
  nothing: Mapping[str, Any] = {"prediction": None, "score": None, "tags": None}

  def check(self, line: jsonl_io.Line, where: str) -> None:
    """Checks that the text contains the words of the line, if it has any."""
    if "words" not in line.others:
      return
    words = jsonl_io.texts(line.others, "words", where)
    if self._placed(line, words) is None:
      raise UserError(
        f"{where}: the text does not contain all 'words' in order; leave out the text to use the words joined by spaces"
      )

  def read(self, line: jsonl_io.Line) -> batch_inference.EncodedLine:
    """Converts a line to model input; words beyond the maximum length get no prediction."""
    from t2t.data.head_examples import tags

    words = line.others.get("words") or tags.split(line.text)
    return self._encoded({"words": words}, {"words": words, "text": line.text, "places": self._placed(line, words)})

  def _placed(self, line: jsonl_io.Line, words: Sequence[str]) -> list[tuple[int, int]] | None:
    from t2t.data.head_examples import tags

    return tags.places(words, line.text)


class Extracting(classification.HeadWay):
  """The way of a model with a span head, with or without `no_answer`; see `classification.HeadWay`."""

  pairs = False
  form = jsonl_io.Form(field="question", needs=("context",), row_fields=("start", "end", "null", "probability", "best"))

  def __init__(self, source: pretrained.Source, mesh: jax.sharding.Mesh, *, head: HeadConfig, **options: Any):
    from t2t.data.head_examples import spans

    super().__init__(source, mesh, head=head, **options)
    self.cut_to = f"{spans.MOST_OF_QUESTION} tokens of the question"
    self.options = {**self.options, "no_answer": "yes" if head.no_answer else "no"}
    fields = ("prediction", "score", "start", "end", "probability", *(("null",) if head.no_answer else ()), "best")
    self.nothing: Mapping[str, Any] = dict.fromkeys(fields)

  def check(self, line: jsonl_io.Line, where: str) -> None:
    """Checks that the line has a context."""
    if "context" not in line.others:
      raise UserError(
        f"{where} has no field 'context' for the head {self._head.name}; give an object like"
        ' {"question": "...", "context": "..."} (in a file: as a line of .jsonl)'
      )
    jsonl_io.check_text(line.others["context"], "context", where)

  def read(self, line: jsonl_io.Line) -> batch_inference.EncodedLine:
    """Converts a line to model input; a long context is split into windows."""
    context = line.others["context"]
    if not context.strip():
      return batch_inference.EncodedLine(None, error=batch_inference.NO_CONTEXT)
    extra = {"context": context} | ({"no_answer": ""} if self._head.no_answer else {})
    return self._encoded({"question": line.text, "context": context}, extra)


def way_of(head: HeadConfig) -> Callable[..., batch_inference.Way]:
  """Returns the class of ways for a head: of words, of a context, or of a whole text."""
  return {"tag": Tagging, "span": Extracting}.get(head.kind, classification.Answering)
