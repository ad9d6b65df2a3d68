"""What a run has saved, looked at from outside: its steps, what they were measured at, and how two of them differ."""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
import datetime
from typing import Any

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np

from t2t import UserError
from t2t.checkpoints import manager, restore, retention, verify
from t2t.checkpoints import manifest as manifests
from t2t.configuration import stages
from t2t.configuration.loading import flat
from t2t.storage import gcs

_READ_AT_ONCE = 2**28  # bytes of parameters of each of two checkpoints


@dataclasses.dataclass(frozen=True)
class Step:
  """One step.

  step: its number.
  saved: when; None: nothing says so.
  size: bytes.
  metrics: what it was measured at.
  faults: what is wrong with it, as far as its small files and the sizes of all show.
  noted: whether it has checksums.
  """

  step: int
  saved: datetime.datetime | None
  size: int
  metrics: Mapping[str, float]
  faults: list[str]
  noted: bool

  @property
  def whole(self) -> bool:
    """Whether nothing wrong was seen."""
    return not self.faults


def folder_of(path: str) -> epath.Path:
  """The folder of checkpoints that a path leads to: WORKDIR, or WORKDIR/checkpoints.

  Raises:
    UserError: there is none.
  """
  gcs.check(path, where="")
  root = gcs.absolute(path)
  for folder in (root / manager.CHECKPOINTS, root):
    names = gcs.names(folder, where=path)
    if any(name.isdigit() or name.startswith(verify.ASIDE) for name in names):
      return folder
  raise UserError(f"{path}: no steps there; looked for {root}/{manager.CHECKPOINTS}/STEP and {root}/STEP")


def steps(folder: epath.Path) -> list[Step]:
  """All steps that were saved to their end, damaged ones among them.

  Raises:
    UserError: a bucket cannot be listed.
  """
  return [_step(folder / str(step), step) for step in verify.steps(folder)]


def set_aside(folder: epath.Path) -> list[str]:
  """Names of the steps that were found damaged, and set aside."""
  return [name for name in gcs.names(folder, where="checkpoint") if name.startswith(verify.ASIDE)]


def _step(folder: epath.Path, step: int) -> Step:
  try:
    noted = manifests.read(folder) is not None
  except (OSError, ValueError):
    noted = True
  nanoseconds: Any = verify.noted(folder / manifests.ORBAX).get("commit_timestamp_nsecs")
  saved = None
  with contextlib.suppress(TypeError, ValueError, OverflowError, OSError):  # nothing, or no time of any calendar
    saved = datetime.datetime.fromtimestamp(nanoseconds / 1e9)
  return Step(step, saved, manifests.size(folder), _metrics(folder), verify.of_small(folder, step), noted)


def _metrics(folder: epath.Path) -> dict[str, float]:
  """The metrics that a checkpoint was saved with."""
  metrics = verify.noted(folder / "metrics" / "metrics")
  return {name: value for name, value in metrics.items() if isinstance(value, int | float)}


def better(path: str, step_path: epath.Path, run: Mapping[str, object]) -> str:
  """A sentence on a step of a workdir that was measured as better than its last; "": there is none.

  Runs that stop early, or by the metric of a task, end behind their best step.

  Args:
    path: which the user gave.
    step_path: the checkpoint that is read.
    run: its config.
  """
  settings: Any = run.get("eval", {})
  metric = settings.get("early_stopping_metric", "loss")
  if step_path == gcs.absolute(path) or (metric == "loss" and not settings.get("patience")):
    return ""
  folder, last = step_path.parent, int(step_path.name)
  # No more is read of each step: a bucket is slow.
  metrics = {step: _metrics(folder / str(step)) for step in verify.steps(folder)}
  best_step = (_best(folder, metrics) or [{}])[-1].get(metric)
  if best_step is None or best_step == last or metric not in metrics.get(last, {}):
    return ""
  digits = 4 if metric == "loss" else 2
  has_last, has_best = (f"{metrics[step][metric]:.{digits}f}" for step in (last, best_step))
  if has_last == has_best:  # as good, and the earlier one
    return ""
  return (
    f"step {last}, the last, is read: {metric} {has_last}; step {best_step} has\n  {has_best}:"
    f" {folder / str(best_step)}"
  )


# ---- Less of them ----------------------------------------------------------------------------------------------------


