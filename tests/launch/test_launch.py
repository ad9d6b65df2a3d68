"""Common parts of all launchers: checks before anything costs money, TPU types, hosts, and docs/launch.md."""

import json
import os
import re
import shlex
import subprocess

import fake_cloud
import folders
import pytest

from t2t import UserError
from t2t.launch import host, shell
from t2t.planning import tpu_types

PAGE = folders.ROOT / "docs" / "launch.md"
LAUNCH = "tpu-vm --name base --type v5p-32 --zone us-central1-a -- train --config tiny --workdir gs://bucket/base"


@pytest.fixture
def cloud(tmp_path, monkeypatch):
  return fake_cloud.Cloud(tmp_path, monkeypatch, "gcloud", "kubectl", "squeue", "sbatch", "scancel")


@pytest.mark.parametrize(
  ("old", "new", "words"),
  [
    ("v5p-32", "v5p-30", "did you mean v5p-32?"),
    ("v5p-32", "v7-32", "tpu7x-     2 8 16"),
    ("v5p-32", "tpu7x-8", "only on GKE"),
    (" --type v5p-32", "", "--type is missing"),
    ("v5p-32", "v3-32 --slices 2", "v4 or later"),
    ("tpu-vm --name base --type v5p-32 --zone us-central1-a", "gke --name b --type v3-32 --image x", "v4 and later"),
    ("tpu-vm --name base --type v5p-32 --zone us-central1-a", "gke --name b --type v5p-32", "--image is missing"),
    (
      "tpu-vm --name base --type v5p-32 --zone us-central1-a",
      "gke --name b --type v4-8 --image x --slices 2",
      "each of several slices needs several machines",
    ),
    ("gs://bucket/base", "runs/base", "Give a path in a bucket"),
    ("gs://bucket/base", "gs://bucket", "Give a path in a bucket"),
    ("--workdir gs://bucket/base", "", "--workdir is missing"),
    ("tiny", "tinny", "nearest: tiny"),
    ("gs://bucket/base", "gs://bucket/base --config.train.step=3", "nearest: train.steps"),
    ("gs://bucket/base", "gs://bucket/base --stpes 3", "unknown option --stpes"),
    (
      "gs://bucket/base",
      "gs://bucket/base --config.data.files=gs://bucket/*.txt --config.data.vocabulary=",
      "config.data.vocabulary is empty",
    ),
    (
      "gs://bucket/base",
      "gs://bucket/base --config.data.sources.own.files=own.txt",
      "config.data.sources.own.files=own.txt is on this machine",
    ),
    (
      "gs://bucket/base",
      'gs://bucket/base --config.stages=\'{"name": "late", "data.files": "own.txt"}\'',
      "config.stages, late: data.files=own.txt is on this machine",
    ),
    ("gs://bucket/base", "gs://bucket/base --config.stages='{\"mesh.fsdp\": 2}'", "mesh.fsdp cannot change"),
    ("gs://bucket/base", "gs://bucket/base --config.data.files=own.txt", "gcloud storage cp --recursive own.txt"),
    (
      "gs://bucket/base",
      "gs://bucket/base --config.data.benchmark_dirs.superglue=own.txt",
      "config.data.benchmark_dirs.superglue=own.txt is on this machine",
    ),
    ("gs://bucket/base", "gs://bucket/base --config.data.task_modules=none.py", "none.py: no such file"),
    (
      "gs://bucket/base",
      "gs://bucket/base --config.data.task_modules=my_tasks.sums",
      "my_tasks/sums.py, which is copied",
    ),
    ("-- train", "-- train --gin_file own.gin", "t2t convert --gin_file"),
    ("-- train", "-- trian", "did you mean train?"),
    ("-- train", "-- launch", "not a t2t command"),
    ("--name base", "--name Base_1", "small letters"),
    ("-- train", "status -- train", "Give one of the two"),
    ("--type", "--slices 0 --type", "at least 1"),
    ("--type", "--wheel own.txt --type", "not a wheel of t2t"),
    ("tpu-vm", "tpu", "did you mean tpu-vm?"),
  ],
)
def test_refused_before_anything_is_paid_for(cloud, tmp_path, capfd, old, new, words):
  """A mistake costs an error message, but no machine."""
  (tmp_path / "own.txt").write_text("text")
  assert old in LAUNCH
  assert cloud.launch(LAUNCH.replace(old, new, 1)) == 2
  assert words in capfd.readouterr().err
  assert not [call for call in cloud.calls if "create" in call or "apply" in call]


