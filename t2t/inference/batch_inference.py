"""A row for each line of a file, in their order, resumable at any byte, whatever a model is asked of each."""

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

# Batches whose lines are read, sorted by length and written together: more of them leave fewer rows of a batch empty,
# fewer lose less when a run is killed.
_WINDOW = 8

# What is wrong with a line -> what the summary calls such lines.
EMPTY = "empty line"
NO_BLANK = "no blank"
NO_CONTEXT = "empty context"
_CALLED = {EMPTY: "empty", NO_BLANK: "without a blank", NO_CONTEXT: "without a context"}

_FILLS = """
The model has learned to fill blanks and nothing else: put <extra_id_0>,
<extra_id_1>, ... where words are missing, or fine-tune it on what you ask."""

Done = Callable[[int, int], None]  # of lines and tokens, after each batch


# ---- What is asked ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class EncodedLine:
  """A line as a model reads it.

  given: what the model is given, as JSON takes it; None where nothing can be asked.
  tokens: how many it is, those that were cut included.
  cut: how many were.
  error: why nothing can be asked; a key of `_CALLED`.
  """

  given: Any
  tokens: int = 0
  cut: int = 0
  error: str = ""


class Way(Protocol):
  """What a model is asked of each line, on every host.

  asks: what is asked, as the page knows it: the kind of a head, "fill", ...
  unit: what is counted beside lines: "tokens", "new tokens".
  longest: tokens at most that the model reads at a time.
  cut_to: what the summary says that lines are cut to: "72 tokens".
  form: of lines and rows.
  pairs: whether a line's texts may be more than one: the model was trained to read several apart.
  options: what rows depend on besides checkpoint and input, by the names of the command's options.
  nothing: fields of the row of a line that cannot be asked.
  """

  asks: str
  unit: str
  longest: int
  cut_to: str
  form: jsonl_io.Form
  pairs: bool
  options: Mapping[str, Any]
  nothing: Mapping[str, Any]

  def check(self, line: jsonl_io.Line, where: str) -> None:
    """Whether a line has what is needed.

    Raises:
      UserError: it has not; begins with `where`.
    """

  def read(self, line: jsonl_io.Line) -> EncodedLine:
    """A line, which has been checked, as the model reads it."""

  def answer(
    self, params: Params, inputs: Sequence[Any], *, numbers: Sequence[int], done: Done | None
  ) -> list[dict[str, Any]]:
    """The fields of each row beside those of its line.

    Args:
      params: nested dict.
      inputs: of each line what `EncodedLine` has.
      numbers: of the lines, from 0; what is drawn for a line depends on its number.
      done: called after each batch.
    """


class RowOutput(Protocol):
  """Where rows are written to; see `jsonl_io.Output`."""

  done: int

  def beside(
    self, lines: Iterable[jsonl_io.Line], *, where: str, form: jsonl_io.Form
  ) -> Iterator[tuple[jsonl_io.Line, jsonl_io.Row | None]]:
    """Each line with the row that is there for it, if there is one."""

  def write(self, rows: Iterable[jsonl_io.Row]) -> None:
    """Appends rows."""


# ---- A file ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class InferenceJob:
  """What is to be done; the options of the command say what each means.

  called: what the rows are, in a word.
  blank: the beginning of what stands in each text that the model was trained on; "": of nothing that is known.
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
  """Writes a row for each line of the input, or those that are missing in the output.

  Args:
    source: the checkpoint.
    mesh: on which its parameters are loaded.
    way: how it is asked.
    job: files.
    open_output: (path, what its rows depend on) -> where they are written to.
    load: what gives the parameters that `way` is called with; None: those of the checkpoint.

  Raises:
    UserError: input, output or options cannot be used; before any work on a device, unless it is a line that comes
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
  resume_note = "none is kept" if job.output == jsonl_io.PIPE else "the same command goes on from there"
  far = lambda: f"{max(counts.lines, output.done):,}{f' of {total:,}' if total else ''} lines are done; {resume_note}"
  with open_output(job.output, _run(source, way, job)) as output, preemption.leaving(far):
    # ---- Where it goes on --------------------------------------------------
    called = jsonl_io.location(job.input).removeprefix("--input: ")
    stored_rows = lambda: output.beside(read(), where=called, form=way.form)
    if output.done and total is not None:
      for _ in stored_rows():  # says what does not belong together before the model is loaded
        pass
    if output.done == total:
      print(f"{job.output} is complete: {total:,} lines; nothing is left to do", file=sys.stderr)
      hosts.share(None)
      return
    if output.done:
      print(f"{job.output} has {output.done:,} lines; going on from there", file=sys.stderr)
    hosts.share("load")
    params = load()

    # ---- Windows -----------------------------------------------------------
    # A window begins at the same line in every run: its batches, and with them each digit of the scores, are the same
    # in a run that was interrupted as in one that was not.
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
  """What all processes but the first do: its share of each window that the first one, which alone reads, has read."""
  if hosts.share(None) is None:
    return
  params = load()
  with preemption.leaving(lambda: "what is written is kept; the same command goes on from there"):
    _answer_windows(params, way)


