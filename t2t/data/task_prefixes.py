"""Task prefixes: the text before the inputs of a task, by which a model distinguishes tasks."""

from collections.abc import Callable, Mapping
from typing import Any

import seqio

from t2t.data import preprocessors, qa_preprocessors, registry, task_resolution
from t2t.data.objectives import denoisers
from t2t.data.task_resolution import Provider


def _named(options: Mapping[str, Any]) -> str:
  """Returns the prefix of texts behind their field names: up to the first text."""
  return f"{options['prefix']} {options['fields'][0]}: "


def _translated(options: Mapping[str, Any]) -> str:
  source, target = (preprocessors.LANGUAGES[options[key]] for key in ("source", "target"))
  return f"translate {source} to {target}: "


# preprocessor -> function from its bound arguments to its prefix
_WRITES: dict[Callable, Callable[[Mapping[str, Any]], str]] = {
  preprocessors.labelled: _named,
  preprocessors.choices: _named,
  preprocessors.scored: _named,
  preprocessors.copa: lambda _: "copa choice1: ",
  preprocessors.multirc: lambda _: "multirc question: ",
  preprocessors.stsb: lambda _: "stsb sentence1: ",
  preprocessors.wsc: lambda _: "wsc: ",
  preprocessors.summarize: lambda _: "summarize: ",
  preprocessors.translate: _translated,
  qa_preprocessors.record: lambda _: "record query: ",
  qa_preprocessors.spans: lambda _: "question: ",
  qa_preprocessors.tagged: lambda options: f"{options['prefix']}: ",
}


_DENOISERS = denoisers.OF_OBJECTIVES


def of(provider: Provider) -> tuple[str, ...]:
  """Returns the prefixes of a task, or of a mixture's tasks, by task name; for other steps their `prefix` argument.

  In:  docs_summary, glue_mnli
  Out: ("summarize: ", "mnli hypothesis: ")
  """
  tasks = sorted(task_resolution.tasks_of(provider), key=lambda task: task.name)
  return tuple(dict.fromkeys(prefix for task in tasks for prefix in _of_task(task)))


def _of_task(task: seqio.Task) -> list[str]:
  prefixes: list[str] = []
  for step in task.preprocessors:
    function = registry.function_of(step)
    options = getattr(step, "keywords", {})
    if function in _WRITES:
      prefixes.append(_WRITES[function](options))
    elif isinstance(prefix := options.get("prefix"), str) and prefix:
      prefixes.append(prefix if prefix.endswith(" ") else f"{prefix} ")
    if (objective := getattr(step, "objective", "")) in _DENOISERS:
      prefixes += denoisers.mode_tokens(objective)
  return prefixes
