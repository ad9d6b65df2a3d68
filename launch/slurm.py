"""SLURM clusters of GPUs: a batch script with one process per GPU, queued again when its time is up."""

import dataclasses
import pathlib
import re
import shlex
import sys

from t2t import UserError
from t2t.launch import job as job_lib
from t2t.launch import refusals
from t2t.launch import shell as shell_lib
from t2t.runtime import exit_codes, rendezvous

_FOLDER = pathlib.Path("slurm")  # scripts and logs, in the folder where the job is started
_SAVE_SECONDS = 300  # notice before the time limit, to save


# SLURM sends USR1 shortly before the time limit; the job then saves after its step. It is queued again after exit codes
# that allow a restart (t2t/runtime/exit_codes.py). A signal interrupts `wait`, but not the process that it waits for.
_SCRIPT = """\
#!/bin/bash
{options}

export PYTHONUNBUFFERED=1
export {token}="$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')"
{exports}{setup}rm -f "{exit_code}"
trap 'interrupted=yes; scancel --signal=TERM "$SLURM_JOB_ID"' USR1
srun --kill-on-bad-exit=1 --gpu-bind=none \\
  {command} &
step=$!
while interrupted=; wait "$step"; code=$?; [ -n "$interrupted" ]; do :; done
again=
if [ "$code" = {lost} ] || {{ [ "$code" -gt 128 ] && [ "$code" != {interrupted} ]; }}; then again=yes; fi
if [ -n "$again" ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {restarts} ]; then
  echo "t2t launch: stopped before its end (exit code $code); queued again"
  scontrol requeue "$SLURM_JOB_ID"
  exit 0
fi
echo "t2t launch: exit code $code"
echo "$code" > "{exit_code}"
exit "$code"
"""


@dataclasses.dataclass(frozen=True)
class Request:
  """Request to SLURM.

  Attributes:
    name: of the job.
    nodes: machines.
    gpus_per_node: with one process each.
    time: such as 24:00:00; None for the partition's default.
    partition: None for the default.
    account: None for the user's.
    setup: a shell command before the job, such as "module load cuda".
    python: interpreter on all nodes.
    restarts: number of times the job is queued again when its time is up.
    flags: further flags of sbatch.
  """

  name: str
  nodes: int = 1
  gpus_per_node: int = 1
  time: str | None = None
  partition: str | None = None
  account: str | None = None
  setup: str | None = None
  python: str = sys.executable
  restarts: int = 10
  flags: tuple[str, ...] = ()

  def launch_line(self, action: str) -> str:
    """Returns the command line of t2t for `action`, for messages."""
    return shlex.join(["t2t", "launch", "slurm", "--name", self.name, action])


def script(request: Request, job: job_lib.Job) -> str:
  """Returns the batch script.

  JAX takes one GPU per task of a node, by SLURM_LOCALID, so every task must see all GPUs of its node. --gpus-per-node
  and --gpu-bind=none ensure that.
  """
  options = {
    "job-name": request.name,
    "comment": f"t2t:{job.fingerprint}",
    "nodes": request.nodes,
    "ntasks-per-node": request.gpus_per_node,
    "gpus-per-node": request.gpus_per_node,
    "time": request.time,
    "partition": request.partition,
    "account": request.account,
    "output": _FOLDER / f"{request.name}-%j.log",
    "open-mode": "append",
    "signal": f"B:USR1@{_SAVE_SECONDS}",
  }
  flags = [f"--{name}={value}" for name, value in options.items() if value is not None]
  # sbatch parses quotes as a shell does.
  lines = [f"#SBATCH {shlex.quote(flag)}" for flag in (*flags, "--requeue", *request.flags)]
  command = shell_lib.shown([request.python, "-m", "t2t.launch.host", *job.argv])
  return _SCRIPT.format(
    options="\n".join(lines),
    setup=f"{request.setup}\n" if request.setup else "",
    exports=job_lib.exports(),
    exit_code=f"{_FOLDER}/{request.name}-$SLURM_JOB_ID.exit",
    command=command,
    token=rendezvous.TOKEN,
    restarts=request.restarts,
    lost=exit_codes.LOST,
    interrupted=exit_codes.INTERRUPTED,
  )


@dataclasses.dataclass(frozen=True)
class _Queued:
  """A job in the queue."""

  number: str
  state: str  # for example PENDING or RUNNING
  reason: str  # why it is pending, or its nodes
  comment: str


def _queued_job(request: Request, shell: shell_lib.Shell) -> _Queued | None:
  """Returns the last job of this name in the queue, or None."""
  answer = shell.ask(["squeue", "--me", "--noheader", f"--name={request.name}", "--format=%i|%T|%R|%k"])
  if answer.code:
    raise UserError(f"{request.name} cannot be looked up: {refusals.sentence('squeue', answer)}")
  return refusals.understood("squeue", answer.out, _last)


def _last(out: str) -> _Queued | None:
  """Parses the last line of squeue."""
  lines = [line.strip() for line in out.splitlines() if line.strip()]
  return _Queued(*lines[-1].split("|", 3)) if lines else None


