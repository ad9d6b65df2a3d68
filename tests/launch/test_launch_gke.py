"""`t2t launch gke`: its JobSet, and its reaction to pods that wait, fail or cannot start."""

import json

import fake_cloud
import pytest
import yaml

IMAGE = "us-docker.pkg.dev/PROJECT/t2t/t2t:1"
LAUNCH = f"gke --name base --type v5p-32 --image {IMAGE} --poll 0 -- train --config tiny --workdir gs://bucket/base"
KUBECTL = "kubectl --namespace=default"
NOT_FOUND = (1, "", 'Error from server (NotFound): jobsets.jobset.x-k8s.io "base" not found')


@pytest.fixture
def cloud(tmp_path, monkeypatch):
  cloud = fake_cloud.Cloud(tmp_path, monkeypatch, "gcloud", "kubectl")
  cloud.on("get jobset base", NOT_FOUND, jobset(), jobset("Completed"))
  cloud.on("get pods", pods("Running"))
  return cloud


def jobset(*conditions, job=""):
  status = {"conditions": [{"type": name, "status": "True", "message": f"{name}!"} for name in conditions]}
  return json.dumps({"metadata": {"annotations": {"t2t/fingerprint": job}}, "status": status})


def pods(phase, *, waiting=None, unschedulable=None):
  status = {"phase": phase}
  if waiting:
    state = {"waiting": {"reason": waiting, "message": "403 Forbidden"}}
    status["containerStatuses"] = [{"image": IMAGE, "state": state}]
  if unschedulable:
    status["conditions"] = [{"type": "PodScheduled", "status": "False", "message": unschedulable}]
  note = lambda index: {
    "jobset.sigs.k8s.io/job-index": "0",
    "batch.kubernetes.io/job-completion-index": str(index),
  }
  # The cluster lists them in arbitrary order.
  return json.dumps(
    {
      "items": [
        {"metadata": {"name": f"base-slice-0-{index}-x", "annotations": note(index)}, "status": status}
        for index in (3, 0, 2, 1)
      ]
    }
  )


def test_every_command_in_order(cloud, capfd):
  """The exact command lines of kubectl and gcloud."""
  assert cloud.launch(LAUNCH) == 0, capfd.readouterr().err
  assert cloud.calls == [
    f"{KUBECTL} get crd jobsets.jobset.x-k8s.io --output=name",
    "gcloud auth list --filter=status:ACTIVE '--format=value(account)'",
    "gcloud storage cp - gs://bucket/base/.t2t_write_test",
    "gcloud storage rm --quiet gs://bucket/base/.t2t_write_test",
    f"{KUBECTL} get jobset base --output=json",
    f"{KUBECTL} apply --filename=-",
    f"{KUBECTL} get pods --selector=jobset.sigs.k8s.io/jobset-name=base --output=json",
    f"{KUBECTL} get jobset base --output=json",
    f"{KUBECTL} logs --follow --tail=200 base-slice-0-0-x",
    f"{KUBECTL} get jobset base --output=json",
  ]


def test_manifest(cloud, capfd, tmp_path):
  """A Job for each slice, and a pod with all chips for each of its machines; a .py config is copied."""
  (tmp_path / "own.py").write_text("from t2t.configs import tiny\n\n\ndef get_config():\n  return tiny.get_config()\n")
  line = LAUNCH.replace("tiny", "own.py").replace("--poll", "--slices 2 --spot --service-account trainer --poll")
  assert cloud.launch(line) == 0, capfd.readouterr().err
  files, found = yaml.safe_load_all(cloud.given[-1])
  assert files["data"] == {"own.py": (tmp_path / "own.py").read_text()}
  [replicated] = found["spec"]["replicatedJobs"]
  job = replicated["template"]["spec"]
  assert (replicated["replicas"], job["parallelism"], job["completions"], job["backoffLimit"]) == (2, 4, 4, 0)
  pod = job["template"]["spec"]
  assert pod["nodeSelector"] == {
    "cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice",
    "cloud.google.com/gke-tpu-topology": "2x2x4",
    "cloud.google.com/gke-spot": "true",
  }
  assert pod["serviceAccountName"] == "trainer"
  [container] = pod["containers"]
  assert container["resources"]["limits"] == {"google.com/tpu": 4}
  assert container["command"] == ["python", "-m", "t2t.launch.host"]
  assert container["args"] == ["train", "--config=files/own.py", "--workdir", "gs://bucket/base"]
  assert container["volumeMounts"][0]["mountPath"] == container["workingDir"] + "/files"