def test_own_files_come_along(cloud, tmp_path, capsys):
  """A local config and task modules are copied, and the hosts' command names the copies."""
  (tmp_path / "my").mkdir()
  (tmp_path / "my" / "own.py").write_text("from t2t.configs import tiny\nget_config = tiny.get_config\n")
  (tmp_path / "my" / "tasks.py").write_text("")
  line = LAUNCH.replace("tiny", "my/own.py:bert").replace("-- train", "--dry-run -- train")
  assert cloud.launch(line + " --config.data.task_modules=t2t.tasks.docs,my/tasks.py") == 0
  printed = re.sub(r"\s*\\\n\s*", " ", capsys.readouterr().out)
  assert "scp my/own.py my/tasks.py base:t2t/files/" in printed
  assert "train --config=files/own.py:bert --workdir gs://bucket/base" in printed
  assert "--config.data.task_modules=t2t.tasks.docs,files/tasks.py" in printed


NODE = {"name": "projects/p/locations/z-1/queuedResources/base", "state": {"state": "ACTIVE"}}
JOBSET = {"metadata": {"name": "pods"}, "status": {}}


@pytest.fixture
def jobs(cloud):
  """A job of each kind."""
  cloud.on("queued-resources list", json.dumps([NODE]))
  cloud.on("get jobsets", json.dumps({"items": [JOBSET]}))
  cloud.on("squeue --me --noheader --format=%j", "night|41|RUNNING|node1\n")
  return cloud


@pytest.mark.parametrize(
  ("name", "call"),
  [
    ("base", "queued-resources delete base --zone=z-1"),
    ("pods", "delete jobset pods"),
    ("night", "scancel 41"),
  ],
)
def test_a_job_is_looked_after_by_its_name(jobs, name, call):
  """On any platform, without the command that launched it."""
  jobs.on("queued-resources describe", json.dumps(NODE))
  jobs.on("get jobset pods", json.dumps(JOBSET))
  jobs.on("squeue .*--name", "41|RUNNING|node1|t2t:x\n")
  jobs.launch(f"delete {name}")
  assert [each for each in jobs.calls if call in each], jobs.calls


def test_a_name_that_nobody_has_or_several_have(jobs, capfd):
  """The error shows what to write; nothing is deleted."""
  assert jobs.launch("delete nobody") == 2
  assert "no job nobody on Cloud TPU, GKE, SLURM" in capfd.readouterr().err
  jobs.on("squeue --me --noheader --format=%j", "base|41|RUNNING|node1\n")
  assert jobs.launch("delete --name base") == 2
  told = capfd.readouterr().err
  assert "2 jobs have this name" in told and "t2t launch slurm --name base logs" in told
  assert not [call for call in jobs.calls if "delete base" in call or "scancel" in call]


@pytest.mark.parametrize(
  ("program", "error", "words"),
  [
    (
      "gcloud .*list",
      "ERROR: (x) You do not currently have an active account selected.",
      "run `gcloud auth login`",
    ),
    (
      "gcloud .*list",
      "ERROR: The required property [compute/zone] is not currently set.",
      "give --zone with the zone of your TPUs",
    ),
    (
      "kubectl",
      "E1125 01:02 memcache.go:265] x\nThe connection to the server x was refused",
      "no connection to a cluster",
    ),
    ("kubectl", 'error: the server doesn\'t have a resource type "jobsets"', "the cluster does not support JobSets"),
    ("squeue", "slurm_load_jobs error: Unable to contact slurm controller", "the controller of SLURM does not answer"),
    ("squeue", "line\nsomething else", "exit code 1, something else"),
  ],
)
def test_a_program_that_fails_is_told_in_a_sentence(jobs, capfd, program, error, words):
  """With the exit code; jobs of the other platforms are shown."""
  jobs.on(program, (1, "", error))
  assert jobs.launch("status") == 2
  told = capfd.readouterr()
  assert f"{program.split()[0]} cannot list jobs: " in told.err and words in told.err
  assert told.out.count("; t2t launch ") == 2
  assert "memcache" not in told.err and "slurm_load_jobs" not in told.err


