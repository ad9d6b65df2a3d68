"""Runs a model over an input file and writes one row for each line, in order and resumable at any byte."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
import dataclasses
import itertools
import sys
import time
from typing import Any, Protocol

import jax
import rich.console
import rich.progress

from t2t import UserError, sharding
from t2t.checkpoints import pretrained
from t2t.inference import jsonl_io
from t2t.param_tree import Params
from t2t.runtime import amounts, hosts, preemption

# Number of batches that are read, sorted by length and written together. A larger window leaves fewer padding rows in a
# batch, a smaller one loses less work when a run is killed.
_WINDOW = 8

# Error of a line -> description of such lines in the summary.
EMPTY = "empty line"
NO_BLANK = "no blank"
NO_CONTEXT = "empty context"
_CALLED = {EMPTY: "empty", NO_BLANK: "without a blank", NO_CONTEXT: "without a context"}
# Error of a line -> instruction.
REMEDIES = {
  EMPTY: "give a text",
  NO_BLANK: "put [MASK] in place of each missing word",
  NO_CONTEXT: "give the text that contains the answer",
}

_FILLS = """
The model was only trained to fill blanks: put <extra_id_0>, <extra_id_1>, ...
where words are missing, or fine-tune it on your task."""

Done = Callable[[int, int], None]  # numbers of lines and tokens, after each batch


# ---- Interface -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class EncodedLine:
  """A line as model input.

  given: model input as JSON; None if the line cannot be used.
  tokens: number of tokens before truncation.
  cut: number of tokens removed by truncation.
  error: reason that the line cannot be used; a key of `_CALLED`.
  """

  given: Any
  tokens: int = 0
  cut: int = 0
  error: str = ""


class Way(Protocol):
  """A kind of inference, run on every host.

  asks: kind, as the web page names it: the kind of a head, "fill", ...
  unit: counted beside lines: "tokens", "new tokens".
  longest: maximum number of tokens that the model reads at a time.
  cut_to: length limit in words, for the summary: "72 tokens".
  form: of lines and rows.
  pairs: whether a line may have several texts, because the model was trained on separate texts.
  options: values that rows depend on besides checkpoint and input, by the names of the command's options.
  nothing: fields of the row of a line that cannot be used.
  remarks: further lines of the summary.
  """

  asks: str
  unit: str
  longest: int
  cut_to: str
  form: jsonl_io.Form
  pairs: bool
  options: Mapping[str, Any]
  nothing: Mapping[str, Any]
  remarks: Sequence[str]

  def check(self, line: jsonl_io.Line, where: str) -> None:
    """Checks that a line has the required fields.

    Raises:
      UserError: a field is missing; the message begins with `where`.
    """

  def read(self, line: jsonl_io.Line) -> EncodedLine:
    """Converts a checked line to model input."""

  def answer(
    self, params: Params, inputs: Sequence[Any], *, numbers: Sequence[int], done: Done | None
  ) -> list[dict[str, Any]]:
    """Returns the predicted fields of each row.

    Args:
      params: nested dict.
      inputs: `EncodedLine.given` of each line.
      numbers: line numbers, from 0; sampling for a line depends only on its number.
      done: called after each batch.
    """


class RowOutput(Protocol):
  """Destination of rows; see `jsonl_io.Output`."""

  done: int

  def beside(
    self, lines: Iterable[jsonl_io.Line], *, where: str, form: jsonl_io.Form
  ) -> Iterator[tuple[jsonl_io.Line, jsonl_io.Row | None]]:
    """Yields each line with its stored row, or None."""

  def write(self, rows: Iterable[jsonl_io.Row]) -> None:
    pass


# ---- Files -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class InferenceJob:
  """Settings of a run; see the options of the command.

  called: noun for the rows, for the summary.
  blank: prefix of the blanks in the training texts; "" if unknown.
  """

  input: str
  output: str
  field: str
  batch_size: int
  strict: bool
  called: str = "predictions"
  blank: str = ""


def run(
  source: pretrained.Source,
  mesh: jax.sharding.Mesh,
  way: Way,
  job: InferenceJob,
  *,
  open_output: Callable[[str, Mapping[str, Any]], AbstractContextManager[RowOutput]] = jsonl_io.output,
  load: Callable[[], Params] | None = None,
) -> None:
  """Writes one row for each line of the input; resumes an incomplete output.

  Args:
    source: the checkpoint.
    mesh: on which its parameters are loaded.
    way: kind of inference.
    job: files and options.
    open_output: opens the output, from its path and the values that its rows depend on.
    load: returns the parameters that `way` is called with; None: the parameters of the checkpoint.

  Raises:
    UserError: input, output or options cannot be used. Raised before any work on a device, except for lines that come
      through a pipe.
  """
  load = load or (lambda: pretrained.load(source, mesh).params)
  if jax.process_index() != 0:
    _follow(load, way)
    return

  # ---- Input ---------------------------------------------------------------
  read = lambda: _checked(jsonl_io.read(job.input, field=job.field, form=way.form), job, way)
  total = None if job.input == jsonl_io.PIPE else _count(read(), job)

  counts = _Counts(job.blank)
  resume_note = (
    "nothing is kept on standard output" if job.output == jsonl_io.PIPE else "rerun the same command to resume"
  )
  far = lambda: f"finished {max(counts.lines, output.done):,}{f' of {total:,}' if total else ''} lines; {resume_note}"
  with open_output(job.output, _run(source, way, job)) as output, preemption.leaving(far):
    # ---- Resume ------------------------------------------------------------------------------------------------------
    called = jsonl_io.location(job.input).removeprefix("--input: ")
    stored_rows = lambda: output.beside(read(), where=called, form=way.form)
    if output.done and total is not None:
      for _ in stored_rows():  # raises for rows of another input before the model is loaded
        pass
    if output.done == total:
      print(f"{job.output} is complete: {total:,} lines; nothing left to do", file=sys.stderr)
      hosts.share(None)
      return
    if output.done:
      print(f"{job.output} has {output.done:,} lines; resuming after them", file=sys.stderr)
    hosts.share("load")
    params = load()

    # ---- Windows -----------------------------------------------------------
    # A window begins at the same line in every run. Batches, and therefore all digits of the scores, are equal in
    # interrupted and uninterrupted runs.
    size = job.batch_size * _WINDOW
    with _LineProgress(total, way.unit) as progress:
      try:
        for window in _windows(stored_rows(), size):
          if any(row is None for _, row in window):
            answers = _answers([line for line, _ in window], way, params, progress)
            rows = [row or jsonl_io.row(line, new) for (line, row), new in zip(window, answers, strict=True)]
            output.write(row for row, (_, before) in zip(rows, window, strict=True) if before is None)
          else:
            rows = [row for _, row in window]
            progress.skip(len(rows))
          counts.add(rows)
      except KeyboardInterrupt:
        progress.say(far())
        raise
  hosts.share(None)
  _summarise(counts, progress, way, job)


def _follow(load: Callable[[], Params], way: Way) -> None:
  """Runs on all processes except the first: answers the windows that the first process reads and shares."""
  if hosts.share(None) is None:
    return
  params = load()
  with preemption.leaving(lambda: "rows written so far are kept; rerun the same command to resume"):
    _answer_windows(params, way)


def _answer_windows(params: Params, way: Way) -> None:
  while (window := hosts.share(None)) is not None:
    first, inputs = window
    way.answer(params, inputs, numbers=range(first, first + len(inputs)), done=None)


def _check_adapter(line: jsonl_io.Line, way: Way, where: str) -> None:
  """Rejects a line that selects an adapter when no adapter is loaded; otherwise the base model would answer it."""
  field = jsonl_io.ADAPTER
  if field in line.others and field not in way.form.may:
    named = str(line.others[field])[:60]
    raise UserError(f"{where} selects the {field} {named!r}, but no adapter is loaded; give --adapter {named}=RUN")


def _checked(input_lines: Iterable[jsonl_io.Line], job: InferenceJob, way: Way) -> Iterator[jsonl_io.Line]:
  """Yields the lines after checking them; `--strict` also rejects empty lines, lines without blanks, and truncation."""
  for line in input_lines:
    where = jsonl_io.location(job.input, line.number)
    if line.text:
      _check_adapter(line, way, where)
      way.check(line, where)
    if job.strict:
      encoded_line = _encoded(line, way)
      if encoded_line.error:
        raise UserError(
          f"{where}: {encoded_line.error}. Fix the line, or leave out --strict to write a row with null and this error."
        )
      if encoded_line.cut:
        raise UserError(
          f"{where}: {encoded_line.cut:,} of the {encoded_line.tokens:,} tokens do not fit (limit: {way.cut_to}). "
          "Shorten the line, raise --inputs_length, or leave out --strict to truncate the line."
        )
    yield line


def _encoded(line: jsonl_io.Line, way: Way) -> EncodedLine:
  return way.read(line) if line.text else EncodedLine(None, error=EMPTY)


def _count(input_lines: Iterable[jsonl_io.Line], job: InferenceJob) -> int:
  number, texts = 0, 0
  for line in input_lines:
    number, texts = line.number, texts + bool(line.text)
  if not texts:
    raise UserError(f"{jsonl_io.location(job.input)}: all lines are empty; give at least one line with text")
  return number


def make_mesh(tensor: int) -> jax.sharding.Mesh:
  """Returns a mesh of all devices in which groups of `tensor` devices share one copy of the model.

  Raises:
    UserError: `tensor` does not divide the number of devices.
  """
  devices = jax.device_count()
  if tensor < 1 or devices % tensor:
    works = [number for number in range(1, devices + 1) if devices % number == 0]
    raise UserError(f"--tensor {tensor} does not divide the number of devices, {devices}; give one of {works}")
  return sharding.make_mesh({"data": -1, "tensor": tensor})


def _run(source: pretrained.Source, way: Way, job: InferenceJob) -> dict[str, Any]:
  """Returns the values that rows depend on, by option name; the batch size is not one of them."""
  task = {"task": source.task} if source.task else {}
  field = job.field or way.form.field
  return {"checkpoint": source.name, **task, "input": job.input, "field": field, **source.read_as, **way.options}


def _windows(pairs: Iterator, size: int) -> Iterator[list]:
  while window := list(itertools.islice(pairs, size)):
    yield window


def _answers(
  window: Sequence[jsonl_io.Line], way: Way, params: Params, progress: "_LineProgress"
) -> list[dict[str, Any]]:
  """Returns the fields of each line's row except those from the input."""
  encoded_lines = [_encoded(line, way) for line in window]
  usable_inputs = [encoded_line.given for encoded_line in encoded_lines if not encoded_line.error]
  answers: Sequence[dict[str, Any]] = [{}] * len(window)
  if usable_inputs:
    # Sampling for a line depends on its number, so a copy of another input replaces an unusable line.
    inputs = [usable_inputs[0] if encoded_line.error else encoded_line.given for encoded_line in encoded_lines]
    first = window[0].number - 1
    hosts.share([first, inputs])
    answers = way.answer(params, inputs, numbers=range(first, first + len(inputs)), done=progress.add)
  else:
    progress.skip(len(window))
  rows = []
  for encoded_line, answer in zip(encoded_lines, answers, strict=True):
    fields = {**way.nothing, "error": encoded_line.error} if encoded_line.error else answer
    rows.append(fields | ({"cut": encoded_line.cut} if encoded_line.cut else {}))
  return rows


