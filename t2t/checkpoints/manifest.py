"""What a step's folder is made of: a checksum of every file, written last, and what of it is damaged since.

A disk may lose or turn bits, a copy may end too soon, and a hand may put a file of another step in a folder; arrays
that were read from it would be wrong without a word.  Of a bucket's objects the checksums are the bucket's own, which
it keeps and checks itself: they come with a listing, and nothing is read.
"""

from collections.abc import Callable, Iterable, Mapping
import concurrent.futures
import contextlib
import dataclasses
import json
import os
import pathlib
import time
from typing import TypeVar

from absl import logging
from etils import epath
import google_crc32c
import orbax.checkpoint as ocp

from t2t import UserError
from t2t.storage import gcs

T = TypeVar("T")

NAME = "manifest.json"
# Orbax writes it behind all else, the manifest included; that it is there matters, not what it says.
COMMITTED = ocp.path.atomicity.COMMIT_SUCCESS_FILE
ORBAX = "_CHECKPOINT_METADATA"  # what Orbax notes of a step: when it was saved, and of which items it is
# What is removed first, in this order, of a step in a bucket: without these it cannot be taken for one that is whole.
MARKERS = (COMMITTED, ORBAX)
_WAITS = (1.0, 5.0, 15.0)  # seconds before what could not be read is read again
_READERS, _READ_AT_ONCE = 8, 2**19

Files = Mapping[str, tuple[int, int]]  # path within the folder -> size in bytes, CRC-32C


@dataclasses.dataclass(frozen=True)
class Manifest:
  """What was saved.

  step: that the folder is of.
  files: all but the manifest itself and Orbax's marker.
  """

  step: int
  files: Files


def write(folder: epath.Path, step: int) -> None:
  """Notes every file that is there, when no one writes there any more; on a disk all of them are durable after it.

  Raises:
    OSError: a file cannot be read, or the manifest not written.
    UserError: its bucket cannot be listed.
  """
  if gcs.is_remote(folder):
    (folder / NAME).write_bytes(_render(Manifest(step, _listed(folder))))
    return
  files = _checksums(folder, _sizes(folder), durable=True)
  part = pathlib.Path(folder, f".{NAME}")
  with open(part, "wb") as file:
    file.write(_render(Manifest(step, files)))
    file.flush()
    os.fsync(file.fileno())
  part.replace(part.parent / NAME)
  for parent, _, _ in os.walk(folder):
    sync(parent)


def sync(folder: os.PathLike | str) -> None:
  """Returns when the disk has the names in a folder; of what lies in a bucket there is nothing to do."""
  if gcs.is_remote(folder):
    return
  handle = os.open(folder, os.O_RDONLY)
  try:
    os.fsync(handle)
  finally:
    os.close(handle)


def read(folder: epath.Path) -> Manifest | None:
  """The manifest of a step's folder; None: it has none.

  Raises:
    OSError: it cannot be read.
    ValueError: it is not as it was made, to the bit.
    UserError: its bucket cannot be listed.
  """
  # Not by epath, whose client remembers for seconds what was there.
  return _parse(gcs.read(folder / NAME)) if NAME in gcs.names(folder, where="checkpoint") else None


def size(folder: epath.Path) -> int:
  """Bytes of all files of a step's folder.

  Raises:
    UserError: its bucket cannot be listed.
  """
  if gcs.is_remote(folder):
    return sum(size for size, _ in _listed(folder).values())
  return sum(_sizes(folder).values())


def differences(
  folder: epath.Path, manifest: Manifest, *, largest: int | None = None, share: tuple[int, int] = (0, 1)
) -> list[str]:
  """What of a step's folder is not as it was saved, a line for each file that is missing or has other bytes.

  Args:
    folder: of the step; files that came later, as a person's notes, do not count.
    manifest: its own.
    largest: of files with more bytes only the size is compared; None: all are read.
    share: (index, number) of this host among those that read the same files: it reads its own part of them.

  Raises:
    UserError: its bucket cannot be listed, or a file that is there not be read, however often it was tried.
  """
  index, number = share
  if gcs.is_remote(folder):
    if index:
      return []
    there = _listed(folder)
    sizes = {name: size for name, (size, _) in there.items()}
  else:
    there, sizes = {}, patiently(lambda: _sizes(folder), folder)
  faults, to_check = [], []
  # The largest are dealt out first, so that all hosts read about as much.
  for turn, (name, (size, _)) in enumerate(sorted(manifest.files.items(), key=lambda file: (-file[1][0], file[0]))):
    if turn % number != index:
      continue
    if name not in sizes:
      faults.append(f"{name} is missing")
    elif sizes[name] != size:
      faults.append(f"{name} has {sizes[name]:,} bytes, {size:,} were saved")
    elif largest is None or size <= largest:
      to_check.append(name)
  try:
    there = there or _checksums(folder, {name: sizes[name] for name in to_check})
  except FileNotFoundError as error:
    return [*faults, f"{_relative(error, folder)} is missing"]
  return faults + [
    f"{name} has other bytes than were saved" for name in to_check if there[name] != manifest.files[name]
  ]