@pytest.mark.slow
def test_second_run_attaches(cloud, capfd):
  """A JobSet with the same command is followed, not applied again; one with another command is left alone."""
  assert cloud.launch(LAUNCH) == 0
  job = yaml.safe_load(cloud.given[-1])["metadata"]["annotations"]["t2t/fingerprint"]
  cloud.on("get jobset base", jobset(job=job), jobset(job=job), jobset("Completed", job=job))
  cloud.forget()
  assert cloud.launch(LAUNCH) == 0
  assert not [call for call in cloud.calls if "apply" in call] and [call for call in cloud.calls if "logs" in call]
  cloud.forget()
  assert cloud.launch(LAUNCH.replace("tiny", "tiny_bert")) == 2
  assert "another command" in capfd.readouterr().err
  assert not [call for call in cloud.calls if "apply" in call]


@pytest.mark.slow
def test_restarted_by_the_cluster(cloud, capfd):
  """After a preempted pod the cluster restarts all, and the new leader's log is followed."""
  cloud.on("get jobset base", NOT_FOUND, jobset(), jobset(), jobset(), jobset("Completed"))
  assert cloud.launch(LAUNCH) == 0
  assert len([call for call in cloud.calls if "logs" in call]) == 2


def test_failed(cloud, capfd):
  """The cluster's reason is printed, and --delete deletes the JobSet."""
  cloud.on("get jobset base", NOT_FOUND, jobset(), jobset("Failed"))
  assert cloud.launch(LAUNCH.replace("--poll", "--delete --poll")) == 2
  assert "JobSet base has failed: Failed!" in capfd.readouterr().err
  assert [call for call in cloud.calls if "delete jobset base" in call]


def test_no_nodes(cloud, capfd):
  """Pods without a node: the scheduler's reason, and the command that creates such nodes."""
  cloud.on("get pods", pods("Pending", unschedulable="0/3 nodes are available"), pods("Running"))
  cloud.on("get jobset base", NOT_FOUND, jobset(), jobset(), jobset("Completed"))
  assert cloud.launch(LAUNCH) == 0
  err = capfd.readouterr().err
  assert "0/3 nodes are available" in err
  assert "--machine-type=ct5p-hightpu-4t" in err and "--tpu-topology=2x2x4" in err and "--num-nodes=4" in err


def test_image_that_cannot_be_pulled(cloud, capfd):
  """Waiting does not help: it ends with the image's name."""
  cloud.on("get pods", pods("Pending", waiting="ImagePullBackOff"))
  assert cloud.launch(LAUNCH) == 2
  err = capfd.readouterr().err
  assert "ImagePullBackOff" in err and IMAGE in err


@pytest.mark.parametrize(
  ("error", "advice"),
  [
    ("Error from server (NotFound): customresourcedefinitions not found", "jobset/releases/latest"),
    ("The connection to the server localhost:8080 was refused", "get-credentials"),
  ],
)
def test_cluster_that_is_not_ready(cloud, capfd, error, advice):
  """No cluster, or one without JobSets: a remedy, before anything is created."""
  cloud.on("get crd", (1, "", error))
  assert cloud.launch(LAUNCH) == 2
  assert advice in capfd.readouterr().err
  assert len(cloud.calls) == 1


def test_looking_after(cloud, capfd):
  """status, logs and delete need only the name."""
  cloud.on("get jobset base", jobset())
  assert cloud.launch("gke --name base status") == 0
  assert "base-slice-0-3-x: Running" in capfd.readouterr().out
  assert cloud.launch("gke --name base logs") == 0
  assert "logs --follow --tail=200 base-slice-0-0-x" in cloud.calls[-1]
  assert cloud.launch("gke --name base delete") == 0
  assert [call for call in cloud.calls if "delete jobset base" in call]
