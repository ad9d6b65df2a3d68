"""The user's cache folder, for results that are slow to compute and can be recomputed."""

import contextlib
import os
import pathlib
import platform
import tempfile
import zlib


def cache_dir() -> pathlib.Path:
  """Returns T2T_CACHE_DIR, else XDG_CACHE_HOME/t2t, else ~/.cache/t2t; it may not exist yet."""
  if os.environ.get("T2T_CACHE_DIR"):
    return pathlib.Path(os.environ["T2T_CACHE_DIR"])
  return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "t2t"


def write_atomically(path: pathlib.Path, content: bytes, *, durable: bool = False) -> None:
  """Writes a file atomically, so that other processes never see a partial file.

  Args:
    path: of the file.
    content: all of it.
    durable: waits for the disk, so that a power loss leaves no partial file either.

  Raises:
    OSError: the folder cannot be created or written.
  """
  path.parent.mkdir(parents=True, exist_ok=True)
  handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
  try:
    with os.fdopen(handle, "wb") as file:
      file.write(content)
      if durable:
        file.flush()
        os.fsync(file.fileno())
    # mkstemp makes files readable only by their owner.
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)
  except BaseException:
    os.unlink(temporary)
    raise


def processor() -> str:
  """Returns a name for this machine's processor type, because programs compiled for one may not run on another.

  Out: "x86_64-1c291ca3"
  """
  lines = []
  with contextlib.suppress(OSError):
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
  features = sorted({line for line in lines if line.startswith(("flags", "Features"))})
  return f"{platform.machine()}-{zlib.crc32(''.join(features).encode()):08x}"