@pytest.mark.parametrize(
  ("program", "answer"),
  [
    ("gcloud .*list", 'WARNING: something\n[{"name": "x"}]'),
    ("gcloud .*list", json.dumps([{key: NODE[key] for key in NODE if key != "state"}])),
    ("gcloud .*list", json.dumps(["base"])),
    ("kubectl", "not json"),
    ("kubectl", json.dumps({"items": [{}]})),
    ("kubectl", "[]"),
    ("squeue", "short|line\n"),
  ],
)
def test_an_answer_that_is_not_understood_is_shown(jobs, capfd, program, answer):
  """With the program; jobs of the other platforms are shown."""
  jobs.on(program, answer)
  assert jobs.launch("status") == 2
  told = capfd.readouterr()
  assert f"{program.split()[0]}: unexpected output" in told.err
  assert told.out.count("; t2t launch ") == 2 and told.out.count("not known") == 1


def test_what_is_not_said_yet_is_not_there_yet(jobs, capfd):
  """A request without machines, and a JobSet without conditions."""
  jobs.on("queued-resources list", json.dumps([NODE | {"tpu": {"nodeSpec": []}}]))
  jobs.on("get jobsets", json.dumps({"items": [JOBSET | {"status": None}]}))
  assert jobs.launch("status") == 0
  told = capfd.readouterr().out
  assert "base: no machines, ACTIVE" in told and "pods: waiting or running" in told
  jobs.on("get jobsets", json.dumps({"items": None}))
  assert jobs.launch("status") == 0
  assert "GKE: nothing" in capfd.readouterr().out


@pytest.mark.parametrize(("name", "described"), [("base", "queued-resources describe"), ("pods", "get jobset pods")])
def test_a_job_that_is_described_oddly_is_refused(jobs, capfd, name, described):
  """From any program."""
  jobs.on(described, "WARNING: something\n{}")
  assert jobs.launch(f"status {name}") == 2
  assert ": unexpected output" in capfd.readouterr().err


def test_a_program_that_never_answers_is_told(jobs, capfd, monkeypatch):
  """Jobs of the other platforms are shown."""
  ask = shell.Shell.ask

  def hanging(self, command, *, timeout=3600.0, **options):
    if command[0] == "squeue":
      return shell.Answer(shell.TIMED_OUT, "", f"timeout after {timeout:.0f} s")
    return ask(self, command, timeout=timeout, **options)

  monkeypatch.setattr(shell.Shell, "ask", hanging)
  assert jobs.launch("status") == 2
  told = capfd.readouterr()
  assert "squeue cannot list jobs: no answer: timeout after 60 s" in told.err
  assert "base" in told.out and "pods" in told.out


def test_what_could_not_be_asked_is_told_before_a_job_is_ended(jobs, capfd):
  """It may have a job of the same name."""
  jobs.on("queued-resources describe", json.dumps(NODE))
  jobs.on("squeue", (1, "", "slurm_load_jobs error: Unable to contact slurm controller"))
  jobs.launch("delete base")
  told = capfd.readouterr().err
  assert told.index("squeue cannot list") < told.index("continuing with base") < told.index("Deleting")


@pytest.mark.parametrize("line", ["gke --name base status", "slurm --name base status", "status base"])
def test_a_job_that_cannot_be_looked_up_is_told_in_a_sentence(cloud, capfd, line):
  """With the exit code, and without the program's output."""
  cloud.on("kubectl", (1, "", "E1125 memcache.go:265] x\nThe connection to the server x was refused"))
  cloud.on("squeue", (1, "", "slurm_load_jobs error: Unable to contact slurm controller"))
  assert cloud.launch(line) == 2
  told = capfd.readouterr().err
  assert (
    "no connection to a cluster; run `gcloud container" in told or "the controller of SLURM does not answer" in told
  )
  assert "memcache" not in told and "slurm_load_jobs" not in told


@pytest.mark.parametrize(
  "words", ["train --config tiny --workdir gs://bucket/base", "--config tiny --workdir gs://b/x"]
)
def test_a_command_without_dashes_before_it(cloud, capfd, words):
  """The error has the line to paste."""
  assert cloud.launch(f"{LAUNCH.partition(' -- ')[0]} {words}") == 2
  told = capfd.readouterr().err
  assert f"--zone us-central1-a -- train {words.removeprefix('train ')}" in " ".join(told.split())


@pytest.mark.parametrize(
  ("line", "words"),
  [
    (LAUNCH.replace("--type", "--dry_run --create_flag=--a_b --type", 1), "--a_b"),
    ("status --dry_run", "gcloud compute tpus"),
    ("status --dry_run", "Cloud TPU: not listed in a dry run"),
    ("", "t2t launch status|logs|stop|delete [NAME]"),
  ],
)
def test_options_are_written_as_those_of_other_commands_too(cloud, capfd, line, words):
  """With underscores; values do not change."""
  assert cloud.launch(line) == 0
  assert words in capfd.readouterr().out and not cloud.calls


