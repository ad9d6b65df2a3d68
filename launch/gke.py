"""GKE: runs a job as a JobSet with a pod for each machine of TPU slices; Kubernetes restarts it after failures."""

import dataclasses
import json
import secrets
import shlex

import yaml

from t2t import UserError
from t2t.launch import google_cloud, refusals
from t2t.launch import job as job_lib
from t2t.launch import shell as shell_lib
from t2t.planning import tpu_types
from t2t.runtime import exit_codes, rendezvous, slices

_FOLDER = "/t2t"  # working folder of the job in a pod; the image creates it
_FINGERPRINT = "t2t/fingerprint"  # annotation that identifies the job of a JobSet
_GRACE_SECONDS = 300  # for a last checkpoint, after a pod's notice of termination

# Reasons of containers that do not go away by waiting.
_HOPELESS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError")


@dataclasses.dataclass(frozen=True)
class Request:
  """Request to a cluster.

  Attributes:
    name: of the JobSet.
    tpu: the slice; None for actions on an existing JobSet.
    image: with t2t and Python; see Dockerfile.
    slices: number of slices.
    namespace: of Kubernetes.
    context: of kubectl; None for the current one.
    service_account: of Kubernetes with write access to the bucket; None for the namespace's default.
    spot: on spot nodes.
    restarts: number of restarts of the whole job after a failed or preempted pod.
  """

  name: str
  tpu: tpu_types.TpuType | None = None
  image: str | None = None
  slices: int = 1
  namespace: str = "default"
  context: str | None = None
  service_account: str | None = None
  spot: bool = False
  restarts: int = 10

  def kubectl(self, *words: str) -> list[str]:
    """Returns a command line of kubectl."""
    context = [f"--context={self.context}"] if self.context else []
    return ["kubectl", *context, f"--namespace={self.namespace}", *words]

  def launch_line(self, action: str) -> str:
    """Returns the command line of t2t for `action`, for messages."""
    flags = [] if self.namespace == "default" else ["--namespace", self.namespace]
    flags += ["--context", self.context] if self.context else []
    return shlex.join(["t2t", "launch", "gke", "--name", self.name, *flags, action])


class _Dumper(yaml.SafeDumper):
  """Writes multi-line text as a block."""


def _represent_text(dumper, text):
  return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


