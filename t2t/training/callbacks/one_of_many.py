"""Runs of a command that prints one table of all its runs."""

from t2t.training.run import Callback, Run


class OneOfMany(Callback):
  """Marks such a run: it prints no summary and no path of its report."""


def is_printed(run: Run) -> bool:
  """Returns whether a run prints its summary and the path of its report."""
  return not any(isinstance(callback, OneOfMany) for callback in run.callbacks)
