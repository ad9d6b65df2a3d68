"""The config name in commands that other commands print."""

import sys

from t2t.commands import config_of_run
from t2t.reports import history


def test_the_name_is_that_of_the_last_command(tmp_path, monkeypatch):
  """For the workdir and its checkpoints; quoted for a shell; a placeholder without a record."""
  assert config_of_run.quoted_name(str(tmp_path)) == "CONFIG"
  for name in ("tiny", "my models/bert.py"):
    monkeypatch.setattr(sys, "argv", ["t2t", "train", "--config", name])
    history.started(tmp_path, 0, flops_per_step=None)
  assert config_of_run.quoted_name(str(tmp_path)) == "'my models/bert.py'"
  assert config_of_run.quoted_name(str(tmp_path / "checkpoints" / "100")) == "'my models/bert.py'"
