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
from t2t.launch import gke, listing, queued_resource, slurm, tpu_vm
from t2t.launch import job as job_lib
from t2t.launch import shell as shell_lib
from t2t.planning import tpu_types
from t2t.runtime import console, numeric, preemption

_ACTIONS = {
  "tpu-vm": ("status", "logs", "stop", "delete"),
  "gke": ("status", "logs", "delete"),
  "slurm": ("status", "logs", "stop", "delete"),
}
_ANY = ("status", "logs", "stop", "delete")  # actions on a job by its name, on any platform
_EPILOG = """\
examples:
  t2t launch tpu-vm --name base --type v5p-64 --zone us-central1-a \\
    -- train --config t5_1_1_base --workdir gs://BUCKET/base \\
       --config.data.files='gs://BUCKET/text/*.jsonl.gz' \\
       --config.data.vocabulary=gs://BUCKET/spiece.model
  t2t launch status
  t2t launch logs base
  t2t launch gke --name base --type v5litepod-16 --image IMAGE \\
    -- train --config t5_1_1_base --workdir gs://BUCKET/base
  t2t launch slurm --name base --nodes 4 --gpus-per-node 8 --time 24:00:00 \\
    -- train --config t5_1_1_base --workdir /shared/base

The same command again resumes the existing job. --dry-run prints every
command and runs none. docs/launch.md leads from an empty cloud project to
a training pod."""


def _parser() -> argparse.ArgumentParser:
  raw = argparse.RawDescriptionHelpFormatter
  parser = argparse.ArgumentParser(
    "t2t launch",
    description=__doc__,
    usage=(
      f"t2t launch {'|'.join(_LAUNCHERS)} --name NAME [options] -- COMMAND ...\n"
      f"       t2t launch {'|'.join(_ANY)} [NAME] [options]"
    ),
    epilog=_EPILOG,
    formatter_class=raw,
    allow_abbrev=False,
  )
  kinds = parser.add_subparsers(prog="t2t launch", dest="kind", metavar="tpu-vm | gke | slurm")
  known = f"types; the number counts TensorCores, or chips for v5litepod and v6e:\n{tpu_types.described()}"

  def add(kind: str, text: str, *, epilog: str = "") -> argparse.ArgumentParser:
    actions = _ACTIONS[kind]
    subparser = kinds.add_parser(
      kind,
      help=text,
      description=f"Runs a t2t command on {text}.\nThe same command again resumes the existing job.",
      usage=(
        f"t2t launch {kind} --name NAME [options] -- COMMAND ...\n"
        f"       t2t launch {kind} --name NAME [options] {'|'.join(actions)}"
      ),
      epilog=epilog,
      formatter_class=raw,
      allow_abbrev=False,
    )
    subparser.add_argument("action", nargs="?", choices=actions, help="manage an existing job, in place of a command")
    subparser.add_argument(
      "--name", help="name of the job; small letters, digits and dashes; `status` without a name lists all jobs"
    )
    subparser.add_argument("--dry-run", action="store_true", help="print every command, run none")
    subparser.add_argument(
      "--poll", type=numeric.number(0), default=20.0, metavar="SECONDS", help="interval of status checks (20)"
    )
    subparser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return subparser

  vm = add("tpu-vm", "Cloud TPU VMs, by queued resources", epilog=known)
  vm.add_argument("--zone", help="for example us-central2-b")
  vm.add_argument("--type", help="for example v5p-64")
  vm.add_argument("--slices", type=int, default=1, metavar="N", help="number of slices of --type in one job (1)")
  vm.add_argument("--spot", action="store_true", help="use cheaper machines that may be preempted at any time")
  vm.add_argument("--project", help="project; default: gcloud's")
  vm.add_argument("--wheel", metavar="FILE", help="wheel of t2t; default: built from this checkout")
  vm.add_argument(
    "--restarts",
    type=numeric.integer(0),
    default=10,
    metavar="N",
    help="number of restarts after preemptions (10)",
  )
  vm.add_argument(
    "--delete", action="store_true", help="delete the machines when this command ends, even after an error"
  )
  vm.add_argument("--worker", type=numeric.integer(0), default=0, metavar="K", help="worker for `logs` (0)")
  vm.add_argument(
    "--create-flag",
    action="append",
    default=[],
    metavar="FLAG",
    help="flag of `gcloud compute tpus queued-resources create`, such as --create-flag=--reserved",
  )

  pods = add("gke", "TPUs of a GKE cluster, as a JobSet", epilog=known)
  pods.add_argument("--type", help="for example v5p-64")
  pods.add_argument("--image", help="image with t2t, built with launch/Dockerfile")
  pods.add_argument("--slices", type=int, default=1, metavar="N", help="number of slices of --type in one job (1)")
  pods.add_argument("--spot", action="store_true", help="use spot nodes")
  pods.add_argument("--namespace", default="default", help="namespace of Kubernetes (default)")
  pods.add_argument("--context", help="context of kubectl; default: the current one")
  pods.add_argument("--service-account", help="service account of Kubernetes with write access to the bucket")
  pods.add_argument(
    "--restarts",
    type=numeric.integer(0),
    default=10,
    metavar="N",
    help="number of restarts after failures and preemptions (10)",
  )
  pods.add_argument(
    "--delete", action="store_true", help="delete the JobSet when this command ends, even after an error"
  )

  batch = add("slurm", "GPUs of a SLURM cluster, as a batch job")
  batch.add_argument("--nodes", type=int, default=1, metavar="N", help="machines (1)")
  batch.add_argument(
    "--gpus-per-node", type=int, default=1, metavar="N", help="GPUs of each machine, with one process each (1)"
  )
  batch.add_argument("--time", help="time limit such as 24:00:00; the job then saves and is queued again")
  batch.add_argument("--partition", help="partition; default: the cluster's")
  batch.add_argument("--account", help="account; default: your own")
  batch.add_argument("--setup", metavar="COMMAND", help="command before the job, such as 'module load cuda'")
  batch.add_argument("--python", default=sys.executable, help="interpreter on all nodes; default: this one")
  batch.add_argument(
    "--restarts", type=numeric.integer(0), default=10, metavar="N", help="number of times the job is queued again (10)"
  )
  batch.add_argument(
    "--sbatch-flag",
    action="append",
    default=[],
    metavar="FLAG",
    help="flag of sbatch, such as --sbatch-flag=--exclusive",
  )
  return parser


