"""`t2t launch tpu-vm`: its gcloud commands, and its reaction to refused, lost or preempted machines."""

import json
import os
import shlex
import signal
import subprocess

import fake_cloud
import pytest

from t2t.launch import shell

pytestmark = pytest.mark.slow

WHERE = "--name base --zone us-central1-a"
TRAIN = "-- train --config tiny --workdir gs://bucket/base"
LAUNCH = f"tpu-vm {WHERE} --type v5p-32 --poll 0 --wheel t2t_jax-0.1.0-py3-none-any.whl {TRAIN}"
PLACE = "--zone=us-central1-a"
QUEUED = "gcloud compute tpus queued-resources"
VM = "gcloud compute tpus tpu-vm"


@pytest.fixture
def cloud(tmp_path, monkeypatch):
  (tmp_path / "t2t_jax-0.1.0-py3-none-any.whl").write_text("")
  cloud = fake_cloud.Cloud(tmp_path, monkeypatch, "gcloud")
  cloud.on("queued-resources describe", fake_cloud.NOT_FOUND, described("ACTIVE"))
  cloud.on("hostname", states("idle"), states("exited 0"))
  return cloud


@pytest.fixture
def hang_up():
  """Sets the handling of SIGHUP, independent of the test runner's."""
  before = signal.getsignal(signal.SIGHUP)
  yield lambda handler: signal.signal(signal.SIGHUP, handler)
  signal.signal(signal.SIGHUP, before)


def described(state, *, kind="v5p-32", **more):
  node = {"node": {"acceleratorType": kind}, "nodeId": "base"}
  return json.dumps({"state": {"state": state, **more}, "tpu": {"nodeSpec": [node]}})


def states(state, *, job="none", hosts=4):
  return "".join(f"t2t t1v-n-w-{worker} {job} {state}\n" for worker in range(hosts))


def fingerprint(tmp_path):
  script = (tmp_path / "dist" / "run.sh").read_text()
  return script.split("echo ")[1].split()[0]


def short(calls):
  """Returns calls without the scripts for workers, which have their own test."""
  return [call.split(" '--command=")[0] for call in calls]


def test_every_command_in_order(cloud, capfd):
  """From the login to the exit code: the exact command lines of gcloud."""
  assert cloud.launch(LAUNCH) == 0, capfd.readouterr().err
  ssh = f"{VM} ssh base {PLACE} --quiet"
  lock = next(word for word in shlex.split(" ".join(cloud.calls)) if word.endswith("requirements.lock"))
  assert short(cloud.calls) == [
    "gcloud auth list --filter=status:ACTIVE '--format=value(account)'",
    "gcloud storage cp - gs://bucket/base/.t2t_write_test",
    "gcloud storage rm --quiet gs://bucket/base/.t2t_write_test",
    f"{QUEUED} describe base {PLACE} --format=json",
    f"{QUEUED} create base {PLACE} --node-id=base --accelerator-type=v5p-32 --runtime-version=v2-alpha-tpuv5",
    f"{QUEUED} describe base {PLACE} --format=json",
    f"{ssh} --worker=all",  # state
    f"{ssh} --worker=all",  # a folder
    f"{VM} scp t2t_jax-0.1.0-py3-none-any.whl dist/run.sh {lock} base:t2t/ {PLACE} --quiet --worker=all",
    f"{ssh} --worker=all",  # install
    f"{ssh} --worker=all",  # start
    f"{ssh} --worker=0",  # log
    f"{ssh} --worker=all",  # exit codes
  ]
  assert "AND COST" in capfd.readouterr().err


