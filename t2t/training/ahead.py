"""A program that is compiled while the host does something else: reads data, or a checkpoint."""

from collections.abc import Callable
import threading
from typing import Any

import jax


class Ahead:
  """A jitted function, compiled from now on in a thread; the first call waits for it.

  Args:
    function: jitted.
    mesh: under which it runs.
    arguments: shapes, with their shardings; called with others it is compiled anew, as any jitted function.
  """

  def __init__(self, function: Callable, mesh: jax.sharding.Mesh, *arguments: Any):
    self._function = function
    self._shapes = jax.tree.map(_shape, arguments)
    self._compiled: Callable | None = None
    self._error: BaseException | None = None
    # Nobody waits for it at the end of a process that found its data wanting.
    self._thread = threading.Thread(target=self._compile, args=(mesh, arguments), name="compiler", daemon=True)
    self._thread.start()

  def _compile(self, mesh: jax.sharding.Mesh, arguments: tuple) -> None:
    try:
      with jax.set_mesh(mesh):
        self._compiled = self._function.lower(*arguments).compile()
    except BaseException as error:  # raised where the program is called
      self._error = error

  def __call__(self, *arguments: Any) -> Any:
    """What the function returns.

    Raises:
      Exception: that of the compiler.
    """
    self._thread.join()
    if self._error is not None:
      raise self._error
    fits = jax.tree.map(_shape, arguments) == self._shapes
    return (self._compiled if fits else self._function)(*arguments)


def _shape(x: Any) -> tuple:
  return x.shape, x.dtype
