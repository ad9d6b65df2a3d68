"""Compiles a program in a thread while the host reads data or a checkpoint."""

from collections.abc import Callable
import threading
import time
from typing import Any, Generic, TypeVar
import weakref

import jax

Result = TypeVar("Result")


class BackgroundCompile(Generic[Result]):
  """A jitted function that is compiled in a background thread; the first call waits for the thread.

  Args:
    function: jitted.
    mesh: mesh that is set during compilation.
    arguments: shapes with shardings; a call with other shapes compiles again, as with any jitted function.
  """

  def __init__(self, function: Callable[..., Result], mesh: jax.sharding.Mesh, *arguments: object):
    self._function: Any = function
    self._shapes = jax.tree.map(_shape, arguments)
    self._compiled: Any = None
    self._error: BaseException | None = None
    # A daemon thread, so that a process that exits early (for example because of bad data) does not wait for it.
    self._thread = threading.Thread(target=self._compile, args=(mesh, arguments), name="compiler", daemon=True)
    self._thread.start()
    _threads.add(self._thread)

  def _compile(self, mesh: jax.sharding.Mesh, arguments: tuple) -> None:
    try:
      with jax.set_mesh(mesh):
        self._compiled = self._function.lower(*arguments).compile()
    except BaseException as error:  # raised by __call__
      self._error = error

  def __call__(self, *arguments: object) -> Result:
    """Calls the function.

    Raises:
      Exception: the compilation failed.
    """
    self._thread.join()
    if self._error is not None:
      raise self._error
    fits = jax.tree.map(_shape, arguments) == self._shapes
    return (self._compiled if fits else self._function)(*arguments)


_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def finish(seconds: float) -> None:
  """Waits up to `seconds` for running compilations, because Python may abort if it exits while the compiler runs."""
  end = time.monotonic() + seconds
  for thread in list(_threads):
    thread.join(max(0.0, end - time.monotonic()))


def _shape(x: Any) -> tuple:
  return x.shape, x.dtype
