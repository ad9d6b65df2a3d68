"""Data sets that TensorFlow Datasets has prepared, as a seqio source that says what to do where they are not there."""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import os
from typing import Any

import seqio
import tensorflow as tf
import tensorflow_datasets as tfds

from t2t import UserError


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
    """One pass over a shard of a split; arguments are seqio's."""
    try:
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
      builder.download_and_prepare()
      return question()
    except Exception as error:  # whatever TFDS, or what it downloads with, raises
      raise self._unavailable(error) from error

  def _unavailable(self, error: Exception) -> UserError:
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    folder = os.environ.get("TFDS_DATA_DIR")
    return UserError(
      f"TensorFlow Datasets cannot provide {self.tfds_dataset.name} ({reason}); set {self._instead}, or the environment"
      " variable TFDS_DATA_DIR to a folder or bucket where TFDS has it; it is"
      f" {folder or 'not set, which means ~/tensorflow_datasets'}"
    )
