"""`t2t launch slurm`: the batch script, run by a real shell, and jobs in the queue."""

import subprocess
import sys

import fake_cloud
import pytest

LAUNCH = "slurm --name base --nodes 2 --gpus-per-node 4 --poll 0 {} -- train --config tiny --workdir runs/base"
SQUEUE = "squeue --me --noheader --name=base '--format=%i|%T|%R|%k'"


@pytest.fixture
def cloud(tmp_path, monkeypatch):
  cloud = fake_cloud.Cloud(tmp_path, monkeypatch, "squeue", "sbatch", "scancel")
  cloud.on("squeue", "", "41|PENDING|(Resources)|t2t:x\n", "41|RUNNING|node[1-2]|t2t:x\n", "")
  cloud.on("sbatch", "41\n")
  return cloud


@pytest.fixture
def ended(tmp_path):
  """Writes the files that job 41 leaves behind."""
  (tmp_path / "slurm").mkdir()
  (tmp_path / "slurm" / "base-41.log").write_text("step 1: loss 9.0\n")
  (tmp_path / "slurm" / "base-41.exit").write_text("0\n")


def test_every_command_in_order(cloud, ended, capfd):
  """The exact command lines of SLURM's programs, and the log."""
  assert cloud.launch(LAUNCH.format("")) == 0, capfd.readouterr().err
  assert cloud.calls == [SQUEUE, "sbatch --parsable slurm/base.sh", SQUEUE, SQUEUE, SQUEUE]
  out, err = capfd.readouterr()
  assert out == "step 1: loss 9.0\n" and "PENDING (Resources)" in err


def test_options_of_the_script(cloud, ended, tmp_path):
  """The user's options, and JAX's requirement: a task for each GPU, each of which sees all GPUs of its node."""
  line = LAUNCH.format(
    "--time 24:00:00 --partition gpu --account me --setup 'module load cuda' --sbatch-flag=--exclusive"
  )
  assert cloud.launch(line) == 0
  script = (tmp_path / "slurm" / "base.sh").read_text()
  options = [part.removeprefix("#SBATCH ") for part in script.splitlines() if part.startswith("#SBATCH")]
  assert {
    "--nodes=2",
    "--ntasks-per-node=4",
    "--gpus-per-node=4",
    "--time=24:00:00",
    "--partition=gpu",
    "--account=me",
    "--exclusive",
    "--requeue",
    "--signal=B:USR1@300",
  } <= set(options)
  assert "--gpu-bind=none" in script and "\nmodule load cuda\n" in script


def run_script(tmp_path, programs, **environment):
  """Runs the batch script with these programs in place of SLURM's."""
  tools = tmp_path / "tools"
  tools.mkdir(exist_ok=True)
  for name, text in programs.items():
    (tools / name).write_text(f"#!/bin/bash\n{text}\n")
    (tools / name).chmod(0o755)
  path = {"PATH": f"{tools}:/usr/bin:/bin", "SLURM_JOB_ID": "7", **environment}
  return subprocess.run(["bash", "slurm/base.sh"], env=path, cwd=tmp_path, capture_output=True, text=True)


def test_script_tells_its_exit_code(cloud, ended, tmp_path):
  """Srun's exit code, to SLURM and in the file for the launcher; after a lost process the job is queued again."""
  cloud.launch(LAUNCH.format("--python python"))
  done = run_script(tmp_path, {"srun": 'echo "$@"; exit 3'})
  assert done.returncode == 3 and (tmp_path / "slurm" / "base-7.exit").read_text() == "3\n"
  assert "python -m t2t.launch.host train --config tiny --workdir runs/base" in done.stdout
  (tmp_path / "tools" / "srun").write_text("#!/bin/bash\nexit 75\n")
  (tmp_path / "tools" / "scontrol").write_text('#!/bin/bash\necho "scontrol $@"\n')
  (tmp_path / "tools" / "scontrol").chmod(0o755)
  assert "scontrol requeue 7" in run_script(tmp_path, {}).stdout
  assert not (tmp_path / "slurm" / "base-7.exit").exists()


