"""Selection of the steps to keep, and deletion of the others; a failed deletion is logged and does not end the run."""

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
  """Returns the best step by each metric, the earliest of equal ones up to rounding; NaN is never the best.

  In:  {10: {"loss": nan, "cb/f1": 50.0}, 20: {"loss": 1.5, "cb/f1": 50.0, "rte/f1": nan}, 30: None}
  Out: {"loss": 20, "cb/f1": 10}

  Args:
    metrics: step -> name -> value, None without an evaluation. "loss" is minimized, other metrics are maximized.
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
  """Returns whether a value exceeds another by more than the rounding of a float64 mean."""
  return value > reference and not math.isclose(value, reference, rel_tol=1e-12)


def best_of_stages(metrics: Mapping[int, Mapping[str, float] | None], ends: Sequence[int]) -> list[dict[str, int]]:
  """Returns `best_steps` of each stage with saved steps, in order, because losses of two stages are not comparable.

  In:  {10: {"loss": 1.0}, 20: {"loss": 3.0}, 30: {"loss": 2.0}}, ends (10,)
  Out: [{"loss": 10}, {"loss": 30}]

  Args:
    metrics: see `best_steps`.
    ends: last step of each stage except the last; empty without stages.
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
  """Keeps the last steps, at least two, and the best by each metric and stage, see `best_of_stages`."""
  return _policies.AnyPreservationPolicy([_policies.LatestN(max(2, last)), _BestOfEach(ends)])


def delete(path: epath.Path) -> None:
  """Deletes a step; after an interruption the remains are no step, and the next run removes them.

  Raises:
    OSError: it cannot be deleted, in whole or in part, or is a link.
  """
  if gcs.is_remote(path):
    from t2t.storage import gcs_folders

    gcs_folders.remove(path, first=manifest.MARKERS)
    return
  if os.path.islink(path):
    raise OSError("the step is a link")  # the files belong to another folder
  # Orbax's name for an incomplete step: a concurrent reader finds all of it, or nothing.
  gone = path.parent / f"{path.name}.orbax-checkpoint-tmp"
  path.rename(gone)
  try:
    gone.rmtree()
  except OSError:
    with contextlib.suppress(OSError):
      gone.rename(path)
    raise


class Deleter:
  """Replaces Orbax's deleter, which takes an undeletable old step for a new one that was not saved.

  Args:
    directory: of the checkpoints.
  """

  def __init__(self, directory: epath.Path):
    self._directory = directory

  def delete(self, step: int) -> None:
    """Deletes a step on the first host; logs a failure."""
    if jax.process_index() != 0:
      return
    path = self._directory / str(step)
    try:
      delete(path)
    except Exception as error:  # from the system, or from a bucket's client
      hosts.log_once(f"{path} is no longer kept, but cannot be deleted ({retry.reason(error)}); training continues")

  def delete_steps(self, steps: Sequence[int]) -> None:
    for step in steps:
      self.delete(step)

  def close(self) -> None:
    """Does nothing: deletions are synchronous."""
