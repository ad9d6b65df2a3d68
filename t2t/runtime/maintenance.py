"""Maintenance notices of Google Cloud, from the machine's metadata server."""

from collections.abc import Callable, Iterator
import contextlib
import os
import pathlib
import sys
import threading

_ADDRESS = "metadata.google.internal"
_PATH = "/computeMetadata/v1/instance/maintenance-event"
_PRODUCT = pathlib.Path("/sys/class/dmi/id/product_name")  # contains "Google Compute Engine"
_NONE = "NONE"
_EVERY_SECONDS, _ANSWER_SECONDS = 10.0, 5.0


def address() -> str | None:
  """Returns HOST or HOST:PORT of the metadata server (GCE_METADATA_HOST, as Google's libraries); None elsewhere."""
  host = os.environ.get("GCE_METADATA_HOST")
  if host:
    return host
  try:
    return _ADDRESS if "Google" in _PRODUCT.read_text() else None
  except OSError:
    return None


def event(server: str) -> str:
  """Returns the announced event, such as TERMINATE_ON_HOST_MAINTENANCE; NONE without one, or if the server fails."""
  import http.client  # most machines do not need it

  connection = http.client.HTTPConnection(server, timeout=_ANSWER_SECONDS)
  try:
    connection.request("GET", _PATH, headers={"Metadata-Flavor": "Google"})
    answer = connection.getresponse()
    text = answer.read(1000).decode(errors="replace").strip()
    return text if answer.status == 200 and text.isascii() and text.replace("_", "").isalpha() else _NONE
  except (OSError, http.client.HTTPException):
    return _NONE
  finally:
    connection.close()


@contextlib.contextmanager
def watched(tell: Callable[[str], None], *, every: float = _EVERY_SECONDS) -> Iterator[None]:
  """Polls for maintenance notices in a thread while the block runs, on Google Cloud only.

  Args:
    tell: called in the thread with a sentence for each announcement.
    every: seconds between polls.
  """
  server, ended = address(), threading.Event()

  def look():
    before = _NONE
    while not ended.is_set():
      announced = event(server)
      if announced not in (before, _NONE):
        text = f"Google Cloud announces {announced} of this machine: saving after this step"
        print(f"\n{text}", file=sys.stderr, flush=True)
        tell(text)
      before = announced
      ended.wait(every)

  if server is not None:
    threading.Thread(target=look, name="maintenance", daemon=True).start()
  try:
    yield
  finally:
    ended.set()