# The time limit is reached at the start; on SIGTERM it saves, which its exit code shows.
SRUN = f"""exec {sys.executable} -IS -c '
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
open("srun.pid", "w").write(str(os.getpid()))
os.kill(os.getppid(), signal.SIGUSR1)
signal.sigwait([signal.SIGTERM])
os._exit(143)'"""
PROGRAMS = {"srun": SRUN, "scancel": "kill -TERM $(cat srun.pid)", "scontrol": 'echo "scontrol $@"'}


@pytest.mark.parametrize(("restarts", "again"), [("0", True), ("10", False)])
def test_script_is_queued_again_when_its_time_is_up(cloud, ended, tmp_path, restarts, again):
  """It saves first, and is queued again at most --restarts times."""
  cloud.launch(LAUNCH.format(""))
  done = run_script(tmp_path, PROGRAMS, SLURM_RESTART_COUNT=restarts)
  assert done.returncode == (0 if again else 143)
  assert ("scontrol requeue 7" in done.stdout) == again
  assert (tmp_path / "slurm" / "base-7.exit").exists() != again


def test_second_run_attaches(cloud, ended, capfd, tmp_path):
  """A job with the same command is followed, not submitted again; one with another command is left alone."""
  assert cloud.launch(LAUNCH.format("")) == 0
  comment = (tmp_path / "slurm" / "base.sh").read_text().split("--comment=")[1].split()[0]
  cloud.on("squeue", f"41|RUNNING|node1|{comment}\n", "")
  cloud.forget()
  assert cloud.launch(LAUNCH.format("")) == 0
  assert cloud.calls == [SQUEUE, SQUEUE]
  cloud.on("squeue", "41|RUNNING|node1|t2t:0123456789ab\n")
  assert cloud.launch(LAUNCH.format("")) == 2
  assert "another command" in capfd.readouterr().err


@pytest.mark.parametrize(
  ("error", "advice"),
  [
    ("sbatch: error: invalid partition specified: gpu", "--partition"),
    ("sbatch: error: AssocGrpGRES: Job violates accounting/QOS policy", "fewer --nodes"),
    ("sbatch: error: Requested node configuration is not available", "--gpus-per-node is 4"),
  ],
)
def test_refused(cloud, capfd, error, advice):
  """SLURM's own message and a remedy."""
  cloud.on("sbatch", (1, "", error))
  assert cloud.launch(LAUNCH.format("")) == 2
  err = capfd.readouterr().err
  assert error in err and advice in err


@pytest.mark.parametrize(("code", "words"), [("1\n", "failed with exit code 1"), (None, "without an exit code")])
def test_failed(cloud, ended, tmp_path, capfd, code, words):
  """A job that fails, and one without an exit code: cancelled, or a node was lost."""
  path = tmp_path / "slurm" / "base-41.exit"
  path.write_text(code) if code else path.unlink()
  assert cloud.launch(LAUNCH.format("")) == 2
  assert words in capfd.readouterr().err


def test_slurm_is_not_installed(cloud, monkeypatch, capfd):
  """With the place to run it."""
  monkeypatch.setenv("PATH", "")
  assert cloud.launch(LAUNCH.format("")) == 2
  assert "login node" in capfd.readouterr().err


def test_looking_after(cloud, capfd):
  """status, stop and delete by the name alone; after the end, the path of the log."""
  cloud.on("squeue", "41|RUNNING|node1|t2t:x\n")
  assert cloud.launch("slurm --name base status") == 0
  assert "job 41, RUNNING, node1" in capfd.readouterr().out
  assert cloud.launch("slurm --name base stop") == 0
  assert cloud.calls[-1] == "scancel --signal=INT 41"
  assert cloud.launch("slurm --name base delete") == 0
  assert cloud.calls[-1] == "scancel 41"
  cloud.on("squeue", "")
  assert cloud.launch("slurm --name base logs") == 2
  assert "no job base in the queue" in capfd.readouterr().err


@pytest.mark.parametrize(
  ("change", "words"),
  [
    (("runs/base", "/tmp/base"), "each node has its own such folder"),
    (("--nodes 2", "--nodes 2 --time tomorrow"), "--time tomorrow"),
  ],
)
def test_bad_input(cloud, capfd, change, words):
  """Rejected before anything is submitted."""
  assert cloud.launch(LAUNCH.format("").replace(*change)) == 2
  assert words in capfd.readouterr().err and not cloud.calls
