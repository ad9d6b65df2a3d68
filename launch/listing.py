"""What there is of jobs on Cloud TPU, GKE and SLURM, whoever started it: `status` without a name."""

import json
import shutil

from t2t import UserError
from t2t.launch import gke, queued_resource, slurm
from t2t.launch import shell as shell_lib


def tpu_vms(shell: shell_lib.Shell, *, zone: str | None, project: str | None) -> None:
  """Prints the queued resources of a zone, or of gcloud's own, with their states.

  Raises:
    UserError: they cannot be listed.
  """
  place = [*([f"--zone={zone}"] if zone else []), *([f"--project={project}"] if project else [])]
  out = _asked(shell, ["gcloud", "compute", "tpus", "queued-resources", "list", *place, "--format=json"])
  for found in json.loads(out or "[]"):
    parts = found["name"].split("/")  # projects/PROJECT/locations/ZONE/queuedResources/NAME
    request = queued_resource.Request(parts[-1], zone or parts[3], project)
    spec = found.get("tpu", {}).get("nodeSpec", [{}])[0]
    kind = spec.get("node", {}).get("acceleratorType", "no machines")
    spot = ", spot" if "spot" in found else ""
    print(f"{request.name}: {kind}{spot}, {found['state']['state']}; {request.launch_line('logs')}")


def jobsets(shell: shell_lib.Shell, request: gke.Request) -> None:
  """Prints the JobSets of a namespace with their states.

  Raises:
    UserError: they cannot be listed.
  """
  out = _asked(shell, request.kubectl("get", "jobsets", "--output=json"))
  for found in json.loads(out or "{}").get("items", []):
    state = ", ".join(gke.conditions(found)) or "waiting or running"
    name = found["metadata"]["name"]
    line = gke.Request(name, namespace=request.namespace, context=request.context).launch_line("logs")
    print(f"{name}: {state}; {line}")


def jobs(shell: shell_lib.Shell) -> None:
  """Prints one's own jobs in SLURM's queue with their states.

  Raises:
    UserError: they cannot be listed.
  """
  out = _asked(shell, ["squeue", "--me", "--noheader", "--format=%j|%i|%T|%R"])
  for line in out.splitlines():
    name, number, state, why = line.strip().split("|", 3)
    print(f"{name}: job {number}, {state}, {why}; {slurm.Request(name).launch_line('logs')}")


def everything(shell: shell_lib.Shell) -> None:
  """Prints what there is, of each program that is installed here.

  Raises:
    UserError: none is.
  """
  kinds = {
    "gcloud": ("Cloud TPU", lambda: tpu_vms(shell, zone=None, project=None)),
    "kubectl": ("GKE", lambda: jobsets(shell, gke.Request(""))),
    "squeue": ("SLURM", lambda: jobs(shell)),
  }
  here = [program for program in kinds if shell.dry_run or shutil.which(program)]
  if not here:
    raise UserError(f"none of {', '.join(kinds)} is installed here, or on PATH")
  for program in here:
    title, show = kinds[program]
    print(f"{title}:")
    try:
      show()
    except UserError as error:  # of the others there may be something
      print(error)


def _asked(shell: shell_lib.Shell, command: list[str]) -> str:
  answer = shell.ask(command)
  if answer.code:
    raise UserError(f"{command[0]} cannot list what there is:\n{answer.reason()}")
  return answer.out
