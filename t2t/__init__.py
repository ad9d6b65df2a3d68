"""t2t: pre-trains text-to-text Transformers in JAX, from a laptop to a TPU pod, with one config and one command."""

import pathlib

# In a checkout `configs` and `tasks` stand beside this package, where the people who edit them look; a wheel carries
# them inside it.  Either way they are imported as `t2t.configs` and `t2t.tasks`.
_CHECKOUT = pathlib.Path(__file__).resolve().parent.parent
if (_CHECKOUT / "pyproject.toml").exists() and (_CHECKOUT / "configs" / "default.py").exists():
  __path__.append(str(_CHECKOUT))


class UserError(ValueError):
  """What the user gave cannot be used: the message says what was wrong, where, and what would be right.

  The `t2t` command prints the message alone and exits with code 2 (with a traceback under `--debug`).
  """