def by_lines(done: Done, ends: Sequence[int]) -> Done:
  """Returns a callback that converts progress in parts to progress in lines, in proportion.

  Args:
    done: see `Way.answer`.
    ends: cumulative number of parts at the end of each line.
  """
  read = 0

  def of_windows(number: float, tokens: int) -> None:
    nonlocal read
    before, read = read, read + number
    # Sums of fractions, such as a part of a line, are inexact.
    share = [int(len(ends) * part_count / int(ends[-1]) + 1e-6) for part_count in (before, read)]
    done(share[1] - share[0], tokens)

  return of_windows


class _Counts:
  """Statistics of the output for the summary."""

  def __init__(self, blank: str):
    self._blank = blank
    self.lines = self.cut = self.unwritten = self.without_blank = 0
    self.errors = dict.fromkeys(_CALLED, 0)

  def add(self, rows: Iterable[jsonl_io.Row]) -> None:
    for row in rows:
      self.lines += 1
      self.cut += "cut" in row
      if self._blank:  # embedding rows have no texts
        self.without_blank += not row.get("error") and self._blank not in row["inputs"]
      text = row.get("prediction")
      self.unwritten += isinstance(text, str) and not text.strip()
      if row.get("error") in self.errors:
        self.errors[row["error"]] += 1


