"""A bucket that does not answer for now, whichever of its three clients says so.

It is nobody's fault, and goes away: who starts the same command again comes further, which launchers do.
"""

from collections.abc import Iterator
import re

from t2t import UserError
from t2t.runtime import exit_codes

_LONGEST = 200  # characters of a reason
_REQUEST_TIMEOUT = 408  # of HTTP

# Names of TensorFlow's errors, and words in front of TensorStore's: what both say of servers, and of the way there.
_TENSORFLOW = ("AbortedError", "DeadlineExceededError", "InternalError", "ResourceExhaustedError", "UnavailableError")
_TENSORSTORE = re.compile(r"(^|: )(ABORTED|DEADLINE_EXCEEDED|INTERNAL|RESOURCE_EXHAUSTED|UNAVAILABLE): ")
_NO_WAY = "libcurl code"  # of TensorFlow: a name that is not resolved is FailedPreconditionError to it


class Away(UserError):
  """A bucket does not answer, however often it is asked."""

  exit_code = exit_codes.LOST


def reason(error: BaseException) -> str | None:
  """Why a bucket does not answer, in a line, if that is what an error or one of its causes is about; None: it is not.

  What a user must mend, such as a name that no bucket has or a right that is missing, is no outage.
  """
  for cause in _causes(error):
    if isinstance(cause, Away) or _is_tensorflows(cause) or _is_tensorstores(cause) or _is_googles(cause):
      line = " ".join((str(cause) or type(cause).__name__).partition(" [")[0].split())
      return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."
  return None


def refusal(message: str, error: BaseException) -> UserError:
  """What to raise of an error of a bucket: `Away` if it is that it does not answer, or else what the user must mend."""
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
  if package not in ("google", "requests"):  # neither is imported for errors that cannot be its own
    return False
  import google.api_core.exceptions as api
  import google.auth.exceptions as auth
  import requests

  if isinstance(error, auth.GoogleAuthError):
    return error.retryable or isinstance(error, auth.TransportError | auth.TimeoutError)
  if isinstance(error, api.GoogleAPICallError) and error.code == _REQUEST_TIMEOUT:  # there is no class for it
    return True
  servers = api.RetryError | api.ServerError | api.TooManyRequests
  broken_off = requests.ConnectionError | requests.Timeout | requests.exceptions.ChunkedEncodingError
  return isinstance(error, servers | broken_off)
