"""A run that goes on knows which of its files are not what they were."""

import json
import os
import pathlib

import pytest
import test_faults
import test_sources

from t2t import UserError
from t2t.data.sources import contents, text_files

TEXTS = test_sources.TEXTS


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
  monkeypatch.setenv("T2T_CACHE_DIR", str(tmp_path / "cache"))


def changed(before: contents.Contents, folder: pathlib.Path) -> list[str]:
  text_files.sizes.cache_clear()  # as in another process
  now = contents.Contents(text_files.find_files(f"{folder}/*.txt"))
  return now.differences(json.loads(json.dumps(before.saved())))


def test_each_change_has_its_words(tmp_path, monkeypatch):
  """Added, removed, longer, and altered at the ends or in the middle; not: touched, or in another folder."""
  monkeypatch.setattr(contents, "_MOST", 3 * 100)
  for name in ("a.txt", "b.txt"):
    (tmp_path / name).write_bytes(bytes(range(97, 107)) * 100)
  before = contents.Contents(text_files.find_files(f"{tmp_path}/*.txt"))
  before.saved()
  os.utime(tmp_path / "a.txt", (1, 1))
  (tmp_path / "moved").mkdir()
  for name in ("a.txt", "b.txt"):
    (tmp_path / "moved" / name).write_bytes((tmp_path / name).read_bytes())
  assert changed(before, tmp_path) == changed(before, tmp_path / "moved") == []
  original = (tmp_path / "a.txt").read_bytes()
  for place in (0, 500, 999):
    (tmp_path / "a.txt").write_bytes(original[:place] + b"X" + original[place + 1 :])
    assert changed(before, tmp_path) == ["a.txt has another content of as many bytes"]
  (tmp_path / "a.txt").write_bytes(original + b"more")
  (tmp_path / "b.txt").rename(tmp_path / "c.txt")
  assert changed(before, tmp_path) == ["a.txt had 1,000 bytes and has 1,004", "b.txt is gone", "c.txt is new"]


def test_little_is_read_of_much(tmp_path, monkeypatch):
  """Of a large file its ends and its middle, of many files less of each: never more than the bound."""
  monkeypatch.setattr(contents, "_BYTES", 2**16)
  for number in range(4):
    with (tmp_path / f"{number}.txt").open("wb") as file:
      file.truncate(2**40)  # sparse
  found = contents.Contents(text_files.find_files(f"{tmp_path}/*.txt")).saved()
  assert found["each"] == 2**14 and [size for _, size, _ in found["files"]] == [2**40] * 4


def test_a_run_goes_on_with_other_files_only_where_it_may(tmp_path, capfd):
  """The message names the file and the key; a checkpoint that does not say what its files hold goes on as before."""
  for name in ("a.txt", "b.txt"):
    test_sources.write(tmp_path, name, TEXTS)
  iterator = test_faults.batches(tmp_path, "*.txt")
  for _ in range(3):
    next(iterator)
  state = iterator.state()
  path = tmp_path / "b.txt"
  path.write_text(path.read_text().replace("number 7 ", "number 8 "))

  def resumed(state, **options):
    text_files.sizes.cache_clear()
    found = test_faults.batches(tmp_path, "*.txt", **options)
    found.restore(state, step=3)
    return next(found)

  with pytest.raises(UserError, match="b.txt has another content .* config.data.files_may_change=True"):
    resumed(state)
  (name,) = state
  older = {name: json.dumps({key: x for key, x in json.loads(state[name]).items() if key != "files"}).encode()}
  resumed(older)
  test_sources.write(tmp_path, "c.txt", TEXTS)
  with pytest.raises(UserError, match="config.data.files is .*, but the checkpoint's data position belongs to"):
    resumed(older)
  resumed(state, files_may_change=True)
  assert "b.txt has another content of as many bytes; c.txt is new; the data goes on" in capfd.readouterr().err