def test_dry_run_prints_what_a_run_would_do(cloud, capsys, tmp_path):
  """The same lines in the same order, and no program is called."""
  assert cloud.launch(LAUNCH.replace("--poll 0", "--dry-run")) == 0
  printed = capsys.readouterr().out
  assert not cloud.calls
  shell = f"gcloud() {{ printf 'gcloud'; printf ' %q' \"$@\"; echo; }}\ncd {tmp_path}\n{printed}"
  done = subprocess.run(
    ["bash", "-c", shell], capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"}
  )
  pasted = [call.split(" --command=")[0].split(" $'--command")[0] for call in done.stdout.splitlines()]
  assert cloud.launch(LAUNCH) == 0
  ran = [
    call.split(" '--command=")[0].replace("'--format=value(account)'", r"--format=value\(account\)")
    for call in cloud.calls
  ]
  assert pasted == ran


def test_dry_run_needs_nothing_installed(cloud, monkeypatch, capsys):
  """Without gcloud, and in 80 columns except for long words."""
  monkeypatch.setenv("PATH", "")
  assert cloud.launch(LAUNCH.replace("--poll 0", "--dry-run")) == 0
  assert all(len(line) <= 80 or line.count(" ") < 3 for line in capsys.readouterr().out.splitlines())


PYTHON = """#!/bin/bash
echo "$WORKER runs $*"
exit $(cat ~/fails 2>/dev/null || echo 0)
"""


def test_workers_run_the_job(cloud, capfd, tmp_path):
  """The scripts for workers, run by a real shell: the log is shown, and each exit code is found."""
  homes = cloud.live("base", hosts=4, python=PYTHON)
  assert cloud.launch(LAUNCH) == 0
  assert "base-w-0 runs -m t2t.launch.host train --config tiny --workdir gs://bucket/base" in capfd.readouterr().out
  for worker in range(4):
    assert "t2t launch: exit code 0" in (homes / f"base-w-{worker}" / "t2t" / "log").read_text()
  assert cloud.launch(LAUNCH) == 0
  assert "has ended on all workers already" in capfd.readouterr().err


@pytest.mark.exhaustive
def test_stopped_workers_are_started_again(cloud, capfd):
  """After SIGTERM, a preemption, they have saved and are restarted; after SIGINT, from a user, they are not."""
  cloud.on("hostname", states("idle"), states("exited 143"), states("exited 143"), states("exited 0"))
  assert cloud.launch(LAUNCH) == 0
  assert len([call for call in cloud.calls if "setsid" in call]) == 2
  assert "stopped before its end (t1v-n-w-0: exited with code 143)" in capfd.readouterr().err
  for code in ("2", "130"):
    cloud.forget()
    cloud.on("hostname", states("idle"), states(f"exited {code}"))
    assert cloud.launch(LAUNCH) == 2
    assert len([call for call in cloud.calls if "setsid" in call]) == 1


def test_failed_worker_is_named(cloud, capfd):
  """The exit codes of all workers count, not only of the one with the shown log."""
  homes = cloud.live("base", hosts=4, python=PYTHON)
  (homes / "base-w-2" / "fails").write_text("3")
  assert cloud.launch(LAUNCH) == 2
  err = capfd.readouterr().err
  assert "base-w-2: exited with code 3" in err and "base-w-1" not in err


def test_slices(cloud, capfd):
  """Several slices are one request; t2t is installed and started on each of its nodes."""
  node = {"node": {"acceleratorType": "v5p-32"}, "multisliceParams": {"nodeCount": 2}}
  active = json.dumps({"state": {"state": "ACTIVE"}, "tpu": {"nodeSpec": [node]}})
  cloud.on("queued-resources describe", fake_cloud.NOT_FOUND, active)
  cloud.on("hostname", states("idle"), states("idle"), states("exited 0"))
  assert cloud.launch(LAUNCH.replace("v5p-32", "v5p-32 --slices 2 --spot --create-flag=--reserved")) == 0
  create = next(call for call in cloud.calls if "create" in call)
  assert "--node-count=2 --node-prefix=base" in create and create.endswith("--spot --reserved")
  starts = [call for call in cloud.calls if "setsid" in call]
  assert [call.split()[5] for call in starts] == ["base-0", "base-1"]


