"""Predictions and training on arrays without TensorFlow, seqio and the modules of Unix.

Other commands say what is missing.
"""

import json
import os
import pathlib
import subprocess
import sys

import hidden_packages
import pytest
import trained

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checkpoints():
  return [str(trained.workdir(architecture)) for architecture in ("encoder_decoder", "encoder_only")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
  return tmp_path_factory.mktemp("without")


@pytest.fixture(scope="module")
def found(checkpoints, folder):
  """Runs hidden_packages.py; returns its output."""
  argv = [sys.executable, hidden_packages.__file__, str(folder), *checkpoints]
  done = subprocess.run(argv, capture_output=True, text=True, check=False, env=os.environ)
  assert done.returncode == 0, done.stderr[-3000:]
  return json.loads(done.stdout)


def test_predictions_are_those_with_tensorflow(found, checkpoints, folder):
  """Bit for bit, also of a model that was trained without TensorFlow."""
  paths = [*checkpoints, str(folder / "parts")]
  assert found["predictions"] == json.loads(json.dumps([hidden_packages.predictions(path) for path in paths]))
  assert not found["loaded"]


def test_a_resumed_run_on_arrays_is_the_whole_run(found):
  last = {key: x for row in found["parts"] for key, x in row.items()}
  assert last == {key: x for row in found["whole"] for key, x in row.items()}


@pytest.mark.parametrize("name", hidden_packages.NEEDING)
def test_commands_that_read_text_say_what_is_missing(found, name):
  code, said = found["refused"][name]
  assert code == 2 and said.startswith(f"t2t {name}: error: ") and said.count("\n") == 1
  assert "is not installed" in said and "`pip install -e '.[data]'`" in said and "3.11 to 3.13" in said


def test_locks_of_windows_exclude_each_other(found):
  """An exclusive lock excludes all others, and a shared one only exclusive ones; a run holds its workdir."""
  assert found["locks"] == {"attempts": [True, False, False, True, True, False], "held": [False, True, False]}


def test_commands_work_without_unix(found):
  rows = [json.loads(line) for line in found["commands"].splitlines()]
  assert [row["inputs"] for row in rows] == list(hidden_packages.TEXTS)
  assert [row["prediction"] for row in rows] == found["predictions"][0]["written"]
