"""Cloud TPU VMs: installs t2t on all workers of a slice, runs a job there, and restarts it after preemptions."""

from collections.abc import Callable
import concurrent.futures
import dataclasses
import pathlib
import re
import secrets
import shlex

from t2t import UserError
from t2t.launch import google_cloud, queued_resource
from t2t.launch import job as job_lib
from t2t.launch import shell as shell_lib
from t2t.launch import wheel as wheel_lib
from t2t.runtime import exit_codes, rendezvous

_ATTEMPTS = 6  # a new machine does not answer ssh for a minute or two

# Scripts for workers over ssh, in several lines so that a dry run is readable. This one prints the worker's name, the
# fingerprint of its job, and the job's state.
_STATE = """\
cd ~/t2t 2>/dev/null || cd
state=idle
if [ -f exit_code ]; then state="exited $(cat exit_code)"
elif [ -f pid ] && kill -0 "$(cat pid)" 2>/dev/null; then state=running
elif [ -f pid ]; then state=lost
fi
echo "t2t $(hostname) $(cat id 2>/dev/null || echo none) $state\""""
_STATE_LINE = re.compile(r"^t2t (\S+) (\S+) (idle|lost|running|exited)(?: (\d+))?\s*$", re.MULTILINE)

# TPU VMs have Python 3.10; uv installs a newer one without root.
_INSTALL = """\
set -e
export PATH="$HOME/.local/bin:$PATH"
cd ~/t2t
command -v uv >/dev/null || python3 -m pip install --user --quiet uv
uv venv --quiet --allow-existing --python 3.11 venv
uv pip install --quiet --python venv/bin/python \\
  --reinstall-package t2t-jax {constraint}\\
  {wheel}"""

# Remains of an earlier job hold the TPU. They are killed as a group, so that they write no exit code.
_START = """\
cd ~/t2t
[ ! -f group ] || kill -KILL -- "-$(cat group)" 2>/dev/null
rm -f pid group exit_code
[ ! -f log ] || mv log log.before
setsid nohup bash run.sh </dev/null >/dev/null 2>&1 &"""

_FOLLOW = """\
cd ~/t2t
for i in $(seq 30); do [ -s pid ] && break; sleep 1; done
tail --pid="$(cat pid)" --lines={lines} --follow log"""

# SIGINT, as from a user: after SIGTERM, a preemption, the job would be restarted.
_STOP = 'kill -INT "$(cat ~/t2t/pid)"'


@dataclasses.dataclass(frozen=True)
class Worker:
  """State that one machine reports."""

  host: str
  fingerprint: str  # of its job
  state: str  # idle, running, exited, or lost after a restart of the machine
  code: int | None = None

  def __str__(self):
    return f"{self.host}: {self.state}" + (f" with code {self.code}" if self.code is not None else "")


