"""What a model writes for each line of a file, in their order, resumable at any byte."""

from collections.abc import Iterable, Iterator, Sequence
import dataclasses
import itertools
import sys
import time
from typing import Any

import jax
import rich.console
import rich.progress

from t2t import UserError, sharding
from t2t.checkpoints import pretrained
from t2t.generation import decoding, line_files, predictor, prompting
from t2t.runtime import hosts
from t2t.training import writers

# Batches whose lines are read, sorted by length and written together: more of them leave fewer rows of a batch empty,
# fewer lose less when a run is killed.
_WINDOW = 8


# ---- A file ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Job:
  """What is to be done; the options of the command say what each means."""

  input: str
  output: str
  field: str
  decode: decoding.DecodeConfig
  seed: int
  max_inputs: int
  ends_prompts: bool
  batch_size: int
  strict: bool
  tensor: int


def infer(source: pretrained.Source, job: Job) -> None:
  """Writes a row for each line of the input, or those that are missing in the output.

  Raises:
    UserError: input, output or options cannot be used; before any work on a device, unless it is a line that comes
      through a pipe.
  """
  if jax.process_index() != 0:
    _follow(source, job)
    return

  # ---- Input ---------------------------------------------------------------
  vocabulary = pretrained.vocabulary(source)
  prompts = prompting.Prompts(vocabulary, ends=job.ends_prompts, longest=job.max_inputs)
  read = lambda: _checked(line_files.read(job.input, field=job.field), job, prompts)
  total = None if job.input == line_files.PIPE else _count(read(), job)

  # ---- Model ---------------------------------------------------------------
  mesh = _mesh(job.tensor)
  predictor = _predictor(source, vocabulary, mesh, job)

  with line_files.output(job.output, _run(source, job)) as output:
    # ---- Where it goes on --------------------------------------------------
    beside = lambda: output.beside(read(), where=line_files.place(job.input).removeprefix("--input: "))
    if output.done and total is not None:
      for _ in beside():  # says what does not belong together before the model is loaded
        pass
    if output.done == total:
      print(f"{job.output} is complete: {total:,} lines; nothing is left to do", file=sys.stderr)
      hosts.share(None)
      return
    if output.done:
      print(f"{job.output} has {output.done:,} lines; going on from there", file=sys.stderr)
    hosts.share("load")
    params = pretrained.load(source, mesh).params

    # ---- Windows -----------------------------------------------------------
    # A window begins at the same line in every run: its batches, and with them each digit of the scores, are the same
    # in a run that was interrupted as in one that was not.
    size = job.batch_size * _WINDOW
    counts = _Counts()
    with _Progress(total) as progress:
      try:
        for window in _windows(beside(), size):
          if any(row is None for _, row in window):
            answers = _answers([line for line, _ in window], prompts, vocabulary, predictor, params, job, progress)
            rows = [row or line_files.row(line, new) for (line, row), new in zip(window, answers, strict=True)]
            output.write(row for row, (_, before) in zip(rows, window, strict=True) if before is None)
          else:
            rows = [row for _, row in window]
            progress.skip(len(rows))
          counts.add(rows)
      except KeyboardInterrupt:
        if job.output != line_files.PIPE:
          progress.say(f"stopped after {counts.lines:,} lines; the same command goes on from there")
        raise
  hosts.share(None)
  _summarise(counts, progress, job)


def _predictor(source: pretrained.Source, vocabulary, mesh: jax.sharding.Mesh, job: Job) -> predictor.Predictor:
  model = pretrained.abstract(source, mesh)
  return predictor.Predictor(
    model.config,
    model.graphdef,
    mesh,
    predictor.framing(vocabulary),
    decode=job.decode,
    batch_size=job.batch_size,
    max_inputs=job.max_inputs,
  )


def _follow(source: pretrained.Source, job: Job) -> None:
  """What all processes but the first do: its share of each window that the first one, which alone reads, has read."""
  mesh = _mesh(job.tensor)
  predictor = _predictor(source, pretrained.vocabulary(source), mesh, job)
  if hosts.share(None) is None:
    return
  params = pretrained.load(source, mesh).params
  while (window := hosts.share(None)) is not None:
    first, tokens = window
    predictor.generate(params, tokens, seed=job.seed, first=first)


def _checked(found: Iterable[line_files.Line], job: Job, prompts: prompting.Prompts) -> Iterator[line_files.Line]:
  """The lines, with `--strict` only such as can be answered as they are."""
  for line in found:
    if job.strict:
      where = line_files.place(job.input, line.number)
      if not line.text:
        raise UserError(f"{where}: empty; without --strict its prediction is null")
      kept, cut = prompts(line.text)
      if cut:
        raise UserError(
          f"{where}: has {len(kept) + cut:,} tokens, more than the {job.max_inputs:,} that the model reads; shorten it,"
          " give another --inputs_length, or leave out --strict, and it is cut"
        )
    yield line


def _count(found: Iterable[line_files.Line], job: Job) -> int:
  number, texts = 0, 0
  for line in found:
    number, texts = line.number, texts + bool(line.text)
  if not texts:
    raise UserError(f"{line_files.place(job.input)} has nothing but empty lines")
  return number


def _mesh(tensor: int) -> jax.sharding.Mesh:
  devices = jax.device_count()
  if tensor < 1 or devices % tensor:
    works = [number for number in range(1, devices + 1) if devices % number == 0]
    raise UserError(f"--tensor {tensor}: does not divide {devices} device(s); sizes that would do: {works}")
  return sharding.make_mesh({"data": -1, "tensor": tensor})


