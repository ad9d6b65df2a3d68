"""Lists jobs on Cloud TPU, GKE and SLURM, and finds a job by its name."""

from collections.abc import Callable, Iterator
import dataclasses
import json
import shutil
from typing import NamedTuple

from t2t import UserError
from t2t.launch import gke, queued_resource, refusals, slurm
from t2t.launch import shell as shell_lib
from t2t.runtime import console

_SECONDS = 60.0  # time limit of a listing

Request = queued_resource.Request | gke.Request | slurm.Request


class Job(NamedTuple):
  """A job, its state in words, and its request for further actions."""

  name: str
  state: str
  request: Request

  def __str__(self):
    return f"{self.name}: {self.state}; {self.request.launch_line('logs')}"


@dataclasses.dataclass(frozen=True)
class Location:
  """Location of the search; None for the defaults of gcloud or kubectl."""

  zone: str | None = None
  project: str | None = None
  namespace: str = "default"
  context: str | None = None


def tpu_vms(shell: shell_lib.Shell, location: Location) -> list[Job]:
  """Lists the queued resources of a zone.

  Raises:
    UserError: they cannot be listed.
  """
  flags = [f"--{name}={value}" for name in ("zone", "project") if (value := getattr(location, name))]
  out = _asked(shell, ["gcloud", "compute", "tpus", "queued-resources", "list", *flags, "--format=json"])

  def job(resource: dict) -> Job:
    parts = resource["name"].split("/")  # projects/PROJECT/locations/ZONE/queuedResources/NAME
    request = queued_resource.Request(parts[-1], location.zone or parts[3], location.project)
    return Job(parts[-1], queued_resource.described(resource), request)

  return refusals.understood("gcloud", out, lambda out: [job(resource) for resource in json.loads(out or "[]")])


def jobsets(shell: shell_lib.Shell, location: Location) -> list[Job]:
  """Lists the JobSets of a namespace.

  Raises:
    UserError: they cannot be listed.
  """
  request = gke.Request("", namespace=location.namespace, context=location.context)
  out = _asked(shell, request.kubectl("get", "jobsets", "--output=json"))

  def job(resource: dict) -> Job:
    name = resource["metadata"]["name"]
    state = ", ".join(gke.conditions(resource)) or "waiting or running"
    return Job(name, state, dataclasses.replace(request, name=name))

  return refusals.understood(
    "kubectl", out, lambda out: [job(resource) for resource in json.loads(out or "{}").get("items") or []]
  )


def jobs(shell: shell_lib.Shell, location: Location) -> list[Job]:
  """Lists the user's jobs in SLURM's queue.

  Raises:
    UserError: they cannot be listed.
  """
  del location
  out = _asked(shell, ["squeue", "--me", "--noheader", "--format=%j|%i|%T|%R"])

  def job(line: str) -> Job:
    name, number, state, why = line.strip().split("|", 3)
    return Job(name, f"job {number}, {state}, {why}", slurm.Request(name))

  return refusals.understood("squeue", out, lambda out: [job(line) for line in out.splitlines()])


# program -> platform, and how to list its jobs
_KINDS: dict[str, tuple[str, Callable[[shell_lib.Shell, Location], list[Job]]]] = {
  "gcloud": ("Cloud TPU", tpu_vms),
  "kubectl": ("GKE", jobsets),
  "squeue": ("SLURM", jobs),
}


def _by_kind(shell: shell_lib.Shell, location: Location) -> Iterator[tuple[str, list[Job], str]]:
  """Yields (title, jobs, error of the listing) for each installed program.

  Raises:
    UserError: no program is installed.
  """
  here = [program for program in _KINDS if shell.dry_run or shutil.which(program)]
  if not here:
    raise UserError(
      f"none of the programs {', '.join(_KINDS)} is installed or on PATH. Install the program of your platform."
    )
  for title, listed in map(_KINDS.__getitem__, here):
    try:
      job_list, why = listed(shell, location), ""
    except UserError as error:  # other platforms may have jobs
      job_list, why = [], str(error)
    yield title, job_list, why


def show(shell: shell_lib.Shell, location: Location) -> None:
  """Prints the jobs of each installed program.

  Raises:
    UserError: a program cannot list its jobs; the others are printed.
  """
  failed = []
  for title, job_list, why in _by_kind(shell, location):
    none = "not known" if why else "not listed in a dry run" if shell.dry_run else "nothing"
    print(f"{title}:" if job_list else f"{title}: {none}", *job_list, sep="\n")
    failed += [why] if why else []
  if failed:
    raise UserError("\n".join(failed))


def find(name: str, shell: shell_lib.Shell, location: Location) -> Request | None:
  """Returns the request of a job on any platform; None in a dry run.

  Raises:
    UserError: there is no such job, or there are several.
  """
  matches: list[Job] = []
  failed: list[str] = []
  looked: list[str] = []
  for title, job_list, why in _by_kind(shell, location):
    matches += [job for job in job_list if job.name == name]
    failed += [why] if why else []
    looked.append(title)
  if shell.dry_run:
    return None
  if len(matches) > 1:
    raise UserError(
      f"{name}: {len(matches)} jobs have this name. Give the platform, as in one of these lines:\n"
      + "\n".join(f"  {match}" for match in matches)
    )
  if not matches:
    where = f"{', '.join(looked)} (zone {location.zone or 'of gcloud'}, namespace {location.namespace})"
    raise UserError("\n".join([f"no job {name} on {where}. Run `t2t launch status` to list all jobs.", *failed]))
  if failed:  # a platform that failed may have a job of this name, too
    console.tell("\n".join([*failed, f"continuing with {matches[0].name}: {matches[0].state}"]))
  return matches[0].request


def _asked(shell: shell_lib.Shell, command: list[str]) -> str:
  """Returns the output of a program.

  Raises:
    UserError: it failed; with the reason.
  """
  answer = shell.ask(command, timeout=_SECONDS)
  if answer.code:
    raise UserError(f"{command[0]} cannot list jobs: {refusals.sentence(command[0], answer)}")
  return answer.out
