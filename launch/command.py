"""`t2t launch`: runs a t2t command on Cloud TPU VMs, on GKE or on a SLURM cluster."""

import argparse
from collections.abc import Iterator
import contextlib
import re
import shlex
import signal
import sys
import threading

from t2t import UserError, did_you_mean
from t2t.launch import gke, listing, queued_resource, slurm, tpu_types, tpu_vm
from t2t.launch import job as job_lib
from t2t.launch import shell as shell_lib
from t2t.runtime import stopping, telling

_ACTIONS = {
  "tpu-vm": ("status", "logs", "stop", "delete"),
  "gke": ("status", "logs", "delete"),
  "slurm": ("status", "logs", "stop", "delete"),
}
_EPILOG = """\
examples:
  t2t launch tpu-vm --name base --type v5p-64 --zone us-central1-a \\
    -- train --config t5_1_1_base --workdir gs://BUCKET/base
  t2t launch tpu-vm --name base --zone us-central1-a status
  t2t launch status
  t2t launch gke --name base --type v5litepod-16 --image IMAGE \\
    -- train --config t5_1_1_base --workdir gs://BUCKET/base
  t2t launch slurm --name base --nodes 4 --gpus-per-node 8 --time 24:00:00 \\
    -- train --config t5_1_1_base --workdir /shared/base

The same command again goes on with what is there. --dry-run prints every
command and runs none. launch/README.md leads from an empty cloud project to
a training pod."""


def _parser() -> argparse.ArgumentParser:
  raw = argparse.RawDescriptionHelpFormatter
  parser = argparse.ArgumentParser(
    "t2t launch", description=__doc__, epilog=_EPILOG, formatter_class=raw, allow_abbrev=False
  )
  kinds = parser.add_subparsers(dest="kind", metavar="tpu-vm | gke | slurm")
  known = f"types, after the dash TensorCores, or chips of v5litepod and v6e:\n{tpu_types.described()}"

  def add(kind: str, text: str, *, epilog: str = "") -> argparse.ArgumentParser:
    actions = _ACTIONS[kind]
    each = kinds.add_parser(
      kind,
      help=text,
      description=f"Runs a t2t command on {text}.\nThe same command again goes on with what is there.",
      usage=(
        f"t2t launch {kind} --name NAME [options] -- COMMAND ...\n"
        f"       t2t launch {kind} --name NAME [options] {'|'.join(actions)}"
      ),
      epilog=epilog,
      formatter_class=raw,
      allow_abbrev=False,
    )
    each.add_argument("action", nargs="?", choices=actions, help="look after what is there, in place of a command")
    each.add_argument("--name", help="of what is made; small letters, digits and dashes; `status` alone lists all")
    each.add_argument("--dry-run", action="store_true", help="print every command, run none")
    each.add_argument("--poll", type=float, default=20.0, metavar="SECONDS", help="between two looks (20)")
    each.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return each

  vm = add("tpu-vm", "Cloud TPU VMs, by queued resources", epilog=known)
  vm.add_argument("--zone", help="such as us-central2-b")
  vm.add_argument("--type", help="such as v5p-64")
  vm.add_argument("--slices", type=int, default=1, metavar="N", help="as many slices of --type, as one job (1)")
  vm.add_argument("--spot", action="store_true", help="cheaper, and may be taken away at any time")
  vm.add_argument("--project", help="in place of gcloud's own")
  vm.add_argument("--wheel", metavar="FILE", help="of t2t; otherwise that of this checkout is built")
  vm.add_argument(
    "--restarts", type=int, default=10, metavar="N", help="how many times machines taken away are asked for again (10)"
  )
  vm.add_argument("--delete", action="store_true", help="delete the machines when this command ends, in whatever way")
  vm.add_argument("--worker", type=int, default=0, metavar="K", help="whose log `logs` shows (0)")
  vm.add_argument(
    "--create-flag",
    action="append",
    default=[],
    metavar="FLAG",
    help="of `gcloud compute tpus queued-resources create`, such as --create-flag=--reserved",
  )

  pods = add("gke", "TPUs of a GKE cluster, as a JobSet", epilog=known)
  pods.add_argument("--type", help="such as v5p-64")
  pods.add_argument("--image", help="with t2t in it; launch/Dockerfile makes one")
  pods.add_argument("--slices", type=int, default=1, metavar="N", help="as many slices of --type, as one job (1)")
  pods.add_argument("--spot", action="store_true", help="on spot nodes")
  pods.add_argument("--namespace", default="default", help="of Kubernetes (default)")
  pods.add_argument("--context", help="of kubectl; the current one otherwise")
  pods.add_argument("--service-account", help="of Kubernetes, whose pods may write to the bucket")
  pods.add_argument("--restarts", type=int, default=10, metavar="N", help="after failures and preemptions (10)")
  pods.add_argument("--delete", action="store_true", help="delete the JobSet when this command ends, in whatever way")

  batch = add("slurm", "GPUs of a SLURM cluster, as a batch job")
  batch.add_argument("--nodes", type=int, default=1, metavar="N", help="machines (1)")
  batch.add_argument("--gpus-per-node", type=int, default=1, metavar="N", help="each a process of its own (1)")
  batch.add_argument("--time", help="such as 24:00:00; saves and is queued again when it is up")
  batch.add_argument("--partition", help="in place of the default")
  batch.add_argument("--account", help="in place of your own")
  batch.add_argument("--setup", metavar="COMMAND", help="before the job, such as 'module load cuda'")
  batch.add_argument("--python", default=sys.executable, help="that all nodes see; this one otherwise")
  batch.add_argument("--restarts", type=int, default=10, metavar="N", help="how many times it is queued again (10)")
  batch.add_argument(
    "--sbatch-flag", action="append", default=[], metavar="FLAG", help="such as --sbatch-flag=--exclusive"
  )
  return parser


