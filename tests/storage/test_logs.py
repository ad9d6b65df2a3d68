"""Growing files on a disk."""

from etils import epath

from t2t.storage import logs


def test_reading_creates_nothing(tmp_path):
  """A missing file is empty, and its folder stays missing; a log creates both."""
  path = epath.Path(tmp_path / "run" / "history.jsonl")
  assert logs.read(path) == b"" and not path.parent.exists()
  log = logs.Log(path, keep=lambda content: content)
  log.add(b"line\n")
  log.bring()
  log.close()
  assert logs.read(path) == b"line\n"
