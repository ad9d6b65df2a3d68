"""Cloud TPU VMs: installs t2t on all workers of a slice, starts a job there, follows it, and again after preemption."""

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

_ATTEMPTS = 6  # a machine that has just been made does not answer ssh for a minute or two

# What workers are told over ssh.  In lines, so that a dry run shows them readably.
# What a worker says of itself: its name, which job it was given, and whether that runs.
_STATE = """\
cd ~/t2t 2>/dev/null || cd
state=idle
if [ -f exit_code ]; then state="exited $(cat exit_code)"
elif [ -f pid ] && kill -0 "$(cat pid)" 2>/dev/null; then state=running
elif [ -f pid ]; then state=lost
fi
echo "t2t $(hostname) $(cat id 2>/dev/null || echo none) $state\""""
_STATE_LINE = re.compile(r"^t2t (\S+) (\S+) (idle|lost|running|exited)(?: (\d+))?\s*$", re.MULTILINE)

# TPU VMs come with Python 3.10; uv brings a newer one without asking for root.
_INSTALL = """\
set -e
export PATH="$HOME/.local/bin:$PATH"
cd ~/t2t
command -v uv >/dev/null || python3 -m pip install --user --quiet uv
uv venv --quiet --allow-existing --python 3.11 venv
uv pip install --quiet --python venv/bin/python \\
  --reinstall-package t2t-jax {constraint}\\
  {wheel}"""

# Whatever is left of an earlier job holds the TPU; it is killed as a group, so that it writes no exit code any more.
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

# As a person does it; SIGTERM is for who takes the machine, after which the job is started again.
_STOP = 'kill -INT "$(cat ~/t2t/pid)"'


