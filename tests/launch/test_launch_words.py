"""Any words of a command arrive unchanged on the hosts, and are not executed there."""

import os
import pathlib
import re
import shlex
import subprocess

import fake_cloud
import hypothesis
from hypothesis import strategies as st
import pytest
import yaml

from t2t.launch import gke, job, slurm, tpu_vm
from t2t.planning import tpu_types

# Any text without NUL, often with characters that are special in a shell.
WORDS = st.lists(
  st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
  | st.text("'\"$(){}`\\\n\r\t ;&|<>*#!~-=", max_size=12),
  min_size=1,
  max_size=4,
)
HOSTILE = ("$(touch ran)", "`touch ran`", "'; touch ran; '", "a\n  touch ran\n", "$HOME $$ $(HOME)", "#", "")
RECORDER = "#!/bin/bash\nprintf '%s\\0' \"$@\" > words\n"


def recorded(folder: pathlib.Path) -> list[str]:
  return (folder / "words").read_bytes().decode().split("\0")[:-1]


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> pathlib.Path:
  """A host's home, with programs that record their arguments."""
  home = tmp_path_factory.mktemp("home")
  for path in (home / "t2t" / "venv" / "bin" / "python", home / "tools" / "srun"):
    path.parent.mkdir(parents=True)
    path.write_text(RECORDER)
    path.chmod(0o755)
  (home / "slurm").mkdir()
  return home


def run(script: str, home: pathlib.Path) -> None:
  environment = {"HOME": str(home), "PATH": f"{home / 'tools'}:/usr/bin:/bin", "SLURM_JOB_ID": "7"}
  subprocess.run(["bash", "-c", script], env=environment, cwd=home, capture_output=True)


def as_kubernetes_does(word: str) -> str:
  """Expands arguments as Kubernetes does (kubernetes/third_party/forked/golang/expansion), without variables."""
  return re.sub(r"\$\$", "$", word) if "$(" not in word.replace("$$", "") else "expanded"


@pytest.mark.slow
@hypothesis.given(WORDS)
@hypothesis.example(list(HOSTILE))
@hypothesis.settings(max_examples=30)
def test_words_come_out_as_they_went_in(home, words):
  """In the scripts of TPU VMs and SLURM, and in the pods of GKE."""
  given = job.Job(("train", *words))
  run(tpu_vm._script(given, token="0"), home)
  expected = ["-m", "t2t.launch.host", "train", *words]
  assert recorded(home / "t2t") == expected
  run(slurm.script(slurm.Request("base", python="python"), given), home)
  assert recorded(home)[-len(expected) :] == expected
  request = gke.Request("base", tpu_types.tpu_type("v5p-8"), "image")
  found = yaml.safe_load(gke.manifest(request, given))
  [container] = found["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"]
  assert [as_kubernetes_does(word) for word in container["args"]] == ["train", *words]
  assert not list(home.rglob("ran"))


@hypothesis.given(st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]) | st.just(" "), min_size=1))
def test_options_of_sbatch_are_one_line_and_one_word(value):
  """Quoted as for a shell, which is how sbatch parses them."""
  request = slurm.Request("base", partition=value, flags=(f"--constraint={value}",))
  lines = slurm.script(request, job.Job(("train",))).splitlines()
  read = [shlex.split(line.removeprefix("#SBATCH ")) for line in lines if line.startswith("#SBATCH ")]
  assert [f"--partition={value}"] in read and [f"--constraint={value}"] in read
  assert all(len(words) == 1 for words in read)


@pytest.mark.parametrize(
  "line",
  [
    "slurm --name base --partition 'gpu\n#SBATCH --wrap=ls' -- train --config tiny --workdir runs/base",
    "slurm --name base --account 'me\rx' -- train --config tiny --workdir runs/base",
    "slurm --name base --sbatch-flag '--exclusive\nrm -r x' -- train --config tiny --workdir runs/base",
    "slurm --name 'base\n' --partition gpu -- train --config tiny --workdir runs/base",
    "tpu-vm --name base --zone 'z\x1b[2J' --type v5p-8 -- train --config tiny --workdir gs://bucket/base",
    "gke --name base --image 'x\ny' --type v5p-8 -- train --config tiny --workdir gs://bucket/base",
    "tpu-vm --name base --zone z --type v5p-8 -- train --config 'own\n.py' --workdir gs://bucket/base",
    "tpu-vm --name base --zone z --type v5p-8 -- train --config 'a:b.py' --workdir gs://bucket/base",
    "tpu-vm --name base --zone z --type v5p-8 -- train --config tiny --workdir 'gs://bucket/\nbase'",
  ],
)
def test_names_that_would_add_lines_are_refused(tmp_path, monkeypatch, capfd, line):
  """In one line, before anything is run."""
  cloud = fake_cloud.Cloud(tmp_path, monkeypatch, "gcloud", "kubectl", "squeue", "sbatch")
  for name in ("own\n.py", "a:b.py"):
    (tmp_path / name).write_text("from t2t.configs import tiny\nget_config = tiny.get_config\n")
  assert cloud.launch(line) == 2
  said = capfd.readouterr().err
  assert len(said.splitlines()) == 1 and said.isascii() and not cloud.calls


@pytest.mark.slow
def test_no_secret_leaves_the_environment(tmp_path, monkeypatch, capfd):
  """Secrets are neither on command lines nor in written or printed text."""
  monkeypatch.setenv("HF_TOKEN", "hf_secret")
  monkeypatch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "ya29.secret")
  cloud = fake_cloud.Cloud(tmp_path, monkeypatch, "gcloud", "kubectl", "squeue", "sbatch")
  cloud.on("describe|get jobset", (1, "", "refused"))
  kinds = (
    "tpu-vm --zone z --type v5p-8 --wheel t2t_jax-0.1.0-py3-none-any.whl",
    "gke --type v5p-8 --image x",
    "slurm --partition gpu",
  )
  (tmp_path / "t2t_jax-0.1.0-py3-none-any.whl").write_text("")
  for kind in kinds:
    for dry_run in ("--dry-run", "--poll 0"):
      cloud.launch(f"{kind} --name base {dry_run} -- train --config tiny --workdir gs://bucket/base")
  written = [path.read_text() for path in tmp_path.rglob("*") if path.is_file() and path.parent.name != "bin"]
  assert cloud.calls and not [text for text in (*written, *capfd.readouterr()) if "secret" in text]
  assert os.environ["HF_TOKEN"] == "hf_secret"


@pytest.mark.parametrize(
  ("kind", "words"),
  [
    ("tpu-vm --zone z --type v5p-8", "export TFDS_DATA_DIR='gs://bucket/my $(tfds)'\n"),
    ("gke --type v5p-8 --image x", "value: gs://bucket/my $$(tfds)\n"),
    ("slurm", "export TFDS_DATA_DIR='gs://bucket/my $(tfds)'\n"),
  ],
)
def test_hosts_have_the_place_of_tensorflow_datasets(tmp_path, monkeypatch, capfd, kind, words):
  """If it is in a bucket; a local folder does not exist on the hosts."""
  cloud = fake_cloud.Cloud(tmp_path, monkeypatch)
  line = f"{kind} --name base --dry_run -- train --config tiny --workdir gs://bucket/base"
  monkeypatch.setenv("TFDS_DATA_DIR", "gs://bucket/my $(tfds)")
  assert cloud.launch(line) == 0
  assert words in capfd.readouterr().out
  monkeypatch.setenv("TFDS_DATA_DIR", "/home/tfds")
  assert cloud.launch(line) == 0
  assert "TFDS" not in capfd.readouterr().out
