"""A bucket that does not answer: it is no fault of what the user gave, and the same command may come further."""

import sys

from t2t import UserError
from t2t.runtime import exit_codes

# Of TensorFlow, with whose client paths of a bucket are looked at; after it has tried ten times.
_OF_TENSORFLOW = ("AbortedError", "UnavailableError", "DeadlineExceededError")


class Away(UserError):
  """A bucket does not answer, however often it is asked."""

  exit_code = exit_codes.LOST


def said_by(error: BaseException) -> Away | None:
  """What an error says that TensorFlow raises where it cannot reach a bucket; None: it says something else."""
  errors = sys.modules.get("tensorflow.python.framework.errors_impl")  # without it nobody raises them
  if errors is None or not isinstance(error, tuple(getattr(errors, name) for name in _OF_TENSORFLOW)):
    return None
  said, _, path = " ".join(str(error.message).split()).partition(" when reading ")
  return Away(f"{path or 'a bucket'}: cannot be reached ({said}); when it can be, the same command goes on")
