import pathlib
import subprocess
import sys

import pytest

from t2t import UserError
from t2t.data import registry
from t2t.runtime import imports


def test_what_is_hidden_is_there_again():
  """Modules that were loaded before stay visible."""
  sys.modules.pop("wave", None)
  with imports.without("wave", "json"):
    import json  # noqa: F401

    with pytest.raises(ImportError):
      import wave
  import wave  # noqa: F401


def test_it_is_there_again_after_an_error():
  sys.modules.pop("wave", None)
  with pytest.raises(ZeroDivisionError), imports.without("wave"):
    1 / 0  # noqa: B018
  assert "wave" not in sys.modules


def test_a_module_is_found_where_the_command_was_called(tmp_path, monkeypatch):
  """With neighbouring modules; installed packages come first, and afterwards the folder is not searched."""
  (tmp_path / "found_here.py").write_text("import beside_it\n")
  (tmp_path / "beside_it.py").write_text("")
  (tmp_path / "wave.py").write_text("raise AssertionError('not the installed one')\n")
  monkeypatch.chdir(tmp_path)
  monkeypatch.delitem(sys.modules, "wave", raising=False)
  before = list(sys.path)
  registry.load("found_here")
  assert sys.modules["found_here"].__file__ == str(tmp_path / "found_here.py") and "beside_it" in sys.modules
  with imports.also_from_here():
    import wave  # noqa: F401
  assert sys.path == before


def test_a_module_of_this_folder_is_not_trusted_for_lying_there(tmp_path, monkeypatch):
  """A checkpoint may name it, but only the user can have it run."""
  (tmp_path / "lies_here.py").write_text("raise AssertionError('was run')\n")
  monkeypatch.chdir(tmp_path)
  assert not registry.is_trusted("lies_here")
  assert "--task_modules lies_here" in registry.why_untrusted(["lies_here"])
  assert "lies_here" not in sys.modules


def test_a_module_that_is_nowhere(tmp_path, monkeypatch):
  """The error lists the searched places, and a remedy."""
  monkeypatch.chdir(tmp_path)
  with pytest.raises(UserError) as error:
    registry.load("gone_away.tasks")
  for words in (f"no such module is installed or in {tmp_path}", "the path of a .py file", "PYTHONPATH"):
    assert words in str(error.value)


@pytest.mark.slow
def test_the_command_finds_a_module_beside_it(tmp_path):
  """The script itself, whose sys.path starts with the script's folder instead of the user's."""
  (tmp_path / "my_tasks.py").write_text("raise RuntimeError('is run')\n")
  command = [str(pathlib.Path(sys.executable).parent / "t2t"), "tasks", "--task_modules", "my_tasks"]
  done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
  assert done.returncode == 2 and "my_tasks.py, line 1: RuntimeError: is run" in done.stderr