def test_second_run_attaches(cloud, capfd, tmp_path):
  """If the same command runs already, nothing is created, installed or started."""
  assert cloud.launch(LAUNCH) == 0
  job = fingerprint(tmp_path)
  cloud.on("queued-resources describe", described("ACTIVE"))
  cloud.on("hostname", states("running", job=job), states("exited 0", job=job))
  cloud.forget()
  assert cloud.launch(LAUNCH) == 0
  assert not [call for call in cloud.calls if "create" in call or "scp" in call or "setsid" in call]
  assert [call for call in cloud.calls if "tail" in call]


def test_another_command_is_not_disturbed(cloud, capfd):
  """Machines that run another command are left alone."""
  cloud.on("queued-resources describe", described("ACTIVE"))
  cloud.on("hostname", states("running", job="0123456789ab"))
  assert cloud.launch(LAUNCH) == 2
  assert "runs another command" in capfd.readouterr().err
  assert not [call for call in cloud.calls if "setsid" in call]


def test_lost_connection_goes_on(cloud, capfd, tmp_path):
  """If the log breaks off while the job runs, it is followed again."""
  cloud.on("hostname", states("idle"), states("running"), states("exited 0"))
  assert cloud.launch(LAUNCH) == 0
  assert len([call for call in cloud.calls if "tail" in call]) == 2


def test_preempted_and_resumed(cloud, capfd):
  """After a preemption: deleted, requested again, started again with the same command."""
  cloud.on(
    "queued-resources describe",
    fake_cloud.NOT_FOUND,
    described("WAITING_FOR_RESOURCES"),
    described("ACTIVE"),
    described("SUSPENDED"),  # when the workers do not answer
    fake_cloud.NOT_FOUND,
    described("ACTIVE"),
  )
  cloud.on("hostname", states("idle"), (255, "", "connection closed"), states("idle"), states("exited 0"))
  assert cloud.launch(LAUNCH.replace("v5p-32", "v5p-32 --spot --restarts 1")) == 0
  verbs = [call.split()[4] for call in cloud.calls if "queued-resources" in call and "describe" not in call]
  assert verbs == ["create", "delete", "create"]
  starts = [call for call in cloud.calls if "setsid" in call]
  assert len(starts) == 2 and len(set(starts)) == 1
  assert "WAITING_FOR_RESOURCES" in capfd.readouterr().err


def test_preempted_too_often(cloud, capfd):
  """After --restarts it ends, and nothing that costs is left."""
  cloud.on("queued-resources describe", fake_cloud.NOT_FOUND, described("SUSPENDED"))
  assert cloud.launch(LAUNCH.replace("v5p-32", "v5p-32 --restarts 0")) == 2
  assert "resume from the last checkpoint in gs://bucket/base." in capfd.readouterr().err
  assert "delete" in cloud.calls[-1]


def test_quota_refused(cloud, capfd):
  """The cloud's own message, and where to request more."""
  refusal = "ERROR: Quota limit 'TPUV5PPerProjectPerZoneForTPUAPI' has been exceeded. Limit: 0 in zone us-central1-a."
  cloud.on("queued-resources create", (1, "", refusal))
  assert cloud.launch(LAUNCH) == 2
  err = capfd.readouterr().err
  assert "TPUV5PPerProjectPerZoneForTPUAPI" in err and "iam-admin/quotas" in err
  assert "create" in cloud.calls[-1]


def test_request_that_fails(cloud, capfd):
  """A request may be accepted and fail later; its reason is printed."""
  reason = {"failedData": {"error": {"code": 8, "message": "no more capacity in the zone"}}}
  cloud.on("queued-resources describe", fake_cloud.NOT_FOUND, described("FAILED", **reason))
  assert cloud.launch(LAUNCH) == 2
  err = capfd.readouterr().err
  assert "no more capacity" in err and "t2t launch tpu-vm --name base --zone us-central1-a delete" in err


