"""The training batches of a run that has stages: one iterator after another, and the position in whichever is read."""

from collections.abc import Callable, Mapping, Sequence

import jax

from t2t.configuration import stages
from t2t.data import batch_iterator


class StagedBatches:
  """Batches of one stage after another, each of its own data; otherwise as `batch_iterator.BatchIterator`.

  Attributes:
    stage: number of the one that is read.
    ended: why nothing follows; "": text is gone through again and again.

  The position that is saved is that of the stage which has made the last step.  A stage whose data were read by the one
  before it, too, goes on behind what that has read (`BatchIterator.go_on_from`).

  Args:
    run: the stages.
    make: (number of a stage, of streams) -> its batches, from the beginning.
    num_streams: what all stages have; None: what the first that is made chooses.
    first: number of the stage that is read first.
    left_out: (begin, end) of a stage -> batches at its beginning that no step is to be made of.
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
    """In how many parts the data is split."""
    return self._current.num_streams

  @property
  def stream_names(self) -> tuple[str, ...]:
    """What this host needs of a checkpoint."""
    return self._current.stream_names

  @property
  def wait_seconds(self) -> float:
    """How long the last batch was waited for."""
    return self._current.wait_seconds

  @property
  def epochs(self) -> dict[str, int]:
    """Of the stage's mixture: task -> how often it has been gone through."""
    return self._current.epochs

  def __iter__(self) -> "StagedBatches":
    """Itself."""
    return self

  def __next__(self) -> dict[str, jax.Array]:
    """The batch of the next step, which may be the first of the next stage.

    Raises:
      UserError: see `BatchIterator.next_rows`.
    """
    if self.begins_stage:
      self.begin_stage()
    self._step += 1
    return next(self._current)

  @property
  def begins_stage(self) -> bool:
    """Whether the next step is the first of another stage."""
    return self._step >= self._run[self.stage].end and self.stage + 1 < len(self._run)

  def begin_stage(self) -> None:
    """Goes over to the next stage."""
    before = self._current
    self._enter(self.stage + 1)
    self._current.go_on_from(before)
    before.close()
    for _ in range(self._left_out(self._run[self.stage].begin, self._run[self.stage].end)):
      self._current.next_rows()

  def leave_out(self, begin: int, end: int) -> None:
    """Takes away the batches of steps begin + 1 to end, as far as they are of the stage that is read.

    Those of later stages are left out as these begin.
    """
    for _ in range(min(end, self._run[self.stage].end) - begin):
      self._current.next_rows()

  def state(self, step: int | None = None) -> dict[str, bytes]:
    """See `BatchIterator.state`."""
    return self._current.state(step)

  def restore(self, state: Mapping[str, bytes], *, step: int) -> None:
    """Goes on where `state` was taken.

    Args:
      state: of each of `stream_names`.
      step: that was the last.

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
    """Stops reading ahead."""
    self._current.close()
