"""Versions of t2t and its dependencies."""

import importlib.metadata
import pathlib
import platform
import subprocess

import t2t

DISTRIBUTION = "t2t-jax"
_CHECKOUT = pathlib.Path(t2t.__file__).resolve().parent.parent


def line() -> str:
  """Returns the versions of t2t with its commit, of Python and of JAX, in a line."""
  sha = commit()
  suffix = f", commit {sha}" if sha else ""
  return f"t2t {of(DISTRIBUTION)}{suffix}, Python {platform.python_version()}, jax {of('jax')}"


def of(distribution: str) -> str:
  """Returns the version of a distribution; "" if it is not installed."""
  try:
    return importlib.metadata.version(distribution)
  except importlib.metadata.PackageNotFoundError:
    return ""


def commit() -> str:
  """Returns the commit of t2t's checkout, with a + for local changes; "" if t2t is not a checkout."""
  if not is_checkout():
    return ""
  return output(["git", "-C", str(_CHECKOUT), "describe", "--always", "--dirty=+", "--exclude=*"]).strip()


def is_checkout() -> bool:
  """Returns True if t2t is imported from a clone rather than a wheel."""
  return (_CHECKOUT / ".git").exists()


def install_command(extra: str) -> str:
  """Returns the command that installs an extra, from the checkout or from the package index."""
  return f"pip install -e '.[{extra}]'" if is_checkout() else f"pip install '{DISTRIBUTION}[{extra}]'"


def output(command: list[str], *, seconds: float = 10.0) -> str:
  """Returns the output of a command; "" if it cannot run, fails, or takes too long."""
  try:
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
  except (OSError, subprocess.TimeoutExpired):
    return ""
  return done.stdout if done.returncode == 0 else ""