def _check(options: argparse.Namespace, command: list[str] | None) -> None:
  """Checks options beyond argparse.

  Raises:
    UserError: with the option and valid values.
  """
  for name, value in vars(options).items():
    if name != "setup":  # a script, which may have several lines
      flag = f"--{name.replace('_', '-')}"
      for word in value if isinstance(value, list) else [value]:
        shell_lib.check_words({flag: str(word)})
  if options.name is None:
    if options.action == "status" and command is None:
      return
    raise UserError("--name is missing: give the name of a job; `t2t launch status` lists all jobs")
  if options.kind == "tpu-vm" and options.zone is None:
    raise UserError("--zone is missing: give a zone such as --zone us-central2-b")
  if not re.fullmatch(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", options.name):
    raise UserError(
      f"--name {options.name} is not valid. Give at most 40 small letters, digits and dashes, with a letter first and "
      "no dash last."
    )
  if command is None and options.action is None:
    raise UserError(
      "nothing to do: give a t2t command after --, as in `-- train --config NAME --workdir ...`, or one of "
      f"{', '.join(_ACTIONS[options.kind])}"
    )
  if command is not None and options.action:
    raise UserError(f"{options.action} and a command after -- are mutually exclusive. Give one of the two.")
  for name in ("slices", "nodes", "gpus_per_node"):
    if name in options and getattr(options, name) < 1:
      raise UserError(f"--{name.replace('_', '-')} {getattr(options, name)} must be at least 1")
  if options.kind != "slurm" and command is not None and not options.type:
    raise UserError(
      "--type is missing. Give one of these types. The number in a type counts TensorCores, or chips for v5litepod "
      f"and v6e:\n{tpu_types.described()}"
    )
  if options.kind == "gke" and command is not None and not options.image:
    raise UserError("--image is missing: build an image with launch/Dockerfile (see docs/launch.md), and give its name")


def _tpu_vm(options, job: job_lib.Job | None, shell: shell_lib.Shell) -> None:
  tpu = tpu_types.tpu_type(options.type) if options.type else None
  if job and not tpu.runtime:
    raise UserError(f"--type {options.type}: Google Cloud offers this generation only on GKE. Use `t2t launch gke`.")
  if job and options.slices > 1 and tpu.name.startswith(("v2-", "v3-")):
    raise UserError(
      f"--slices {options.slices}: {tpu.name} supports a single slice. Give --slices 1, or a type of v4 or later."
    )
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
  """Runs `t2t launch`."""
  at = argv.index("--") if "--" in argv else len(argv)
  command = argv[at + 1 :] if at < len(argv) else None
  arguments = argv[:at]
  if arguments and arguments[0] in _ANY and command is None:
    _of_any_kind(arguments)
    return
  if arguments and not arguments[0].startswith("-") and arguments[0] not in _LAUNCHERS:
    raise UserError(
      f"{arguments[0]}: no such launcher{did_you_mean(arguments[0], _LAUNCHERS) or '.'} Give one of "
      f"{', '.join(_LAUNCHERS)}."
    )
  if command is None:
    _check_dashes(arguments)
  parser = _parser()
  if not arguments:
    parser.print_help()
    return
  options = parser.parse_args(_with_dashes(arguments))
  if options.kind is None:
    raise UserError(f"t2t launch: no launcher. Give one of {', '.join(_LAUNCHERS)}.")
  _check(options, command)
  job = None
  if command is not None:
    remote, devices = options.kind != "slurm", None
    if remote:
      # Checked before the config, which takes longer to read.
      devices = tpu_types.tpu_type(options.type).devices * options.slices
    job = job_lib.read(command, remote=remote, devices=devices)
  shell = shell_lib.Shell(dry_run=options.dry_run, poll_seconds=options.poll)
  with _signals_as_interrupts() as signals:
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
        console.tell(
          "\nThe job continues to run, AND MAY COST. Run the same command again to follow it, or\n"
          f"  {shlex.join(line)} {'|'.join(_ACTIONS[options.kind])}",
        )
      if signals and signals[0] != signal.SIGINT:
        raise preemption.Stopped(signals[0]) from None
      raise


@contextlib.contextmanager
def _signals_as_interrupts() -> Iterator[list[int]]:
  """Raises KeyboardInterrupt at any signal that ends this command, so that it can delete or report its machines.

  Yields the list of received signals.
  """
  signals: list[int] = []

  def note(number, frame):
    del frame
    signals.append(number)
    raise KeyboardInterrupt

  if threading.current_thread() is not threading.main_thread():
    yield signals
    return
  numbers = [signal.SIGINT, signal.SIGTERM]
  if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # ignored under `nohup`
    numbers.append(signal.SIGHUP)
  before = {number: signal.signal(number, note) for number in numbers}
  try:
    yield signals
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)


