"""Why a program of a cloud or a cluster does not say what there is, in a sentence, and what to do about it."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from t2t import UserError
from t2t.launch import shell as shell_lib

T = TypeVar("T")

_CREDENTIALS = "gcloud container clusters get-credentials CLUSTER --location=REGION"
_ZONE = (
  "it has no zone of its own: give --zone with the one that your TPUs are in, --zone us-central2-b; `gcloud config set"
  " compute/zone us-central2-b` keeps it"
)
_SHOWN = 120  # characters of an answer that is not understood
# What a program says in its errors, in small letters -> what to do.
_KNOWN: dict[str, Sequence[tuple[str, str]]] = {
  "gcloud": (
    ("active account", "nobody is logged in; run `gcloud auth login`"),
    ("auth login", "nobody is logged in; run `gcloud auth login`"),
    ("[compute/zone]", _ZONE),
    ("--zone", _ZONE),
    ("[project]", "it has no project of its own; give --project"),
    ("has not been used", "the API is off; run `gcloud services enable tpu.googleapis.com`"),
    ("permission", "you need the role roles/tpu.viewer in the project"),
  ),
  "kubectl": (
    ('resource type "jobsets"', "the cluster knows no JobSets; docs/launch.md says how to install them"),
    ("forbidden", "you may not list the JobSets of this namespace"),
    ("refused", f"it reaches no cluster; run `{_CREDENTIALS}`"),
    ("current-context", f"it knows no cluster; run `{_CREDENTIALS}`"),
    ("unable to connect", "it reaches no cluster; is it there, and does the network let you?"),
  ),
  "squeue": (("unable to contact", "the controller of SLURM does not answer; ask again in a moment"),),
}


def understood(program: str, out: str, read: Callable[[str], T]) -> T:
  """What `read` makes of a program's output.

  Args:
    program: gcloud, kubectl or squeue.
    out: all that it wrote.
    read: may fail at what is not there, or is of another type.

  Raises:
    UserError: it does; names the program and shows what it answered.
  """
  try:
    return read(out)
  except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
    raise UserError(
      f"{program} answers what t2t does not understand ({type(error).__name__}: {error}): {_beginning(out)!r}"
    ) from error


def _beginning(out: str) -> str:
  words = " ".join(out.split())
  return words if len(words) <= _SHOWN else f"{words[:_SHOWN]}..."


def sentence(program: str, answer: shell_lib.Answer) -> str:
  """What is wrong, of what is known; otherwise the exit code and the last line of what the program wrote.

  Args:
    program: gcloud, kubectl or squeue.
    answer: of a call that failed.
  """
  if answer.code == shell_lib.TIMED_OUT:
    return f"it does not answer: {answer.err}"
  text, last = answer.err.lower(), answer.reason(1).strip()
  return next((advice for words, advice in _KNOWN[program] if words in text), f"exit code {answer.code}, {last}")