def _answer_windows(params: Params, way: Way) -> None:
  while (window := hosts.share(None)) is not None:
    first, inputs = window
    way.answer(params, inputs, numbers=range(first, first + len(inputs)), done=None)


def _check_adapter(line: jsonl_io.Line, way: Way, where: str) -> None:
  """Refuses a line that asks for an adapter where there is none: the model itself would answer in its name."""
  field = jsonl_io.ADAPTER
  if field in line.others and field not in way.form.may:
    named = str(line.others[field])[:60]
    raise UserError(f"{where}: asks for the {field} {named!r}, and none is loaded; give --adapter {named}=RUN")


def _checked(input_lines: Iterable[jsonl_io.Line], job: InferenceJob, way: Way) -> Iterator[jsonl_io.Line]:
  """The lines, if the model can be asked of them, with `--strict` only such as can be answered as they are."""
  for line in input_lines:
    where = jsonl_io.location(job.input, line.number)
    if line.text:
      _check_adapter(line, way, where)
      way.check(line, where)
    if job.strict:
      encoded_line = _encoded(line, way)
      if encoded_line.error:
        raise UserError(f"{where}: {encoded_line.error}; without --strict its row has null and this error")
      if encoded_line.cut:
        raise UserError(
          f"{where}: {encoded_line.cut:,} of its {encoded_line.tokens:,} tokens do not fit into the {way.cut_to} that"
          " the model reads; shorten it, give another --inputs_length, or leave out --strict, and it is cut"
        )
    yield line


def _encoded(line: jsonl_io.Line, way: Way) -> EncodedLine:
  return way.read(line) if line.text else EncodedLine(None, error=EMPTY)


def _count(input_lines: Iterable[jsonl_io.Line], job: InferenceJob) -> int:
  number, texts = 0, 0
  for line in input_lines:
    number, texts = line.number, texts + bool(line.text)
  if not texts:
    raise UserError(f"{jsonl_io.location(job.input)} has nothing but empty lines")
  return number


def make_mesh(tensor: int) -> jax.sharding.Mesh:
  """All devices, each `tensor` of which share one copy of the model.

  Raises:
    UserError: it does not divide them.
  """
  devices = jax.device_count()
  if tensor < 1 or devices % tensor:
    works = [number for number in range(1, devices + 1) if devices % number == 0]
    raise UserError(f"--tensor {tensor}: does not divide {devices} device(s); sizes that would do: {works}")
  return sharding.make_mesh({"data": -1, "tensor": tensor})


def _run(source: pretrained.Source, way: Way, job: InferenceJob) -> dict[str, Any]:
  """What the rows depend on, by the names of the options; the size of a batch is none of it."""
  task = {"task": source.task} if source.task else {}
  field = job.field or way.form.field
  return {"checkpoint": str(source.path), **task, "input": job.input, "field": field, **way.options}


def _windows(pairs: Iterator, size: int) -> Iterator[list]:
  while window := list(itertools.islice(pairs, size)):
    yield window


