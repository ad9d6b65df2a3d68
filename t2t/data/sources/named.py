"""Sources of user tasks, with errors that name the task."""

from collections.abc import Callable, Sequence
from typing import Any

import seqio
import tensorflow as tf

from t2t import UserError
from t2t.data.sources import files
from t2t.storage import outage


class FolderSource(seqio.DataSource):
  """Source that reads released files if config.data.benchmark_dirs names their folder; see benchmark_files.py.

  Attributes:
    folder_key: key of config.data.benchmark_dirs.
    folder: folder of the files; "": the source reads something else.
  """

  folder_key: str
  folder: str

  def at(self, folder: str | None, *, sliced: Sequence[str] = ()) -> "FolderSource":
    """Returns a copy of the source that reads a folder, with slices as further splits."""
    raise NotImplementedError

  def files_of(self, split: str) -> Sequence[str]:
    """Returns the files of a split in the folder."""
    raise NotImplementedError


class NamedSource(seqio.DataSource):
  """Source wrapper that converts all errors to sentences with the name of the task.

  Args:
    source: the wrapped source.
    task: name of its task.
  """

  def __init__(self, source: seqio.DataSource, task: str):
    super().__init__(splits=(), caching_permitted=source.caching_permitted)
    self.source, self.task = source, task

  def __getattr__(self, name: str) -> Any:
    if name in ("source", "task"):
      raise AttributeError(name)
    return getattr(self.source, name)

  def _ask(self, question: Callable[[], Any], *passes: type[Exception]) -> Any:
    try:
      return question()
    except (UserError, *passes):
      raise
    except Exception as error:  # a user-defined source may raise anything
      raise failure(error, self.task, what=f"the source ({type(self.source).__name__}) fails") from error

  @property
  def splits(self) -> Sequence[str]:
    return self._ask(lambda: self.source.splits)

  @property
  def supports_arbitrary_sharding(self) -> bool:
    return self.source.supports_arbitrary_sharding

  def list_shards(self, split: str) -> Sequence[str]:
    return self._ask(lambda: self.source.list_shards(split))

  def num_input_examples(self, split: str) -> int | None:
    """Returns the number of records of a split; raises KeyError if the source does not know it."""
    return self._ask(lambda: self.source.num_input_examples(split), KeyError)

  def get_dataset(self, *arguments: Any, **options: Any) -> tf.data.Dataset:
    return self._ask(lambda: self.source.get_dataset(*arguments, **options))


def named(source: seqio.DataSource, task: str) -> seqio.DataSource:
  """Wraps a source in `NamedSource`; sources of t2t stay unchanged, because their errors are already sentences."""
  ours = isinstance(source, NamedSource) or type(source).__module__.startswith("t2t.")
  return source if ours else NamedSource(source, task)


def unwrapped(source: seqio.DataSource) -> seqio.DataSource:
  """Inverts `named`."""
  return source.source if isinstance(source, NamedSource) else source


def in_pipeline(error: tf.errors.OpError, name: str) -> UserError:
  """Converts an error of a task's source or preprocessors to a sentence; see `failure`.

  Args:
    error: from tf.data.
    name: of the task or mixture.
  """
  cause = files.user_error(error)
  return cause if isinstance(cause, UserError) else failure(error, name, what="the source or a preprocessor fails")


def failure(error: Exception, task: str, *, what: str) -> UserError:
  """Converts an error of user code to a sentence; `outage.Away` if TensorFlow's client of a bucket reports an outage.

  Args:
    error: the original exception.
    task: name of the task.
    what: description of the failing part.
  """
  cause = (files.user_error(error) if isinstance(error, tf.errors.OpError) else None) or error
  if isinstance(cause, UserError) and files.is_sentence(error):
    return cause
  message = files.without_graph(str(cause))
  lines = [line.strip() for line in message.splitlines() if line.strip()] or ["no message"]
  kind = "" if isinstance(cause, UserError) else f"{type(cause).__name__}: "
  sentence = f"{task}: {what}: {kind}{lines[0].rstrip('.')}; --debug prints the whole traceback"
  return outage.refusal(sentence, error)