@dataclasses.dataclass(frozen=True)
class Worker:
  """What one machine says of itself."""

  host: str
  fingerprint: str  # of the job that it was given
  state: str  # idle, running, exited, or lost: it has restarted
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
    """The command line that runs `command` on a worker, or on "all"."""
    tool = ["gcloud", "compute", "tpus", "tpu-vm", "ssh", node]
    return [*tool, *self._request.place, "--quiet", f"--worker={worker}", f"--command={command}"]

  def _on_all(self, action: str, make_command: Callable[[str], list[str]], *, timeout: float = 600.0) -> list[str]:
    """Runs `make_command(node)` for each slice, each for `timeout` seconds at most; what the workers of each wrote.

    Raises:
      queued_resource.Preempted: they are gone.
      UserError: it fails, or a worker cannot be reached, for as long as one may wait for it; says which.
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
          # All answer: what was to be done failed, or it is worth another try now that they do.
          if attempt:
            raise UserError(
              f"{action} failed on {node}:\n{answer.reason(12)}\n"
              f"The machines stay, AND COST: the same command again tries again, or delete them:\n"
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
          f" {action.lower()} was not done on all:\n{last.reason()}\n"
          "The same command again tries again. If it stays so, look with\n"
          f"  {shlex.join(self.ssh(node, worker, 'true')[:-1])}\n"
          "(a firewall must let ssh in, port 22), or take other machines:\n"
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
    """What each worker says of itself, in their order."""
    worker_states = []
    for out in self._on_all("Looking at the workers", lambda node: self.ssh(node, "all", _STATE)):
      lines = sorted(_STATE_LINE.findall(out), key=lambda line: int((re.findall(r"\d+", line[0]) or [0])[-1]))
      worker_states += [Worker(host, job, state, int(code) if code else None) for host, job, state, code in lines]
    if not worker_states and not self._shell.dry_run:
      raise UserError(f"the workers of {self._request.name} say nothing; look with {self._request.launch_line('logs')}")
    return worker_states

  def install(self, job: job_lib.Job, wheel: pathlib.Path, lock: pathlib.Path | None) -> None:
    """Copies the wheel, the job and its files to all workers, and installs."""
    script = pathlib.Path("dist/run.sh")
    self._shell.say("What every worker runs")
    token = "TOKEN" if self._shell.dry_run else secrets.token_hex(16)
    self._shell.write(script, _script(job, token=token), private=True)
    self._shell.say("The same wheel on all workers")
    self._on_all("Making a folder", lambda node: self.ssh(node, "all", f"mkdir -p ~/t2t/{job_lib.FOLDER}"))
    copies = [([wheel, script, *([lock] if lock else [])], "t2t/")]
    if job.files:
      copies.append((list(job.files.values()), f"t2t/{job_lib.FOLDER}/"))
    for sources, target in copies:
      tool = ["gcloud", "compute", "tpus", "tpu-vm", "scp", *map(str, sources)]
      flags = [*self._request.place, "--quiet", "--worker=all"]
      self._on_all("Copying", lambda node, tool=tool, target=target, flags=flags: [*tool, f"{node}:{target}", *flags])
    constraint = f"--constraint {shlex.quote(lock.name)} " if lock else ""
    command = _INSTALL.format(wheel=shlex.quote(f"./{wheel.name}[tpu]"), constraint=constraint)
    self._on_all("Installing", lambda node: self.ssh(node, "all", command), timeout=3600.0)

  def start(self) -> None:
    """Starts the job on all workers, where it goes on when the connection ends."""
    self._shell.say("Starting on all workers")
    self._on_all("Starting", lambda node: self.ssh(node, "all", _START))

  def stop(self) -> None:
    """Asks the job to save and to end; the machines stay, and cost."""
    self._on_all("Stopping", lambda node: self.ssh(node, "all", _STOP))
    self._shell.say(
      "It saves and ends after the step. The machines stay, AND COST; to delete them:\n"
      f"  {self._request.launch_line('delete')}"
    )

  def follow(self, *, worker: int = 0, lines: int = 200) -> int:
    """Shows the log of a worker, counted through all slices, until its job or the connection ends; an exit code."""
    hosts, nodes = self._machines.hosts, self._machines.nodes
    if self._shell.dry_run:
      hosts = max(hosts, worker + 1)  # how many there are is not known
    if not 0 <= worker < hosts * len(nodes):
      raise UserError(f"--worker {worker}: there are {hosts * len(nodes)}, counted from 0")
    self._shell.say(f"The log of worker {worker}")
    return self._shell.stream(self.ssh(nodes[worker // hosts], worker % hosts, _FOLLOW.format(lines=lines)))

  def finish(self) -> list[Worker]:
    """Shows worker 0's log until the job has ended on all workers; how it ended on each."""
    for _ in range(1000):
      self.follow()
      workers = self.look()
      if self._shell.dry_run:
        return workers
      while workers[0].state != "running" and any(worker.state == "running" for worker in workers):
        # JAX ends the others when one has failed, after its heartbeats have stayed away for 100 s.
        self._shell.progress(f"waiting for {sum(worker.state == 'running' for worker in workers)} workers to end")
        self._shell.pause()
        workers = self.look()
      if workers[0].state != "running":
        return workers
      self._shell.say("The connection was lost; the job goes on. Its last lines again:")
      self._shell.pause()
    raise UserError(f"the connection is lost again and again; look with {self._request.launch_line('logs')}")


