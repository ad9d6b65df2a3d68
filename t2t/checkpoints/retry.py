"""Saves that fail: a full disk, a quota or a network may be well again in a minute, and nobody waits for ever."""

import logging
import sys
import time

from absl import logging as absl_logging
from etils import epath

from t2t import UserError
from t2t.runtime import exit_codes, hosts

_FIRST_WAIT, _LONGEST_WAIT = 5.0, 60.0  # seconds before a save is tried again
_SHOWN = 300  # characters of an error


class NotSaved(UserError):
  """A save of several processes failed: those that start again together may come further, and launchers have them."""

  exit_code = exit_codes.LOST


class Patience:
  """When a save that failed is tried again, and when no more."""

  def __init__(self, directory: epath.Path, seconds: float):
    """Nothing has failed yet.

    Args:
      directory: of the checkpoints.
      seconds: for which saves may fail, one after another; infinite: always.
    """
    self._directory, self._seconds = directory, seconds
    self._since: float | None = None
    self._wait, self._next = _FIRST_WAIT, 0.0

  @property
  def failing(self) -> bool:
    """Whether the last save failed."""
    return self._since is not None

  def seconds_left(self) -> float:
    """Until the save that failed is tried again."""
    return max(0.0, self._next - time.monotonic())

  def succeeded(self) -> None:
    """A save has come to its end."""
    if self.failing:
      hosts.log_once(f"{self._directory}: saving works again")
    self._since, self._wait = None, _FIRST_WAIT

  def failed(self, step: int, error: BaseException, *, alone: bool) -> None:
    """A save has not.

    Args:
      step: that was to be saved.
      error: why it was not.
      alone: this process may try again; of several, the others cannot know.

    Raises:
      UserError: it has been so for too long; `NotSaved` of several processes.
    """
    now = time.monotonic()
    self._since = now if self._since is None else self._since
    failure = f"{self._directory}: step {step} could not be saved ({reason(error)})"
    if not alone:
      raise NotSaved(f"{failure}; what was saved before is as it was, and the same command goes on from it") from error
    if now + self._wait - self._since > self._seconds:
      raise UserError(
        f"{failure}; what was saved before is as it was. Make room, or mend what is wrong: the same command again goes"
        " on from the last checkpoint that there is, or begins (config.checkpoint.retry_seconds says how long is waited"
        " for that, inf for ever)"
      ) from error
    self._next = now + self._wait
    hosts.log_once(f"{failure}; what was saved before is as it was, and it is tried again in {self._wait:.0f} s")
    self._wait = min(2 * self._wait, _LONGEST_WAIT)


def reason(error: BaseException) -> str:
  """What a person can use of an error; of TensorStore's, which name its source files, what the system said."""
  text = " ".join(str(error).split()) or type(error).__name__
  message = text.partition(" [")[0]
  return (message.rpartition(": ")[2] if "os_error" in text else message)[:_SHOWN]


def without_tracebacks() -> None:
  """Keeps threads of Orbax and TensorStore from telling errors, each with its traceback: who asked tells them, once.

  And Orbax from warning of what is as it is meant to be: metadata and metrics that t2t does not have it keep.
  With `--debug`, which sets the verbosity of absl, they stay.
  """
  if absl_logging.get_verbosity() < absl_logging.INFO:
    absl_logging.get_absl_logger().addFilter(_is_no_traceback)
    absl_logging.get_absl_logger().addFilter(_is_of_use)
    logging.getLogger("asyncio").addFilter(_is_no_other_write)
    if sys.unraisablehook is not _tell:
      global _tell_before
      _tell_before, sys.unraisablehook = sys.unraisablehook, _tell


def _is_no_traceback(record: logging.LogRecord) -> bool:
  return not (record.exc_info and "orbax" in record.pathname)


def _is_of_use(record: logging.LogRecord) -> bool:
  return not record.getMessage().startswith(("Metadata file does not exist", "Requested `tracked_metric`"))


def _is_no_other_write(record: logging.LogRecord) -> bool:
  # The first that fails is told; Orbax asks no other.
  return "exception was never retrieved" not in record.getMessage()


def _tell(unraisable: "sys.UnraisableHookArgs") -> None:
  # Of a write that was under way when another had failed, TensorStore tells a loop that waits no more.
  if str(unraisable.exc_value) != "Event loop is closed":
    _tell_before(unraisable)


_tell_before = sys.unraisablehook
