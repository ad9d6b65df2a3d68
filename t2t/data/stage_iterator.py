"""Training batches of a run with stages: one iterator per stage, and the position in the current one."""

from collections.abc import Callable, Mapping, Sequence

import jax

from t2t.configuration import stages
from t2t.data import batch_iterator


class StagedBatches:
  """Batches of successive stages with their own data; otherwise like `batch_iterator.BatchIterator`.

  Attributes:
    stage: number of the current stage.
    ended: reason why nothing follows; "": text is repeated.

  The saved position belongs to the stage of the last step. A stage that reads the same data as the stage before
  continues behind it (`BatchIterator.go_on_from`).

  Args:
    run: the stages.
    make: (number of a stage, number of streams) -> its batches, from the beginning.
    num_streams: number of streams of all stages; None: chosen by the first.
    first: number of the first stage.
    left_out: (begin, end) of a stage -> number of batches to skip at its beginning.
  """

  ended = ""

  def __init__(
    self,
    run: Sequence[stages.Stage],
    make: Callable[[int, int | None], batch_iterator.BatchIterator],
    *,
    num_streams: int | None = None,
    first: int = 0,
    left_out: Callable[[int, int], int] = lambda begin, end: 0,
  ):
    self._run, self._make, self._left_out = tuple(run), make, left_out
    self.stage, self._step = first, self._run[first].begin
    self._current = make(first, num_streams)

  def _enter(self, number: int) -> None:
    self.stage, self._current = number, self._make(number, self.num_streams)

  @property
  def num_streams(self) -> int:
    return self._current.num_streams

  @property
  def stream_names(self) -> tuple[str, ...]:
    return self._current.stream_names

  @property
  def wait_seconds(self) -> float:
    return self._current.wait_seconds

  @property
  def epochs(self) -> dict[str, int]:
    return self._current.epochs

  def __iter__(self) -> "StagedBatches":
    return self

  def __next__(self) -> dict[str, jax.Array]:
    """Returns the batch of the next step, perhaps the first of the next stage.

    Raises:
      UserError: see `BatchIterator.next_rows`.
    """
    if self.begins_stage:
      self.begin_stage()
    self._step += 1
    return next(self._current)

  @property
  def begins_stage(self) -> bool:
    """True if the next step is the first of another stage."""
    return self._step >= self._run[self.stage].end and self.stage + 1 < len(self._run)

  def begin_stage(self) -> None:
    """Switches to the next stage."""
    before = self._current
    self._enter(self.stage + 1)
    self._current.go_on_from(before)
    before.close()
    self._current.skip(self._left_out(self._run[self.stage].begin, self._run[self.stage].end))

  def leave_out(self, begin: int, end: int) -> None:
    """Skips the batches of steps begin + 1 to end in the current stage.

    Batches of later stages are skipped when the stages begin.
    """
    self._current.skip(min(end, self._run[self.stage].end) - begin)

  def state(self, step: int | None = None) -> dict[str, bytes]:
    return self._current.state(step)

  def restore(self, state: Mapping[str, bytes], *, step: int) -> None:
    """Continues where `state` was taken.

    Args:
      state: state of each of `stream_names`.
      step: the last step.

    Raises:
      UserError: see `BatchIterator.restore`.
    """
    number = stages.at(self._run, step)
    if number != self.stage:
      self._current.close()
      self._enter(number)
    self._current.restore(state, step=step)
    self._step = step

  def close(self) -> None:
    self._current.close()