def _script(job: job_lib.Job, *, token: str) -> str:
  """What a worker runs: it notes its process and its exit code for those who look later.

  Args:
    job: the command.
    token: by which its processes know each other.
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
  """Takes or makes the machines, starts the job unless it runs there, and follows it; how it ended on each."""
  name = machines.request.name
  shell.say("Is it there already?")
  state = machines.state()
  if state in queued_resource.GONE:
    shell.say(f"{name} is {state}, of an earlier time")
    machines.delete()
  if state is None or state in queued_resource.GONE:
    machines.create()
  machines.taken = True
  machines.wait()
  shell.say("What do the workers do?")
  worker_states = workers.look()
  if any(worker.state == "running" and worker.fingerprint != job.fingerprint for worker in worker_states):
    machines.taken = False  # it is another's
    raise UserError(
      f"{name} runs another command (or another version of its files); wait for it, or end it first:\n"
      f"  {machines.request.launch_line('stop')}"
    )
  same = bool(worker_states) and all(worker.fingerprint == job.fingerprint for worker in worker_states)
  if same and all(worker.code == 0 for worker in worker_states):
    shell.say("This very command has ended on all workers already")
    return worker_states
  if same and all(worker.state == "running" for worker in worker_states):
    shell.say("This very command runs there already")
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
  """Brings a job to its end on TPU VMs; the same call again goes on with what is there.

  Args:
    request: the machines; those of the same name are taken if they exist.
    job: what every worker runs.
    shell: runs gcloud.
    wheel: a wheel of t2t; None: of this checkout.
    restarts: how many times machines that were taken away are asked for again.
    delete: delete the machines when this ends, in whatever way.

  Raises:
    UserError: something was refused, cannot be reached, or has failed; says what and what to do.
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
      + "\nThe log of worker 0 is above"
      + ("" if delete else f"; another's: {request.launch_line('logs --worker 1')}")
    )
  shell.say("That is all of it; nothing was run" if shell.dry_run else "The job has ended well")


def _until_ended(
  machines: queued_resource.QueuedResource,
  job: job_lib.Job,
  shell: shell_lib.Shell,
  wheel: pathlib.Path,
  lock: pathlib.Path | None,
  *,
  restarts: int,
) -> list[Worker]:
  """Runs the job, again where it was stopped or its machines were taken away; the workers where it has failed."""
  name, workers = machines.request.name, Workers(machines, shell)
  install = lambda: workers.install(job, wheel, lock)
  for attempt in range(restarts + 1):
    try:
      worker_states = _attempt(machines, workers, job, shell, install=install)
    except queued_resource.Preempted:
      shell.say(f"{name} was taken away (preempted)")
      machines.delete()  # what is left of it counts against the quota
      if attempt == restarts:
        raise UserError(
          f"{name} was taken away {attempt + 1} time(s), and --restarts is {restarts}. What was saved is in"
          f" {job.workdir or 'the workdir'}: the same command again goes on from there"
        ) from None
      continue
    failed = [worker for worker in worker_states if worker.code != exit_codes.DONE and not shell.dry_run]
    if not failed or attempt == restarts or not all(exit_codes.goes_on(worker.code) for worker in failed):
      return failed
    shell.say(f"It was stopped before its end ({failed[0]}); it is started again, from what it has saved")
    shell.pause()
  return failed


def _leave(
  machines: queued_resource.QueuedResource, shell: shell_lib.Shell, *, delete: bool, reported: str = ""
) -> None:
  """Deletes the machines, or tells that they stay, on whatever way a launch ends.

  Args:
    machines: of the launch.
    shell: runs gcloud.
    delete: whether they are to be deleted.
    reported: what the user is told anyway.
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
  """Shows (`status`, `logs`) or ends (`stop`, `delete`) what is there under the name of `request`.

  Raises:
    UserError: there is nothing of this name, or it cannot be reached.
  """
  machines = queued_resource.QueuedResource(request, shell)
  workers = Workers(machines, shell)
  state = machines.state()
  if state is None and not shell.dry_run:
    raise UserError(
      f"no queued resource {request.name} in {request.zone}; those that are there:\n"
      f"  {shlex.join(['gcloud', 'compute', 'tpus', 'queued-resources', 'list', *request.place])}"
    )
  if action == "delete":
    machines.delete()
    return
  if action == "status" and not shell.dry_run:
    print(f"{request.name}: {machines.described()}")
  if state != "ACTIVE" and not shell.dry_run:
    if action != "status":
      raise UserError(f"{request.name} is {state}: there are no machines (yet, or any more) to {action}")
    return
  try:
    if action == "status":
      for worker_state in workers.look():
        print(f"  {worker_state}")
    elif action == "logs":
      code = workers.follow(worker=worker)
      if code:
        raise UserError(f"the log of {request.name} cannot be shown, or not to its end: gcloud ends with {code}")
    else:
      workers.stop()
  except queued_resource.Preempted:
    raise UserError(f"{request.name} was taken away (preempted); the command that launched it asks anew") from None
