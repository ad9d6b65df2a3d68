"""Moves and removes folders of Google Cloud Storage, which has only objects."""

from collections.abc import Sequence
import concurrent.futures
from typing import Any

from t2t.storage import gcs

_AT_ONCE = 8  # objects


def move(folder: Any, target: Any, *, first: Sequence[str]) -> None:
  """Moves everything below a folder to another folder of the same bucket, by copies within the bucket.

  Everything is copied before anything is removed: after a kill nothing is lost, and the next call finishes.

  Args:
    folder, target: gs://BUCKET/NAME.
    first: objects to remove first, in order; their absence marks the folder as incomplete. All others follow in any
      order.

  Raises:
    OSError: a request to the bucket failed.
  """
  name, key = gcs.split(folder)
  prefix, (_, new) = f"{key.rstrip('/')}/", gcs.split(target)
  bucket_ = gcs.client().bucket(name)
  with gcs.as_os_errors(), concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as movers:
    blobs = list(gcs.client().list_blobs(name, prefix=prefix, **gcs.patience()))

    def copy(blob) -> None:
      copied, token = bucket_.blob(f"{new.rstrip('/')}/{blob.name[len(prefix) :]}"), None
      while True:  # large objects are copied in parts
        token, _, _ = copied.rewrite(blob, token=token, **gcs.patience())
        if token is None:
          return

    list(movers.map(copy, blobs))
  remove(folder, first=first)


def remove(folder: Any, *, first: Sequence[str]) -> None:
  """Removes everything below a folder.

  Args:
    folder: gs://BUCKET/NAME.
    first: see `move`.

  Raises:
    OSError: a request to the bucket failed.
  """
  name, key = gcs.split(folder)
  prefix = f"{key.rstrip('/')}/"
  with gcs.as_os_errors(), concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as removers:
    blobs = list(gcs.client().list_blobs(name, prefix=prefix, **gcs.patience()))
    markers = [[blob for blob in blobs if blob.name == prefix + marker] for marker in first]
    for part in (*markers, [blob for blob in blobs if blob.name.removeprefix(prefix) not in first]):
      list(removers.map(lambda blob: blob.delete(**gcs.patience()), part))