def _submit(request: Request, shell: shell_lib.Shell, path: pathlib.Path) -> str:
  answer = shell.ask(["sbatch", "--parsable", str(path)], pretend="JOB")
  if answer.code:
    text = answer.err.lower()
    how = ""
    if "partition" in text:
      how = "\nRun `sinfo` to list partitions; give one with --partition"
    elif re.search(r"\baccount\b", text):
      how = "\nRun `sacctmgr show associations user=$USER` to list accounts; give one with --account"
    elif "qos" in text or "limit" in text or "assoc" in text:
      how = "\nRun `sacctmgr show qos` to list the cluster's limits for you; give fewer --nodes or less --time, or wait"
    elif "node configuration" in text or "gres" in text:
      how = (
        "\nRun `sinfo --Format=partition,nodes,gres` to list the GPUs of nodes; --gpus-per-node is "
        f"{request.gpus_per_node}"
      )
    raise UserError(f"sbatch rejects {path}:\n{answer.reason()}{how}")
  return answer.out.strip().split(";")[0]


def _log(request: Request, number: str) -> pathlib.Path:
  return _FOLDER / f"{request.name}-{number}.log"


def _follow(request: Request, shell: shell_lib.Shell, number: str) -> None:
  """Shows a job's log until the job has left the queue."""
  path = _log(request, number)
  shell.say(f"Log of the job, {path}")
  if shell.dry_run:
    shell.stream(["tail", "--follow=name", "--retry", str(path)])
    return
  shown = 0
  while True:
    queued_job = _queued_job(request, shell)
    if path.exists():
      with open(path, errors="replace") as file:
        file.seek(shown)
        text = file.read()
        shown = file.tell()
      if text:
        shell.end_progress()
        print(text, end="", flush=True)
    # Read again after the job has left the queue, for its last lines.
    if queued_job is None or queued_job.number != number:
      return
    if queued_job.state != "RUNNING":
      shell.progress(f"job {number}: {queued_job.state} {queued_job.reason}")
    shell.pause()


def run(request: Request, job: job_lib.Job, shell: shell_lib.Shell) -> None:
  """Runs a job on a SLURM cluster to its end; a second call follows the existing job.

  Raises:
    UserError: it was rejected or has failed; with a remedy.
  """
  if job.workdir and job.workdir.startswith(("/tmp/", "/dev/shm/")):
    raise UserError(f"--workdir {job.workdir}: each node has its own such folder. Give a folder that all nodes share.")
  if request.time is not None and not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", request.time):
    raise UserError(f"--time {request.time} is not a time limit. Give minutes, or [DAYS-]HOURS:MINUTES:SECONDS.")
  shell.say("Looking for an existing job in the queue")
  queued_job = _queued_job(request, shell)
  if queued_job is None:
    path = _FOLDER / f"{request.name}.sh"
    shell.say("The batch script")
    shell.write(path, script(request, job))
    shell.say("Submitting the job")
    number = _submit(request, shell, path)
    shell.say(f"Job {number}; {request.launch_line('delete')} cancels it")
  elif queued_job.comment != f"t2t:{job.fingerprint}":
    raise UserError(
      f"job {queued_job.number} with the name {request.name} is in the queue with another command. Give another "
      f"--name, or cancel the job first:\n  {request.launch_line('delete')}"
    )
  else:
    number = queued_job.number
    shell.say(f"A job with this command is in the queue already: job {number}, {queued_job.state}")
  _follow(request, shell, number)
  if shell.dry_run:
    return
  code = _FOLDER / f"{request.name}-{number}.exit"
  if not code.exists():
    raise UserError(
      f"job {number} has left the queue without an exit code. The job was cancelled, did not save before its time "
      f"limit, or lost a node. Run `sacct -j {number}` to see the reason. Run the same command again to resume from "
      "the last checkpoint."
    )
  if code.read_text().strip() != "0":
    raise UserError(
      f"job {number} has failed with exit code {code.read_text().strip()}. See the log, {_log(request, number)}."
    )
  shell.say("End of the dry run; nothing was run" if shell.dry_run else "The job has succeeded")


def look_after(action: str, request: Request, shell: shell_lib.Shell) -> None:
  """Shows (`status`, `logs`) or ends (`stop`, `delete`) the job of `request`.

  Raises:
    UserError: it is not in the queue.
  """
  queued_job = _queued_job(request, shell)
  if queued_job is None and not shell.dry_run:
    logs = sorted(_FOLDER.glob(f"{request.name}-*.log"))
    raise UserError(
      f"no job {request.name} in the queue. Run `squeue --me` to list your jobs."
      + (f" The log of the last job of this name is {logs[-1]}." if logs else "")
    )
  number = queued_job.number if queued_job else "JOB"
  if action == "logs":
    _follow(request, shell, number)
  elif action == "status":
    if queued_job:
      print(f"{request.name}: job {number}, {queued_job.state}, {queued_job.reason}")
  else:
    signal = ["--signal=INT"] if action == "stop" else []
    answer = shell.ask(["scancel", *signal, number])
    if answer.code:
      raise UserError(f"job {number} could not be ended:\n{answer.reason()}")
    shell.say(f"Job {number} {'saves and ends after its step' if action == 'stop' else 'is cancelled'}")
