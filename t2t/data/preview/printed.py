"""Prints a preview: tokens as pieces above ids, in colours or with marks, within the width of the terminal."""

from collections.abc import Mapping, Sequence
import os
from typing import Any

import numpy as np
import rich.cells
import rich.console
import rich.text
import seqio

from t2t.configuration.schema import DataConfig
from t2t.data import objectives, raw_text, run_sources, sources, untruncated_lengths, vocabularies
from t2t.data.preview import examples, token_kinds
from t2t.data.sources import named
from t2t.models.architecture import ARCHITECTURES, real_positions, sides
from t2t.models.head_config import HeadConfig

_RECORD_LINES = 3  # lines for each text of a record
_ASKED = ("answer_heads", "answer_targets", "has_answer")  # printed in words instead

# Kind of token -> style on a terminal.
_STYLES = {
  "masked": "black on yellow",
  "sentinel": "bold magenta",
  "EOS and the like": "cyan",
  "unknown": "white on red",
  "padding": "dim",
  "loss": "bold",
}


def print_preview(
  console: rich.console.Console,
  shown: examples.Preview,
  data: DataConfig,
  *,
  examples: int,
  tokens: int,
  summary: bool,
) -> None:
  """Prints the facts of a task, its first examples, and a summary.

  Args:
    console: console with or without colours, of any width.
    shown: the preview.
    data: config of the data.
    examples: number of examples to print.
    tokens: maximum number of tokens to print of each feature; 0: all.
    summary: whether to print counts.
  """
  _print_facts(console, shown, data)
  printer = _Tokens(console, shown, most=tokens)
  if examples and not shown.one_to_one:
    for name, records in shown.records.items():
      records_shown = "first record" if len(records) == 1 else f"first {len(records)} records"
      _print_rule(console, f"Source{f' of {name}' if len(shown.records) > 1 else ''}: the {records_shown}")
      for record in records:
        _print_features(console, record)
    console.print("Records are mixed, joined, split or dropped, so they do not correspond to the examples.")
  for i in range(min(examples, len(shown.examples))):
    _print_rule(console, f"Example {i + 1}")
    if shown.one_to_one:
      console.print(rich.text.Text("the source's record", "bold"))
      _print_features(console, next(iter(shown.records.values()))[i])
    printer.print_example(i)
    if not data.pack:
      _print_sequence(console, shown.sequences[i], f"features of the model ({shown.architecture})")
  if data.pack and examples:
    _print_rule(console, "Packed")
    _print_sequence(
      console, shown.sequences[0], f"features of the model ({shown.architecture}), several examples in a sequence"
    )
  if summary:
    _print_summary(console, shown, packed=data.pack, special_tokens=data.special_tokens)


def _print_facts(console: rich.console.Console, shown: examples.Preview, data: DataConfig) -> None:
  task, vocabulary, source = shown.task, shown.vocabulary, run_sources.of(data)
  console.print(rich.text.Text(source.title, "bold"))
  facts: dict[str, str | rich.text.Text] = {}
  tasks = examples.tasks_of(task, shown.split)
  if isinstance(task, seqio.Mixture):
    facts["mixture"] = ", ".join(f"{subtask.name} {task.get_rate(subtask):g}" for subtask in tasks)
  # Only registered steps, because `raw_text` adds steps that protect the records.
  steps = [[f for f in subtask.preprocessors if raw_text.is_own(f)] for subtask in tasks]
  names = [[seqio.utils.function_name(f) or type(f).__name__ for f in task_steps] for task_steps in steps]
  facts["source"] = source.kind or ", ".join(dict.fromkeys(source_name(subtask.source) for subtask in tasks))
  facts["split"] = f"{shown.split} (available: {', '.join(sorted(task.splits))})"
  objective = objectives.of(task)
  if objective:
    facts["objective"] = ", ".join(sorted(objective))
  if len({tuple(step_names) for step_names in names}) == 1:
    facts["preprocessors"] = ", ".join(names[0])
  facts["vocabulary"] = (
    f"{vocabulary.vocab_size:,} ids with {vocabulary.extra_ids} added sentinels, {_vocabulary_name(vocabulary)}"
  )
  facts["architecture"] = shown.architecture
  if shown.heads and "answer_heads" in task.output_features:
    facts["heads"] = "; ".join(_described_head(head, shown.architecture) for head in shown.heads)
  facts["lengths"] = ", ".join(f"{name} {length}" for name, length in shown.lengths.items() if name in _LENGTH_KEYS)
  if console.color_system:
    legend = [rich.text.Text(kind, style) for kind, style in _STYLES.items()]
    facts["colours"] = rich.text.Text("  ").join(legend)
  _print_labelled(console, facts)


_LENGTH_KEYS = ("inputs", "targets")

