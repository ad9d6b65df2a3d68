"""Traces of training steps in a report: the longest operations, and what a step waits for.

JAX's `ProfileData` reads the traces that `training.profiling` wrote.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
import re
from typing import Any

from etils import epath
import jax
import numpy as np

from t2t.reports import curves, page
from t2t.runtime import amounts
from t2t.storage import gcs, logs
from t2t.training import profiling
from t2t.training import run as training_run

MOST_OPERATIONS = 10
_MOST_TRACES = 3  # the last of a run
_MOST_BYTES = 300_000_000  # of a trace; a larger one takes minutes to read
_NUMBERS = re.compile(r"\d+")

# Intervals: float64 [number, 2], begin and end in nanoseconds.
Intervals = np.ndarray


@dataclasses.dataclass(frozen=True)
class TracedOperation:
  """An operation of the compiled step.

  Attributes:
    name: of the HLO instruction, such as "fusion.12".
    seconds: per step and device, without operations inside, such as those of a loop.
    count: runs per step and device.
  """

  name: str
  seconds: float
  count: float


@dataclasses.dataclass(frozen=True)
class Trace:
  """Contents of a trace of steps.

  Attributes:
    name: of its folder; the other attributes are 0 or empty if `error` says why it cannot be read.
    num_steps, num_devices: number of steps, and of devices of the first process.
    seconds: wall time of a step.
    device, input_wait, host: shares of the wall time, which add up to 1: a device computes; it is idle and the host
      waits for a batch; it is idle for another reason.
    operations: longest first.
    error: "" for a trace that was read.
  """

  name: str
  num_steps: int = 0
  num_devices: int = 0
  seconds: float = 0.0
  device: float = 0.0
  input_wait: float = 0.0
  host: float = 0.0
  operations: Sequence[TracedOperation] = ()
  error: str = ""


def read(workdir: epath.Path) -> list[Trace]:
  """Returns the last traces of a run in the order of their steps.

  Raises:
    OSError: the folder cannot be read.
  """
  folder = workdir.joinpath(profiling.FOLDER, *profiling.TRACES)
  names = sorted(gcs.names(folder, where=str(folder)), key=lambda name: [int(x) for x in _NUMBERS.findall(name)])
  return [_read(folder / name) for name in names[-_MOST_TRACES:]]


def _read(folder: epath.Path) -> Trace:
  files = [name for name in gcs.names(folder, where=str(folder)) if name.endswith(profiling.ENDINGS[0])]
  if not files:
    return Trace(folder.name, error=f"has no file *{profiling.ENDINGS[0]}")
  path = folder / min(files, key=lambda name: [int(x) for x in _NUMBERS.findall(name)])
  content = logs.read(path)
  if len(content) > _MOST_BYTES:
    return Trace(folder.name, error=f"is too large for a report ({amounts.nbytes(len(content))})")
  try:
    return parse(folder.name, content)
  except Exception as error:  # any error of the parser: a damaged trace, or one of another version of JAX
    return Trace(folder.name, error=f"cannot be read ({error})")


def parse(name: str, content: bytes) -> Trace:
  """Returns a trace.

  Args:
    name: of the trace.
    content: a serialized XSpace.

  Raises:
    ValueError: it has no steps.
  """
  steps, waits, pauses = [], [], []
  lines: list[tuple[str, list[tuple[str, float, float]]]] = []  # device, and (operation, begin, end)
  for plane in jax.profiler.ProfileData.from_serialized_xspace(content).planes:
    if plane.name.startswith("/device:"):
      for line in plane.lines:
        if line.name.startswith("Stream") or line.name == "XLA Ops":
          lines.append((plane.name, [(_name(event), event.start_ns, event.end_ns) for event in line.events]))
    elif plane.name.startswith("/host:"):
      for line in plane.lines:
        by_device: dict[str, list[tuple[str, float, float]]] = {}
        for event in line.events:
          if event.name == profiling.STEP:
            steps.append((event.start_ns, event.end_ns))
          elif event.name == profiling.INPUT:
            waits.append((event.start_ns, event.end_ns))
          elif event.name == training_run.PAUSED:
            pauses.append((event.start_ns, event.end_ns))
          elif not event.name.startswith(("end: ", "ThreadpoolListener")):
            stats = dict(event.stats)  # the CPU as a device: threads of the host run operations
            if "hlo_op" in stats:
              device = f"/device:CPU:{stats.get('device_ordinal', 0)}"
              by_device.setdefault(device, []).append((str(stats["hlo_op"]), event.start_ns, event.end_ns))
        lines.extend(by_device.items())
  if any(not device.startswith("/device:CPU") for device, _ in lines):
    lines = [line for line in lines if not line[0].startswith("/device:CPU")]
  if not steps:
    raise ValueError(f"{name}: no training step")
  windows = _without(_union(steps), _union(pauses))
  wall = _length(windows)
  lines = [(device, _outside(events, _union(pauses))) for device, events in lines]
  busy = {device: _union(events[1:] for d, line in lines if d == device for events in line) for device, _ in lines}
  shares = [_shares(windows, _union(waits), device_busy) for device_busy in busy.values()] or [(0.0, 0.0)]
  device, waiting = (float(np.mean(column)) for column in zip(*shares, strict=True))
  return Trace(
    name,
    num_steps=len(steps),
    num_devices=len(busy),
    seconds=wall / len(steps) / 1e9,
    device=device,
    input_wait=waiting,
    host=max(0.0, 1.0 - device - waiting),
    operations=_operations((line for _, line in lines), per=max(1, len(busy)) * len(steps)),
  )


def _name(event: Any) -> str:
  name = str(dict(event.stats).get("hlo_op", event.name))
  # A TPU names an operation by its HLO text, and a GPU the graph of several kernels by their first.
  name = event.name if event.name.startswith("command_buffer") else name
  return name.partition(" = ")[0].lstrip("%")


def _operations(lines: Iterable[Sequence[tuple[str, float, float]]], *, per: int) -> list[TracedOperation]:
  """Returns operations with their own time: that of operations inside is not theirs."""
  seconds: dict[str, float] = {}
  counts: dict[str, int] = {}
  for line in lines:
    open_events: list[tuple[str, float]] = []  # name and end of the enclosing operations
    for name, begin, end in sorted(line, key=lambda event: (event[1], -event[2])):
      while open_events and open_events[-1][1] <= begin:
        open_events.pop()
      if open_events:
        outer, outer_end = open_events[-1]
        seconds[outer] -= (min(end, outer_end) - begin) / 1e9
      seconds[name] = seconds.get(name, 0.0) + (end - begin) / 1e9
      counts[name] = counts.get(name, 0) + 1
      open_events.append((name, end))
  operations = [TracedOperation(name, max(0.0, seconds[name]) / per, counts[name] / per) for name in seconds]
  return sorted(operations, key=lambda operation: -operation.seconds)


def _shares(windows: Intervals, waits: Intervals, busy: Intervals) -> tuple[float, float]:
  """Returns the shares of the windows in which a device computes, and in which it is idle during a wait."""
  wall = _length(windows)
  inside = _length(_both(windows, busy))
  waiting = _length(_both(windows, waits))
  if inside < 0.5 * min(_length(busy), wall):  # the clocks of host and device differ, so only the lengths are known
    inside = min(wall, _length(busy))
    return inside / wall, min(waiting, wall - inside) / wall
  return inside / wall, (waiting - _length(_both(_both(windows, waits), busy))) / wall


def _outside(events: Sequence[tuple[str, float, float]], pauses: Intervals) -> list[tuple[str, float, float]]:
  """Returns the operations that do not begin in an evaluation or a save."""
  index = np.searchsorted(pauses[:, 0], [begin for _, begin, _ in events], side="right") - 1
  return [event for event, i in zip(events, index.tolist(), strict=True) if i < 0 or event[1] >= pauses[i, 1]]


def _without(a: Intervals, b: Intervals) -> Intervals:
  """Returns the parts of `a` outside of `b`, both disjoint and in order."""
  edges = np.concatenate([[-np.inf], b.reshape(-1), [np.inf]]).reshape(-1, 2)
  return _both(a, edges)


def _union(pairs: Iterable[tuple[float, ...]]) -> Intervals:
  """Returns disjoint intervals in order."""
  merged: list[list[float]] = []
  for begin, end in sorted(pairs):
    if merged and begin <= merged[-1][1]:
      merged[-1][1] = max(merged[-1][1], end)
    else:
      merged.append([begin, end])
  return np.asarray(merged, np.float64).reshape(-1, 2)


def _length(intervals: Intervals) -> float:
  return float((intervals[:, 1] - intervals[:, 0]).sum())


def _both(a: Intervals, b: Intervals) -> Intervals:
  """Returns the intersection of two sets of disjoint intervals in order."""
  pairs, i, j = [], 0, 0
  while i < len(a) and j < len(b):
    begin, end = max(a[i, 0], b[j, 0]), min(a[i, 1], b[j, 1])
    if begin < end:
      pairs.append((begin, end))
    if a[i, 1] < b[j, 1]:
      i += 1
    else:
      j += 1
  return _union(pairs)


def parts(traces: Sequence[Trace], workdir: str) -> Iterator[str]:
  """Yields shares and operations of each trace for a report."""
  for trace in traces:
    title = trace.name.replace("_", " ").replace("-", " to ")
    if trace.error:
      yield page.paragraph(f"The trace {trace.name} {trace.error}.", soft=True)
      continue
    devices = f", mean of {trace.num_devices} devices" if trace.num_devices > 1 else ""
    yield page.paragraph(
      f"{title[:1].upper()}{title[1:]}: {1e3 * trace.seconds:.4g} ms a step{devices}; a device computes"
      f" {trace.device:.1%}, waits for a batch {trace.input_wait:.1%}, and waits for the host {trace.host:.1%} of the"
      " time."
    )
    shares: Mapping[str, float] = {"device": trace.device, "input wait": trace.input_wait, "host": trace.host}
    yield page.pictures([curves.bars(f"Share of a step ({title})", shares)])
    total = sum(operation.seconds for operation in trace.operations)
    yield page.table(
      f"The {MOST_OPERATIONS} longest operations of {len(trace.operations):,} ({title})",
      ("operation", "ms a step", "share", "runs a step"),
      [
        (operation.name, 1e3 * operation.seconds, f"{operation.seconds / total:.1%}", operation.count)
        for operation in trace.operations[:MOST_OPERATIONS]
      ],
      right=True,
    )
  if traces:
    yield page.paragraph(f"Open the traces with: tensorboard --logdir {workdir}/{profiling.FOLDER} (pip install xprof)")
