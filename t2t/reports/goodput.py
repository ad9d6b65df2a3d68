"""Goodput of a run: the wall time of all its sessions by phase, from the log of `training.session_clock`.

A session is one process that trained the run; one that ended by an error before it had a state is none. Steps after the
state from which a later session starts are lost, because they were repeated. The time between the last record of a
session and the beginning of the next counts as down.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import datetime
import itertools
import json
import math
from typing import Any

from etils import epath

from t2t.reports import curves, page
from t2t.runtime import amounts
from t2t.storage import logs
from t2t.training import session_clock

DOWN = "down"
# Phase -> its name for readers, in the order of the table.
NAMES = {
  session_clock.STEP: "useful steps",
  session_clock.LOST: "lost steps",
  session_clock.INPUT: "input wait",
  session_clock.EVALUATION: "evaluation",
  session_clock.SAVE: "save",
  session_clock.COMPILE: "compilation",
  session_clock.RESTORE: "restore",
  session_clock.STARTUP: "start-up",
  DOWN: "down",
  session_clock.OTHER: "other",
}
_MEANINGS = {
  session_clock.STEP: "training steps that are part of the result",
  session_clock.LOST: "training steps that were repeated after a kill, or discarded by a rollback",
  session_clock.INPUT: "the devices waited for a batch",
  session_clock.EVALUATION: "held-out loss, tasks and samples",
  session_clock.SAVE: "the loop waited for a checkpoint",
  session_clock.COMPILE: "XLA compiled, and nothing else went on",
  session_clock.RESTORE: "checkpoints were read",
  session_clock.STARTUP: "from the start of the process to its first batch, and the opening of a stage's data",
  DOWN: "from the last record of a session that had not finished to the start of the next",
  session_clock.OTHER: "the report, traces, and callbacks of the user",
}
_ENDS = {session_clock.FINISHED: "finished", session_clock.STOPPED: "stopped by a signal"}
_MOST_SHOWN = 3  # phases in a summary


@dataclasses.dataclass(frozen=True)
class Session:
  """A process that trained the run.

  Attributes:
    begin, end: wall time in seconds since 1970 of its start and of its last record.
    first_step, last_step: steps at its start and at its last record; the first is None if it did not get so far.
    elapsed: seconds until its last record.
    seconds: phase -> seconds; their sum is `elapsed`.
    event: of its end: "finished", "stopped", or "" after a kill or an error.
  """

  begin: float
  end: float
  first_step: int | None
  last_step: int
  elapsed: float
  seconds: Mapping[str, float]
  event: str


@dataclasses.dataclass(frozen=True)
class WallTime:
  """Wall time of a run.

  Attributes:
    sessions: in the order of their first records.
    seconds: phase or `DOWN` -> seconds, for each of `NAMES`.
  """

  sessions: Sequence[Session]
  seconds: Mapping[str, float]

  @property
  def total(self) -> float:
    """Seconds of all phases."""
    return sum(self.seconds.values())

  def share(self, phase: str) -> float:
    """Returns the share of the total; the shares of all phases add up to 1."""
    return self.seconds[phase] / self.total if self.total else 0.0


def read(workdir: epath.Path) -> WallTime:
  """Returns the goodput of a run; without sessions if the run has no log.

  Raises:
    OSError: the log cannot be read.
  """
  by_session: dict[str, list[dict[str, Any]]] = {}
  for line in logs.read(workdir / session_clock.NAME).splitlines():
    if (row := _record(line)) is not None:
      by_session.setdefault(row["session"], []).append(row)
  return add_up([records for records in by_session.values() if not _was_refused(records)])


def _was_refused(records: Sequence[Mapping[str, Any]]) -> bool:
  """Returns True for a process that an error or Ctrl-C ended before it had a state to train."""
  events = {row["event"] for row in records}
  return session_clock.CLOSED in events and session_clock.STARTED not in events


def _record(line: bytes) -> dict[str, Any] | None:
  """Parses a record; None if the line is torn or is not a record."""
  try:
    row = json.loads(line)
    seconds = {name: float(value) for name, value in row["seconds"].items()}
    numbers = (float(row["time"]), float(row["elapsed"]), *seconds.values())
  except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
    return None
  valid = isinstance(row["session"], str) and isinstance(row.get("event"), str) and type(row.get("step")) is int
  return {**row, "seconds": seconds} if valid and all(0 <= x < math.inf for x in numbers) else None


def add_up(sessions: Sequence[Sequence[Mapping[str, Any]]]) -> WallTime:
  """Returns the goodput of the records of each session.

  Args:
    sessions: in order; records have the keys of the log, and sums of seconds since the session began.
  """
  read_sessions = []
  restart = math.inf  # the lowest step from which a later session starts
  for records in reversed(sessions):
    session = _session(records)
    seconds = dict(session.seconds)
    useful = seconds[session_clock.STEP]
    lost = useful - min(useful, _useful_until(records, restart))
    seconds[session_clock.STEP] -= lost
    seconds[session_clock.LOST] += lost
    read_sessions.insert(0, dataclasses.replace(session, seconds=seconds))
    restart = restart if session.first_step is None else min(restart, session.first_step)
  total = dict.fromkeys(NAMES, 0.0)
  for session in read_sessions:
    for phase, phase_seconds in session.seconds.items():
      total[phase] += phase_seconds
  for session, following in itertools.pairwise(read_sessions):
    if session.event != session_clock.FINISHED:
      total[DOWN] += max(0.0, following.begin - session.end)  # negative if the clock of the machine was set back
  return WallTime(read_sessions, total)


def _session(records: Sequence[Mapping[str, Any]]) -> Session:
  first, last = records[0], records[-1]
  seconds = dict.fromkeys(session_clock.PHASES, 0.0)
  for name, value in last["seconds"].items():
    seconds[name if name in seconds else session_clock.OTHER] += value
  ends = [row["event"] for row in records if row["event"] in _ENDS]
  return Session(
    begin=first["time"] - first["elapsed"],
    end=last["time"],
    first_step=next((row["step"] for row in records if row["event"] == session_clock.STARTED), None),
    last_step=last["step"],
    elapsed=sum(seconds.values()),
    seconds=seconds,
    event=ends[-1] if ends else "",
  )


def _useful_until(records: Sequence[Mapping[str, Any]], step: float) -> float:
  """Returns the seconds in steps up to `step`, between two records in proportion to their steps."""
  after = None
  for row in reversed(records):
    if row["step"] <= step:
      seconds = row["seconds"].get(session_clock.STEP, 0.0)
      if after is None or after["step"] == row["step"]:
        return seconds
      share = (step - row["step"]) / (after["step"] - row["step"])
      return seconds + share * (after["seconds"].get(session_clock.STEP, 0.0) - seconds)
    after = row
  return 0.0


def summary(workdir: epath.Path) -> str:
  """Returns a line such as "71.2 % of 1:32 in useful steps; start-up 12.1 %, compilation 6.0 %"; "" without a log."""
  try:
    goodput = read(workdir)
  except OSError:
    return ""
  if not goodput.total:
    return ""
  others = sorted((phase for phase in NAMES if phase != session_clock.STEP), key=goodput.share, reverse=True)
  listed = [f"{NAMES[phase]} {goodput.share(phase):.1%}" for phase in others[:_MOST_SHOWN] if goodput.share(phase)]
  starts = f" of {len(goodput.sessions)} starts" if len(goodput.sessions) > 1 else ""
  useful = f"{goodput.share(session_clock.STEP):.1%} of {amounts.duration(goodput.total)}{starts} in useful steps"
  return "; ".join(filter(None, (useful, ", ".join(listed))))


def parts(goodput: WallTime) -> Iterator[str]:
  """Yields the picture and the tables of a report; nothing without sessions."""
  if not goodput.total:
    return
  shown = [phase for phase in NAMES if goodput.seconds[phase] > 0]
  shares = {NAMES[phase]: goodput.share(phase) for phase in shown}
  yield page.pictures([curves.bars("Share of the wall time", shares)])
  rows = [
    (NAMES[phase], amounts.duration(goodput.seconds[phase]), f"{goodput.share(phase):.2%}", _MEANINGS[phase])
    for phase in shown
  ]
  rows.append(("total", amounts.duration(goodput.total), "100.00%", ""))
  yield page.table("Wall time by phase", ("phase", "time", "share", "meaning"), rows)
  yield page.table(
    "Sessions",
    ("start (UTC)", "from step", "to step", "time", "useful steps", "lost steps", "end"),
    [_row(session, is_last=session is goodput.sessions[-1]) for session in goodput.sessions],
  )


def _row(session: Session, *, is_last: bool) -> Sequence[Any]:
  begin = datetime.datetime.fromtimestamp(session.begin, datetime.UTC)
  share = lambda phase: f"{session.seconds[phase] / session.elapsed:.1%}" if session.elapsed else "-"
  end = _ENDS.get(session.event) or ("runs, or was killed" if is_last else "killed, or ended by an error")
  steps = ("-" if session.first_step is None else session.first_step, session.last_step)
  times = (amounts.duration(session.elapsed), share(session_clock.STEP), share(session_clock.LOST))
  return f"{begin:%Y-%m-%d %H:%M:%S}", *steps, *times, end
