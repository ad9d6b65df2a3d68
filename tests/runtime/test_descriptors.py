"""Missing resources of a machine (open files, disk space, permissions) cause an error of one sentence."""

import errno
import os
import resource
import types

import pytest

from t2t import UserError
from t2t import __main__ as command
from t2t.runtime import descriptors


@pytest.mark.parametrize(("limits", "given"), [((256, 4096), 4096), ((1024, -1), 65536), ((65536, 65536), None)])
def test_a_process_takes_what_it_may(monkeypatch, limits, given):
  """Up to the limit of the machine's administrator."""
  found = []
  monkeypatch.setattr(resource, "getrlimit", lambda which: limits)
  monkeypatch.setattr(resource, "setrlimit", lambda which, pair: found.append(pair))
  descriptors.allow()
  assert found == ([] if given is None else [(given, limits[1])])


def test_too_few_are_refused(monkeypatch):
  """With the command to type."""
  monkeypatch.setattr(resource, "getrlimit", lambda which: (64, 64))
  with pytest.raises(UserError, match=r"open 64 files here.*ulimit -n 4096"):
    descriptors.allow()


@pytest.mark.parametrize("number", sorted(command._MACHINE))
def test_what_a_machine_lacks_is_one_sentence(monkeypatch, capsys, number):
  """With the file's name and without a traceback; --debug and other errors have one."""

  def fail(argv):
    raise OSError(number, os.strerror(number), "runs/own/x")

  monkeypatch.setattr(command.importlib, "import_module", lambda name: types.SimpleNamespace(main=fail))
  assert command.main(["train"]) == 2
  said = capsys.readouterr().err
  assert said.startswith("t2t train: error: runs/own/x: ") and said.count("\n") == 1
  with pytest.raises(OSError, match="runs/own/x"):
    command.main(["train", "--debug"])
  number = errno.EIO
  with pytest.raises(OSError, match="runs/own/x"):
    command.main(["train"])
