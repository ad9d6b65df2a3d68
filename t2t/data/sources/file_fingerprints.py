"""What files hold, in a few bytes for each, so that a run that goes on knows if they are the same."""

from collections.abc import Mapping, Sequence
import concurrent.futures
import functools
import hashlib
import json
import pathlib
from typing import Any

from t2t.data.sources import text_files
from t2t.storage import gcs

# Read in all, of a corpus of any size; of a bucket nothing is read, since its listing has a checksum of each object.
_BYTES = 256 * 2**20
_LEAST, _MOST = 3 * 2**12, 2**20  # of a file: one that has no more is read whole, of others the ends and the middle
_SHOWN = 5  # differences that a message names


class Contents:
  """What these files hold; it is read in the background from now on.

  Args:
    files: their paths, in order.
    where: the configuration key that names them, for messages.
    root: a folder that all of them lie in, below which their names count; "": of each the last part alone.
  """

  def __init__(self, files: Sequence[str], *, where: str = "config.data.files", root: str = ""):
    self._files = tuple(files)
    self._digests = functools.partial(_digests, where=where, root=str(root).rstrip("/"))
    self._pool = concurrent.futures.ThreadPoolExecutor(1)
    self._bytes_per_file = min(max(_BYTES // max(len(self._files), 1), _LEAST), _MOST)
    self._future = self._pool.submit(self._digests, self._files, self._bytes_per_file)

  def saved(self) -> dict[str, Any]:
    """For a checkpoint.

    Out: {"each": 1048576, "files": [["a.jsonl", 5120, "9f86d081884c7d65"], ...]}
    """
    return {"each": self._bytes_per_file, "files": [list(row) for row in self._future.result()]}

  def short(self) -> dict[str, Any]:
    """All of `saved` in one digest, to stand wherever somebody may look who finds no list.

    Out: {"each": 1048576, "sorts": ["blake2b"], "digest": "5c1d6c0ab3e28b4f"}
    """
    return {"each": self._bytes_per_file, **_short(self._future.result())}

  def differ(self, short: Mapping[str, Any]) -> bool:
    """Whether they are not as they were when `short` was; False as well where digests of other sorts cannot tell."""
    now = _short(self._rows(short["each"]))
    return now["sorts"] == short["sorts"] and now["digest"] != short["digest"]

  def _rows(self, bytes_per_file: int) -> list[tuple[str, int, str]]:
    return (
      self._future.result() if bytes_per_file == self._bytes_per_file else self._digests(self._files, bytes_per_file)
    )

  def differences(self, saved: Mapping[str, Any]) -> list[str]:
    """What of them is not as it was when `saved` was: a few words for each file."""
    now = self._rows(saved["each"])
    before, after = ({name: (size, digest) for name, size, digest in rows} for rows in (saved["files"], now))
    changes = []
    for name in sorted(before.keys() | after.keys()):
      if name not in after:
        changes.append(f"{name} is gone")
      elif name not in before:
        changes.append(f"{name} is new")
      elif before[name][0] != after[name][0]:
        changes.append(f"{name} had {before[name][0]:,} bytes and has {after[name][0]:,}")
      elif _differ(before[name][1], after[name][1]):
        changes.append(f"{name} has another content of as many bytes")
    return changes


def _differ(before: str, after: str) -> bool:
  """Whether two digests are of one sort, and not the same: what is copied to a bucket gets one of another sort."""
  return before != after and before.partition(":")[0] == after.partition(":")[0]


def _short(rows: Sequence[tuple[str, int, str]]) -> dict[str, Any]:
  digest = hashlib.blake2b(json.dumps(sorted(rows)).encode(), digest_size=8).hexdigest()
  return {"sorts": sorted({digest.partition(":")[0] for _, _, digest in rows}), "digest": digest}


def summary(files: Sequence[str]) -> str:
  """Which files, in a few characters however many they are; positions are counted in their bytes."""
  listed = [(path.rsplit("/", 1)[-1], size) for path, size in zip(files, text_files.sizes(tuple(files)), strict=True)]
  digest = hashlib.sha256(json.dumps(listed).encode()).hexdigest()[:12]
  return f"{len(files)} file(s) from {listed[0][0]} on, {sum(size for _, size in listed):,} bytes, {digest}"


def shown(differences: Sequence[str]) -> str:
  """The first of them, and how many there are."""
  num_unshown = len(differences) - _SHOWN
  return "; ".join(differences[:_SHOWN]) + (f"; and {num_unshown:,} more" if num_unshown > 0 else "")


def _digests(files: Sequence[str], bytes_per_file: int, *, where: str, root: str) -> list[tuple[str, int, str]]:
  """Name, size and digest of each file.  Folders may move: files count by their names."""
  sizes = text_files.sizes(tuple(files))
  remote = [path for path in files if gcs.is_remote(path)]
  listed = gcs.checksums(remote, where=where) if remote else {}
  with concurrent.futures.ThreadPoolExecutor(16) as pool:
    digests = list(
      pool.map(
        lambda path, size: f"crc32c:{listed[path]}" if path in listed else _digest(path, size, bytes_per_file),
        files,
        sizes,
      )
    )
  names: dict[str, int] = {}
  rows = []
  for path, size, digest in zip(files, sizes, digests, strict=True):
    name = path.removeprefix(f"{root}/") if root else path.rsplit("/", 1)[-1]
    names[name] = names.get(name, 0) + 1
    rows.append((name if names[name] == 1 else f"{name} ({names[name]})", size, digest))
  return rows


def _digest(path: str, size: int, bytes_per_file: int) -> str:
  """Of all of a file that has no more than `bytes_per_file` bytes, else of its ends and its middle."""
  block = bytes_per_file // 3
  starts = (0,) if size <= bytes_per_file else (0, (size - block) // 2, size - block)
  hasher = hashlib.blake2b(digest_size=8)
  try:
    with pathlib.Path(path).open("rb") as file:
      for start in starts:
        file.seek(start)
        hasher.update(file.read(size if size <= bytes_per_file else block))
  except OSError:
    return ""  # who reads it as text says what is wrong with it
  return f"blake2b:{hasher.hexdigest()}"
