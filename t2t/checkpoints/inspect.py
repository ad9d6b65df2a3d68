"""Inspection of saved checkpoints: steps, metrics, and differences between two of them."""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
import datetime
import re
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

_READ_AT_ONCE = 2**28  # bytes of parameters of each checkpoint


@dataclasses.dataclass(frozen=True)
class Step:
  """A saved step.

  step: its number.
  saved: time; None: not recorded.
  size: bytes.
  metrics: values measured at this step.
  faults: damage that its small files and the sizes of all files show.
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
    return not self.faults


def folder_of(path: str) -> epath.Path:
  """Returns the folder of checkpoints for a path: WORKDIR, or WORKDIR/checkpoints.

  Raises:
    UserError: it contains no steps.
  """
  gcs.check(path, where="")
  root = gcs.absolute(path)
  for folder in (root / manager.CHECKPOINTS, root):
    names = gcs.names(folder, where=path)
    if any(name.isdigit() or name.startswith(verify.ASIDE) for name in names):
      return folder
  raise UserError(
    f"{path} contains no saved steps (searched {root}/{manager.CHECKPOINTS}/STEP and {root}/STEP). Give a workdir of "
    "`t2t train`."
  )


def steps(folder: epath.Path) -> list[Step]:
  """Returns all completely saved steps, including damaged ones.

  Raises:
    UserError: a bucket cannot be listed.
  """
  return [_step(folder / str(step), step) for step in verify.steps(folder)]


def set_aside(folder: epath.Path) -> list[str]:
  """Returns the names of the damaged steps that were set aside."""
  return [name for name in gcs.names(folder, where="checkpoint") if name.startswith(verify.ASIDE)]


def _step(folder: epath.Path, step: int) -> Step:
  try:
    noted = manifests.read(folder) is not None
  except (OSError, ValueError):
    noted = True
  nanoseconds: Any = verify.noted(folder / manifests.ORBAX).get("commit_timestamp_nsecs")
  saved = None
  with contextlib.suppress(TypeError, ValueError, OverflowError, OSError):  # absent, or not a valid time
    saved = datetime.datetime.fromtimestamp(nanoseconds / 1e9)
  return Step(step, saved, manifests.size(folder), _metrics(folder), verify.of_small(folder, step), noted)


def _metrics(folder: epath.Path) -> dict[str, float]:
  """Returns the metrics that a checkpoint was saved with."""
  metrics = verify.noted(folder / "metrics" / "metrics")
  return {name: value for name, value in metrics.items() if isinstance(value, int | float)}


def better(path: str, step_path: epath.Path, run: Mapping[str, object]) -> str:
  """Returns a note on the steps of a workdir with better metrics than the last one; "" if there are none.

  Runs with early stopping, or with task metrics, end after their best steps. `t2t superglue` selects a step for each
  task.

  Args:
    path: given by the user.
    step_path: the checkpoint in use.
    run: its config.
  """
  settings: Any = run.get("eval", {})
  stopping = settings.get("early_stopping_metric", "loss")
  if not step_path.name.isdigit() or _is_same(path, step_path):
    return ""
  folder, last = step_path.parent, int(step_path.name)
  # Read only the metrics of each step, because a bucket is slow.
  metrics = {step: _metrics(folder / str(step)) for step in verify.steps(folder)}
  best_steps = (_best(folder, metrics) or [{}])[-1]
  names = [name for name in metrics.get(last, {}) if name.endswith("/score") and name != stopping]
  if stopping != "loss" or settings.get("patience"):
    names.insert(0, stopping)
  lines = []
  for name in names:
    best_step = best_steps.get(name)
    if best_step is None or best_step == last or name not in metrics.get(last, {}):
      continue
    digits = 4 if name == "loss" else 2
    has_last, has_best = (f"{metrics[step][name]:.{digits}f}" for step in (last, best_step))
    if has_last != has_best:  # otherwise as good, and earlier
      lines.append(
        f"reading the last step, {last}: {name} {has_last}; step {best_step} is better,\n  {has_best}:"
        f" {gcs.origin(str(folder / str(best_step)))}"
      )
  return "\n".join(lines)


def _is_same(path: str, step_path: epath.Path) -> bool:
  """Returns whether a path of the user is that of a step, without a request; on the hub at any revision."""
  without_revision = lambda path: re.sub(r"@[^/]+" if path.startswith("hf://") else r"\Z", "", path.rstrip("/"))
  name = gcs.origin(str(step_path))
  is_copy = name != str(step_path)
  return without_revision(name) == without_revision(path if is_copy else str(gcs.absolute(path)))


# ---- Pruning ---------------------------------------------------------------------------------------------------------


def best(folder: epath.Path, saved_steps: Sequence[Step]) -> list[dict[str, int]]:
  """Returns the best of `saved_steps` by each metric, for each stage (`retention.best_of_stages`)."""
  return _best(folder, {saved.step: saved.metrics for saved in saved_steps})


def _best(folder: epath.Path, metrics: Mapping[int, Mapping[str, float]]) -> list[dict[str, int]]:
  saved = verify.noted(folder / str(max(metrics)) / "config" / "metadata") if metrics else {}
  ends: list[int] = []
  with contextlib.suppress(UserError, KeyError, TypeError):  # the checkpoint is damaged
    ends = [end for _, _, end in stages.saved_bounds(saved)[:-1]]
  return retention.best_of_stages(metrics, ends)


def superfluous(folder: epath.Path, *, keep: int) -> list[Step]:
  """Returns the steps to prune: not among the last `keep`, not the best of a stage by a metric, not the newest intact
  one.

  To find the newest intact step, all files of the last steps are verified until one is intact.
  """
  saved_steps = steps(folder)
  kept_steps = {saved.step for saved in saved_steps[-keep:]}
  kept_steps |= {step for of_stage in best(folder, saved_steps) for step in of_stage.values()}
  sound = (
    saved.step for saved in reversed(saved_steps) if not verify.of_step(folder / str(saved.step), step=saved.step)
  )
  last_sound = next(sound, None)
  if last_sound is None:
    raise UserError(f"{folder}: no step is intact, so nothing is deleted. Run `t2t checkpoint verify {folder}`.")
  kept_steps.add(last_sound)
  return [saved for saved in saved_steps if saved.step not in kept_steps]


def delete(folder: epath.Path, step: int) -> None:
  """Deletes a step with `retention.delete`.

  Raises:
    UserError: it cannot be deleted.
  """
  path = folder / str(step)
  try:
    retention.delete(path)
  except OSError as error:
    raise UserError(
      f"{path} cannot be deleted ({error}). Check the permissions, or delete the folder by hand."
    ) from error


# ---- Comparison ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Difference:
  """Difference of a parameter.

  name: its path.
  shapes: in the first and the second checkpoint; None: absent.
  largest: largest absolute difference; None: the shapes differ. NaN if a value is NaN.
  """

  name: str
  shapes: tuple[tuple[int, ...] | None, tuple[int, ...] | None]
  largest: float | None


def parameters(left: epath.Path, right: epath.Path) -> Iterator[tuple[str, Difference | None]]:
  """Yields each parameter of either checkpoint with its difference; None: bit-identical.

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
  """Returns key, "train.steps" -> its values in both configs, if they differ; None: absent."""
  a, b = (flat(restore.read_config(path)) for path in (left, right))
  return {key: (a.get(key), b.get(key)) for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)}
