"""A queued resource of Cloud TPU: a request for machines that is created, waited for, taken away and deleted."""

import dataclasses
import json
import shlex

from t2t import UserError
from t2t.launch import refusals
from t2t.launch import shell as shell_lib
from t2t.planning import tpu_types

_DELETIONS = 3  # tries: what was asked for a moment ago may not be deleted yet
# Requests in these states come to nothing, or are no more.
GONE = ("FAILED", "SUSPENDING", "SUSPENDED", "DELETING")


class Preempted(Exception):
  """The machines are gone."""


@dataclasses.dataclass(frozen=True)
class Request:
  """What is asked of Google Cloud, and under which name.

  Attributes:
    name: of the queued resource, and of its node.
    zone: such as us-central2-b.
    project: None for gcloud's own.
    tpu: the slice; None where an existing one is only looked at.
    slices: how many.
    spot: may be taken away at any time, and costs less.
    create_flags: further flags of `queued-resources create`.
  """

  name: str
  zone: str
  project: str | None = None
  tpu: tpu_types.TpuType | None = None
  slices: int = 1
  spot: bool = False
  create_flags: tuple[str, ...] = ()

  @property
  def place(self) -> list[str]:
    """Flags that say where it is."""
    return [f"--zone={self.zone}", *([f"--project={self.project}"] if self.project else [])]

  def launch_line(self, action: str) -> str:
    """The command line of t2t for `action`, for messages."""
    project = ["--project", self.project] if self.project else []
    return shlex.join(["t2t", "launch", "tpu-vm", "--name", self.name, "--zone", self.zone, *project, *action.split()])


class QueuedResource:
  """The machines of one request.

  Attributes:
    request: what was asked for.
    nodes: names of its slices.
    hosts: machines of each slice.
    taken: whether they were asked for, or are used, by this launch, and may cost.
  """

  def __init__(self, request: Request, shell: shell_lib.Shell):
    self.request, self.taken = request, False
    self.hosts = request.tpu.hosts if request.tpu else 1
    self._shell = shell
    self._set_slices(request.slices)

  def _set_slices(self, slices: int) -> None:
    name = self.request.name
    self.nodes = [name] if slices == 1 else [f"{name}-{i}" for i in range(slices)]

  def _queued(self, verb: str, *flags: str) -> list[str]:
    tool = ["gcloud", "compute", "tpus", "queued-resources", verb, self.request.name]
    return [*tool, *self.request.place, *flags]

  def state(self) -> str | None:
    """Its state, such as WAITING_FOR_RESOURCES or ACTIVE; None where there is none of this name."""
    resource = self._describe()
    return None if resource is None else resource["state"]["state"]

  def described(self) -> str:
    """What it is and its state, in a line."""
    resource = self._describe()
    return f"{len(self.nodes)} x {described(resource)}"

  def _describe(self) -> dict | None:
    """The queued resource as Google Cloud has it."""
    request = self.request
    answer = self._shell.ask(self._queued("describe", "--format=json"))
    if self._shell.dry_run:
      return None
    if answer.code:
      if "NOT_FOUND" in answer.err or "not found" in answer.err:
        return None
      raise UserError(f"{request.name} in {request.zone} cannot be looked up:\n{_advised(answer, request)}")
    resource, kind, slices = refusals.understood("gcloud", answer.out, _resource)
    if kind:
      if request.tpu and (kind, slices) != (request.tpu.name, request.slices):
        raise UserError(
          f"{request.name} is there already, with {slices} x {kind}; give another --name, or delete it first:"
          f" {request.launch_line('delete')}"
        )
      self._set_slices(slices)
      self.hosts = tpu_types.TYPES[kind].hosts if kind in tpu_types.TYPES else 1
    return resource

  def create(self) -> None:
    """Asks for the machines.

    Raises:
      UserError: refused; says why and what to do.
    """
    request = self.request
    nodes = [f"--node-id={request.name}"]
    if request.slices > 1:
      nodes = [f"--node-count={request.slices}", f"--node-prefix={request.name}"]
    flags = [f"--accelerator-type={request.tpu.name}", f"--runtime-version={request.tpu.runtime}"]
    flags += ["--spot"] if request.spot else []
    self._shell.say(
      f"Asking for {request.slices} x {request.tpu.name}: {request.slices * request.tpu.chips} chips on"
      f" {request.slices * request.tpu.hosts} machines"
    )
    self.taken = True  # from here on, whether there is an answer or not
    answer = self._shell.ask(self._queued("create", *nodes, *flags, *request.create_flags))
    if answer.code:
      raise UserError(f"{request.tpu.name} in {request.zone} was refused:\n{_advised(answer, request)}")

  def wait(self) -> None:
    """Waits until the machines are there, or makes the request anew if they were taken away before.

    Raises:
      UserError: the request has failed; says why.
    """
    self._shell.say("Until its state is ACTIVE:" if self._shell.dry_run else "Waiting for the machines")
    while True:
      if self._shell.dry_run:
        self._describe()
        return
      resource = self._describe()
      if resource is None:
        raise UserError(f"{self.request.name} was deleted while waiting for it")
      state = resource["state"]["state"]
      if state == "ACTIVE":
        self._shell.progress("ACTIVE")
        self._shell.end_progress()
        return
      if state == "FAILED":
        answer = shell_lib.Answer(1, "", _failure(resource))
        raise UserError(
          f"{self.request.name} has failed:\n{_advised(answer, self.request)}\n"
          f"It counts against the quota until it is deleted: {self.request.launch_line('delete')}"
        )
      if state in GONE:
        raise Preempted
      self._shell.progress(state)
      self._shell.pause()

  def delete(self) -> None:
    """Deletes the machines and the request: from here on they cost nothing."""
    self._shell.say("Deleting: from here on the machines cost nothing")
    for attempt in range(_DELETIONS):
      answer = self._shell.ask(self._queued("delete", "--force", "--quiet"))
      if not answer.code or "NOT_FOUND" in answer.err:
        self.taken = False
        break
      if attempt + 1 < _DELETIONS:
        self._shell.pause()
    else:
      raise UserError(
        f"{self.request.name} could not be deleted, AND MAY STILL COST:\n{answer.reason()}\n"
        f"try again: {self.request.launch_line('delete')}"
      )

  def gone(self) -> bool:
    """Whether the machines have been taken away."""
    if self._shell.dry_run:
      return False
    resource = self._describe()
    if resource is None or resource["state"]["state"] in GONE:
      return True
    tool = ["gcloud", "compute", "tpus", "tpu-vm", "describe"]
    for node in self.nodes:
      answer = self._shell.ask([*tool, node, *self.request.place, "--format=value(state)"])
      if answer.code == 0 and answer.out.strip() in ("PREEMPTED", "TERMINATED"):
        return True
    return False


