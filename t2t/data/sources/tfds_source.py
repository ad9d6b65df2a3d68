"""Data sets that TensorFlow Datasets has prepared, as a seqio source that says what to do where they are not there."""

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

# A download that fails is begun again so often, after 0, 0.4, 0.8 ... seconds: a server or a link that is away for some
# ten seconds is waited for.  With the 10 of TFDS who has no network hears of it after 204 s.
_RETRIES = 6


class TfdsSource(seqio.TfdsDataSource):
  """seqio's source of a TFDS data set; one that TFDS cannot provide is an error of the user's, in a sentence."""

  def __init__(
    self,
    tfds_name: str,
    splits: Sequence[str] | Mapping[str, str],
    *,
    instead: str = "config.data.files to text of your own",
  ):
    """A source that has read nothing yet.

    Args:
      tfds_name: data set, configuration and version.
      splits: of TFDS; a mapping where TFDS calls them otherwise.
      instead: what may be set where TFDS has not got the data, for messages.
    """
    super().__init__(tfds_name=tfds_name, splits=splits)
    self._instead = instead

  def list_shards(self, split: str) -> Sequence[str]:
    """The files of a split.

    Raises:
      UserError: TFDS has not got them, and cannot prepare them; as all methods here.
    """
    return self._ask(lambda: super(TfdsSource, self).list_shards(split))

  def num_input_examples(self, split: str) -> int | None:
    """Records of a split."""
    return self._ask(lambda: super(TfdsSource, self).num_input_examples(split))

  def get_dataset(self, *args: Any, **options: Any) -> tf.data.Dataset:
    """Returns one pass over a shard of a split; arguments are seqio's."""
    try:
      with _fewer_retries():
        return super().get_dataset(*args, **options)
    except Exception as error:  # whatever TFDS, or what it downloads with, raises
      raise self._unavailable(error) from error

  def _ask(self, question: Callable[[], Any]) -> Any:
    """What TFDS says of its data, which it may know only when it has them."""
    with contextlib.suppress(Exception):
      return question()
    try:
      builder = self.tfds_dataset.builder
      # It would download all before it says so.
      if isinstance(builder, tfds.core.BeamBasedBuilder):
        raise FileNotFoundError(f"{builder.data_dir} has no data, and to prepare them takes Apache Beam")
      with _fewer_retries():
        builder.download_and_prepare()
      return question()
    except Exception as error:  # whatever TFDS, or what it downloads with, raises
      raise self._unavailable(error) from error

  def _unavailable(self, error: Exception) -> UserError:
    reason = _said_of_network(error) or str(error).strip().partition("\n")[0] or type(error).__name__
    folder = os.environ.get("TFDS_DATA_DIR")
    return UserError(
      f"TensorFlow Datasets cannot provide {self.tfds_dataset.name} ({reason}); set {self._instead}, or the environment"
      " variable TFDS_DATA_DIR to a folder or bucket where TFDS has it; it is"
      f" {folder or 'not set, which means ~/tensorflow_datasets'}"
    )


@contextlib.contextmanager
def _fewer_retries() -> Iterator[None]:
  """What TFDS downloads in the block is asked for `_RETRIES` times more, without a warning for each."""
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
  """What was asked for in vain, and what the network said; "" of any other error."""
  if not isinstance(error, requests.RequestException) or error.request is None:
    return ""
  # Of an error within an error within an error the innermost says it; what holds it is urllib3's.
  cause: Any = error
  while inner := next((x for x in (*cause.args, getattr(cause, "reason", None)) if isinstance(x, Exception)), None):
    cause = inner
  reason = str(cause).rpartition(": ")[2] or type(cause).__name__
  return f"{error.request.url} was asked for {_RETRIES + 1} times: {reason}"