def _run(source: pretrained.Source, job: Job) -> dict[str, Any]:
  """What the rows depend on, by the names of the options; the size of a batch is none of it."""
  decode = job.decode
  found = {"checkpoint": str(source.path), "input": job.input, "field": job.field or "inputs"}
  found |= {"inputs_length": job.max_inputs, "max_length": decode.max_length, "beam": decode.num_beams}
  if decode.num_beams > 1:
    found["length_penalty"] = decode.length_penalty
  # Only what departs from what outputs were written with before it could be chosen.
  if job.ends_prompts != source.model.kind.reads_apart:
    found["prompt_eos"] = "yes" if job.ends_prompts else "no"
  found["temperature"] = decode.temperature
  if decode.temperature:
    found |= {"top_k": decode.top_k, "top_p": decode.top_p, "seed": job.seed}
  return found


def _windows(pairs: Iterator, size: int) -> Iterator[list]:
  while window := list(itertools.islice(pairs, size)):
    yield window


def _answers(
  window: Sequence[line_files.Line],
  prompts: prompting.Prompts,
  vocabulary,
  predictor,
  params,
  job: Job,
  progress: "_Progress",
) -> list[dict[str, Any]]:
  """The fields that each line's row has beside those of the input."""
  encoded = [prompts(line.text) if line.text else None for line in window]
  there = [each for each in encoded if each is not None]
  if not there:
    progress.skip(len(window))
    return [_EMPTY] * len(window)
  # What is drawn for a line depends on its number: an empty one stands in its place as a copy of another.
  tokens = [(each or there[0])[0] for each in encoded]
  first = window[0].number - 1
  hosts.share([first, tokens])
  generations = predictor.generate(params, tokens, seed=job.seed, first=first, on_batch=progress.add)
  found = []
  for each, generation in zip(encoded, generations, strict=True):
    if each is None:
      found.append(_EMPTY)
    else:
      found.append(prompting.answer(generation, vocabulary) | ({"cut": each[1]} if each[1] else {}))
  return found


_EMPTY = {"prediction": None, "score": None, "error": "empty line"}


class _Counts:
  """What the summary says of the output."""

  def __init__(self):
    self.lines = self.empty = self.cut = 0

  def add(self, rows: Iterable[line_files.Row]) -> None:
    for row in rows:
      self.lines += 1
      self.empty += "error" in row
      self.cut += "cut" in row


def _summarise(counts: _Counts, progress: "_Progress", job: Job) -> None:
  """Prints what a person wants to know at the end; not among the rows."""
  file = sys.stderr if job.output == line_files.PIPE else sys.stdout
  remarks = [f"{counts.empty:,} empty"] if counts.empty else []
  remarks += [f"{counts.cut:,} cut to {job.max_inputs:,} tokens"] if counts.cut else []
  print(f"lines          {counts.lines:,}" + (f" ({', '.join(remarks)})" if remarks else ""), file=file)
  speed = f"{progress.speed:,.0f}/s, compiling included"
  print(f"new tokens     {progress.tokens:,} in {writers.duration(progress.seconds)} ({speed})", file=file)
  if job.output != line_files.PIPE:
    print(f"predictions    {job.output}", file=file)


class _Progress:
  """Lines done, speed and time left: one line that changes on a terminal, a line now and then elsewhere."""

  _EVERY_SECONDS = 10.0

  def __init__(self, total: int | None):
    self._total = total
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
    """New tokens per second, from the beginning."""
    return self.tokens / max(time.monotonic() - self._started, 1e-9)

  def skip(self, number: int) -> None:
    """So many lines needed no work."""
    self._lines += number

  def add(self, number: int, tokens: int) -> None:
    """So many lines are done, with so many new tokens."""
    self._lines, self._new_lines, self.tokens = self._lines + number, self._new_lines + number, self.tokens + tokens
    now = time.monotonic()
    self._batches = [*self._batches[-50:], (self._new_lines, now)]
    text = f"{self._lines:,}" + (f"/{self._total:,}" if self._total else "") + " lines"
    before, at = self._batches[0]
    if now > at:
      per_second = (self._new_lines - before) / (now - at)
      text += f"  {writers.compact_count(per_second)} lines/s  {writers.compact_count(self.speed)} new tokens/s"
      if self._total:
        text += f"  {writers.duration((self._total - self._lines) / per_second)} left"
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


# ---- How text is written ---------------------------------------------------------------------------------------------


def decode_config(
  *,
  max_length: int,
  beam: int = 1,
  length_penalty: float | None = None,
  temperature: float | None = None,
  top_p: float | None = None,
  top_k: int | None = None,
) -> decoding.DecodeConfig:
  """How text is written, from the options of the command; None: not given.

  Raises:
    UserError: a value out of range, or options that have nothing to do with each other.
  """
  drawing = {"temperature": temperature, "top_p": top_p, "top_k": top_k}
  drawing = {name: value for name, value in drawing.items() if value is not None}
  if beam > 1 and drawing:
    name, value = next(iter(drawing.items()))
    raise UserError(f"--beam {beam} and --{name} {value}: beams find the likeliest text, nothing is drawn; give one")
  if beam < 1:
    raise UserError(f"--beam {beam}: must be at least 1, which is no search")
  if length_penalty is not None and beam == 1:
    raise UserError(f"--length_penalty {length_penalty}: only for beam search; give --beam 4, or leave it out")
  if drawing:
    drawing = {"temperature": 1.0, **drawing}
    if not drawing["temperature"] and len(drawing) > 1:
      raise UserError("--temperature 0 takes the likeliest token each time: leave out --top_p and --top_k, or raise it")
  penalty = {} if length_penalty is None else {"length_penalty": length_penalty}
  return decoding.DecodeConfig(max_length=max_length, num_beams=beam, **penalty, **drawing)