class Workers:
  """All machines of a queued resource, by ssh."""

  def __init__(self, machines: queued_resource.QueuedResource, shell: shell_lib.Shell):
    self._machines = machines
    self._request = machines.request
    self._shell = shell

  def ssh(self, node: str, worker: int | str, command: str) -> list[str]:
    """Returns the command line that runs `command` on a worker, or on "all"."""
    tool = ["gcloud", "compute", "tpus", "tpu-vm", "ssh", node]
    return [*tool, *self._request.place, "--quiet", f"--worker={worker}", f"--command={command}"]

  def _on_all(self, action: str, make_command: Callable[[str], list[str]], *, timeout: float = 600.0) -> list[str]:
    """Runs `make_command(node)` for each slice within `timeout` seconds; returns the output of each slice.

    Raises:
      queued_resource.Preempted: the machines are gone.
      UserError: the command fails, or a worker stays unreachable; with its name.
    """
    out = []
    for node in self._machines.nodes:
      unreachable: list[tuple[int, shell_lib.Answer]] = []
      for attempt in range(_ATTEMPTS):
        answer = self._shell.ask(make_command(node), timeout=timeout)
        if answer.code == 0:
          break
        if self._machines.gone():
          raise queued_resource.Preempted
        unreachable = self._unreachable(node)
        if not unreachable:
          # All workers answer: the command itself failed, or a retry may succeed now.
          if attempt:
            raise UserError(
              f"{action} failed on {node}:\n{answer.reason(12)}\n"
              f"The machines stay, AND COST. Run the same command again to retry, or delete them:\n"
              f"  {self._request.launch_line('delete')}"
            )
        else:
          names = ", ".join(str(worker) for worker, _ in unreachable)
          self._shell.progress(f"{node}: no answer from worker {names} of {self._machines.hosts}")
        self._shell.pause()
      else:
        worker, last = unreachable[0]
        names = ", ".join(str(worker) for worker, _ in unreachable)
        raise UserError(
          f"{node}: worker {names} of {self._machines.hosts} (counted from 0) cannot be reached;"
          f" {action.lower()} was not done on all workers:\n{last.reason()}\n"
          "Run the same command again to retry. If it fails again, test the connection with\n"
          f"  {shlex.join(self.ssh(node, worker, 'true')[:-1])}\n"
          "(the firewall must allow ssh, port 22), or delete these machines to get others:\n"
          f"  {self._request.launch_line('delete')}"
        )
      out.append(answer.out)
    self._shell.end_progress()
    return out

  def _unreachable(self, node: str) -> list[tuple[int, shell_lib.Answer]]:
    ask = lambda worker: (worker, self._shell.ask(self.ssh(node, worker, "true"), timeout=120))
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
      return [(worker, answer) for worker, answer in pool.map(ask, range(self._machines.hosts)) if answer.code]

  def look(self) -> list[Worker]:
    """Returns the state of each worker, in order."""
    worker_states = []
    for out in self._on_all("Checking the workers", lambda node: self.ssh(node, "all", _STATE)):
      lines = sorted(_STATE_LINE.findall(out), key=lambda line: int((re.findall(r"\d+", line[0]) or [0])[-1]))
      worker_states += [Worker(host, job, state, int(code) if code else None) for host, job, state, code in lines]
    if not worker_states and not self._shell.dry_run:
      raise UserError(
        f"the workers of {self._request.name} report no state. Check the log with "
        f"`{self._request.launch_line('logs')}`."
      )
    return worker_states

  def install(self, job: job_lib.Job, wheel: pathlib.Path, lock: pathlib.Path | None) -> None:
    """Copies the wheel, the job and its files to all workers, and installs them."""
    script = pathlib.Path("dist/run.sh")
    self._shell.say("The script of every worker")
    token = "TOKEN" if self._shell.dry_run else secrets.token_hex(16)
    self._shell.write(script, _script(job, token=token), private=True)
    self._shell.say("Copying the same wheel to all workers")
    self._on_all("Creating a folder", lambda node: self.ssh(node, "all", f"mkdir -p ~/t2t/{job_lib.FOLDER}"))
    copies = [([wheel, script, *([lock] if lock else [])], "t2t/")]
    if job.files:
      copies.append((list(job.files.values()), f"t2t/{job_lib.FOLDER}/"))
    for sources, target in copies:
      tool = ["gcloud", "compute", "tpus", "tpu-vm", "scp", *map(str, sources)]
      flags = [*self._request.place, "--quiet", "--worker=all"]
      self._on_all("Copying", lambda node, tool=tool, target=target, flags=flags: [*tool, f"{node}:{target}", *flags])
    constraint = f"--constraint {shlex.quote(lock.name)} " if lock else ""
    command = _INSTALL.format(wheel=shlex.quote(f"./{wheel.name}[data,tpu]"), constraint=constraint)
    self._on_all("Installing", lambda node: self.ssh(node, "all", command), timeout=3600.0)

  def start(self) -> None:
    """Starts the job on all workers; it continues after the connection ends."""
    self._shell.say("Starting on all workers")
    self._on_all("Starting", lambda node: self.ssh(node, "all", _START))

  def stop(self) -> None:
    """Stops the job after a save; the machines stay, and cost."""
    self._on_all("Stopping", lambda node: self.ssh(node, "all", _STOP))
    self._shell.say(
      "The job saves and ends after its step. The machines stay, AND COST; to delete them:\n"
      f"  {self._request.launch_line('delete')}"
    )

  def follow(self, *, worker: int = 0, lines: int = 200) -> int:
    """Shows the log of a worker, counted over all slices, until job or connection end; returns an exit code."""
    hosts, nodes = self._machines.hosts, self._machines.nodes
    if self._shell.dry_run:
      hosts = max(hosts, worker + 1)  # a dry run does not know the number of machines
    if not 0 <= worker < hosts * len(nodes):
      raise UserError(f"--worker {worker}: no such worker. Give 0 to {hosts * len(nodes) - 1}.")
    self._shell.say(f"Log of worker {worker}")
    return self._shell.stream(self.ssh(nodes[worker // hosts], worker % hosts, _FOLLOW.format(lines=lines)))

  def finish(self) -> list[Worker]:
    """Shows worker 0's log until the job has ended on all workers; returns their states."""
    for _ in range(1000):
      self.follow()
      workers = self.look()
      if self._shell.dry_run:
        return workers
      while workers[0].state != "running" and any(worker.state == "running" for worker in workers):
        # After a failure JAX ends the other processes, with a delay of 100 s for missed heartbeats.
        self._shell.progress(f"waiting for {sum(worker.state == 'running' for worker in workers)} workers to end")
        self._shell.pause()
        workers = self.look()
      if workers[0].state != "running":
        return workers
      self._shell.say("The connection was lost; the job continues. Its last lines again:")
      self._shell.pause()
    raise UserError(f"the connection was lost too often. Check the job with `{self._request.launch_line('logs')}`.")


def _script(job: job_lib.Job, *, token: str) -> str:
  """Returns the script of a worker, which records process id and exit code.

  Args:
    job: the command.
    token: authenticates the processes to each other.
  """
  command = shell_lib.shown(["venv/bin/python", "-m", "t2t.launch.host", *job.argv])
  return (
    "# Written by `t2t launch`.\n"
    "cd ~/t2t\n"
    f"echo {job.fingerprint} > id\n"
    "echo $$ > group\n"
    "export PYTHONUNBUFFERED=1\n"
    f"export {rendezvous.TOKEN}={token}\n"
    f"{job_lib.exports()}"
    f"{command} >> log 2>&1 &\n"
    "echo $! > pid\n"
    "wait $!\n"
    "code=$?\n"
    'echo "t2t launch: exit code $code" >> log\n'
    "echo $code > exit_code\n"
  )


def _attempt(
  machines: queued_resource.QueuedResource,
  workers: Workers,
  job: job_lib.Job,
  shell: shell_lib.Shell,
  *,
  install: Callable[[], None],
) -> list[Worker]:
  """Creates or reuses the machines, starts the job unless it runs, and follows it; returns the workers' states."""
  name = machines.request.name
  shell.say("Looking for existing machines")
  state = machines.state()
  if state in queued_resource.GONE:
    shell.say(f"{name} is {state}, from an earlier launch")
    machines.delete()
  if state is None or state in queued_resource.GONE:
    machines.create()
  machines.taken = True
  machines.wait()
  shell.say("Checking the workers")
  worker_states = workers.look()
  if any(worker.state == "running" and worker.fingerprint != job.fingerprint for worker in worker_states):
    machines.taken = False  # the machines belong to another launch
    raise UserError(
      f"{name} runs another command (or another version of its files). Wait for that command, or stop it first:\n"
      f"  {machines.request.launch_line('stop')}"
    )
  same = bool(worker_states) and all(worker.fingerprint == job.fingerprint for worker in worker_states)
  if same and all(worker.code == 0 for worker in worker_states):
    shell.say("This command has ended on all workers already")
    return worker_states
  if same and all(worker.state == "running" for worker in worker_states):
    shell.say("This command is running there already")
  else:
    install()
    workers.start()
  return workers.finish()


def run(
  request: queued_resource.Request,
  job: job_lib.Job,
  shell: shell_lib.Shell,
  *,
  wheel: str | None = None,
  restarts: int = 0,
  delete: bool = False,
) -> None:
  """Runs a job on TPU VMs to its end; a second call follows the existing job.

  Args:
    request: the machines; existing machines of the same name are used.
    job: the command of every worker.
    shell: runs gcloud.
    wheel: a wheel of t2t; None to build it from this checkout.
    restarts: number of requests for new machines after preemptions.
    delete: whether to delete the machines at the end, even after an error.

  Raises:
    UserError: a request was rejected, a machine is unreachable, or the job has failed; with a remedy.
  """
  machines = queued_resource.QueuedResource(request, shell)
  google_cloud.check_credentials(shell)
  if job.workdir:
    google_cloud.check_bucket(shell, job.workdir)
  google_cloud.check_reads(shell, job.reads)
  wheel_path, lock = wheel_lib.find_or_build(shell, wheel)
  try:
    failed = _until_ended(machines, job, shell, wheel_path, lock, restarts=restarts)
  except BaseException as error:
    _leave(machines, shell, delete=delete, reported=str(error))
    raise
  _leave(machines, shell, delete=delete)
  if failed:
    raise UserError(
      "the job has failed:\n"
      + "\n".join(f"  {worker}" for worker in failed[:5])
      + "\nThe log of worker 0 is above."
      + ("" if delete else f" For the log of another worker: {request.launch_line('logs --worker 1')}")
    )
  shell.say("End of the dry run; nothing was run" if shell.dry_run else "The job has succeeded")


def _until_ended(
  machines: queued_resource.QueuedResource,
  job: job_lib.Job,
  shell: shell_lib.Shell,
  wheel: pathlib.Path,
  lock: pathlib.Path | None,
  *,
  restarts: int,
) -> list[Worker]:
  """Runs the job, restarted after stops and preemptions; returns the workers on which it has failed."""
  name, workers = machines.request.name, Workers(machines, shell)
  install = lambda: workers.install(job, wheel, lock)
  for attempt in range(restarts + 1):
    try:
      worker_states = _attempt(machines, workers, job, shell, install=install)
    except queued_resource.Preempted:
      shell.say(f"{name} was preempted")
      machines.delete()  # the remains count against the quota
      if attempt == restarts:
        raise UserError(
          f"{name} was preempted {attempt + 1} time(s), more than --restarts {restarts}. Run the same command again to "
          f"resume from the last checkpoint in {job.workdir or 'the workdir'}."
        ) from None
      continue
    failed = [worker for worker in worker_states if worker.code != exit_codes.DONE and not shell.dry_run]
    if not failed or attempt == restarts or not all(exit_codes.goes_on(worker.code) for worker in failed):
      return failed
    shell.say(f"The job was stopped before its end ({failed[0]}); restarting from its last checkpoint")
    shell.pause()
  return failed


def _leave(
  machines: queued_resource.QueuedResource, shell: shell_lib.Shell, *, delete: bool, reported: str = ""
) -> None:
  """Deletes the machines, or reports that they stay, however a launch ends.

  Args:
    machines: of the launch.
    shell: runs gcloud.
    delete: whether to delete them.
    reported: message that the user sees anyway.
  """
  line = machines.request.launch_line("delete")
  if not machines.taken:
    return
  if not delete:
    if line not in reported:
      shell.say(f"The machines stay, AND COST; to delete them:\n  {line}")
    return
  try:
    machines.delete()
  except BaseException as error:
    shell.say(f"{machines.request.name} was not deleted, AND MAY COST; to delete it:\n  {line}")
    if not reported or not isinstance(error, UserError):
      raise


def look_after(action: str, request: queued_resource.Request, shell: shell_lib.Shell, *, worker: int = 0) -> None:
  """Shows (`status`, `logs`) or ends (`stop`, `delete`) the machines of `request`.

  Raises:
    UserError: there are none of this name, or they cannot be reached.
  """
  machines = queued_resource.QueuedResource(request, shell)
  workers = Workers(machines, shell)
  state = machines.state()
  if state is None and not shell.dry_run:
    raise UserError(
      f"no queued resource {request.name} in {request.zone}. List the existing ones with\n"
      f"  {shlex.join(['gcloud', 'compute', 'tpus', 'queued-resources', 'list', *request.place])}"
    )
  if action == "delete":
    machines.delete()
    return
  if action == "status" and not shell.dry_run:
    print(f"{request.name}: {machines.described()}")
  if state != "ACTIVE" and not shell.dry_run:
    if action != "status":
      raise UserError(
        f"{request.name} is {state} and has no machines, so `{action}` is not possible. Check the state with "
        f"`{request.launch_line('status')}`."
      )
    return
  try:
    if action == "status":
      for worker_state in workers.look():
        print(f"  {worker_state}")
    elif action == "logs":
      code = workers.follow(worker=worker)
      if code:
        raise UserError(
          f"the log of {request.name} is not complete, because gcloud exited with {code}. Run the same command again."
        )
    else:
      workers.stop()
  except queued_resource.Preempted:
    raise UserError(f"{request.name} was preempted. Run the launch command again to request new machines.") from None