def _check(options: argparse.Namespace, command: list[str] | None) -> None:
  """What argparse does not check.

  Raises:
    UserError: names the option and what would be right.
  """
  for name, value in vars(options).items():
    if name != "setup":  # which is a script
      flag = f"--{name.replace('_', '-')}"
      for word in value if isinstance(value, list) else [value]:
        shell_lib.check_words({flag: str(word)})
  if options.name is None:
    if options.action == "status" and command is None:
      return
    raise UserError("--name is missing: of what is made, or is to be looked after; `status` alone lists all")
  if options.kind == "tpu-vm" and options.zone is None:
    raise UserError("--zone is missing; such as us-central2-b")
  if not re.fullmatch(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", options.name):
    raise UserError(
      f"--name {options.name}: small letters, digits and dashes, at most 40, a letter first and no dash last"
    )
  if command is None and options.action is None:
    raise UserError(
      "nothing to do: give a t2t command after --, as in `-- train --config NAME --workdir ...`, or one of"
      f" {', '.join(_ACTIONS[options.kind])}"
    )
  if command is not None and options.action:
    raise UserError(f"{options.action} and a command after --: give one of them")
  for name in ("slices", "nodes", "gpus_per_node"):
    if name in options and getattr(options, name) < 1:
      raise UserError(f"--{name.replace('_', '-')} {getattr(options, name)}: must be at least 1")
  if options.restarts < 0:
    raise UserError(f"--restarts {options.restarts}: must be at least 0")
  if options.kind != "slurm" and command is not None and not options.type:
    raise UserError(f"--type is missing; after the dash\n{tpu_types.described()}")
  if options.kind == "gke" and command is not None and not options.image:
    raise UserError("--image is missing; launch/README.md says how launch/Dockerfile makes one")


def _tpu_vm(options, job: job_lib.Job | None, shell: shell_lib.Shell) -> None:
  tpu = tpu_types.tpu_type(options.type) if options.type else None
  if job and not tpu.runtime:
    raise UserError(f"--type {options.type}: Google Cloud lends this generation by GKE alone; t2t launch gke")
  if job and options.slices > 1 and tpu.name.startswith(("v2-", "v3-")):
    raise UserError(f"--slices {options.slices}: v4 and later can be several slices of one job; {tpu.name} is one")
  request = queued_resource.Request(
    options.name, options.zone, options.project, tpu, options.slices, options.spot, tuple(options.create_flag)
  )
  if job is None:
    tpu_vm.look_after(options.action, request, shell, worker=options.worker)
  else:
    tpu_vm.run(request, job, shell, wheel=options.wheel, restarts=options.restarts, delete=options.delete)


def _gke(options, job: job_lib.Job | None, shell: shell_lib.Shell) -> None:
  request = gke.Request(
    options.name,
    tpu_types.tpu_type(options.type) if options.type else None,
    options.image,
    options.slices,
    options.namespace,
    options.context,
    options.service_account,
    options.spot,
    options.restarts,
  )
  if job is None:
    gke.look_after(options.action, request, shell)
  else:
    gke.run(request, job, shell, delete=options.delete)


def _slurm(options, job: job_lib.Job | None, shell: shell_lib.Shell) -> None:
  request = slurm.Request(
    options.name,
    options.nodes,
    options.gpus_per_node,
    options.time,
    options.partition,
    options.account,
    options.setup,
    options.python,
    options.restarts,
    tuple(options.sbatch_flag),
  )
  if job is None:
    slurm.look_after(options.action, request, shell)
  else:
    slurm.run(request, job, shell)


_LAUNCHERS = {"tpu-vm": _tpu_vm, "gke": _gke, "slurm": _slurm}


def main(argv: list[str]) -> None:
  """The command."""
  at = argv.index("--") if "--" in argv else len(argv)
  command = argv[at + 1 :] if at < len(argv) else None
  own = argv[:at]
  if own and own[0] in ("status", "logs", "delete") and command is None:
    _of_any_kind(own)
    return
  if own and not own[0].startswith("-") and own[0] not in _LAUNCHERS:
    raise UserError(f"{own[0]}: no such launcher{did_you_mean(own[0], _LAUNCHERS)}; there are {', '.join(_LAUNCHERS)}")
  parser = _parser()
  if not own:
    parser.print_help()
    return
  options = parser.parse_args(own)
  if options.kind is None:
    raise UserError(f"which launcher? There are {', '.join(_LAUNCHERS)}")
  _check(options, command)
  job = None
  if command is not None:
    remote, devices = options.kind != "slurm", None
    if remote:
      # Before the config is read, which takes longer.
      devices = tpu_types.tpu_type(options.type).devices * options.slices
    job = job_lib.read(command, remote=remote, devices=devices)
  shell = shell_lib.Shell(dry_run=options.dry_run, poll_seconds=options.poll)
  with _signals_as_interrupts() as told:
    try:
      if options.name is None:
        _list(options, shell)
      else:
        _LAUNCHERS[options.kind](options, job, shell)
    except KeyboardInterrupt:
      shell.end_progress()
      if job is not None and not getattr(options, "delete", False):
        zone = ["--zone", options.zone] if options.kind == "tpu-vm" else []
        line = ["t2t", "launch", options.kind, "--name", options.name, *zone]
        telling.tell(
          "\nWhat has been started goes on, AND MAY COST. The same command again follows it;\n"
          f"  {shlex.join(line)} {'|'.join(_ACTIONS[options.kind])}",
        )
      if told and told[0] != signal.SIGINT:
        raise stopping.Stopped(told[0]) from None
      raise


@contextlib.contextmanager
def _signals_as_interrupts() -> Iterator[list[int]]:
  """Raises KeyboardInterrupt at any signal that ends this command, so that it can delete or tell what it has started.

  Gives the numbers of those that came.
  """
  told: list[int] = []

  def note(number, frame):
    del frame
    told.append(number)
    raise KeyboardInterrupt

  if threading.current_thread() is not threading.main_thread():
    yield told
    return
  numbers = [signal.SIGINT, signal.SIGTERM]
  if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as `nohup` has it
    numbers.append(signal.SIGHUP)
  before = {number: signal.signal(number, note) for number in numbers}
  try:
    yield told
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)


def _list(options: argparse.Namespace, shell: shell_lib.Shell) -> None:
  """`status` without a name."""
  if options.kind == "tpu-vm":
    listing.tpu_vms(shell, zone=options.zone, project=options.project)
  elif options.kind == "gke":
    listing.jobsets(shell, gke.Request("", namespace=options.namespace, context=options.context))
  else:
    listing.jobs(shell)


def _of_any_kind(own: list[str]) -> None:
  """`t2t launch status`; `logs` and `delete` have to be told of what.

  Raises:
    UserError: says how.
  """
  parser = argparse.ArgumentParser("t2t launch status", description="Lists what there is of jobs.", allow_abbrev=False)
  parser.add_argument("--dry-run", action="store_true", help="print every command, run none")
  parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
  if own[0] != "status":
    raise UserError(
      f"{own[0]}: of what? `t2t launch status` lists what there is, with the line for each, such as\n"
      f"  t2t launch tpu-vm --name NAME --zone ZONE {own[0]}"
    )
  listing.everything(shell_lib.Shell(dry_run=parser.parse_args(own[1:]).dry_run))
