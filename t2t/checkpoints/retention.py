"""Which steps are kept, and how the others are deleted: one that cannot be is told, and no reason to end."""

import bisect
from collections.abc import Mapping, Sequence
import contextlib
import math
import os
from typing import Any

from etils import epath
import jax
import orbax.checkpoint as ocp

from t2t.checkpoints import manifest, retry
from t2t.runtime import hosts
from t2t.storage import gcs

_policies = ocp.checkpoint_managers


def best_steps(metrics: Mapping[int, Mapping[str, float] | None]) -> dict[str, int]:
  """The best step by each metric, the earliest of several that are as good up to rounding; NaN is never the best.

  In:  {10: {"loss": nan, "cb/f1": 50.0}, 20: {"loss": 1.5, "cb/f1": 50.0, "rte/f1": nan}, 30: None}
  Out: {"loss": 20, "cb/f1": 10}

  Args:
    metrics: step -> name -> value, None where nothing was measured. Of "loss" less is better, of all others more.
  """
  best: dict[str, int] = {}
  by_step: Mapping[int, Any] = metrics
  for step, values in sorted(by_step.items()):
    for name, value in (values or {}).items():
      if math.isnan(value):
        continue
      sign = -1 if name == "loss" else 1
      if name not in best or _is_above(sign * value, sign * by_step[best[name]][name]):
        best[name] = step
  return best


def _is_above(value: float, reference: float) -> bool:
  """Returns True if one value exceeds the other by more than the rounding of a mean in float64."""
  return value > reference and not math.isclose(value, reference, rel_tol=1e-12)


def best_of_stages(metrics: Mapping[int, Mapping[str, float] | None], ends: Sequence[int]) -> list[dict[str, int]]:
  """`best_steps` of each stage in which something was saved, in order: the losses of two are not of the same text.

  In:  {10: {"loss": 1.0}, 20: {"loss": 3.0}, 30: {"loss": 2.0}}, ends (10,)
  Out: [{"loss": 10}, {"loss": 30}]

  Args:
    metrics: see `best_steps`.
    ends: steps made when each stage but the last ends; of a run without stages none.
  """
  parts: dict[int, dict[int, Mapping[str, float] | None]] = {}
  for step, values in sorted(metrics.items()):
    parts.setdefault(bisect.bisect_left(ends, step), {})[step] = values
  return [best_steps(part) for part in parts.values()]


class _BestOfEach(_policies.PreservationPolicy):
  """Keeps the best checkpoint by each metric, of each stage."""

  def __init__(self, ends: Sequence[int]):
    self._ends = tuple(ends)

  def should_preserve(self, checkpoints, *, context):
    del context
    best_of_metrics = best_of_stages({checkpoint.step: checkpoint.metrics for checkpoint in checkpoints}, self._ends)
    best = {step for of_stage in best_of_metrics for step in of_stage.values()}
    return [checkpoint.step in best for checkpoint in checkpoints]


def kept(last: int, ends: Sequence[int] = ()) -> _policies.PreservationPolicy:
  """The last steps, two at least, and the best by each metric; of each stage, see `best_of_stages`."""
  return _policies.AnyPreservationPolicy([_policies.LatestN(max(2, last)), _BestOfEach(ends)])


def delete(path: epath.Path) -> None:
  """Deletes a step; killed on the way, what is left of it is no step any more, and the next run clears it away.

  Raises:
    OSError: it cannot be deleted, in whole or in part, or is a link.
  """
  if gcs.is_remote(path):
    gcs.remove(path, first=manifest.MARKERS)
    return
  if os.path.islink(path):
    raise OSError("it is a link")  # whose files lie where somebody has put them
  # As Orbax calls what is not whole: who reads the step meanwhile finds all of it, or nothing.
  gone = path.parent / f"{path.name}.orbax-checkpoint-tmp"
  path.rename(gone)
  try:
    gone.rmtree()
  except OSError:
    with contextlib.suppress(OSError):
      gone.rename(path)
    raise


class Deleter:
  """In place of Orbax's, which takes an old step that it cannot delete for a new one that was not saved.

  Args:
    directory: of the checkpoints.
  """

  def __init__(self, directory: epath.Path):
    self._directory = directory

  def delete(self, step: int) -> None:
    """Deletes a step, on the first host, if that can be done."""
    if jax.process_index() != 0:
      return
    path = self._directory / str(step)
    try:
      delete(path)
    except Exception as error:  # of the system, or of a bucket's client
      hosts.log_once(f"{path}: is no longer kept, but cannot be deleted ({retry.reason(error)}); training goes on")

  def delete_steps(self, steps: Sequence[int]) -> None:
    """Deletes some."""
    for step in steps:
      self.delete(step)

  def close(self) -> None:
    """Nothing is deleted in the background."""
