"""Manifest of a step's folder: a checksum of every file, written last, and the detection of damage.

Disks lose or flip bits, copies are truncated, and files are put in wrong folders; without a manifest wrong arrays would
be read without an error.  For objects in a bucket the checksums are the bucket's own: they come with a listing, without
reading.
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
# Orbax writes it after everything else, including the manifest; only its existence matters.
COMMITTED = ocp.path.atomicity.COMMIT_SUCCESS_FILE
ORBAX = "_CHECKPOINT_METADATA"  # Orbax's metadata of a step: time of the save, and items
# Files of a step in a bucket that are removed first, in this order: without them it does not count as complete.
MARKERS = (COMMITTED, ORBAX)
_WAITS = (1.0, 5.0, 15.0)  # seconds before a failed read is retried
_READERS, _READ_AT_ONCE = 8, 2**19

Files = Mapping[str, tuple[int, int]]  # path within the folder -> size in bytes, CRC-32C


@dataclasses.dataclass(frozen=True)
class Manifest:
  """The saved files of a step.

  step: of the folder.
  files: all except the manifest itself and Orbax's marker.
  """

  step: int
  files: Files


def write(folder: epath.Path, step: int) -> None:
  """Writes the manifest of all files after the last writer; on a disk all files are durable afterwards.

  Raises:
    OSError: a file cannot be read, or the manifest cannot be written.
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
  """Flushes the names in a folder to disk; does nothing in a bucket, or on Windows, which opens no folders."""
  if gcs.is_remote(folder) or not hasattr(os, "O_DIRECTORY"):
    return
  handle = os.open(folder, os.O_RDONLY)
  try:
    os.fsync(handle)
  finally:
    os.close(handle)


def read(folder: epath.Path) -> Manifest | None:
  """Returns the manifest of a step's folder; None without one.

  Raises:
    OSError: it cannot be read.
    ValueError: it has changed since it was written.
    UserError: its bucket cannot be listed.
  """
  # epath's client caches listings for seconds.
  return _parse(gcs.read(folder / NAME)) if NAME in gcs.names(folder, where="checkpoint") else None


def size(folder: epath.Path) -> int:
  """Returns the bytes of all files of a step's folder.

  Raises:
    UserError: its bucket cannot be listed.
  """
  if gcs.is_remote(folder):
    return sum(size for size, _ in _listed(folder).values())
  return sum(_sizes(folder).values())