def patiently(read: Callable[[], T], path: os.PathLike) -> T:
  """What `read` returns; where the system cannot read, it is tried again after a while.

  Raises:
    FileNotFoundError: what is to be read is not there.
    UserError: it still cannot be read: whether it is damaged is not known, and nothing is done to it.
  """
  for wait in (*_WAITS, None):
    try:
      return read()
    except FileNotFoundError:
      raise
    except OSError as error:
      reason, cause = error.strerror or error, error
    if wait is not None:
      logging.warning("%s: cannot be read (%s): it is tried again", path, reason)
      time.sleep(wait)
  raise UserError(
    f"{path}: cannot be read ({reason}), however often it was tried, so that nobody knows if it is as it was saved;"
    " when the disk or bucket is well again, the same command goes on from it, and from the step before if you"
    " move it away"
  ) from cause


def _relative(error: OSError, folder: epath.Path) -> str:
  name = str(getattr(error, "filename", None) or folder)
  return name.removeprefix(f"{folder}/")


def _render(manifest: Manifest) -> bytes:
  """A line for each file, and in front of all the checksum of what follows."""
  files = sorted(manifest.files.items())
  lines = [f"    {json.dumps(name)}: [{size}, {checksum}]" for name, (size, checksum) in files]
  body = f'  "step": {manifest.step},\n  "files": {{\n' + ",\n".join(lines) + "\n  }\n}\n"
  return f'{{\n  "crc32c": {google_crc32c.value(body.encode())},\n{body}'.encode()


def _parse(content: bytes) -> Manifest:
  """Of what `_render` made."""
  try:
    values = json.loads(content)
    files = {name: (size, checksum) for name, (size, checksum) in values["files"].items()}
    manifest = Manifest(values["step"], files)
    is_intact = _render(manifest) == content
  except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
    raise ValueError("it is no manifest") from error
  if not is_intact:
    raise ValueError("it has other bytes than were saved")
  return manifest


def _own(names: Iterable[str]) -> list[str]:
  return [name for name in names if name not in (NAME, f".{NAME}", COMMITTED)]


def _listed(folder: epath.Path) -> Files:
  checksums = gcs.checksums_below(folder, where="checkpoint")
  return {name: checksums[name] for name in _own(checksums)}


def _sizes(folder: epath.Path) -> dict[str, int]:
  """Every file of a local folder, wherever in it, but for the manifest itself and what comes after it.

  Raises:
    OSError: a folder cannot be listed.
  """

  def fail(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
      raise error

  sizes = {}
  for parent, _, names in os.walk(folder, onerror=fail):
    for name in names:
      path = pathlib.Path(parent, name)
      with contextlib.suppress(FileNotFoundError):  # deleted by now
        sizes[path.relative_to(folder).as_posix()] = path.stat().st_size
  return {name: sizes[name] for name in _own(sizes)}


def _checksums(folder: epath.Path, sizes: Mapping[str, int], *, durable: bool = False) -> Files:
  """Size and checksum of these files of a local folder."""
  with concurrent.futures.ThreadPoolExecutor(_READERS) as readers:
    read = lambda path: _checksum(path, durable) if durable else patiently(lambda: _checksum(path, durable), path)
    checksums = readers.map(lambda name: read(pathlib.Path(folder, name)), sizes)
    return {name: (size, checksum) for (name, size), checksum in zip(sizes.items(), checksums, strict=True)}


def _checksum(path: pathlib.Path, durable: bool) -> int:
  checksum = 0
  with open(path, "rb", buffering=0) as file:
    if durable:
      os.fsync(file.fileno())
    while chunk := file.read(_READ_AT_ONCE):
      checksum = google_crc32c.extend(checksum, chunk)
  return checksum


# ---- When it is written ----------------------------------------------------------------------------------------------


def _sealing(base: type[ocp.path.atomicity.TemporaryPathBase]) -> type[ocp.path.atomicity.TemporaryPathBase]:
  """A way of Orbax's to give a whole checkpoint its name, which notes its files before.

  Orbax calls it on the first host, when all hosts have written theirs; a save that is killed before has no name yet.
  """

  class Sealing(base):
    async def finalize(self) -> None:
      if self.get_final().name.isdigit():  # an item of the step, such as "state", has a name of its own
        # Orbax would write into this file afterwards.
        store, self._checkpoint_metadata_store = self._checkpoint_metadata_store, None
        if store is not None:
          store.update(file_path=self.get() / ORBAX, commit_timestamp_nsecs=time.time_ns())
          store.wait_until_finished()
        write(self.get(), int(self.get_final().name))
      await super().finalize()
      sync(self.get_final().parent)

  return Sealing


class _Lenient(ocp.path.atomicity.CommitFileTemporaryPath):
  """A way that tells only at the end of a folder that could not be made.

  Folders in a bucket are made in the background, and of one that is not, whoever writes there would hear after five
  minutes.  A bucket takes objects without: what is written meanwhile is no checkpoint, for it is never given its name.
  """

  _error: Exception | None = None

  async def create(self) -> epath.Path:
    try:
      return await super().create()
    except Exception as error:
      self._error = error
      return self.get()

  async def finalize(self) -> None:
    if self._error is not None:
      raise self._error
    await super().finalize()


_OnDisk = _sealing(ocp.path.atomicity.AtomicRenameTemporaryPath)
_InBucket = _sealing(_Lenient)


def temporary_path_class(folder: epath.Path) -> type[ocp.path.atomicity.TemporaryPathBase]:
  """What Orbax's options take, of checkpoints in `folder`."""
  return _InBucket if gcs.is_remote(folder) else _OnDisk
