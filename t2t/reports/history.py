"""History of a run in its workdir: a line for each start, remark and end, with command, versions and devices."""

from collections.abc import Mapping, Sequence
import datetime
import json
import os
import re
import sys
from typing import Any

from etils import epath
import jax

from t2t.losses import Baseline
from t2t.runtime import console, versions
from t2t.storage import logs

NAME = "history.jsonl"
START, END, NOTE = "start", "end", "note"  # kinds of lines
FINISHED, STOPPED = "finished", "stopped"  # why a run ended; early stopping writes a sentence instead

# Endings of option names with secret values.
_SECRET = re.compile(r"(^|[._-])(api_?key|key|token|secret|password|passwd|credentials?|auth)$", re.IGNORECASE)
_TOKEN = re.compile(r"\b(hf_|sk-|gh[pousr]_|ya29\.)[\w.-]{8,}")  # of Hugging Face, OpenAI, GitHub, Google
_USER = re.compile(r"(?<=://)[^/@\s]+(?=@)")  # https://USER:PASSWORD@host
_QUERY = re.compile(r"(?<=\w)\?[^\s]*(?:sig|token|key|signature|credential)[^\s]*=[^\s]*", re.IGNORECASE)
_HIDDEN = "***"


def without_secrets(arguments: Sequence[str]) -> str:
  """Returns a command line with *** in place of passwords and tokens.

  In:  ["/usr/bin/t2t", "train", "--hf_token=abc", "--config", "tiny"]
  Out: "t2t train --hf_token=*** --config tiny"
  """
  shown_arguments, hides = [], False
  for number, argument in enumerate(arguments):
    option, equals, _ = argument.partition("=")
    is_option = argument.startswith("-")
    if number == 0:
      argument = os.path.basename(argument)
      argument = "t2t" if argument == "__main__.py" else argument  # python -m t2t
    elif hides and not is_option:
      argument = _HIDDEN
    elif is_option and equals and _SECRET.search(option):
      argument = f"{option}={_HIDDEN}"
    hides = is_option and not equals and bool(_SECRET.search(option))
    for pattern in (_TOKEN, _USER):
      argument = pattern.sub(_HIDDEN, argument)
    shown_arguments.append(_QUERY.sub(f"?{_HIDDEN}", argument))
  return " ".join(shown_arguments)


def config_name(arguments: Sequence[str]) -> str:
  """Returns the value of --config in a command line; "" if there is none."""
  for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
    if argument == "--config":
      return following
    if argument.startswith("--config="):
      return argument.partition("=")[2]
  return ""


def started(workdir: epath.Path, step: int, *, flops_per_step: float | None) -> None:
  """Records that a run starts or resumes, on the first host; errors of writing are only logged.

  Args:
    workdir: of the run.
    step: that it starts from.
    flops_per_step: of all devices; None if its stages differ.
  """
  if jax.process_index() == 0:
    devices = jax.devices()
    note = {
      "step": step,
      "config": config_name(sys.argv),
      "command": without_secrets(sys.argv),
      "t2t": versions.line(),
      "devices": f"{len(devices)} x {devices[0].device_kind}",
      "hosts": jax.process_count(),
      "flops_per_step": flops_per_step,
    }
    _add(workdir, START, note)


def ended(
  workdir: epath.Path,
  step: int,
  why: str,
  *,
  unit: str = "",
  baselines: Sequence[Baseline] = (),
  examples: Sequence[Sequence[tuple[str, str]]] = (),
) -> None:
  """Records the end of a run; see `started`.

  Args:
    workdir: of the run.
    step: the last.
    why: `FINISHED`, `STOPPED`, or a sentence.
    unit: of the loss.
    baselines: losses of models that have learned nothing.
    examples: samples, each a list of (label, text) lines.
  """
  if jax.process_index() == 0:
    note = {
      "step": step,
      "why": why,
      "unit": unit,
      "baselines": [[baseline.name, baseline.loss, baseline.knows] for baseline in baselines],
      "examples": examples,
    }
    _add(workdir, END, {name: value for name, value in note.items() if value not in ("", [], ())})


def noted(workdir: epath.Path, step: int, text: str) -> None:
  """Records a remark about a step; see `started`."""
  if jax.process_index() == 0:
    _add(workdir, NOTE, {"step": step, "why": text})


def _add(workdir: epath.Path, event: str, note: Mapping[str, Any]) -> None:
  now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
  try:
    log = logs.Log(workdir / NAME, keep=lambda content: content)
    log.add(json.dumps({"event": event, "time": now, **note}).encode() + b"\n")
    log.bring()
    log.close()
  except Exception as error:  # any error: a missing report must not end the run
    console.tell(f"{workdir / NAME} could not be written ({error}); reports will lack this event")


def read(workdir: epath.Path) -> list[dict[str, Any]]:
  """Returns the notes in order; malformed lines are skipped."""
  notes = []
  for line in logs.read(workdir / NAME).splitlines():
    try:
      note = json.loads(line)
    except (ValueError, RecursionError):
      continue
    if _is_note(note):
      notes.append(note)
  return notes


def _is_note(note: Any) -> bool:
  if not isinstance(note, dict) or type(note.get("step")) is not int or not isinstance(note.get("time"), str):
    return False
  if note.get("event") == START:
    return all(isinstance(note.get(name), str) for name in ("config", "command", "t2t", "devices"))
  return note.get("event") in (END, NOTE) and isinstance(note.get("why"), str)