# `HeadConfig.reads` -> description.
_READS = {"first": "at the first token", "last": "at the last token", "mean": "of the mean", "each": "token by token"}
_READS |= {"concat": "of last, maximum and mean", "spans": "of two spans"}


def _described_head(head: HeadConfig, architecture: str) -> str:
  reads = _READS[head.spelled_out(ARCHITECTURES[architecture]).reads]
  number = f" of {head.num_classes}" if head.answers_as in ("class", "tag", "span_pair", "cloze") else ""
  return f"{head.name}, a {head.kind}{number} {reads}" + (f" ({', '.join(head.labels)})" if head.labels else "")


def _vocabulary_name(vocabulary: seqio.Vocabulary) -> str:
  if isinstance(vocabulary, seqio.SentencePieceVocabulary):
    return vocabulary.sentencepiece_model_file.replace(os.path.expanduser("~"), "~")
  return "bytes" if isinstance(vocabulary, seqio.ByteVocabulary) else str(vocabulary)


# ---- Tokens ----------------------------------------------------------------------------------------------------------


class _Tokens:
  """Prints features as pieces above ids, with a colour for each kind of token."""

  def __init__(self, console: rich.console.Console, shown: examples.Preview, *, most: int):
    self._console = console
    self._shown = shown
    self._most = most
    self._texts: dict[str, list[str]] = {}
    self._kinds: dict[str, dict[int, str]] = {}
    for name, feature in shown.task.output_features.items():
      if examples.is_text(feature):
        self._texts[name] = vocabularies.token_texts(feature.vocabulary)
        self._kinds[name] = token_kinds.kinds_of(feature.vocabulary)

  def print_example(self, number: int) -> None:
    """Prints every feature of an example, the model's features first."""
    example = self._shown.trimmed(number)
    weights = self._loss_weights(example)
    head_summary = self._head_summary(example)
    example = {name: x for name, x in example.items() if not name.endswith(untruncated_lengths.SUFFIX)}
    if head_summary:
      example = {name: x for name, x in example.items() if name not in _ASKED}
    other_features = {}
    for name in ("inputs", "targets", *(name for name in example if name not in ("inputs", "targets"))):
      if name == "loss_weights" and weights is not None:
        other_features[name] = f"{int(weights.sum())} of {len(weights)} positions count in the loss (^)"
      elif name in self._texts and np.ndim(example.get(name, 0)) == 1:
        self._print_feature(
          name, example[name], weights, uncut=untruncated_lengths.length(self._shown.examples[number], name)
        )
      elif name in example:
        other_features[name] = example[name]
    other_features |= {"asked": head_summary} if head_summary else {}
    if other_features:
      self._console.print(rich.text.Text("and", "bold"))
      _print_features(self._console, other_features)

  def _print_feature(self, name: str, ids: np.ndarray, weights: np.ndarray | None, *, uncut: int) -> None:
    heading = rich.text.Text.assemble((name, "bold"), f"  {len(ids)} tokens")
    if uncut > len(ids):
      heading.append(f", cut from {uncut}", "red")
    if name in self._shown.lengths:
      heading.append(f"; limit {self._shown.lengths[name]}")
    self._console.print(heading)
    if weights is not None and len(weights) == len(ids):
      self._print_tokens(ids, name, weights)
    else:
      self._print_tokens(ids, name, np.full(len(ids), name == "targets"))

  def _loss_weights(self, example: Mapping[str, Any]) -> np.ndarray | None:
    """Returns which positions of the inputs count in the loss, bool [length]; None if the task does not say."""
    if "answer_heads" in example and "loss_weights" not in example:
      return np.asarray(example["answer_heads"]) > 0
    if "loss_weights" in example:
      return np.asarray(example["loss_weights"]) > 0
    if ARCHITECTURES[self._shown.architecture].is_generative:
      return None
    return np.asarray(example["inputs"]) == token_kinds.mask_id(self._shown.vocabulary)

  def _head_summary(self, example: Mapping[str, Any]) -> str:
    """Describes the head that answers and the right answer; "" if there is no head or the model's heads are unknown."""
    numbers = np.asarray(example.get("answer_heads", ()))
    places = np.flatnonzero(numbers)
    if not places.size or numbers.max() > len(self._shown.heads):
      return ""
    head = self._shown.heads[int(numbers[places[0]]) - 1]
    if not example.get("has_answer", True):
      return f"{head.name}; no answer is given, and training skips such examples"
    return f"{head.name}; the right answer is {self._right(head, example, places)}"

  def _right(self, head: HeadConfig, example: Mapping[str, Any], places: np.ndarray) -> str:
    targets = np.asarray(example["answer_targets"])[places]
    if head.kind == "score":
      return f"{targets[:1].astype(np.int32).view(np.float32)[0]:g}"
    if head.kind == "choice":
      return " or ".join(f"candidate {i + 1}" for i in np.flatnonzero(targets)) + f" of {len(targets)}"
    if head.kind == "span":
      first, last = places[np.argmax(targets % 2 == 1)], places[np.argmax(targets >= 2)]
      if "context_starts" in example and example["context_starts"][first] < 0:
        return "no answer in this window"
      vocabulary = self._shown.task.output_features["inputs"].vocabulary
      return repr(vocabulary.decode(example["inputs"][first : last + 1].tolist()))
    return " ".join(head.labels[i] if head.labels else str(i) for i in targets.tolist())

  def _print_tokens(self, ids: np.ndarray, name: str, counted: np.ndarray) -> None:
    texts, kinds = self._texts[name], self._kinds[name]
    cells = []
    for token, loss in zip(ids.tolist(), counted.tolist(), strict=True):
      is_known = 0 <= token < len(texts)
      kind = (
        "masked"
        if loss and name == "inputs" and "targets" in self._texts
        else kinds.get(token, "" if is_known else "unknown")
      )
      style = " ".join(_STYLES[style_name] for style_name in (kind, "loss" if loss else "") if style_name)
      cells.append((_printable(texts[token].replace(" ", "▁")) if is_known else "?", str(token), style, loss))
    if 0 < self._most < len(cells) - self._most // 4:  # leaving out a few tokens saves no space
      tail = self._most // 4
      left_out = (f"... {len(cells) - self._most} more ...", "", "dim", False)
      cells = [*cells[: self._most - tail], left_out, *cells[len(cells) - tail :]]
    self._print_cells(cells, marks=0 < counted.sum() < len(counted))

  def _print_cells(self, cells: Sequence[tuple[str, str, str, bool]], *, marks: bool) -> None:
    """Prints lines of pieces with ids below, and a line of marks if only some positions count in the loss."""
    room = self._console.width - 2
    lines: list[list[tuple[str, str, str, bool, int]]] = [[]]
    used = 0
    for text, number, style, loss in cells:
      text = rich.cells.set_cell_size(text, room - 1) if rich.cells.cell_len(text) > room else text
      width = max(rich.cells.cell_len(text), len(number), 1)
      if used + width > room:
        lines.append([])
        used = 0
      lines[-1].append((text, number, style, loss, width))
      used += width + 1
    for line in lines:
      pieces, ids, carets = (rich.text.Text("  ") for _ in range(3))
      for text, number, style, loss, width in line:
        pieces.append(text, style).append(" " * (width + 1 - rich.cells.cell_len(text)))
        ids.append(number.ljust(width + 1), "dim")
        carets.append(("^" if loss else "").ljust(width + 1))
      for row in (pieces, ids, carets):
        row.rstrip()
        if row is not carets or (marks and row):
          self._console.print(row, no_wrap=True)


