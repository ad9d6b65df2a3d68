"""Files for other launchers: keys that SkyPilot reads, options that XPK has, and a command that t2t takes."""

import os
import re
import shlex
import stat
import subprocess

import folders
import pytest
import yaml

from t2t.launch import job as job_lib
from t2t.runtime import exit_codes, slices

_LAUNCH = folders.ROOT / "launch"
# Keys of SkyPilot 0.14.1: `sky.utils.schemas.get_task_schema` and `get_resources_schema`; others are an error there.
_TASK = {"name": str, "workdir": str, "num_nodes": int, "envs": dict, "resources": dict, "setup": str, "run": str}
_RESOURCES = {"infra": str, "accelerators": str, "use_spot": bool, "job_recovery": dict}
# Options of `xpk workload create` in XPK 1.16.0, `xpk.parser.workload`, with a value.
_XPK = (
  *("--cluster", "--workload", "--docker-image", "--tpu-type", "--num-slices", "--env", "--max-restarts"),
  *("--restart-on-exit-codes", "--termination-grace-period-seconds", "--command"),
)


def test_skypilot_task():
  """All variables are SkyPilot's or have a value; a preempted or interrupted job is recovered."""
  task = yaml.safe_load((_LAUNCH / "skypilot.yaml").read_text())
  assert {name: type(value) for name, value in task.items()} == _TASK
  assert {name: type(value) for name, value in task["resources"].items()} == _RESOURCES
  codes = task["resources"]["job_recovery"]["recover_on_exit_codes"]
  assert codes == [code for code in range(256) if exit_codes.goes_on(code) and code in (75, 129, 143)]
  # Defined in sky/skylet/constants.py.
  known = {"SKYPILOT_NUM_NODES", "SKYPILOT_NODE_IPS", "SKYPILOT_NODE_RANK", *task["envs"]}
  assert set(re.findall(r"\$([A-Z_]+)", task["run"])) <= known


@pytest.fixture
def xpk(tmp_path):
  """Arguments that launch/xpk.sh gives to xpk."""
  program = tmp_path / "xpk"
  program.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" > {tmp_path}/argv\n")
  program.chmod(program.stat().st_mode | stat.S_IXUSR)
  environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
  script = ["sh", str(_LAUNCH / "xpk.sh"), "cluster", "image:1", "bucket", "--dry-run"]
  subprocess.run(script, env=environment, check=True)
  return (tmp_path / "argv").read_text().splitlines()


def test_xpk_workload(xpk):
  """The number of slices is the same everywhere, and the exit codes of a lost process restart all slices."""
  assert xpk[:2] == ["workload", "create"] and xpk[-1] == "--dry-run"
  options = dict(zip(xpk[2:-1:2], xpk[3:-1:2], strict=True))
  assert set(options) == set(_XPK)
  assert options["--env"] == f"{slices.JOB_SLICES}={options['--num-slices']}"
  # XPK adds 42 and 127 to 255.
  codes = {int(code) for code in options["--restart-on-exit-codes"].split(",")} | {42, *range(127, 256)}
  assert exit_codes.REFUSED not in codes and exit_codes.LOST in codes
  command = shlex.split(options["--command"])
  assert f"--config.mesh.dcn_data={options['--num-slices']}" in command


@pytest.mark.slow
def test_commands_that_t2t_takes(xpk, monkeypatch):
  """The config and the keys exist."""
  monkeypatch.chdir(folders.ROOT)
  command = shlex.split(dict(zip(xpk[2:-1:2], xpk[3:-1:2], strict=True))["--command"])
  task = yaml.safe_load((_LAUNCH / "skypilot.yaml").read_text())
  run = task["run"].replace("$CONFIG", task["envs"]["CONFIG"]).replace("$SKYPILOT_NUM_NODES", "2")
  run = run.replace("$SKYPILOT_NODE_RANK", "0").replace('"$(echo "$SKYPILOT_NODE_IPS" | head -n 1):8476"', "a:8476")
  run = shlex.split(run.replace("\\\n", " "))
  for words in (command[command.index("train") :], run[run.index("train") :]):
    job_lib.read(words, remote=True)
