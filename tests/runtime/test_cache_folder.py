import os

import pytest

from t2t.runtime import cache_folder


def test_a_file_is_like_any_other(tmp_path):
  """Its folder is created, other users may read it, and no temporary file stays."""
  cache_folder.write_atomically(tmp_path / "folder" / "file", b"content")
  path = tmp_path / "folder" / "file"
  assert path.read_bytes() == b"content"
  assert path.stat().st_mode & 0o777 == 0o644
  assert os.listdir(tmp_path / "folder") == ["file"]


def test_what_stood_there_stays_until_the_new_is_whole(tmp_path):
  """A write that fails leaves the old file, and no temporary file."""
  path = tmp_path / "file"
  cache_folder.write_atomically(path, b"old")
  with pytest.raises(TypeError):
    cache_folder.write_atomically(path, "no bytes")
  assert path.read_bytes() == b"old"
  assert os.listdir(tmp_path) == ["file"]
