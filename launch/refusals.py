"""Explains errors of gcloud, kubectl and squeue in a sentence with a remedy."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from t2t import UserError
from t2t.launch import shell as shell_lib

T = TypeVar("T")

_CREDENTIALS = "gcloud container clusters get-credentials CLUSTER --location=REGION"
_ZONE = (
  "no zone is configured; give --zone with the zone of your TPUs, such as --zone us-central2-b (`gcloud config "
  "set compute/zone us-central2-b` saves the zone)"
)
_SHOWN = 120  # characters of an unexpected answer
# Part of a program's error in small letters -> remedy.
_KNOWN: dict[str, Sequence[tuple[str, str]]] = {
  "gcloud": (
    ("active account", "gcloud is not logged in; run `gcloud auth login`"),
    ("auth login", "gcloud is not logged in; run `gcloud auth login`"),
    ("[compute/zone]", _ZONE),
    ("--zone", _ZONE),
    ("[project]", "no project is configured; give --project"),
    ("has not been used", "the API is disabled; run `gcloud services enable tpu.googleapis.com`"),
    ("permission", "you need the role roles/tpu.viewer in the project"),
  ),
  "kubectl": (
    ('resource type "jobsets"', "the cluster does not support JobSets; docs/launch.md shows how to install them"),
    ("forbidden", "access to the JobSets of this namespace is denied"),
    ("refused", f"no connection to a cluster; run `{_CREDENTIALS}`"),
    ("current-context", f"no cluster is configured; run `{_CREDENTIALS}`"),
    ("unable to connect", "no connection to the cluster; check that it exists and that the network allows it"),
  ),
  "squeue": (("unable to contact", "the controller of SLURM does not answer; try again in a moment"),),
}


def understood(program: str, out: str, read: Callable[[str], T]) -> T:
  """Returns the output of a program parsed by `read`.

  Args:
    program: gcloud, kubectl or squeue.
    out: the program's output.
    read: parser; may fail on missing or unexpected values.

  Raises:
    UserError: the parser failed; with the program and its output.
  """
  try:
    return read(out)
  except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
    raise UserError(f"{program}: unexpected output ({type(error).__name__}: {error}): {_beginning(out)!r}") from error


def _beginning(out: str) -> str:
  words = " ".join(out.split())
  return words if len(words) <= _SHOWN else f"{words[:_SHOWN]}..."


def sentence(program: str, answer: shell_lib.Answer) -> str:
  """Returns a known error's remedy; otherwise the exit code and the last line of the output.

  Args:
    program: gcloud, kubectl or squeue.
    answer: of a call that failed.
  """
  if answer.code == shell_lib.TIMED_OUT:
    return f"no answer: {answer.err}"
  text, last = answer.err.lower(), answer.reason(1).strip()
  return next((advice for words, advice in _KNOWN[program] if words in text), f"exit code {answer.code}, {last}")