@pytest.mark.exhaustive
def test_unreachable_worker_is_named(cloud, capfd):
  """With the number of the worker, and a remedy."""
  refused = (255, "", "ssh: connect to host 10.0.0.3 port 22: Connection refused")
  cloud.on("mkdir", refused)
  cloud.on("--worker=2", refused)
  assert cloud.launch(LAUNCH) == 2
  err = capfd.readouterr().err
  assert "base: worker 2 of 4 (counted from 0) cannot be reached" in err and "Connection refused" in err
  assert not [call for call in cloud.calls if "setsid" in call]


def test_failed_install_is_told(cloud, capfd):
  """Workers that answer, but fail to run the command."""
  cloud.on("uv venv", (1, "", "No space left on device"))
  assert cloud.launch(LAUNCH) == 2
  err = capfd.readouterr().err
  assert "Installing failed on base" in err and "No space left on device" in err and "AND COST" in err


def test_no_credentials(cloud, capfd):
  """Without a login nothing else is tried."""
  cloud.on("auth list", "")
  assert cloud.launch(LAUNCH) == 2
  assert "gcloud auth login" in capfd.readouterr().err
  assert len(cloud.calls) == 1


@pytest.mark.parametrize(
  ("error", "advice"),
  [
    ("ERROR: HTTPError 403: you does not have storage.objects.create access", "add-iam-policy-binding gs://bucket"),
    ("ERROR: gs://bucket not found: 404.", "gcloud storage buckets create gs://bucket"),
  ],
)
def test_bucket_that_cannot_be_written(cloud, capfd, error, advice):
  """Before anything is created, with the role to grant or the bucket to create."""
  cloud.on("storage cp", (1, "", error))
  assert cloud.launch(LAUNCH) == 2
  assert advice in capfd.readouterr().err
  assert not [call for call in cloud.calls if "queued-resources" in call]


def test_what_is_read_is_looked_for_in_the_bucket(cloud, capfd):
  """Before machines are requested; a dry run prints the check and the copy command."""
  names = "--config.data.files=gs://bucket/text/*.txt --config.data.vocabulary=gs://bucket/spiece.model"
  assert cloud.launch(f"{LAUNCH.replace(' -- ', ' --dry-run -- ')} {names}") == 0
  printed = capfd.readouterr().out
  assert "gcloud storage ls gs://bucket/spiece.model" in printed
  assert "gcloud storage cp --recursive spiece.model gs://bucket/" in printed
  cloud.on("storage ls gs://bucket/spiece.model", (1, "", "One or more URLs matched no objects."))
  assert cloud.launch(f"{LAUNCH} {names}") == 2
  said = capfd.readouterr().err
  assert "config.data.vocabulary=gs://bucket/spiece.model is not in the bucket" in said
  assert not [call for call in cloud.calls if "queued-resources" in call]


def test_gcloud_is_not_installed(cloud, monkeypatch, capfd):
  """With how to install it."""
  monkeypatch.setenv("PATH", "")
  assert cloud.launch(LAUNCH) == 2
  assert "gcloud is not installed" in capfd.readouterr().err


def test_deleted_when_it_has_ended(cloud, capfd):
  """--delete, after success and after failure."""
  cloud.on("hostname", states("idle"), states("exited 1"))
  assert cloud.launch(LAUNCH.replace("--poll", "--delete --poll")) == 2
  assert cloud.calls[-1] == f"{QUEUED} delete base {PLACE} --force --quiet"


