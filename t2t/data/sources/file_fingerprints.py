"""Fingerprints of data files, a few bytes for each, so that a resumed run can detect changes."""

from collections.abc import Mapping, Sequence
import concurrent.futures
import functools
import hashlib
import json
import pathlib
from typing import Any

from t2t.data.sources import text_files
from t2t.storage import gcs

# Total bytes to read of a corpus of any size. Files in a bucket are not read, because its listing has a checksum of
# each.
_BYTES = 256 * 2**20
# bytes per file: smaller files are read whole, larger ones at both ends and in the middle
_LEAST, _MOST = 3 * 2**12, 2**20
_SHOWN = 5  # differences in a message


class Contents:
  """Fingerprints of files, computed in the background.

  Args:
    files: paths, in order.
    where: the configuration key that names them, for messages.
    root: a common folder, to which names are relative; "": names are the last parts of the paths.
  """

  def __init__(self, files: Sequence[str], *, where: str = "config.data.files", root: str = ""):
    self._files = tuple(files)
    self._digests = functools.partial(_digests, where=where, root=str(root).rstrip("/"))
    self._pool = concurrent.futures.ThreadPoolExecutor(1)
    self._bytes_per_file = min(max(_BYTES // max(len(self._files), 1), _LEAST), _MOST)
    self._future = self._pool.submit(self._digests, self._files, self._bytes_per_file)

  def saved(self) -> dict[str, Any]:
    """Returns the fingerprints for a checkpoint.

    Out: {"each": 1048576, "files": [["a.jsonl", 5120, "9f86d081884c7d65"], ...]}
    """
    return {"each": self._bytes_per_file, "files": [list(row) for row in self._future.result()]}

  def short(self) -> dict[str, Any]:
    """Returns `saved` as a single digest, for readers without the list.

    Out: {"each": 1048576, "sorts": ["blake2b"], "digest": "5c1d6c0ab3e28b4f"}
    """
    return {"each": self._bytes_per_file, **_short(self._future.result())}

  def differ(self, short: Mapping[str, Any]) -> bool:
    """Returns whether the files have changed since `short`; False if the digests are of different types."""
    now = _short(self._rows(short["each"]))
    return now["sorts"] == short["sorts"] and now["digest"] != short["digest"]

  def _rows(self, bytes_per_file: int) -> list[tuple[str, int, str]]:
    return (
      self._future.result() if bytes_per_file == self._bytes_per_file else self._digests(self._files, bytes_per_file)
    )

  def differences(self, saved: Mapping[str, Any]) -> list[str]:
    """Returns the changes since `saved`, a few words for each file."""
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
        changes.append(f"{name} has changed content of the same size")
    return changes


def _differ(before: str, after: str) -> bool:
  """Returns whether two digests of the same type differ; a copy in a bucket has another type of digest."""
  return before != after and before.partition(":")[0] == after.partition(":")[0]


def _short(rows: Sequence[tuple[str, int, str]]) -> dict[str, Any]:
  digest = hashlib.blake2b(json.dumps(sorted(rows)).encode(), digest_size=8).hexdigest()
  return {"sorts": sorted({digest.partition(":")[0] for _, _, digest in rows}), "digest": digest}


def summary(files: Sequence[str]) -> str:
  """Summarizes files in a short text, however many they are; positions are counted in their bytes."""
  listed = [(path.rsplit("/", 1)[-1], size) for path, size in zip(files, text_files.sizes(tuple(files)), strict=True)]
  digest = hashlib.sha256(json.dumps(listed).encode()).hexdigest()[:12]
  return f"{len(files)} file(s) from {listed[0][0]} on, {sum(size for _, size in listed):,} bytes, {digest}"


def shown(differences: Sequence[str]) -> str:
  """Returns the first differences, and the number of the others."""
  num_unshown = len(differences) - _SHOWN
  return "; ".join(differences[:_SHOWN]) + (f"; and {num_unshown:,} more" if num_unshown > 0 else "")


def _digests(files: Sequence[str], bytes_per_file: int, *, where: str, root: str) -> list[tuple[str, int, str]]:
  """Returns name, size and digest of each file; names do not depend on the folder, which may move."""
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
  """Returns the digest of a file of at most `bytes_per_file` bytes, or of the ends and middle of a larger one."""
  block = bytes_per_file // 3
  starts = (0,) if size <= bytes_per_file else (0, (size - block) // 2, size - block)
  hasher = hashlib.blake2b(digest_size=8)
  try:
    with gcs.open_binary(path) if gcs.is_remote(path) else pathlib.Path(path).open("rb") as file:
      for start in starts:
        file.seek(start)
        hasher.update(file.read(size if size <= bytes_per_file else block))
  except OSError:
    return ""  # the reader of the text reports the error
  return f"blake2b:{hasher.hexdigest()}"