def manifest(request: Request, job: job_lib.Job, *, token: str = "TOKEN") -> str:
  """Returns the YAML of the JobSet, and of a ConfigMap with the job's files if there are any.

  Each slice is a Job with a pod for each machine. GKE sets the addresses of other pods: TPU_WORKER_HOSTNAMES and, for
  several slices, MEGASCALE_COORDINATOR_ADDRESS.
  """
  tpu = request.tpu
  chips = {"google.com/tpu": tpu.chips // tpu.gke_hosts}
  variables = {"PYTHONUNBUFFERED": "1", rendezvous.TOKEN: token, **job_lib.environment()}
  variables[slices.JOB_SLICES] = str(request.slices)
  container = {
    "name": "t2t",
    "image": request.image,
    "workingDir": _FOLDER,
    "command": ["python", "-m", "t2t.launch.host"],
    # Kubernetes expands $(NAME), and takes $$ for $.
    "args": [word.replace("$", "$$") for word in job.argv],
    # The pods of this JobSet authenticate each other by the token.
    "env": [{"name": name, "value": value.replace("$", "$$")} for name, value in variables.items()],
    # Ports of libtpu, of t2t's roll call, and of JAX's coordinator.
    "ports": [{"containerPort": port} for port in (8471, 8481, 8482)],
    "resources": {"requests": chips, "limits": dict(chips)},
  }
  pod = {
    "restartPolicy": "Never",
    "terminationGracePeriodSeconds": _GRACE_SECONDS,
    "nodeSelector": {
      "cloud.google.com/gke-tpu-accelerator": tpu.label,
      "cloud.google.com/gke-tpu-topology": tpu.topology,
    },
    "tolerations": [{"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"}],
    "containers": [container],
  }
  if request.spot:
    pod["nodeSelector"]["cloud.google.com/gke-spot"] = "true"
    pod["tolerations"].append({"key": "cloud.google.com/gke-spot", "operator": "Exists", "effect": "NoSchedule"})
  if request.service_account:
    pod["serviceAccountName"] = request.service_account
  documents = []
  if job.files:
    files = {name: path.read_text() for name, path in sorted(job.files.items())}
    documents.append(
      {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{request.name}-files"},
        "data": files,
      }
    )
    pod["volumes"] = [{"name": "files", "configMap": {"name": f"{request.name}-files"}}]
    container["volumeMounts"] = [{"name": "files", "mountPath": f"{_FOLDER}/{job_lib.FOLDER}"}]
  documents.append(
    {
      "apiVersion": "jobset.x-k8s.io/v1alpha2",
      "kind": "JobSet",
      "metadata": {
        "name": request.name,
        "annotations": {
          _FINGERPRINT: job.fingerprint,
          # One node pool for each slice.
          "alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool",
        },
      },
      "spec": {
        "failurePolicy": {
          "maxRestarts": request.restarts,
          # Invalid input of the user fails in each restart.
          "rules": [{"action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}],
        },
        "replicatedJobs": [
          {
            "name": "slice",
            "replicas": request.slices,
            "template": {
              "spec": {
                "parallelism": tpu.gke_hosts,
                "completions": tpu.gke_hosts,
                # A failed pod fails its slice; the JobSet then restarts all slices together.
                "backoffLimit": 0,
                "podFailurePolicy": {
                  "rules": [
                    {
                      "action": "FailJob",
                      "onExitCodes": {"containerName": "t2t", "operator": "In", "values": [exit_codes.REFUSED]},
                    }
                  ]
                },
                "template": {"spec": pod},
              }
            },
          }
        ],
      },
    }
  )
  return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=100)


def _node_pool(request: Request) -> str:
  """Returns the command that creates a node pool for one slice."""
  tpu = request.tpu
  # TPU7x needs a workload policy; docs/launch.md has a link to Google's description.
  placement = f"--tpu-topology={tpu.topology}" if tpu.label != "tpu7x" else "--placement-policy=POLICY"
  return shell_lib.shown(
    ["gcloud", "container", "node-pools", "create", f"{tpu.name}-0", "--cluster=CLUSTER", "--location=REGION"]
    + ["--node-locations=ZONE", f"--machine-type={tpu.machine}", placement, f"--num-nodes={tpu.gke_hosts}"]
    + (["--spot"] if request.spot else [])
  )


def conditions(resource: dict) -> dict[str, str]:
  """Returns type -> message of the conditions of a JobSet that are true."""
  held = (resource.get("status") or {}).get("conditions") or []
  return {condition["type"]: condition.get("message", "") for condition in held if condition["status"] == "True"}


def _read(out: str) -> dict:
  """Parses the JobSet from kubectl; conditions may be missing."""
  resource = json.loads(out)
  conditions(resource)
  return resource


class _JobSet:
  """A JobSet of a cluster."""

  def __init__(self, request: Request, shell: shell_lib.Shell):
    self._request = request
    self._shell = shell

  def check_cluster(self) -> None:
    """Checks that a cluster answers and supports JobSets."""
    self._shell.say("Checking that the cluster supports JobSets")
    answer = self._shell.ask(self._request.kubectl("get", "crd", "jobsets.jobset.x-k8s.io", "--output=name"))
    if not answer.code:
      return
    if "NotFound" in answer.err:
      raise UserError(
        "the cluster does not support JobSets. Install JobSets:\n"
        "  kubectl apply --server-side -f https://github.com/kubernetes-sigs/jobset/releases/latest/download/"
        "manifests.yaml"
      )
    raise UserError(
      f"kubectl does not reach a cluster:\n{answer.reason()}\n"
      "Connect kubectl with `gcloud container clusters get-credentials CLUSTER --location=REGION`"
    )

  def in_cluster(self) -> dict | None:
    """Returns the JobSet in the cluster, or None."""
    answer = self._shell.ask(self._request.kubectl("get", "jobset", self._request.name, "--output=json"))
    if self._shell.dry_run or "NotFound" in answer.err:
      return None
    if answer.code:
      raise UserError(f"{self._request.name} cannot be looked up: {refusals.sentence('kubectl', answer)}")
    return refusals.understood("kubectl", answer.out, _read)

  def apply(self, text: str) -> None:
    """Creates the JobSet."""
    self._shell.say(f"Creating the JobSet; {self._request.launch_line('delete')} deletes it")
    answer = self._shell.ask(self._request.kubectl("apply", "--filename=-"), given=text)
    if answer.code:
      raise UserError(f"the cluster rejects the JobSet:\n{answer.reason()}")

  def delete(self) -> None:
    """Deletes the JobSet; its pods save first."""
    self._shell.say("Deleting the JobSet; its pods save first")
    answer = self._shell.ask(
      self._request.kubectl("delete", "jobset", self._request.name, "--ignore-not-found", "--cascade=foreground")
    )
    self._shell.ask(
      self._request.kubectl("delete", "configmap", f"{self._request.name}-files", "--ignore-not-found"),
    )
    if answer.code:
      raise UserError(
        f"{self._request.name} could not be deleted:\n{answer.reason()}\n"
        f"Try again: {self._request.launch_line('delete')}"
      )

  def pods(self) -> list[dict]:
    """Returns the pods, the leader first."""
    label = f"--selector=jobset.sigs.k8s.io/jobset-name={self._request.name}"
    answer = self._shell.ask(self._request.kubectl("get", "pods", label, "--output=json"), pretend='{"items": []}')
    if answer.code:
      raise UserError(f"the pods of {self._request.name} cannot be looked up: {refusals.sentence('kubectl', answer)}")

    def order(pod):
      notes = pod["metadata"]["annotations"]
      return int(notes["jobset.sigs.k8s.io/job-index"]), int(notes["batch.kubernetes.io/job-completion-index"])

    return refusals.understood("kubectl", answer.out, lambda out: sorted(json.loads(out)["items"] or [], key=order))

  def wait(self) -> str | None:
    """Returns the leader's pod when it runs; None if the JobSet has ended before.

    Raises:
      UserError: it cannot start, for a reason that does not go away by waiting.
    """
    self._shell.say("Repeated until the first pod runs:" if self._shell.dry_run else "Waiting for pods to run")
    hinted = False
    while True:
      pods = self.pods()
      if self._shell.dry_run:
        return f"{self._request.name}-slice-0-0-xxxxx"
      if self.ended() is not None:
        return None
      running = sum(pod["status"]["phase"] == "Running" for pod in pods)
      if pods and pods[0]["status"]["phase"] == "Running":
        self._shell.end_progress()
        return pods[0]["metadata"]["name"]
      for pod in pods:
        self._check_containers(pod)
      why = "; ".join(sorted({_unschedulable(pod) for pod in pods} - {""}))
      self._shell.progress(f"{running} of {len(pods)} pods run" + (f": {why}" if why else ""))
      if why and not hinted and self._request.tpu:
        hinted = True
        self._shell.say(
          f"It waits until such a node pool exists. Create one for each slice:\n{_node_pool(self._request)}"
        )
      self._shell.pause()

  def _check_containers(self, pod: dict) -> None:
    status = pod["status"]
    for container in status.get("containerStatuses", []):
      waiting = container["state"].get("waiting", {})
      if waiting and waiting["reason"] in _HOPELESS:
        raise UserError(
          f"pod {pod['metadata']['name']} cannot start ({waiting['reason']}): {waiting.get('message', '')}\n"
          f"Check the image's name, {container['image']}, and that the nodes' service account can read the image"
          " (roles/artifactregistry.reader). The JobSet stays in the cluster; to delete the JobSet:\n"
          f"  {self._request.launch_line('delete')}"
        )

  def ended(self) -> bool | None:
    """Returns whether it has succeeded; None while it runs.

    Raises:
      UserError: it has been deleted.
    """
    resource = self.in_cluster()
    if self._shell.dry_run:
      return True
    if resource is None:
      raise UserError(
        f"JobSet {self._request.name} was deleted while it ran. Run the same command again to create the JobSet again."
      )
    hold = conditions(resource)
    return True if "Completed" in hold else False if "Failed" in hold else None

  def follow(self, pod: str) -> int:
    """Shows the log of a pod until it ends or the connection is lost; returns kubectl's exit code."""
    self._shell.say(f"Log of {pod}")
    return self._shell.stream(self._request.kubectl("logs", "--follow", "--tail=200", pod))


def _unschedulable(pod: dict) -> str:
  status = pod["status"]
  for condition in status.get("conditions", []):
    if condition["type"] == "PodScheduled" and condition["status"] == "False":
      return condition.get("message", condition.get("reason", ""))
  return ""


def run(request: Request, job: job_lib.Job, shell: shell_lib.Shell, *, delete: bool = False) -> None:
  """Runs a job on a cluster to its end; a second call follows the existing job.

  Raises:
    UserError: a request was rejected, or the job has failed; with a remedy.
  """
  if not request.tpu.label:
    raise UserError(
      f"--type {request.tpu.name} is not available on GKE, which has v4 and later. Use `t2t launch tpu-vm`."
    )
  if request.slices > 1 and request.tpu.gke_hosts == 1:
    raise UserError(
      f"--slices {request.slices}: on GKE each of several slices needs several machines, but {request.tpu.name} is one "
      "machine. Give --slices 1 or a larger --type."
    )
  jobset = _JobSet(request, shell)
  jobset.check_cluster()
  if job.workdir:
    google_cloud.check_credentials(shell)
    google_cloud.check_bucket(shell, job.workdir)
    google_cloud.check_reads(shell, job.reads)
  shell.say("Looking for an existing JobSet")
  resource = jobset.in_cluster()
  if resource is not None:
    if resource["metadata"]["annotations"].get(_FINGERPRINT) != job.fingerprint:
      raise UserError(
        f"JobSet {request.name} exists with another command (or another version of its files). Give another "
        f"--name, or delete the JobSet first:\n  {request.launch_line('delete')}"
      )
    shell.say("A JobSet with this command exists already")
  try:
    if resource is None:
      # An interrupted request may have created it, or a part.
      jobset.apply(manifest(request, job, token="TOKEN" if shell.dry_run else secrets.token_hex(16)))
    ended = _followed(jobset, shell)
  except BaseException:
    if delete:
      jobset.delete()
    else:
      shell.say(f"JobSet {request.name} stays in the cluster; to delete it:\n  {request.launch_line('delete')}")
    raise
  why = "" if shell.dry_run or ended else conditions(jobset.in_cluster()).get("Failed", "")
  if delete:
    jobset.delete()
  if not ended:
    raise UserError(
      f"JobSet {request.name} has failed: {why}\nThe log of the first pod is above."
      + ("" if delete else f" To delete the JobSet: {request.launch_line('delete')}")
    )
  shell.say("The job has succeeded. The nodes of a pool without autoscaling stay, AND COST; to delete it:")
  shell.say("  gcloud container node-pools delete POOL --cluster=CLUSTER --location=REGION")


def _followed(jobset: _JobSet, shell: shell_lib.Shell) -> bool:
  """Shows the first pod's log until the JobSet has ended; returns whether it succeeded."""
  while True:
    pod = jobset.wait()
    if pod is not None:
      jobset.follow(pod)
      shell.say("Checking whether it has ended")
      shell.pause()  # the cluster notices the end with a delay
    ended = jobset.ended()
    if ended is not None:
      return ended
    shell.say("The job continues: it was restarted after a failure or a preemption, or the connection was lost")


def look_after(action: str, request: Request, shell: shell_lib.Shell) -> None:
  """Shows (`status`, `logs`) or deletes (`delete`) the JobSet of `request`.

  Raises:
    UserError: there is no such JobSet, or the cluster does not answer.
  """
  jobset = _JobSet(request, shell)
  resource = jobset.in_cluster()
  if resource is None and not shell.dry_run:
    raise UserError(
      f"no JobSet {request.name} in namespace {request.namespace}. Run `kubectl get jobsets -A` to list all JobSets."
    )
  if action == "delete":
    jobset.delete()
    return
  pods = jobset.pods()
  if action == "logs":
    if not pods and not shell.dry_run:
      raise UserError(
        f"{request.name} has no pods, because the pods have not started or have been deleted. Run "
        f"`{request.launch_line('status')}` to see the state."
      )
    code = jobset.follow(pods[0]["metadata"]["name"] if pods else f"{request.name}-slice-0-0-xxxxx")
    if code:
      raise UserError(
        f"the log of {request.name} is not complete, because kubectl exited with {code}. Run the same command again."
      )
  elif not shell.dry_run:
    print(f"{request.name}: {', '.join(conditions(resource)) or 'waiting or running'}")
    for pod in pods:
      why = _unschedulable(pod)
      print(f"  {pod['metadata']['name']}: {pod['status']['phase']}" + (f", {why}" if why else ""))