def best(folder: epath.Path, saved_steps: Sequence[Step]) -> list[dict[str, int]]:
  """Returns the best of `steps` by each metric, of each stage (`retention.best_of_stages`)."""
  return _best(folder, {saved.step: saved.metrics for saved in saved_steps})


def _best(folder: epath.Path, metrics: Mapping[int, Mapping[str, float]]) -> list[dict[str, int]]:
  saved = verify.noted(folder / str(max(metrics)) / "config" / "metadata") if metrics else {}
  ends: list[int] = []
  with contextlib.suppress(UserError, KeyError, TypeError):  # a damaged one
    ends = [end for _, _, end in stages.saved_bounds(saved)[:-1]]
  return retention.best_of_stages(metrics, ends)


def superfluous(folder: epath.Path, *, keep: int) -> list[Step]:
  """The steps that are neither of the last `keep`, nor the best of a stage by a metric, nor the last that is sound.

  Whether one is sound is read off all its files, from the last step on until one is.
  """
  saved_steps = steps(folder)
  kept_steps = {saved.step for saved in saved_steps[-keep:]}
  kept_steps |= {step for of_stage in best(folder, saved_steps) for step in of_stage.values()}
  sound = (
    saved.step for saved in reversed(saved_steps) if not verify.of_step(folder / str(saved.step), step=saved.step)
  )
  last_sound = next(sound, None)
  if last_sound is None:
    raise UserError(f"{folder}: no step is as it was saved; nothing is deleted. `t2t checkpoint verify` says more")
  kept_steps.add(last_sound)
  return [saved for saved in saved_steps if saved.step not in kept_steps]


def delete(folder: epath.Path, step: int) -> None:
  """`retention.delete` of a step.

  Raises:
    UserError: it cannot be deleted.
  """
  path = folder / str(step)
  try:
    retention.delete(path)
  except OSError as error:
    raise UserError(f"{path}: cannot be deleted ({error})") from error


# ---- Two of them -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Difference:
  """How a parameter differs.

  name: its path.
  shapes: in the one and the other; None: it is not there.
  largest: absolute difference of a number of it; None: their shapes differ. NaN where one is none.
  """

  name: str
  shapes: tuple[tuple[int, ...] | None, tuple[int, ...] | None]
  largest: float | None


def parameters(left: epath.Path, right: epath.Path) -> Iterator[tuple[str, Difference | None]]:
  """Each parameter of either checkpoint and how it differs; None: it is the same to the bit.

  Raises:
    UserError: one of them is damaged.
  """
  shapes = restore.param_shapes(left), restore.param_shapes(right)
  common = [name for name in sorted(shapes[0]) if shapes[1].get(name) == shapes[0][name]]
  for name in sorted((shapes[0].keys() | shapes[1].keys()) - set(common)):
    yield name, Difference(name, (shapes[0].get(name), shapes[1].get(name)), None)
  on_cpu = jax.sharding.SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
  for names in _groups(common, shapes[0]):
    wanted = {name: (name, jax.ShapeDtypeStruct(shapes[0][name], jnp.float32, sharding=on_cpu)) for name in names}
    a, b = (restore.read_params(path, wanted) for path in (left, right))
    for name in names:
      x, y = np.asarray(a[name]), np.asarray(b[name])
      same = x.tobytes() == y.tobytes()
      with np.errstate(invalid="ignore"):
        largest = 0.0 if same else float(np.max(np.abs(x - y)))
      yield name, None if same else Difference(name, (x.shape, y.shape), largest)


def _groups(names: list[str], shapes: Mapping[str, tuple[int, ...]]) -> Iterator[list[str]]:
  group, size = [], 0
  for name in names:
    nbytes = 4 * int(np.prod(shapes[name], dtype=np.int64))
    if group and size + nbytes > _READ_AT_ONCE:
      yield group
      group, size = [], 0
    group, size = [*group, name], size + nbytes
  if group:
    yield group


def configs(left: epath.Path, right: epath.Path) -> dict[str, tuple[object, object]]:
  """Key, "train.steps" -> its value in the one and the other, where they differ; None: it is not there."""
  a, b = (flat(restore.read_config(path)) for path in (left, right))
  return {key: (a.get(key), b.get(key)) for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)}