def _list(options: argparse.Namespace, shell: shell_lib.Shell) -> None:
  """Runs `status` without a name."""
  listed = {"tpu-vm": listing.tpu_vms, "gke": listing.jobsets, "slurm": listing.jobs}[options.kind]
  for job in listed(shell, _place(options)):
    print(job)


def _place(options: argparse.Namespace) -> listing.Location:
  """Returns the location of jobs in the options."""
  named = {name: getattr(options, name) for name in ("zone", "project", "namespace", "context") if name in options}
  return listing.Location(**named)


def _of_any_kind(arguments: list[str]) -> None:
  """Runs `t2t launch status`, or an action on a job by its name on any platform.

  Raises:
    UserError: there is no such job, or its platform does not answer.
  """
  parser = argparse.ArgumentParser(
    f"t2t launch {arguments[0]}",
    description="Manages a job by its name, on any platform; without a name, lists all jobs.",
    allow_abbrev=False,
  )
  parser.add_argument("name", nargs="?", metavar="NAME", help="name of the job")
  parser.add_argument("--name", dest="named", metavar="NAME", help="the same")
  parser.add_argument("--zone", help="zone of Cloud TPU; default: gcloud's")
  parser.add_argument("--project", help="project; default: gcloud's")
  parser.add_argument("--namespace", default="default", help="namespace of Kubernetes (default)")
  parser.add_argument("--context", help="context of kubectl; default: the current one")
  if arguments[0] == "logs":
    parser.add_argument(
      "--worker", type=numeric.integer(0), default=0, metavar="K", help="worker of TPU VMs for the log (0)"
    )
  parser.add_argument("--dry-run", action="store_true", help="print every command, run none")
  parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
  options = parser.parse_args(_with_dashes(arguments[1:]))
  for option, word in vars(options).items():
    shell_lib.check_words({f"--{option}": str(word)})
  name, shell = options.name or options.named, shell_lib.Shell(dry_run=options.dry_run)
  if name is None:
    listing.show(shell, _place(options))
    if arguments[0] != "status" and not options.dry_run:
      raise UserError(f"{arguments[0]} needs the name of a job. Run `t2t launch {arguments[0]} NAME`.")
    return
  request = listing.find(name, shell, _place(options))
  if isinstance(request, queued_resource.Request):
    tpu_vm.look_after(arguments[0], request, shell, worker=getattr(options, "worker", 0))
  elif isinstance(request, slurm.Request):
    slurm.look_after(arguments[0], request, shell)
  elif request is not None:
    if arguments[0] not in _ACTIONS["gke"]:
      raise UserError(
        f"{arguments[0]}: {name} runs on GKE, which cannot stop a job. Run `t2t launch delete {name}`; the job saves "
        "first."
      )
    gke.look_after(arguments[0], request, shell)


def _with_dashes(arguments: list[str]) -> list[str]:
  """Replaces underscores in option names by dashes, because other commands have underscores: --dry_run."""

  def renamed(word: str) -> str:
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word

  return [renamed(word) for word in arguments]


def _check_dashes(arguments: list[str]) -> None:
  """Checks that the command of the hosts follows --.

  Raises:
    UserError: -- is missing; with the corrected command line.
  """
  from t2t import __main__ as t2t_main

  commands = t2t_main.SUBCOMMANDS.keys() - {"launch"}
  flags = ("--spot", "--delete", "--dry-run", "--debug")
  for number, word in enumerate(arguments):
    last = arguments[number - 1].replace("_", "-") if number else ""
    value = last.startswith("--") and "=" not in last and last not in flags
    begins = word in commands and not value
    if begins or word.startswith("--config"):
      command = arguments[number:] if begins else ["train", *arguments[number:]]
      raise UserError(
        f"-- is missing between the options of `t2t launch` and the command of the hosts. Write\n"
        f"  {shlex.join(['t2t', 'launch', *arguments[:number]])} -- {shlex.join(command)}"
      )