# ---- Model features and counts ---------------------------------------------------------------------------------------


def _print_sequence(console: rich.console.Console, sequence: Mapping[str, np.ndarray], title: str) -> None:
  """Prints a model's features: shape, first and last values, padding."""
  console.print(rich.text.Text(title, "bold"))
  rows = []
  for side in sides(sequence):
    real = real_positions(sequence, side)
    rows += [
      [name, f"{values.dtype} {list(values.shape)}", _ends(values, real)]
      for name, values in sequence.items()
      if name.startswith(side)
    ]
  print_columns(console, rows)
  for side in sides(sequence):
    real, loss = real_positions(sequence, side), examples.loss_positions(sequence, side)
    padding = len(real) - int(real.sum())
    text = f"  {side}: {padding} of {len(real)} positions are padding ({padding / len(real):.0%})"
    if loss.size:
      text += f", {int(loss.sum())} count in the loss"
    segments = sequence.get(f"{side}_segment_ids")
    if segments is not None and segments.max() > 1:
      text += f"; {segments.max()} examples"
    console.print(text)


def _ends(values: np.ndarray, real: np.ndarray, *, first: int = 5, last: int = 3) -> rich.text.Text:
  """Returns the first and the last values, with padding dimmed."""
  text, number = rich.text.Text(), len(values)
  shown = range(number) if number <= first + last else [*range(first), None, *range(number - last, number)]
  for i in shown:
    text.append("... " if i is None else f"{values[i]:g} ", "" if i is None or real[i] else _STYLES["padding"])
  return text


