"""Saves of a state in parts, within a limit of host memory.

By default a save copies the whole state to host memory, and training continues while the copy is written. With a limit
that the state exceeds, arrays are copied in batches, each after the previous one is written. The state must stay
unchanged until the last batch is copied, so training waits until then.

Orbax 0.12.8 has the option `save_device_host_concurrent_gb` for this, but ignores the option, and
`is_prioritized_key_fn`, unless the callback of the array handler defers the copies. It also returns from `save` before
deferred copies are made. `Transfers` is this callback, and knows when all copies are made.
"""

from collections.abc import Mapping
import copy
import threading
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint._src.serialization import types as orbax_types

from t2t.checkpoints import host_memory
from t2t.param_tree import path_name


class Transfers(orbax_types.DefaultSerializationStatusCallback):
  """Callback of Orbax's array handler: defers the copies of a state that exceeds the limit.

  Args:
    limit: bytes of host memory.
  """

  def __init__(self, limit: int):
    self._limit, self._missing = limit, 0
    self._defers, self._condition = False, threading.Condition()

  def begin(self, state: Mapping[str, object]) -> bool:
    """Prepares a save; returns whether the state must stay unchanged until `wait` returns True."""
    arrays = jax.tree.leaves(state)
    self._defers = sum(host_memory.copied_bytes(x, jax.process_index()) for x in arrays) > self._limit
    self._missing = len(arrays) if self._defers else 0
    return self._defers

  def key_priority(self, _: jax.tree_util.KeyPath) -> orbax_types.TransferPriority:
    """Returns when an array is copied; called by Orbax for each array."""
    priorities = orbax_types.TransferPriority
    # Orbax warns if all are deferred. Its name of the path is `_`.
    is_deferred = self._defers and path_name(_) != "step"
    return priorities.ASYNCHRONOUS_DEPRIORITIZED if is_deferred else priorities.SYNCHRONOUS

  def on_transfer_end(self, _: jax.tree_util.KeyPath) -> None:
    """Counts the copy of an array; called by Orbax."""
    with self._condition:
      self._missing -= 1
      self._condition.notify_all()

  def wait(self, seconds: float) -> bool:
    """Waits until all arrays are copied, or for some seconds; returns whether they are."""
    with self._condition:
      return self._condition.wait_for(lambda: self._missing <= 0, seconds)

  def handler(self) -> ocp.StandardCheckpointHandler:
    """Returns Orbax's handler of the state, with the limit."""
    arrays: Any = copy.copy(ocp.type_handlers.get_type_handler(jax.Array))
    arrays._callback = self  # its constructor would need the store of array metadata, which is private
    others = ((x, ocp.type_handlers.get_type_handler(x)) for x in (int, float, np.number, np.ndarray, str))
    standard: Any = ocp.StandardCheckpointHandler()
    # StandardCheckpointHandler has no such options; another class would be recorded in the checkpoint.
    standard._impl = ocp.PyTreeCheckpointHandler(
      save_device_host_concurrent_gb=self._limit / host_memory.BATCHES / 1e9,  # pyrefly: ignore[bad-argument-type]
      # Otherwise JAX keeps each copy as long as the array.
      enable_pinned_host_transfer=True,
      type_handler_registry=ocp.type_handlers.create_type_handler_registry((jax.Array, arrays), *others),
    )
    return standard