def _summarise(counts: _Counts, progress: "_LineProgress", way: Way, job: InferenceJob) -> None:
  """Prints the summary, to stderr if the rows go to stdout."""
  file = sys.stderr if job.output == jsonl_io.PIPE else sys.stdout
  remarks = [f"{number:,} {_CALLED[error]}" for error, number in counts.errors.items() if number]
  # An empty prediction is normal for a head without an answer, but not for a generative model.
  remarks += [f"{counts.unwritten:,} with an empty prediction"] if counts.unwritten and way.asks == "write" else []
  remarks += [f"{counts.cut:,} truncated to {way.cut_to}"] if counts.cut else []
  remarks += [f"{counts.without_blank:,} {_CALLED[NO_BLANK]}"] if counts.without_blank else []
  print(f"lines          {counts.lines:,}" + (f" ({', '.join(remarks)})" if remarks else ""), file=file)
  digits = f"{progress.speed:,.0f}" if progress.speed >= 10 else f"{progress.speed:.2g}"
  speed = f"{digits}/s, including compilation"
  print(f"{way.unit:<14} {progress.tokens:,} in {amounts.duration(progress.seconds)} ({speed})", file=file)
  for remark in way.remarks:
    print(remark, file=file)
  if job.output != jsonl_io.PIPE:
    print(f"{job.called:<14} {job.output}", file=file)
  if counts.without_blank:
    print(_FILLS, file=file)


