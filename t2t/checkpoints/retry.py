"""Retries of failed saves, because a full disk, a quota or a network may recover, for a limited time."""

import logging
import sys
import time

from absl import logging as absl_logging
from etils import epath

from t2t import UserError
from t2t.runtime import exit_codes, hosts

_FIRST_WAIT, _LONGEST_WAIT = 5.0, 60.0  # seconds before a save is retried
_SHOWN = 300  # characters of an error in a message


class NotSaved(UserError):
  """A save of several processes failed; its exit code makes launchers restart all of them."""

  exit_code = exit_codes.LOST


class Patience:
  """Schedule of the retries of a failed save."""

  def __init__(self, directory: epath.Path, seconds: float):
    """Begins without a failure.

    Args:
      directory: of the checkpoints.
      seconds: time during which consecutive saves may fail; infinite: no limit.
    """
    self._directory, self._seconds = directory, seconds
    self._since: float | None = None
    self._wait, self._next = _FIRST_WAIT, 0.0

  @property
  def failing(self) -> bool:
    return self._since is not None

  def seconds_left(self) -> float:
    """Returns the seconds until the next attempt."""
    return max(0.0, self._next - time.monotonic())

  def succeeded(self) -> None:
    """Records a successful save."""
    if self.failing:
      hosts.log_once(f"{self._directory}: saving works again")
    self._since, self._wait = None, _FIRST_WAIT

  def failed(self, step: int, error: BaseException, *, alone: bool) -> None:
    """Records a failed save.

    Args:
      step: of the save.
      error: its error.
      alone: this is the only process, which may retry; several processes cannot coordinate a retry.

    Raises:
      UserError: saves have failed for too long; `NotSaved` for several processes.
    """
    now = time.monotonic()
    self._since = now if self._since is None else self._since
    failure = f"{self._directory}: step {step} could not be saved ({reason(error)})"
    if not alone:
      raise NotSaved(f"{failure}. Earlier checkpoints are unchanged; the same command resumes from them.") from error
    if now + self._wait - self._since > self._seconds:
      raise UserError(
        f"{failure}. Earlier checkpoints are unchanged. Free disk space or fix the cause, then run the same command "
        "again to resume. config.checkpoint.retry_seconds limits the time of retries (inf: no limit)."
      ) from error
    self._next = now + self._wait
    hosts.log_once(f"{failure}; earlier checkpoints are unchanged; retrying in {self._wait:.0f} s")
    self._wait = min(2 * self._wait, _LONGEST_WAIT)


def reason(error: BaseException) -> str:
  """Returns the useful part of an error; for TensorStore, which adds source files, the system's message."""
  text = " ".join(str(error).split()) or type(error).__name__
  message = text.partition(" [")[0]
  return (message.rpartition(": ")[2] if "os_error" in text else message)[:_SHOWN]


def without_tracebacks() -> None:
  """Stops threads of Orbax and TensorStore from logging errors with tracebacks: the caller reports them once.

  Also stops Orbax's warnings about metadata and metrics that t2t leaves out on purpose. With `--debug`, which sets
  absl's verbosity, all messages stay.
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
  # The first failure is reported; Orbax does not await the others.
  return "exception was never retrieved" not in record.getMessage()


def _tell(unraisable: "sys.UnraisableHookArgs") -> None:
  # After a failure, TensorStore reports other pending writes to a closed event loop.
  if str(unraisable.exc_value) != "Event loop is closed":
    _tell_before(unraisable)


_tell_before = sys.unraisablehook