@pytest.mark.exhaustive_from(2)
@pytest.mark.parametrize("at", ["uv venv", "queued-resources create", "tail"])
@pytest.mark.parametrize("number", [0, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_deleted_on_every_way_out(cloud, capfd, monkeypatch, hang_up, at, number):
  """--delete after a refusal of the cloud, or a signal at any time."""
  ask = shell.Shell.ask
  hang_up(signal.SIG_DFL)

  def interrupted(self, command, **options):
    if at in " ".join(command) and number:
      os.kill(os.getpid(), number)
    return ask(self, command, **options)

  monkeypatch.setattr(shell.Shell, "ask", interrupted)
  monkeypatch.setattr(shell.Shell, "stream", lambda self, command: interrupted(self, command).code)
  cloud.on(at, (1, "", "No space left on device"))
  if at == "tail" and not number:
    cloud.on("hostname", states("idle"), (1, "", "broken"))
  assert cloud.launch(LAUNCH.replace("--poll", "--delete --poll")) == (128 + number if number else 2)
  assert cloud.calls[-1] == f"{QUEUED} delete base {PLACE} --force --quiet"


def test_nohup_stays_deaf_to_a_closed_connection(cloud, monkeypatch, hang_up):
  """SIGHUP that is ignored when the command starts stays ignored, and the command runs to its end."""
  monkeypatch.setattr(shell.Shell, "stream", lambda self, command: os.kill(os.getpid(), signal.SIGHUP) or 0)
  cloud.on("hostname", states("idle"), states("exited 0"))
  hang_up(signal.SIG_IGN)
  assert cloud.launch(LAUNCH) == 0


def test_what_is_not_deleted_is_told(cloud, capfd):
  """With a line to paste, for any names; machines of another launch are left alone."""
  cloud.on("queued-resources delete", (1, "", "ERROR: unavailable"))
  cloud.on("uv venv", (1, "", "No space left on device"))
  zoned = LAUNCH.replace("us-central1-a", "'us central; 1'").replace("--poll", "--delete --poll")
  assert cloud.launch(zoned) == 2
  err = capfd.readouterr().err
  assert "was not deleted, AND MAY COST" in err and "--zone 'us central; 1' delete" in err
  assert "No space left on device" in err
  cloud.on("queued-resources describe", described("ACTIVE"))
  cloud.on("hostname", states("running", job="0123456789ab"))
  cloud.forget()
  assert cloud.launch(LAUNCH.replace("--poll", "--delete --poll")) == 2
  assert not [call for call in cloud.calls if "queued-resources delete" in call]


def test_all_are_listed(cloud, capfd):
  """By `status` without a name, each with the line that shows its log."""
  node = {"nodeSpec": [{"node": {"acceleratorType": "v5p-32"}}]}
  found = {"name": "projects/p/locations/z-1/queuedResources/base", "tpu": node, "state": {"state": "ACTIVE"}}
  cloud.on("queued-resources list", json.dumps([found]))
  assert cloud.launch("tpu-vm status") == 0
  assert cloud.launch("status") == 0
  line = "base: v5p-32, ACTIVE; t2t launch tpu-vm --name base --zone z-1 logs\n"
  assert capfd.readouterr().out == f"{line}Cloud TPU:\n{line}"
  assert cloud.launch("delete") == 2
  told = capfd.readouterr()
  assert told.out == f"Cloud TPU:\n{line}"
  assert "delete needs the name of a job. Run `t2t launch delete NAME`" in told.err


def test_looking_after(cloud, capfd):
  """status, logs, stop and delete need only the name and the zone."""
  cloud.on("queued-resources describe", described("ACTIVE"))
  cloud.on("hostname", states("running"))
  assert cloud.launch(f"tpu-vm {WHERE} status") == 0
  out = capfd.readouterr().out
  assert "1 x v5p-32, ACTIVE" in out and "t1v-n-w-3: running" in out
  assert cloud.launch(f"tpu-vm {WHERE} --worker 3 logs") == 0
  assert "--worker=3" in cloud.calls[-1]
  assert cloud.launch(f"tpu-vm {WHERE} stop") == 0
  assert "kill -INT" in cloud.calls[-1]
  assert cloud.launch(f"tpu-vm {WHERE} delete") == 0
  assert "delete base" in cloud.calls[-1]


def test_nothing_of_this_name(cloud, capfd):
  """A name that does not exist, as after a typing error."""
  assert cloud.launch(f"tpu-vm {WHERE} status") == 2
  assert "no queued resource base" in capfd.readouterr().err
