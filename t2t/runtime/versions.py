"""Versions of t2t and of what it runs on."""

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
  """Returns the commit of the checkout that t2t is imported from, with a + if files differ from it; "" elsewhere."""
  if not is_checkout():
    return ""
  return output(["git", "-C", str(_CHECKOUT), "describe", "--always", "--dirty=+", "--exclude=*"]).strip()


def is_checkout() -> bool:
  """Returns whether t2t is imported from a clone, and not from a wheel."""
  return (_CHECKOUT / ".git").exists()


def output(command: list[str], *, seconds: float = 10.0) -> str:
  """Returns what a command prints; "" if it cannot be run, fails, or takes too long."""
  try:
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
  except (OSError, subprocess.TimeoutExpired):
    return ""
  return done.stdout if done.returncode == 0 else ""
