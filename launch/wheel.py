"""Finds or builds the wheel of t2t for all machines, so that they run the same version as this one."""

import pathlib
import re
import sys
import tomllib

import t2t
from t2t import UserError
from t2t.launch import shell as shell_lib

_DISTRIBUTION = "t2t_jax"  # t2t-jax of pyproject.toml, as in file names


def find_or_build(shell: shell_lib.Shell, wheel_path: str | None) -> tuple[pathlib.Path, pathlib.Path | None]:
  """Returns the wheel to install, built from this checkout unless it is given, and the versions to install with it.

  Raises:
    UserError: the wheel does not exist or cannot be built, or there is no checkout.
  """
  checkout = pathlib.Path(t2t.__file__).resolve().parent.parent
  project = checkout / "pyproject.toml"
  lock = checkout / "requirements.lock"
  if wheel_path:
    if (
      not re.fullmatch(_DISTRIBUTION + r"-.+\.whl", pathlib.Path(wheel_path).name)
      or not pathlib.Path(wheel_path).is_file()
    ):
      raise UserError(
        f"--wheel {wheel_path} is not a wheel of t2t. Build one with `pip wheel --no-deps --wheel-dir dist .`."
      )
    return pathlib.Path(wheel_path), lock if lock.exists() else None
  if not project.exists():
    raise UserError("t2t is not run from a checkout, so no wheel can be built. Give a wheel with --wheel FILE.")
  shell.say("Building the wheel of this checkout")
  version = tomllib.loads(project.read_text())["project"]["version"]
  answer = shell.ask(
    [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir=dist", str(checkout)], timeout=600
  )
  wheel = pathlib.Path(f"dist/{_DISTRIBUTION}-{version}-py3-none-any.whl")
  if answer.code or not (shell.dry_run or wheel.exists()):
    raise UserError(f"the wheel of {checkout} cannot be built:\n{answer.reason()}\nGive a wheel with --wheel FILE.")
  return wheel, lock if lock.exists() else None
