"""Detects outages of a bucket in the errors of its three clients.

Outages end by themselves: a restarted command resumes, and launchers restart it.
"""

from collections.abc import Iterator
import re

from t2t import UserError
from t2t.runtime import exit_codes

_LONGEST = 200  # characters of a reason
_REQUEST_TIMEOUT = 408  # HTTP status

# Names of TensorFlow's errors, and prefixes of TensorStore's, for server and network problems.
_TENSORFLOW = ("AbortedError", "DeadlineExceededError", "InternalError", "ResourceExhaustedError", "UnavailableError")
_TENSORSTORE = re.compile(r"(^|: )(ABORTED|DEADLINE_EXCEEDED|INTERNAL|RESOURCE_EXHAUSTED|UNAVAILABLE): ")
_NO_WAY = "libcurl code"  # in TensorFlow's FailedPreconditionError for a host name that is not resolved


class Away(UserError):
  """A bucket or the Hugging Face hub does not answer after all retries."""

  exit_code = exit_codes.LOST


class CutOff(OSError):
  """A store sent a part of the content that was requested."""

  is_outage = True


def reason(error: BaseException) -> str | None:
  """Returns the reason in a line if an error or one of its causes is an outage of a bucket; None otherwise.

  Errors that the user must fix, such as a wrong bucket name or missing permissions, are no outages.
  """
  for cause in _causes(error):
    is_known = isinstance(cause, Away) or getattr(cause, "is_outage", False)  # also of stores.py
    if is_known or _is_tensorflows(cause) or _is_tensorstores(cause) or _is_googles(cause):
      line = " ".join((str(cause) or type(cause).__name__).partition(" [")[0].split())
      return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."
  return None


def refusal(message: str, error: BaseException) -> UserError:
  """Returns the error to raise for a bucket's error: `Away` for an outage, else a UserError for the user to fix."""
  return (Away if reason(error) else UserError)(message)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
  while error is not None:
    yield error
    error = error.__cause__


def _is_tensorflows(error: BaseException) -> bool:
  if not type(error).__module__.startswith("tensorflow."):
    return False
  text = str(error)
  return _NO_WAY in text or (type(error).__name__ in _TENSORFLOW and ("HTTP" in text or "gs://" in text))


def _is_tensorstores(error: BaseException) -> bool:
  text = str(error)
  return bool(_TENSORSTORE.search(text)) and "gs://" in text


def _is_googles(error: BaseException) -> bool:
  package = type(error).__module__.partition(".")[0]
  if package not in ("google", "requests"):  # avoids imports for errors of other packages
    return False
  import google.api_core.exceptions as api
  import google.auth.exceptions as auth
  import requests

  if isinstance(error, auth.GoogleAuthError):
    return error.retryable or isinstance(error, auth.TransportError | auth.TimeoutError)
  if isinstance(error, api.GoogleAPICallError) and error.code == _REQUEST_TIMEOUT:  # the client has no class for it
    return True
  servers = api.RetryError | api.ServerError | api.TooManyRequests
  broken_off = requests.ConnectionError | requests.Timeout | requests.exceptions.ChunkedEncodingError
  return isinstance(error, servers | broken_off)
