"""What a head says within each line: tags of its words, and spans of a context that answer a question."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from t2t import UserError
from t2t.checkpoints import pretrained
from t2t.generation import answerer, answering, line_files, lines
from t2t.models.config import HeadConfig
from t2t.params import Params


class Tagging:
  """The way of a model with a tag head; see `lines.Way`.

  Args:
    source: the checkpoint.
    mesh: on which its parameters are.
    head: that is asked, see `answering.choose_head`.
    longest: tokens of a line at most, special tokens included.
    batch_size: lines of a batch, over all devices.
  """

  asks, unit, pairs = "tag", "tokens", False
  form = line_files.Form(lists=("words",), own=("words", "tags"), reads="a tag head")
  nothing: Mapping[str, Any] = {"prediction": None, "score": None, "tags": None}

  def __init__(
    self, source: pretrained.Source, mesh: jax.sharding.Mesh, *, head: HeadConfig, longest: int, batch_size: int
  ):
    self.longest, self.cut_to, self._head = longest, f"{longest:,} tokens", head
    self._questions, self._answerer = answering.asked(source, mesh, head=head, longest=longest, batch_size=batch_size)
    self.options = {"inputs_length": longest, "head": head.name}

  def check(self, line: line_files.Line, where: str) -> None:
    """Its words, if it has any, are those of its text."""
    if "words" not in line.others:
      return
    words = line_files.texts(line.others, "words", where)
    if self._placed(line, words) is None:
      raise UserError(
        f"{where}: its text has not all 'words', one after another; leave out the text, and it is the words with a"
        " space between them"
      )

  def read(self, line: line_files.Line) -> lines.Asked:
    """See `lines.Way`; words that do not fit are not asked."""
    from t2t.data.answering import tags

    words = line.others.get("words") or tags.split(line.text)
    features, cut = self._questions.of_words(words)
    given = {name: x.tolist() for name, x in features.items()}
    given |= {"words": words, "text": line.text, "places": self._placed(line, words)}
    return lines.Asked(given, len(features["inputs"]) + cut, cut)

  def answer(
    self, params: Params, given: Sequence[Any], *, numbers: Sequence[int], done: lines.Done | None
  ) -> list[dict[str, Any]]:
    """The tags and the entities that they mark."""
    del numbers
    logits = self._answerer.logits(params, self._head, given, on_batch=done)
    return [answerer.fields(self._head, each, x) for each, x in zip(given, logits, strict=True)]

  def _placed(self, line: line_files.Line, words: Sequence[str]) -> list[tuple[int, int]] | None:
    from t2t.data.answering import tags

    return tags.places(words, line.text)


class Extracting:
  """The way of a model with a span head; see `lines.Way`.

  Args:
    source: the checkpoint.
    mesh: on which its parameters are.
    head: that is asked, see `answering.choose_head`; there may be no answer if it has `no_answer`.
    longest: tokens of a window, special tokens included.
    batch_size: windows of a batch, over all devices.

  Raises:
    UserError: windows are too short.
  """

  asks, unit, pairs = "span", "tokens", False
  form = line_files.Form(field="question", needs=("context",), own=("start", "end", "null", "probability", "best"))

  def __init__(
    self, source: pretrained.Source, mesh: jax.sharding.Mesh, *, head: HeadConfig, longest: int, batch_size: int
  ):
    from t2t.data.answering import spans

    self.longest, self.cut_to, self._head = longest, f"{spans.MOST_OF_QUESTION} tokens of the question", head
    self._questions, self._answerer = answering.asked(source, mesh, head=head, longest=longest, batch_size=batch_size)
    self._questions.check_windows("--inputs_length")
    self.options = {"inputs_length": longest, "head": head.name, "no_answer": "yes" if head.no_answer else "no"}
    fields = ("prediction", "score", "start", "end", "probability", *(("null",) if head.no_answer else ()), "best")
    self.nothing: Mapping[str, Any] = dict.fromkeys(fields)

  def check(self, line: line_files.Line, where: str) -> None:
    """It has a context."""
    if "context" not in line.others:
      raise UserError(
        f"{where}: has no 'context' for the head {self._head.name} to find the answer in; give a .jsonl file with lines"
        ' like {"question": "...", "context": "..."}'
      )
    line_files.check_text(line.others["context"], "context", where)

  def read(self, line: line_files.Line) -> lines.Asked:
    """See `lines.Way`; a context is read in windows, whatever its length."""
    context = line.others["context"]
    if not context.strip():
      return lines.Asked(None, error=lines.NO_CONTEXT)
    found = self._questions.of_context(line.text, context)
    windows = [{name: x.tolist() for name, x in window.features.items()} for window in found]
    given = {"context": context, "windows": windows} | ({"no_answer": ""} if self._head.no_answer else {})
    cut = found[0].cut
    return lines.Asked(given, sum(len(window["inputs"]) for window in windows) + cut, cut)

  def answer(
    self, params: Params, given: Sequence[Any], *, numbers: Sequence[int], done: lines.Done | None
  ) -> list[dict[str, Any]]:
    """The span, and the others that were likeliest."""
    del numbers
    windows = [window for each in given for window in each["windows"]]
    ends = np.cumsum([len(each["windows"]) for each in given])
    logits = self._answerer.logits(params, self._head, windows, on_batch=done and lines.by_lines(done, ends))
    own = np.split(np.arange(len(windows)), ends[:-1])
    return [
      answerer.fields(self._head, each, np.concatenate([logits[i] for i in of]))
      for each, of in zip(given, own, strict=True)
    ]


def way_of(head: HeadConfig) -> Callable[..., lines.Way]:
  """The way that a head is asked in: of each word, of a context, or of a text as a whole."""
  return {"tag": Tagging, "span": Extracting}.get(head.kind, answering.Answering)
