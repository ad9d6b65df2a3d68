"""Mean score of a benchmark by its own rule: tasks that count as one, and tasks that are left out."""

from collections.abc import Mapping
from typing import NamedTuple

# Task -> the task that it is averaged into: the GLUE leaderboard counts both test sets of MNLI as one task.
_PART_OF = {"glue_mnli_mismatched": "glue_mnli"}

# Diagnostic sets are not part of a mean (Wang et al. 2018, 2019). WNLI is left out, as by Devlin et al. 2019 and Raffel
# et al. 2020, because its validation set contradicts its training set.
_LEFT_OUT = {"glue_ax", "glue_wnli", "super_glue_axb", "super_glue_axg"}

_GLUE = {f"glue_{name}" for name in ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "mnli_mismatched", "qnli", "rte")}
_SUPER_GLUE = {f"super_glue_{name}" for name in ("boolq", "cb", "copa", "multirc", "record", "rte", "wic", "wsc")}
_BENCHMARKS = {"GLUE": _GLUE, "SuperGLUE": _SUPER_GLUE}


def mean(scores: Mapping[str, float]) -> float | None:
  """Returns the mean of task scores, or None if fewer than two tasks count.

  In:  {"glue_rte": 60.0, "glue_mnli": 84.0, "glue_mnli_mismatched": 86.0, "glue_ax": 30.0}
  Out: 72.5

  Args:
    scores: task -> its score, the mean of its metrics.
  """
  parts: dict[str, list[float]] = {}
  for task, score in scores.items():
    if task not in _LEFT_OUT:
      parts.setdefault(_PART_OF.get(task, task), []).append(score)
  if len(parts) < 2:
    return None
  return sum(sum(part) / len(part) for part in parts.values()) / len(parts)


class Mean(NamedTuple):
  """Mean score of a benchmark, with a note on special rules ("" if there are none)."""

  name: str
  value: float
  note: str


def means(scores: Mapping[str, float]) -> list[Mean]:
  """Returns the mean of all tasks, or one mean for each benchmark if all tasks belong to several known benchmarks.

  Args: see `mean`.
  """
  of_benchmark = {
    name: {task: score for task, score in scores.items() if task in tasks} for name, tasks in _BENCHMARKS.items()
  }
  of_benchmark = {name: group_scores for name, group_scores in of_benchmark.items() if group_scores}
  known_tasks = set().union(*of_benchmark.values(), _LEFT_OUT)
  if len(of_benchmark) < 2 or set(scores) - known_tasks:
    groups = {"mean of tasks": dict(scores)}
  else:
    groups = {f"mean of {name}": group_scores for name, group_scores in of_benchmark.items()}
  rows = ((name, mean(group_scores), _note(name, group_scores)) for name, group_scores in groups.items())
  return [Mean(name, value, note) for name, value, note in rows if value is not None]


def _note(name: str, scores: Mapping[str, float]) -> str:
  left_out = [task for task in scores if task in _LEFT_OUT]
  merged = [f"{part} and {of} count as one task" for part, of in _PART_OF.items() if part in scores and of in scores]
  facts = [*merged, *([f"{', '.join(left_out)} left out"] if left_out else [])]
  return f"{name}: {'; '.join(facts)}" if facts else ""
