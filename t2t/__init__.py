"""t2t: pre-trains text-to-text Transformers in JAX, from a laptop to a TPU pod, with one config and one command."""

from collections.abc import Iterable
import difflib
import importlib
import pathlib
from typing import TYPE_CHECKING, Any

from t2t.runtime import quiet

if TYPE_CHECKING:
  from t2t.api.loaded_model import load as load
  from t2t.api.training_run import config as config
  from t2t.api.training_run import train as train

# In a checkout `configs` and `tasks` are beside this package; a wheel contains them. In both cases they are imported as
# `t2t.configs` and `t2t.tasks`.
_CHECKOUT = pathlib.Path(__file__).resolve().parent.parent
if (_CHECKOUT / "pyproject.toml").exists() and (_CHECKOUT / "configs" / "default.py").exists():
  __path__.append(str(_CHECKOUT))


# Both calls must run before any C++ library is loaded, whichever module is imported first.
quiet.set_log_levels()
quiet.leave_tpu_out()


class UserError(ValueError):
  """Error in the user's input: the message says what is wrong, where, and what to give instead.

  The `t2t` command prints only the message and exits with `exit_code` (with a traceback under `--debug`).
  """

  exit_code = 2  # runtime.exit_codes.REFUSED


def did_you_mean(name: str, known: Iterable[str]) -> str:
  """Returns the end of an error about an unknown name, "; did you mean adafactor?", or "" if no name is similar."""
  near = difflib.get_close_matches(name, list(known), n=1)
  return f"; did you mean {near[0]}?" if near else ""


# Public name -> its module, imported on first access, so that `import t2t` loads no JAX.
_FOUND = {
  "Callback": "t2t.training.run",
  "config": "t2t.api.training_run",
  "load": "t2t.api.loaded_model",
  "train": "t2t.api.training_run",
}


__all__ = ["Callback", "UserError", "config", "load", "train"]


def __dir__() -> list[str]:
  """Returns names for tab completion, without helpers."""
  return sorted([*__all__, *(name for name in globals() if name.startswith("__") and name.endswith("__"))])


def __getattr__(name: str) -> Any:
  if name == "task_metrics":  # former location, still imported by tasks of users
    from t2t.runtime import imports

    return imports.renamed_module("t2t.task_metrics", "t2t.evaluation.task_metrics")
  if name not in _FOUND:
    raise AttributeError(f"module 't2t' has no attribute {name!r}")
  return getattr(importlib.import_module(_FOUND[name]), name)
