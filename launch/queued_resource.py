"""A queued resource of Cloud TPU: a request for machines with its states from creation to deletion."""

import dataclasses
import json
import shlex

from t2t import UserError
from t2t.launch import refusals
from t2t.launch import shell as shell_lib
from t2t.planning import tpu_types

_DELETIONS = 3  # tries, because a new request may not be deletable yet
# States of requests that have failed or ended.
GONE = ("FAILED", "SUSPENDING", "SUSPENDED", "DELETING")


class Preempted(Exception):
  """The machines were preempted."""


@dataclasses.dataclass(frozen=True)
class Request:
  """Request to Google Cloud.

  Attributes:
    name: of the queued resource, and of its node.
    zone: such as us-central2-b.
    project: None for gcloud's own.
    tpu: the slice; None for actions on an existing one.
    slices: number of slices.
    spot: cheaper, and may be preempted at any time.
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
    """Flags of zone and project."""
    return [f"--zone={self.zone}", *([f"--project={self.project}"] if self.project else [])]

  def launch_line(self, action: str) -> str:
    """Returns the command line of t2t for `action`, for messages."""
    project = ["--project", self.project] if self.project else []
    return shlex.join(["t2t", "launch", "tpu-vm", "--name", self.name, "--zone", self.zone, *project, *action.split()])


class QueuedResource:
  """The machines of one request.

  Attributes:
    request: the request.
    nodes: names of its slices.
    hosts: machines of each slice.
    taken: whether this launch has requested or uses them, so that they may cost.
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
    """Returns the state, such as WAITING_FOR_RESOURCES or ACTIVE; None if it does not exist."""
    resource = self._describe()
    return None if resource is None else resource["state"]["state"]

  def described(self) -> str:
    """Returns a description with the state, in a line."""
    resource = self._describe()
    return f"{len(self.nodes)} x {described(resource)}"

  def _describe(self) -> dict | None:
    """Returns Google Cloud's record of the queued resource."""
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
          f"{request.name} exists with {slices} x {kind}. Give another --name, or delete the machines first: "
          f"{request.launch_line('delete')}"
        )
      self._set_slices(slices)
      self.hosts = tpu_types.TYPES[kind].hosts if kind in tpu_types.TYPES else 1
    return resource

  def create(self) -> None:
    """Requests the machines.

    Raises:
      UserError: the request was rejected; with the reason and a remedy.
    """
    request = self.request
    nodes = [f"--node-id={request.name}"]
    if request.slices > 1:
      nodes = [f"--node-count={request.slices}", f"--node-prefix={request.name}"]
    flags = [f"--accelerator-type={request.tpu.name}", f"--runtime-version={request.tpu.runtime}"]
    flags += ["--spot"] if request.spot else []
    self._shell.say(
      f"Requesting {request.slices} x {request.tpu.name}: {request.slices * request.tpu.chips} chips on "
      f"{request.slices * request.tpu.hosts} machines"
    )
    self.taken = True  # before the request, because its answer may be lost
    answer = self._shell.ask(self._queued("create", *nodes, *flags, *request.create_flags))
    if answer.code:
      raise UserError(f"{request.tpu.name} in {request.zone} was rejected:\n{_advised(answer, request)}")

  def wait(self) -> None:
    """Waits until the machines are ready.

    Raises:
      UserError: the request has failed; with the reason.
      Preempted: the machines were preempted meanwhile.
    """
    self._shell.say("Repeated until the state is ACTIVE:" if self._shell.dry_run else "Waiting for the machines")
    while True:
      if self._shell.dry_run:
        self._describe()
        return
      resource = self._describe()
      if resource is None:
        raise UserError(
          f"{self.request.name} was deleted while this command waited for the machines. Run the same command again to "
          "request machines again."
        )
      state = resource["state"]["state"]
      if state == "ACTIVE":
        self._shell.progress("ACTIVE")
        self._shell.end_progress()
        return
      if state == "FAILED":
        answer = shell_lib.Answer(1, "", _failure(resource))
        raise UserError(
          f"{self.request.name} has failed:\n{_advised(answer, self.request)}\n"
          f"The request counts against the quota until it is deleted: {self.request.launch_line('delete')}"
        )
      if state in GONE:
        raise Preempted
      self._shell.progress(state)
      self._shell.pause()

  def delete(self) -> None:
    """Deletes the machines and the request, so that they cost nothing."""
    self._shell.say("Deleting the machines, which then cost nothing")
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
        f"Try again: {self.request.launch_line('delete')}"
      )

  def gone(self) -> bool:
    """Returns whether the machines were preempted."""
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
  """Returns the machines of a queued resource and its state, in words."""
  kind = _kind(resource) or "no machines"
  return f"{kind}{', spot' if 'spot' in resource else ''}, {resource['state']['state']}"


def _spec(resource: dict) -> dict:
  """Returns the record's description of its slices; {} if it is missing."""
  return (resource.get("tpu", {}).get("nodeSpec") or [{}])[0]


def _kind(resource: dict) -> str | None:
  """Returns the type of the slices, if it is known."""
  return _spec(resource).get("node", {}).get("acceleratorType")


def _resource(out: str) -> tuple[dict, str | None, int]:
  """Parses gcloud's record: (queued resource, type of its slices, number of slices)."""
  resource = json.loads(out)
  resource["state"]["state"]  # noqa: B018  which whoever looks at it asks for
  spec = _spec(resource)
  # The two versions of Google's API have different names for it.
  several = spec.get("multisliceParams", spec.get("multiNodeParams"))
  return resource, _kind(resource), int(several["nodeCount"]) if several else 1


def _failure(resource: dict) -> str:
  state = resource["state"]
  if "failedData" in state and "error" in state["failedData"]:
    return str(state["failedData"]["error"]["message"])
  return "Google Cloud gives no reason"


def _advised(answer: shell_lib.Answer, request: Request) -> str:
  """Returns gcloud's answer with a remedy."""
  text = answer.err.lower()
  if "quota" in text:
    return (
      f"{answer.reason()}\n"
      "The project's quota is exhausted. Request more (TPU quotas are by type and zone, and separate for spot):\n"
      "  https://console.cloud.google.com/iam-admin/quotas?service=tpu.googleapis.com\n"
      "Requests that have FAILED or are SUSPENDED also count until they are deleted:\n"
      f"  {shlex.join(['gcloud', 'compute', 'tpus', 'queued-resources', 'list', *request.place])}"
    )
  if "has not been used" in text or "service_disabled" in text:
    return f"{answer.reason()}\nEnable the API: gcloud services enable tpu.googleapis.com"
  if "permission" in text:
    return f"{answer.reason()}\nYou need the role roles/tpu.admin in the project"
  if "zone" in text or "location" in text or "accelerator" in text:
    return (
      f"{answer.reason()}\nList the types of a zone:\n"
      f"  {shlex.join(['gcloud', 'compute', 'tpus', 'accelerator-types', 'list', *request.place])}"
    )
  return answer.reason()
