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

# In a checkout `configs` and `tasks` stand beside this package, where the people who edit them look; a wheel carries
# them inside it.  Either way they are imported as `t2t.configs` and `t2t.tasks`.
_CHECKOUT = pathlib.Path(__file__).resolve().parent.parent
if (_CHECKOUT / "pyproject.toml").exists() and (_CHECKOUT / "configs" / "default.py").exists():
  __path__.append(str(_CHECKOUT))


# Before a library of C++ is loaded, by whichever door.
quiet.set_log_levels()
quiet.leave_tpu_out()


class UserError(ValueError):
  """What the user gave cannot be used: the message says what was wrong, where, and what would be right.

  The `t2t` command prints the message alone and exits with `exit_code` (with a traceback under `--debug`).
  """

  exit_code = 2  # runtime.exit_codes.REFUSED


def did_you_mean(name: str, known: Iterable[str]) -> str:
  """The end of an error about an unknown name: "; did you mean adafactor?", or nothing where none is near."""
  near = difflib.get_close_matches(name, list(known), n=1)
  return f"; did you mean {near[0]}?" if near else ""


# What Python code finds here -> the module that has it, imported when it is first asked for: `import t2t` loads no JAX.
_FOUND = {
  "Callback": "t2t.training.run",
  "config": "t2t.api.training_run",
  "load": "t2t.api.loaded_model",
  "train": "t2t.api.training_run",
}


__all__ = ["Callback", "UserError", "config", "load", "train"]


def __dir__() -> list[str]:
  """Names for tab completion, without helpers."""
  return sorted([*__all__, *(name for name in globals() if name.startswith("__") and name.endswith("__"))])


def __getattr__(name: str) -> Any:
  if name == "task_metrics":  # the earlier place, in tasks of users
    from t2t.runtime import imports

    return imports.renamed_module("t2t.task_metrics", "t2t.evaluation.task_metrics")
  if name not in _FOUND:
    raise AttributeError(f"module 't2t' has no attribute {name!r}")
  return getattr(importlib.import_module(_FOUND[name]), name)