def differences(
  folder: epath.Path, manifest: Manifest, *, largest: int | None = None, share: tuple[int, int] = (0, 1)
) -> list[str]:
  """Returns a line for each file of a step's folder that is missing or has changed.

  Args:
    folder: of the step; files added later, for example notes, are ignored.
    manifest: of the folder.
    largest: of files with more bytes only the size is compared; None: all are read.
    share: (index, number) of this host among the hosts that share the reading.

  Raises:
    UserError: its bucket cannot be listed, or an existing file cannot be read after several attempts.
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
  # Distribute the largest files first, so that all hosts read about as much.
  for turn, (name, (size, _)) in enumerate(sorted(manifest.files.items(), key=lambda file: (-file[1][0], file[0]))):
    if turn % number != index:
      continue
    if name not in sizes:
      faults.append(f"{name} is missing")
    elif sizes[name] != size:
      faults.append(f"{name} has {sizes[name]:,} bytes, expected {size:,}")
    elif largest is None or size <= largest:
      to_check.append(name)
  try:
    there = there or _checksums(folder, {name: sizes[name] for name in to_check})
  except FileNotFoundError as error:
    return [*faults, f"{_relative(error, folder)} is missing"]
  return faults + [f"{name} does not match its checksum" for name in to_check if there[name] != manifest.files[name]]


def patiently(read: Callable[[], T], path: os.PathLike) -> T:
  """Returns the result of `read`; retries after a pause if the system cannot read.

  Raises:
    FileNotFoundError: the file does not exist.
    UserError: it still cannot be read: whether it is damaged is unknown, and it is left unchanged.
  """
  for wait in (*_WAITS, None):
    try:
      return read()
    except FileNotFoundError:
      raise
    except OSError as error:
      reason, cause = error.strerror or error, error
    if wait is not None:
      logging.warning("%s cannot be read (%s); retrying", path, reason)
      time.sleep(wait)
  raise UserError(
    f"{path} cannot be read after several attempts ({reason}). Run the same command again when the disk or bucket "
    "works. To continue from an earlier step instead, move the folder of this step away."
  ) from cause


def _relative(error: OSError, folder: epath.Path) -> str:
  name = str(getattr(error, "filename", None) or folder)
  return name.removeprefix(f"{folder}/")


def _render(manifest: Manifest) -> bytes:
  """Returns a line for each file, after a checksum of all lines."""
  files = sorted(manifest.files.items())
  lines = [f"    {json.dumps(name)}: [{size}, {checksum}]" for name, (size, checksum) in files]
  body = f'  "step": {manifest.step},\n  "files": {{\n' + ",\n".join(lines) + "\n  }\n}\n"
  return f'{{\n  "crc32c": {google_crc32c.value(body.encode())},\n{body}'.encode()


def _parse(content: bytes) -> Manifest:
  """Parses the output of `_render`."""
  try:
    values = json.loads(content)
    files = {name: (size, checksum) for name, (size, checksum) in values["files"].items()}
    manifest = Manifest(values["step"], files)
    is_intact = _render(manifest) == content
  except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
    raise ValueError("not a manifest") from error
  if not is_intact:
    raise ValueError("does not match its checksum")
  return manifest


def _own(names: Iterable[str]) -> list[str]:
  return [name for name in names if name not in (NAME, f".{NAME}", COMMITTED)]


def _listed(folder: epath.Path) -> Files:
  checksums = gcs.checksums_below(folder, where="checkpoint")
  return {name: checksums[name] for name in _own(checksums)}


def _sizes(folder: epath.Path) -> dict[str, int]:
  """Returns the size of every file in a local folder and below it, except the manifest and later files.

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
      with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
        sizes[path.relative_to(folder).as_posix()] = path.stat().st_size
  return {name: sizes[name] for name in _own(sizes)}


def _checksums(folder: epath.Path, sizes: Mapping[str, int], *, durable: bool = False) -> Files:
  """Returns size and checksum of these files of a local folder."""
  with concurrent.futures.ThreadPoolExecutor(_READERS) as readers:
    read = lambda path: _checksum(path, durable) if durable else patiently(lambda: _checksum(path, durable), path)
    checksums = readers.map(lambda name: read(pathlib.Path(folder, name)), sizes)
    return {name: (size, checksum) for (name, size), checksum in zip(sizes.items(), checksums, strict=True)}


def _checksum(path: pathlib.Path, durable: bool) -> int:
  checksum = 0
  with open(path, "r+b" if durable else "rb", buffering=0) as file:  # Windows flushes only files open for writing
    if durable:
      os.fsync(file.fileno())
    while chunk := file.read(_READ_AT_ONCE):
      checksum = google_crc32c.extend(checksum, chunk)
  return checksum


# ---- Writing with Orbax ----------------------------------------------------------------------------------------------


def _sealing(base: type[ocp.path.atomicity.TemporaryPathBase]) -> type[ocp.path.atomicity.TemporaryPathBase]:
  """Returns an Orbax path class that writes the manifest before a complete checkpoint gets its final name.

  Orbax calls it on the first host after all hosts have written their files; a save that is killed earlier has no final
  name.
  """

  class Sealing(base):
    async def finalize(self) -> None:
      if self.get_final().name.isdigit():  # items of the step, for example "state", have other names
        # Orbax would write to this file afterwards.
        store, self._checkpoint_metadata_store = self._checkpoint_metadata_store, None
        if store is not None:
          store.update(file_path=self.get() / ORBAX, commit_timestamp_nsecs=time.time_ns())
          store.wait_until_finished()
        write(self.get(), int(self.get_final().name))
      await super().finalize()
      sync(self.get_final().parent)

  return Sealing


class _Lenient(ocp.path.atomicity.CommitFileTemporaryPath):
  """A path that reports a failed folder creation only when it is finalized.

  Folders in a bucket are created in the background, and writers learn of a failure after five minutes. A bucket takes
  objects without folders: files written meanwhile never become a checkpoint, because it never gets its name.
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
  """Returns the path class for Orbax's options, for checkpoints in `folder`."""
  return _InBucket if gcs.is_remote(folder) else _OnDisk
