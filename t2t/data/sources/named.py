"""Sources of a user's own tasks, whose errors name the task."""

from collections.abc import Callable, Sequence
from typing import Any

import seqio
import tensorflow as tf

from t2t import UserError
from t2t.data.sources import files


class FolderSource(seqio.DataSource):
  """A source that reads a folder of released files where config.data.benchmark_dirs names one; see `released`.

  Attributes:
    folder_key: key of config.data.benchmark_dirs.
    folder: which holds the files; "": the source reads something else.
  """

  folder_key: str
  folder: str

  def at(self, folder: str | None, *, sliced: Sequence[str] = ()) -> "FolderSource":
    """Returns the source as it reads a folder, with further splits that are slices."""
    raise NotImplementedError

  def files_of(self, split: str) -> Sequence[str]:
    """Returns the files of a split in the folder."""
    raise NotImplementedError


class NamedSource(seqio.DataSource):
  """A source whose errors, whatever it raises, are sentences with the name of its task.

  Args:
    source: that is read.
    task: name of its task.
  """

  def __init__(self, source: seqio.DataSource, task: str):
    super().__init__(splits=(), caching_permitted=source.caching_permitted)
    self.source, self.task = source, task

  def __getattr__(self, name: str) -> Any:
    """Other attributes of the source."""
    if name in ("source", "task"):
      raise AttributeError(name)
    return getattr(self.source, name)

  def _ask(self, question: Callable[[], Any], *passes: type[Exception]) -> Any:
    try:
      return question()
    except (UserError, *passes):
      raise
    except Exception as error:  # whatever the source raises
      raise failure(error, self.task, what=f"its source ({type(self.source).__name__}) fails") from error

  @property
  def splits(self) -> Sequence[str]:
    """The splits of the source."""
    return self._ask(lambda: self.source.splits)

  @property
  def supports_arbitrary_sharding(self) -> bool:
    """True if any number of shards can read the source."""
    return self.source.supports_arbitrary_sharding

  def list_shards(self, split: str) -> Sequence[str]:
    """The files of a split."""
    return self._ask(lambda: self.source.list_shards(split))

  def num_input_examples(self, split: str) -> int | None:
    """Records of a split; KeyError where the source does not know it."""
    return self._ask(lambda: self.source.num_input_examples(split), KeyError)

  def get_dataset(self, *arguments: Any, **options: Any) -> tf.data.Dataset:
    """Returns one pass over a shard of a split; arguments are seqio's."""
    return self._ask(lambda: self.source.get_dataset(*arguments, **options))


def named(source: seqio.DataSource, task: str) -> seqio.DataSource:
  """The source as `NamedSource`; one of t2t, whose errors are sentences already, as it is."""
  ours = isinstance(source, NamedSource) or type(source).__module__.startswith("t2t.")
  return source if ours else NamedSource(source, task)


def unwrapped(source: seqio.DataSource) -> seqio.DataSource:
  """The inverse of `named`."""
  return source.source if isinstance(source, NamedSource) else source


def in_pipeline(error: tf.errors.OpError, name: str) -> UserError:
  """The error of a task's source or preprocessors as a sentence; see `failure`.

  Args:
    error: what tf.data raised.
    name: of the task or mixture that is read.
  """
  cause = files.user_error(error)
  return cause if isinstance(cause, UserError) else failure(error, name, what="its source or a preprocessor fails")


def failure(error: Exception, task: str, *, what: str) -> UserError:
  """The error of a user's own code as a sentence.

  Args:
    error: what was raised.
    task: name of the task.
    what: that it is an error of.
  """
  cause = (files.user_error(error) if isinstance(error, tf.errors.OpError) else None) or error
  if isinstance(cause, UserError) and "UserError: " in str(error):
    return cause
  message = files.without_graph(str(cause))
  lines = [line.strip() for line in message.splitlines() if line.strip()] or ["no message"]
  kind = "" if isinstance(cause, UserError) else f"{type(cause).__name__}: "
  return UserError(f"{task}: {what}: {kind}{lines[0].rstrip('.')}; --debug prints the whole traceback")
