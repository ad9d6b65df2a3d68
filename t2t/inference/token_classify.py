"""What a head says within each line: tags of its words, and spans of a context that answer a question."""

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
    """Its words, if it has any, are those of its text."""
    if "words" not in line.others:
      return
    words = jsonl_io.texts(line.others, "words", where)
    if self._placed(line, words) is None:
      raise UserError(
        f"{where}: its text has not all 'words', one after another; leave out the text, and it is the words with a"
        " space between them"
      )

  def read(self, line: jsonl_io.Line) -> batch_inference.EncodedLine:
    """See `batch_inference.Way`; words that do not fit are not asked."""
    from t2t.data.head_examples import tags

    words = line.others.get("words") or tags.split(line.text)
    return self._encoded({"words": words}, {"words": words, "text": line.text, "places": self._placed(line, words)})

  def _placed(self, line: jsonl_io.Line, words: Sequence[str]) -> list[tuple[int, int]] | None:
    from t2t.data.head_examples import tags

    return tags.places(words, line.text)


class Extracting(classification.HeadWay):
  """The way of a model with a span head, which may have `no_answer`; see `classification.HeadWay`."""

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
    """It has a context."""
    if "context" not in line.others:
      raise UserError(
        f"{where}: has no 'context' for the head {self._head.name} to find the answer in; give a .jsonl file with lines"
        ' like {"question": "...", "context": "..."}'
      )
    jsonl_io.check_text(line.others["context"], "context", where)

  def read(self, line: jsonl_io.Line) -> batch_inference.EncodedLine:
    """See `batch_inference.Way`; a context is read in windows, whatever its length."""
    context = line.others["context"]
    if not context.strip():
      return batch_inference.EncodedLine(None, error=batch_inference.NO_CONTEXT)
    extra = {"context": context} | ({"no_answer": ""} if self._head.no_answer else {})
    return self._encoded({"question": line.text, "context": context}, extra)


def way_of(head: HeadConfig) -> Callable[..., batch_inference.Way]:
  """The way that a head is asked in: of each word, of a context, or of a text as a whole."""
  return {"tag": Tagging, "span": Extracting}.get(head.kind, classification.Answering)