@pytest.mark.parametrize(
  ("name", "topology", "chips", "hosts", "gke_hosts"),
  [
    ("v2-8", "2x2", 4, 1, 1),
    ("v3-32", "4x4", 16, 4, 4),
    ("v4-4096", "8x16x16", 2048, 512, 512),
    ("v5e-4", "2x2", 4, 1, 1),
    ("v5litepod-8", "2x4", 8, 1, 2),
    ("v5litepod-16", "4x4", 16, 4, 4),
    ("v5p-8", "2x2x1", 4, 1, 1),
    ("v5p-64", "2x4x4", 32, 8, 8),
    ("v5p-12288", "16x16x24", 6144, 1536, 1536),
    ("v6e-1", "1x1", 1, 1, 1),
    ("v6e-256", "16x16", 256, 64, 64),
    ("tpu7x-8", "2x2x1", 4, 1, 1),
  ],
)
def test_tpu_types(name, topology, chips, hosts, gke_hosts):
  """Chips, machines and topologies of Google's tables."""
  found = tpu_types.tpu_type(name)
  assert (found.topology, found.chips, found.hosts, found.gke_hosts) == (topology, chips, hosts, gke_hosts)


@pytest.mark.parametrize("name", [*tpu_types.TYPES, "v5e-16"])
def test_a_slice_has_the_same_names_everywhere(name):
  """`plan` and `launch` accept the same names."""
  sides = tpu_types.topology(name)
  found = tpu_types.tpu_type(name)
  assert tpu_types.tpu_type(sides) == found and sides.endswith(f":{found.topology}")
  assert tpu_types.topology(sides) == sides


def test_a_slice_that_there_is_not_is_named_with_its_option():
  """With either name."""
  with pytest.raises(UserError, match="--topology v5e-17: unknown TPU type"):
    tpu_types.topology("v5e-17")
  with pytest.raises(UserError, match="--type v5e:3x3: unknown TPU type"):
    tpu_types.tpu_type("v5e:3x3")


def test_shown_commands_can_be_pasted():
  """For any words and lengths: a shell parses the output back to the same words."""
  words = ["echo", "a b", "it's", "$HOME", "line\nline", "", *(f"--flag-{i}={'x' * i}" for i in range(40))]
  done = subprocess.run(["bash", "-c", shell.shown(["printf", "%s\\0", *words])], capture_output=True, text=True)
  assert done.stdout.split("\0")[:-1] == words


def test_a_program_that_does_not_end():
  """It is killed with its children, and the exit code shows the timeout."""
  answer = shell.Shell().ask(["bash", "-c", "sleep 1000 & wait"], timeout=0.2)
  assert answer.code == 124 and "timeout" in answer.reason()


def test_host_that_may_not_write(tmp_path):
  """The machines have their own account: its write access is tested before training."""
  host.check_workdir(str(tmp_path / "run"))
  assert not list((tmp_path / "run").iterdir())
  (tmp_path / "file").write_text("")
  with pytest.raises(UserError, match="cannot be written from .*\n.*roles/storage.objectAdmin"):
    host.check_workdir(str(tmp_path / "file" / "run"))


def readme_lines():
  """Returns every `t2t launch` line of the page, with continuation lines joined."""
  text = PAGE.read_text().replace("\\\n", " ")
  return [line.strip() for line in text.splitlines() if line.strip().startswith("t2t launch ")]


def test_readme_has_commands():
  """A test over no lines would always pass."""
  assert len(readme_lines()) > 10
  assert {line.split()[2] for line in readme_lines()} == {"status", "logs", "stop", "delete", "tpu-vm", "gke", "slurm"}


@pytest.mark.parametrize("line", readme_lines())
def test_commands_of_the_readme(cloud, tmp_path, monkeypatch, line):
  """Each is accepted with --dry-run and without installed programs."""
  monkeypatch.setenv("PATH", "")
  (tmp_path / "my_config.py").write_text("from t2t.configs import tiny\nget_config = tiny.get_config\n")
  for setting in ("PROJECT=my-project", "REGION=us-central1", "ZONE=us-central1-a", "BUCKET=my-bucket"):
    assert setting in PAGE.read_text()
    monkeypatch.setenv(*setting.split("="))
  words = shlex.split(os.path.expandvars(line), comments=True)[2:]
  assert cloud.launch(shlex.join([words[0], "--dry-run", *words[1:]])) == 0
