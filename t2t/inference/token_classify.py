"""Token-level predictions of heads: tags of words, and spans of a context that answer a question."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from t2t import UserError
from t2t.checkpoints import pretrained
from t2t.inference import batch_inference, classification, jsonl_io
from t2t.models.head_config import HeadConfig


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


class Pairing(classification.HeadWay):
  """The way of a model with a head for two spans of a text; see `classification.HeadWay`."""

  pairs = False
  form = jsonl_io.Form(needs=("spans",), row_fields=("probabilities",))
  nothing: Mapping[str, Any] = {"prediction": None, "score": None}

  def check(self, line: jsonl_io.Line, where: str) -> None:
    """Checks that the line has two spans in its text."""
    spans, length = line.others.get("spans"), len(line.text)
    is_span = lambda x: isinstance(x, list) and len(x) == 2 and all(type(i) is int for i in x)
    if not isinstance(spans, list) or len(spans) != 2 or not all(map(is_span, spans)):
      raise UserError(
        f"{where}: 'spans' is {spans!r}, but the head {self._head.name} needs the first character and the end of two "
        'spans; give an object like {"inputs": "Ann said that she won.", "spans": [[0, 3], [14, 17]]}'
      )
    if outside := [span for span in spans if not 0 <= span[0] < span[1] <= length]:
      raise UserError(f"{where}: the span {outside[0]} is not in the text of {length:,} characters; correct 'spans'")

  def read(self, line: jsonl_io.Line) -> batch_inference.EncodedLine:
    return self._encoded({"text": line.text, "spans": np.array(line.others["spans"], np.int32)}, {})


def way_of(head: HeadConfig) -> Callable[..., batch_inference.Way]:
  """Returns the class of ways for a head: of words, of a context, of two spans, or of a whole text."""
  ways = {"tag": Tagging, "span": Extracting, "span_pair": Pairing}
  return ways.get(head.answers_as, classification.Answering)