class _LineProgress:
  """Progress with speed and time left: a progress bar on a terminal, a line every ten seconds elsewhere."""

  _EVERY_SECONDS = 10.0

  def __init__(self, total: int | None, unit: str):
    self._total, self._unit = total, unit
    self._lines = self._new_lines = self.tokens = 0
    self._started = self._printed = time.monotonic()
    # (lines, seconds) at the end of each batch. The first batch compiles, so its speed does not count.
    self._batches: list[tuple[int, float]] = []
    self._console = rich.console.Console(stderr=True)
    self._bar = None

  def __enter__(self):
    if self._console.is_terminal:
      columns = (rich.progress.BarColumn(), rich.progress.TextColumn("{task.description}"))
      self._bar = rich.progress.Progress(*columns, console=self._console, transient=True)
      self._task = self._bar.add_task("compiling", total=self._total)
      self._bar.start()
    return self

  def __exit__(self, *error):
    self.seconds = time.monotonic() - self._started
    if self._bar is not None:
      self._bar.stop()

  @property
  def speed(self) -> float:
    """Tokens per second since the start."""
    return self.tokens / max(time.monotonic() - self._started, 1e-9)

  def skip(self, number: int) -> None:
    """Counts lines that needed no work."""
    self._lines += number

  def add(self, number: int, tokens: int) -> None:
    """Counts the lines and tokens of a finished batch."""
    self._lines, self._new_lines, self.tokens = self._lines + number, self._new_lines + number, self.tokens + tokens
    now = time.monotonic()
    self._batches = [*self._batches[-50:], (self._new_lines, now)]
    text = f"{self._lines:,}" + (f"/{self._total:,}" if self._total else "") + " lines"
    before, first_batch_end = self._batches[0]
    if now > first_batch_end and self._new_lines > before:  # a batch may end no line
      per_second = (self._new_lines - before) / (now - first_batch_end)
      text += f"  {amounts.compact_count(per_second)} lines/s  {amounts.compact_count(self.speed)} {self._unit}/s"
      if self._total:
        text += f"  {amounts.duration((self._total - self._lines) / per_second)} left"
    if self._bar is not None:
      self._bar.update(self._task, completed=self._lines, description=text)
    elif now - self._printed >= self._EVERY_SECONDS:
      self._printed = now
      self.say(text)

  def say(self, text: str) -> None:
    """Prints a line without disturbing the progress bar."""
    if self._bar is not None:
      self._bar.console.print(text, highlight=False, markup=False)
    else:
      print(text, file=sys.stderr, flush=True)