def described(resource: dict) -> str:
  """The machines of a queued resource and its state, in words."""
  kind = _kind(resource) or "no machines"
  return f"{kind}{', spot' if 'spot' in resource else ''}, {resource['state']['state']}"


def _spec(resource: dict) -> dict:
  """What it says of its slices, if that is anything."""
  return (resource.get("tpu", {}).get("nodeSpec") or [{}])[0]


def _kind(resource: dict) -> str | None:
  """The type of its slices, if it says it."""
  return _spec(resource).get("node", {}).get("acceleratorType")


def _resource(out: str) -> tuple[dict, str | None, int]:
  """(a queued resource as gcloud writes it, the type of its slices, how many there are)."""
  resource = json.loads(out)
  resource["state"]["state"]  # noqa: B018  which whoever looks at it asks for
  spec = _spec(resource)
  # The older of Google's two versions of this API calls them otherwise.
  several = spec.get("multisliceParams", spec.get("multiNodeParams"))
  return resource, _kind(resource), int(several["nodeCount"]) if several else 1


def _failure(resource: dict) -> str:
  state = resource["state"]
  if "failedData" in state and "error" in state["failedData"]:
    return str(state["failedData"]["error"]["message"])
  return "Google Cloud gives no reason"


def _advised(answer: shell_lib.Answer, request: Request) -> str:
  """What gcloud answered, and what to do about it."""
  text = answer.err.lower()
  if "quota" in text:
    return (
      f"{answer.reason()}\n"
      "The project has no quota left for this. Ask for more (TPU quotas are by type, by zone, and apart for spot):\n"
      "  https://console.cloud.google.com/iam-admin/quotas?service=tpu.googleapis.com\n"
      "Requests that have FAILED or are SUSPENDED count, too, until they are deleted:\n"
      f"  {shlex.join(['gcloud', 'compute', 'tpus', 'queued-resources', 'list', *request.place])}"
    )
  if "has not been used" in text or "service_disabled" in text:
    return f"{answer.reason()}\nSwitch the API on: gcloud services enable tpu.googleapis.com"
  if "permission" in text:
    return f"{answer.reason()}\nYou need the role roles/tpu.admin in the project"
  if "zone" in text or "location" in text or "accelerator" in text:
    return (
      f"{answer.reason()}\nWhat a zone has:\n"
      f"  {shlex.join(['gcloud', 'compute', 'tpus', 'accelerator-types', 'list', *request.place])}"
    )
  return answer.reason()