def _print_summary(
  console: rich.console.Console, shown: examples.Preview, *, packed: bool, special_tokens: bool
) -> None:
  summary = examples.summarize(shown)
  number = len(shown.examples)
  scope = f"all {number}" if shown.complete else f"the first {number}"
  _print_rule(console, f"Summary: {scope} examples of {shown.split}")
  rows = [[rich.text.Text(title, "bold") for title in ("tokens of", "mean", "least", "most", "limit", "examples cut")]]
  for name, lengths in summary.lengths.items():
    cut = summary.truncated[name]
    counts = [f"{lengths.mean():.1f}", str(lengths.min()), str(lengths.max()), str(shown.lengths.get(name, ""))]
    rows.append([name, *counts, rich.text.Text(f"{cut} ({cut / number:.0%})" if cut else "0", "red" if cut else "")])
  print_columns(console, rows, right=range(1, 6))
  facts = {
    "padding": ", ".join(f"{share:.1%} of the {side}'s positions" for side, share in summary.padding.items()),
    "tokens": f"{summary.tokens:.1f} per example; {summary.loss_tokens:.1f} count in the loss",
  }
  if packed:
    facts["packed"] = f"{number / len(shown.sequences):.1f} examples per sequence"
  if summary.hidden:
    words, share = summary.hidden
    facts["hidden"] = f"{share:.1%} {words}"
  facts["unknown"] = f"{summary.unknown:.2%} of the tokens"
  if spelled := raw_text.spelled(shown.task, split=shown.split):
    facts["control tokens"] = raw_text.spelled_note(spelled, special_tokens=special_tokens)
  _print_labelled(console, facts)


def source_name(source: seqio.DataSource) -> str:
  """Returns a short description of a source: the data set or the files."""
  source = named.unwrapped(source)
  if isinstance(source, seqio.TfdsDataSource):
    return str(source.tfds_dataset.name)
  if isinstance(source, named.FolderSource):
    return str(source)
  if isinstance(source, sources.DocumentationSource):
    return "the installed documentation"
  if isinstance(source, seqio.FileDataSource):
    return str(source).partition("(")[2].rstrip(")").strip("{}").replace("'", "")
  return type(source).__name__


# ---- Layout ----------------------------------------------------------------------------------------------------------


def print_columns(
  console: rich.console.Console, rows: Sequence[Sequence[str | rich.text.Text]], *, right: Sequence[int] = ()
) -> None:
  """Prints rows of cells, one line per row, cut to the width of the terminal.

  Args:
    console: console to print on.
    rows: cells of each row.
    right: indices of right-aligned columns.
  """
  cells = [[cell if isinstance(cell, rich.text.Text) else rich.text.Text(cell) for cell in row] for row in rows]
  widths = [max(cell.cell_len for cell in column) for column in zip(*cells, strict=True)]
  for row in cells:
    line = rich.text.Text("  ")
    for i, (cell, width) in enumerate(zip(row, widths, strict=True)):
      room = " " * (width - cell.cell_len)
      line = line + rich.text.Text(room) + cell if i in right else line + cell + rich.text.Text(room)
      line.append("  ")
    line.rstrip()
    line.truncate(console.width, overflow="ellipsis")
    console.print(line, no_wrap=True)


def _print_labelled(console: rich.console.Console, rows: Mapping[str, str | rich.text.Text]) -> None:
  """Prints labels with their values, which may wrap."""
  width = max(map(rich.cells.cell_len, rows), default=0) + 4
  for label, value in rows.items():
    text = value if isinstance(value, rich.text.Text) else rich.text.Text(value)
    for i, line in enumerate(text.wrap(console, max(console.width - width, 20)) or [rich.text.Text()]):
      start = f"  {label}" if i == 0 else ""
      full_line = rich.text.Text(start + " " * (width - rich.cells.cell_len(start))) + line
      full_line.rstrip()
      console.print(full_line, no_wrap=True)


def _print_rule(console: rich.console.Console, title: str) -> None:
  console.print()
  console.print(rich.text.Text(f"{title} ".ljust(console.width, "-"), "bold"))


def _printable(text: str) -> str:
  """Returns the text with control characters escaped."""
  return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def _print_features(console: rich.console.Console, features: Mapping[str, Any]) -> None:
  """Prints features without conversion; long values are shortened."""
  room = _RECORD_LINES * (console.width - 24)
  _print_labelled(console, {name: _shortened(value, room) for name, value in features.items()})


def _shortened(value: Any, room: int) -> str:
  if isinstance(value, bytes):
    value = value.decode(errors="replace")
  if isinstance(value, str):
    text = _printable(value)
    return text if len(text) <= room else f"{text[:room]} ... ({len(value):,} characters)"
  array = np.asarray(value)
  if array.ndim == 0:
    return str(value)
  values = [x.decode(errors="replace") if isinstance(x, bytes) else str(x) for x in array.flatten()[:200].tolist()]
  text = _printable(", ".join(values))
  shape = f"{'string' if array.dtype == object else array.dtype} {list(array.shape)}"
  return f"{text if len(text) <= room else text[:room] + ' ...'} ({shape})"
