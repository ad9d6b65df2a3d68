"""Classification reports of the last evaluation, in a file of the workdir for the run's report."""

from collections.abc import Mapping
import json

from etils import epath

from t2t.runtime import console
from t2t.storage import logs

NAME = "classes.json"  # in a workdir: {"step": 20, "tasks": {TASK: ClassificationReport.to_dict()}}


def write(workdir: epath.Path, step: int, tasks: Mapping[str, Mapping[str, object]]) -> None:
  """Writes the records of all tasks with classes, replacing the previous evaluation's; logs errors instead of raising.

  Args:
    workdir: of the run.
    step: of the evaluation.
    tasks: name -> record; if empty, nothing is written.
  """
  if not tasks:
    return
  content = json.dumps({"step": step, "tasks": tasks}).encode() + b"\n"
  try:
    logs.Log(workdir / NAME, keep=lambda _: content, content_type="application/json").close()
  except Exception as error:  # any error: a missing report must not end the run
    console.tell(f"{workdir / NAME}: could not be written ({error}); reports will lack the confusion matrices")


def read(workdir: epath.Path) -> dict[str, object]:
  """Returns the content that `write` saved; {} if the file is missing or malformed."""
  try:
    content = json.loads(logs.read(workdir / NAME))
  except (ValueError, RecursionError):
    return {}
  is_ours = (
    isinstance(content, dict) and isinstance(content.get("step"), int) and isinstance(content.get("tasks"), dict)
  )
  return content if is_ours else {}
