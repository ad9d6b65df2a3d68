"""Notices of maintenance: on a machine of Google Cloud its metadata server says when it is to be taken away."""

from collections.abc import Callable, Iterator
import contextlib
import os
import pathlib
import sys
import threading

_ADDRESS = "metadata.google.internal"
_PATH = "/computeMetadata/v1/instance/maintenance-event"
_PRODUCT = pathlib.Path("/sys/class/dmi/id/product_name")  # "Google Compute Engine" there
_NONE = "NONE"
_EVERY_SECONDS, _ANSWER_SECONDS = 10.0, 5.0


def address() -> str | None:
  """HOST or HOST:PORT of the metadata server: GCE_METADATA_HOST, as for Google's own libraries; None: there is none."""
  host = os.environ.get("GCE_METADATA_HOST")
  if host:
    return host
  try:
    return _ADDRESS if "Google" in _PRODUCT.read_text() else None
  except OSError:
    return None


def event(server: str) -> str:
  """What is announced, such as TERMINATE_ON_HOST_MAINTENANCE; NONE: nothing is, or the server does not say."""
  import http.client  # what most machines have no use for

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
  """Looks in a thread, as long as the block runs, whether maintenance is announced; elsewhere it does nothing.

  Args:
    tell: called, in the thread, with a sentence for each announcement.
    every: seconds between two looks.
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
