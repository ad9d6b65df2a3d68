"""The cache of the hub stays within its limit, and keeps the files in use."""

import os
import pathlib
import subprocess
import sys

import fake_hub
import folders
import pytest

from t2t import UserError
from t2t.storage import gcs, hub_cache, hub_files

KB = 1000
SIZE = 20 * KB


@pytest.fixture
def the_hub(tmp_path, monkeypatch):
  """A hub with files of 20 kB, for a cache of 50 kB."""
  with fake_hub.running() as server:
    server.repository("datasets/ORG/text", {f"{name}.txt": name.encode() * SIZE for name in "abcd"})
    values = {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path), "T2T_CACHE_DIR": str(tmp_path)}
    for name, value in values.items():
      monkeypatch.setenv(name, value)
    monkeypatch.setenv(hub_cache.LIMIT_VARIABLE, "5e-5")
    monkeypatch.setattr(hub_cache, "_PATIENCE", 0.3)
    hub_files._commits.clear()
    hub_files._matched.clear()
    hub_files._tree.cache_clear()
    yield server


def opened(name: str):
  return gcs.open_binary(f"hf://datasets/ORG/text@main/{name}.txt")


def read(name: str) -> None:
  with opened(name) as file:
    assert file.read() == name.encode() * SIZE


def cached() -> set[str]:
  """Returns the names in the cache, by the content of files."""
  return {path.read_bytes()[:1].decode() for path in hub_cache._contents()}


def test_the_least_recently_used_files_are_evicted(the_hub):
  """Reading a cached file counts as use, and makes no request."""
  for name in "ab":
    read(name)
  asked = len(the_hub.requests)
  read("a")
  assert len(the_hub.requests) == asked and cached() == {"a", "b"}
  read("c")
  assert cached() == {"a", "c"}
  snapshots = hub_cache.root() / "datasets--ORG--text" / "snapshots"
  assert sorted(path.name for path in snapshots.rglob("*.txt")) == ["a.txt", "c.txt"]
  read("b")
  assert cached() == {"b", "c"}


def test_a_file_in_use_is_never_evicted(the_hub):
  with opened("a") as file:
    read("b")
    read("c")
    read("d")
    assert cached() == {"a", "d"}
    assert file.read() == b"a" * SIZE
  read("c")
  read("b")
  assert cached() == {"b", "c"}


def test_files_in_use_that_leave_no_room_are_an_error(the_hub):
  """With the variable and a value for it."""
  with opened("a"), opened("b"), pytest.raises(UserError, match=r"in use. Set the environment .*T2T_HUB_CACHE_GB=\d"):
    opened("c")
  read("c")


def test_a_file_above_the_limit_is_an_error(the_hub):
  the_hub.repository("datasets/ORG/text", {"large.txt": b"x" * 60 * KB})
  with pytest.raises(UserError, match="large.txt has 60 kB, more than the cache .* may have"):
    opened("large")
  the_hub.repository("ORG/model", {"a.safetensors": b"x" * 30 * KB, "b.safetensors": b"y" * 30 * KB})
  with pytest.raises(UserError, match="--checkpoint hf://ORG/model has 60 kB, more than the cache"):
    gcs.fetched("hf://ORG/model", where="--checkpoint ")
  assert the_hub.count("/cdn") == 0


@pytest.mark.parametrize("value", ["0", "-1", "many", "inf", "nan"])
def test_the_limit_is_checked(monkeypatch, value):
  monkeypatch.setenv(hub_cache.LIMIT_VARIABLE, value)
  with pytest.raises(UserError, match=f"T2T_HUB_CACHE_GB={value} is not a positive number"):
    hub_cache.limit()


def test_remains_of_a_killed_download_are_removed(the_hub):
  """The reservation and the part of the file; not those of a process that is alive."""
  read("a")
  part = next(hub_cache._contents()).parent / "0123.incomplete"
  part.write_bytes(b"x" * 40 * KB)
  (hub_cache.root() / ".reserved" / "dead").write_text(str(30 * KB))
  with hub_cache.room("x", 10):
    read("b")
    assert not part.exists() and not (hub_cache.root() / ".reserved" / "dead").exists()
    part.write_bytes(b"x")
    with hub_cache.room("y", 10):
      assert part.exists()  # may belong to "x"


def test_a_reservation_counts_as_used(the_hub):
  read("a")
  with hub_cache.room("x", 45 * KB):
    assert cached() == set()
    with pytest.raises(UserError, match="in use"), hub_cache.room("y", 10 * KB):
      pass
  with hub_cache.room("y", 10 * KB):
    pass


_READER = """
import sys
from t2t.storage import gcs, hub_cache
for name in sys.argv[1] * 5:
  with gcs.open_binary(f"hf://datasets/ORG/text@main/{name}.txt") as file:
    assert file.read() == name.encode() * 20_000
    sizes = [path.stat().st_size for path in hub_cache._contents() if path.exists()]
    assert sum(sizes) <= 50_000, sizes
"""


@pytest.mark.slow
def test_processes_share_a_cache(the_hub, monkeypatch):
  """Two processes with other orders; each file is whole when it is read, and the sum stays within the limit."""
  environment = os.environ | {"PYTHONPATH": str(folders.ROOT)}
  readers = [
    subprocess.Popen([sys.executable, "-c", _READER, names], env=environment, stderr=subprocess.PIPE, text=True)
    for names in ("abcd", "dcba")
  ]
  for reader in readers:
    error = reader.communicate()[1]
    assert reader.returncode == 0, error
  assert sum(path.stat().st_size for path in hub_cache._contents()) <= 50 * KB


def test_a_damaged_file_is_downloaded_again(the_hub):
  read("a")
  path = next(hub_cache._contents())
  path.write_bytes(b"")
  read("a")
  assert isinstance(path, pathlib.Path) and path.stat().st_size == SIZE
