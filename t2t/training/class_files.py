"""Classification reports of the last evaluation: a file of the workdir, read by its report."""

from collections.abc import Mapping
import json

from etils import epath

from t2t.runtime import console
from t2t.storage import logs

NAME = "classes.json"  # in a workdir: {"step": 20, "tasks": {TASK: ClassificationReport.to_dict()}}


def write(workdir: epath.Path, step: int, tasks: Mapping[str, Mapping[str, object]]) -> None:
  """Writes the records of all tasks that have classes, in place of those of the evaluation before; never fails.

  Args:
    workdir: of the run.
    step: of the evaluation.
    tasks: name -> record; nothing is written where there is none.
  """
  if not tasks:
    return
  content = json.dumps({"step": step, "tasks": tasks}).encode() + b"\n"
  try:
    logs.Log(workdir / NAME, keep=lambda _: content, content_type="application/json").close()
  except Exception as error:  # whatever it is: the run matters more
    console.tell(f"{workdir / NAME}: could not be written ({error}); reports will lack the confusion matrices")


def read(workdir: epath.Path) -> dict[str, object]:
  """Step and tasks as `write` has them; {} where there is none, or a file that is not one."""
  try:
    content = json.loads(logs.read(workdir / NAME))
  except (ValueError, RecursionError):
    return {}
  is_ours = (
    isinstance(content, dict) and isinstance(content.get("step"), int) and isinstance(content.get("tasks"), dict)
  )
  return content if is_ours else {}