def _answers(
  window: Sequence[jsonl_io.Line], way: Way, params: Params, progress: "_LineProgress"
) -> list[dict[str, Any]]:
  """The fields that each line's row has beside those of the input."""
  encoded_lines = [_encoded(line, way) for line in window]
  usable_inputs = [encoded_line.given for encoded_line in encoded_lines if not encoded_line.error]
  answers: Sequence[dict[str, Any]] = [{}] * len(window)
  if usable_inputs:
    # What is drawn for a line depends on its number: one that cannot be asked stands in its place as a copy of another.
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
  """Counts lines where their parts are done: as many as their share of all parts is.

  Args:
    done: see `Way.answer`.
    ends: of each line the number of parts up to its end.
  """
  read = 0

  def of_windows(number: int, tokens: int) -> None:
    nonlocal read
    before, read = read, read + number
    share = [len(ends) * part_count // int(ends[-1]) for part_count in (before, read)]
    done(share[1] - share[0], tokens)

  return of_windows


class _Counts:
  """What the summary says of the output."""

  def __init__(self, blank: str):
    self._blank = blank
    self.lines = self.cut = self.unwritten = self.without_blank = 0
    self.errors = dict.fromkeys(_CALLED, 0)

  def add(self, rows: Iterable[jsonl_io.Row]) -> None:
    for row in rows:
      self.lines += 1
      self.cut += "cut" in row
      if self._blank:  # rows of vectors may have no texts
        self.without_blank += not row.get("error") and self._blank not in row["inputs"]
      text = row.get("prediction")
      self.unwritten += isinstance(text, str) and not text.strip()
      if row.get("error") in self.errors:
        self.errors[row["error"]] += 1


def _summarise(counts: _Counts, progress: "_LineProgress", way: Way, job: InferenceJob) -> None:
  """Prints what a person wants to know at the end; not among the rows."""
  file = sys.stderr if job.output == jsonl_io.PIPE else sys.stdout
  remarks = [f"{number:,} {_CALLED[error]}" for error, number in counts.errors.items() if number]
  # A head that finds no answer gives none; a model that writes nothing may surprise.
  remarks += [f"{counts.unwritten:,} with an empty prediction"] if counts.unwritten and way.asks == "write" else []
  remarks += [f"{counts.cut:,} cut to {way.cut_to}"] if counts.cut else []
  remarks += [f"{counts.without_blank:,} {_CALLED[NO_BLANK]}"] if counts.without_blank else []
  print(f"lines          {counts.lines:,}" + (f" ({', '.join(remarks)})" if remarks else ""), file=file)
  speed = f"{progress.speed:,.0f}/s, compiling included"
  print(f"{way.unit:<14} {progress.tokens:,} in {amounts.duration(progress.seconds)} ({speed})", file=file)
  if job.output != jsonl_io.PIPE:
    print(f"{job.called:<14} {job.output}", file=file)
  if counts.without_blank:
    print(_FILLS, file=file)


class _LineProgress:
  """Lines done, speed and time left: one line that changes on a terminal, a line now and then elsewhere."""

  _EVERY_SECONDS = 10.0

  def __init__(self, total: int | None, unit: str):
    self._total, self._unit = total, unit
    self._lines = self._new_lines = self.tokens = 0
    self._started = self._printed = time.monotonic()
    # Lines and seconds at the end of each batch: the first one compiles, and says little of those that follow.
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
    """Tokens per second, from the beginning."""
    return self.tokens / max(time.monotonic() - self._started, 1e-9)

  def skip(self, number: int) -> None:
    """So many lines needed no work."""
    self._lines += number

  def add(self, number: int, tokens: int) -> None:
    """So many lines are done, with so many tokens."""
    self._lines, self._new_lines, self.tokens = self._lines + number, self._new_lines + number, self.tokens + tokens
    now = time.monotonic()
    self._batches = [*self._batches[-50:], (self._new_lines, now)]
    text = f"{self._lines:,}" + (f"/{self._total:,}" if self._total else "") + " lines"
    before, first_batch_end = self._batches[0]
    if now > first_batch_end:
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
    """Prints a line of its own."""
    if self._bar is not None:
      self._bar.console.print(text, highlight=False, markup=False)
    else:
      print(text, file=sys.stderr, flush=True)
