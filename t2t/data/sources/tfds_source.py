"""TensorFlow Datasets as a seqio source, with errors that give advice if data is missing."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import logging
import os
from typing import Any

import requests
import seqio
import tensorflow as tf
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download import downloader

from t2t import UserError

# Retries of a failed download, after 0, 0.4, 0.8 ... seconds, to bridge an outage of some ten seconds. With TFDS's 10
# retries, a machine without a network would report the error after 204 s.
_RETRIES = 6


class TfdsSource(seqio.TfdsDataSource):
  """seqio source of a TFDS data set; unavailable data is a `UserError`."""

  def __init__(
    self,
    tfds_name: str,
    splits: Sequence[str] | Mapping[str, str],
    *,
    instead: str = "config.data.files to text of your own",
  ):
    """Creates a source without reading anything.

    Args:
      tfds_name: data set, configuration and version.
      splits: of TFDS; a mapping if TFDS uses other names.
      instead: alternative setting if TFDS does not have the data, for messages.
    """
    super().__init__(tfds_name=tfds_name, splits=splits)
    self._instead = instead

  def list_shards(self, split: str) -> Sequence[str]:
    """Returns the files of a split.

    Raises:
      UserError: TFDS does not have the data and cannot prepare it. The same holds for all methods.
    """
    return self._ask(lambda: super(TfdsSource, self).list_shards(split))

  def num_input_examples(self, split: str) -> int | None:
    return self._ask(lambda: super(TfdsSource, self).num_input_examples(split))

  def get_dataset(self, *args: Any, **options: Any) -> tf.data.Dataset:
    try:
      with _fewer_retries():
        return super().get_dataset(*args, **options)
    except Exception as error:  # TFDS and its download libraries may raise anything
      raise self._unavailable(error) from error

  def _ask(self, question: Callable[[], Any]) -> Any:
    """Returns a property of the TFDS data, which is prepared if necessary."""
    with contextlib.suppress(Exception):
      return question()
    try:
      builder = self.tfds_dataset.builder
      # TFDS would download everything before it raises this.
      if isinstance(builder, tfds.core.BeamBasedBuilder):
        raise FileNotFoundError(f"{builder.data_dir} has no data, and preparing the data requires Apache Beam")
      with _fewer_retries():
        builder.download_and_prepare()
      return question()
    except Exception as error:  # TFDS and its download libraries may raise anything
      raise self._unavailable(error) from error

  def _unavailable(self, error: Exception) -> UserError:
    reason = _said_of_network(error) or str(error).strip().partition("\n")[0] or type(error).__name__
    folder = os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets, the default"
    return UserError(
      f"TensorFlow Datasets cannot provide {self.tfds_dataset.name} ({reason}). Set {self._instead}, or set the"
      f" environment variable TFDS_DATA_DIR (now {folder}) to a folder or bucket with the prepared data."
    )


@contextlib.contextmanager
def _fewer_retries() -> Iterator[None]:
  """Limits TFDS downloads in the block to `_RETRIES` retries, without a warning for each."""
  warned = logging.getLogger("urllib3.connectionpool")
  before = downloader.MAX_RETRIES, warned.level
  downloader.MAX_RETRIES = _RETRIES
  warned.setLevel(logging.ERROR)
  try:
    yield
  finally:
    downloader.MAX_RETRIES = before[0]
    warned.setLevel(before[1])


def _said_of_network(error: Exception) -> str:
  """Returns the URL and the reason of a network error; "" for other errors."""
  if not isinstance(error, requests.RequestException) or error.request is None:
    return ""
  # The innermost of nested errors has the reason; the outer ones are urllib3's.
  cause: Any = error
  while inner := next((x for x in (*cause.args, getattr(cause, "reason", None)) if isinstance(x, Exception)), None):
    cause = inner
  reason = str(cause).rpartition(": ")[2] or type(cause).__name__
  return f"{error.request.url} failed {_RETRIES + 1} times: {reason}"
