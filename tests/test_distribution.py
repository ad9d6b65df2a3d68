"""Distribution: a wheel built from the source release contains all of t2t."""

import os
import pathlib
import subprocess
import sys
import tarfile
import zipfile

import folders
import pytest

pytestmark = pytest.mark.slow

ROOT = folders.ROOT


def run(*command, **options) -> str:
  """Returns the output of a command; its errors fail the test."""
  done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
  assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
  return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> pathlib.Path:
  """Builds the source release, and a wheel from it alone; returns their folder."""
  folder = tmp_path_factory.mktemp("dist")
  build = (sys.executable, "-m", "hatchling", "build", "-d", str(folder))
  run(*build, "-t", "sdist", cwd=ROOT)
  (sources,) = folder.glob("t2t_jax-*.tar.gz")
  with tarfile.open(sources) as archive:
    archive.extractall(folder / "sources", filter="data")
  (unpacked,) = (folder / "sources").iterdir()
  run(*build, "-t", "wheel", cwd=unpacked)
  return folder


@pytest.mark.exhaustive
def test_all_that_runs_is_in_the_wheel(built):
  """Every module, config, task and launcher, and the type marker; neither tests nor benchmarks."""
  (wheel,) = built.glob("*.whl")
  with zipfile.ZipFile(wheel) as archive:
    names = set(archive.namelist())
  for folder, inside in (("t2t", "t2t"), ("configs", "t2t/configs"), ("tasks", "t2t/tasks"), ("launch", "t2t/launch")):
    here = {path.relative_to(ROOT / folder).as_posix() for path in (ROOT / folder).rglob("*.py")}
    assert here and {f"{inside}/{name}" for name in here} <= names
  assert "t2t/py.typed" in names
  assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == {"t2t"}


def test_what_changes_it_is_in_the_sources(built):
  """The source release contains the tests."""
  (unpacked,) = (built / "sources").iterdir()
  there = {path.name for path in unpacked.iterdir()}
  assert {
    "t2t",
    "configs",
    "tasks",
    "launch",
    "tests",
    "benchmarks",
    "Makefile",
    "CHANGELOG.md",
    "CITATION.cff",
  } <= there


def test_it_trains_outside_of_a_checkout(built, tmp_path):
  """Installed in a separate folder, which precedes this checkout on Python's path."""
  (wheel,) = built.glob("*.whl")
  place = tmp_path / "installed"
  run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(place), str(wheel))
  options = {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": str(place)}}
  where = run(
    sys.executable, "-c", "import t2t, t2t.configs.tiny as tiny; print(t2t.__file__, tiny.__file__)", **options
  )
  assert where.split() == [str(place / "t2t/__init__.py"), str(place / "t2t/configs/tiny.py")]
  assert run(sys.executable, "-m", "t2t", "--version", **options).startswith("t2t 0.")
  run(sys.executable, "-m", "t2t", "train", "--config=tiny", "--workdir=run", "--config.train.steps=1", **options)
  assert (tmp_path / "run" / "metrics.jsonl").exists()
