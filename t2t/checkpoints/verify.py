"""Detects damaged steps, describes the damage, and sets the steps aside.

All hosts of a run call the functions that read files: they share the reading and get the same result.
"""

from collections.abc import Iterator
import functools
import json
from typing import Any

from etils import epath
import jax

from t2t import UserError
from t2t.checkpoints import manifest as manifests
from t2t.runtime import hosts
from t2t.storage import gcs

STREAMS = "streams"
BASE = "base"  # file of a step that refers to the checkpoint with left-out parameters; see base_model_ref.py
ASIDE = "damaged_"  # name prefix of a step that was set aside
_SHOWN = 5  # damaged files in a message
_SMALL = 2**22  # bytes: larger files are not read for steps that are not restored


class DamagedCheckpoint(UserError):
  """The files of a checkpoint differ from the saved ones."""


def of_step(
  folder: epath.Path, *, step: int | None = None, largest: int | None = None, share: tuple[int, int] = (0, 1)
) -> list[str]:
  """Returns a line for each damaged file in the folder of a step; [] if it is intact.

  A step of an older t2t without a manifest is checked for its required files.

  Args:
    folder: of the step.
    step: expected number; None: any.
    largest: see `manifest.differences`.
    share: (index, number) of this host among the hosts that share the reading; each returns its part.

  Raises:
    UserError: its bucket cannot be listed, or an existing file cannot be read after several attempts.
  """
  if share[0]:
    manifest = _manifest(folder)
    return [] if manifest is None else manifests.differences(folder, manifest, largest=largest, share=share)
  if not gcs.is_remote(folder) and not folder.is_dir():
    return ["the path is a file, not the folder of a step"]
  names = gcs.names(folder, where="checkpoint")
  if not names:
    return ["the folder is empty"]
  try:
    manifest = manifests.patiently(lambda: manifests.read(folder), folder / manifests.NAME)
  except UserError:  # a subclass of ValueError
    raise
  except (FileNotFoundError, ValueError) as error:
    return [f"{manifests.NAME}: {error}"]
  if manifest is None:
    faults = [f"{item} is missing" for item in _items(folder) if item not in names]
    return faults or _unreadable(folder) or _misplaced(folder, step)
  faults = manifests.differences(folder, manifest, largest=largest, share=share)
  if step is not None and manifest.step != step:
    faults.append(f"the folder was saved as step {manifest.step}")
  return faults or _misplaced(folder, step)


def of_small(folder: epath.Path, step: int) -> list[str]:
  """Runs `of_step` with the contents of small files and the sizes of all."""
  return of_step(folder, step=step, largest=_SMALL)


def _manifest(folder: epath.Path) -> manifests.Manifest | None:
  try:
    return manifests.read(folder)
  except (OSError, ValueError):
    return None  # the first host reports it


def _items(folder: epath.Path) -> list[str]:
  """Returns the items of a step without a manifest."""
  handlers = noted(folder / manifests.ORBAX).get("item_handlers")
  return sorted({"config", "state", *(handlers if isinstance(handlers, dict) else ())})


def noted(path: epath.Path, *, surely: bool = False) -> dict[str, object]:
  """Returns the JSON object in a small file of a step; {} if there is none.

  Args:
    path: of the file.
    surely: return {} only if the file is missing or not a JSON object.

  Raises:
    UserError: `surely` is set, and the file cannot be read after several attempts.
  """
  read = functools.partial(gcs.read, path)
  try:
    content = json.loads(manifests.patiently(read, path) if surely else read())
  except UserError:
    raise
  except (OSError, ValueError):
    return {}
  return content if isinstance(content, dict) else {}


def _unreadable(folder: epath.Path) -> list[str]:
  """Checks the JSON files of a step without a manifest."""
  faults = []
  for item, name in (("config", "metadata"), ("metrics", "metrics"), ("state", "_METADATA")):
    if name in gcs.names(folder / item, where="checkpoint"):
      try:
        path = folder / item / name
        json.loads(manifests.patiently(functools.partial(gcs.read, path), path))
      except UserError:
        raise
      except (FileNotFoundError, ValueError) as error:
        faults.append(f"{item}/{name} cannot be read ({error})")
  return faults


def _misplaced(folder: epath.Path, step: int | None) -> list[str]:
  """Returns a line for each stream position that belongs to another step or stream."""
  return [
    f"{STREAMS}/{name} belongs to the stream {stream} of step {stream_step}"
    for name, stream_step, stream in _said_by_streams(folder)
    if stream != name or stream_step != (stream_step if step is None else step)
  ]


def _said_by_streams(folder: epath.Path) -> Iterator[tuple[str, Any, Any]]:
  """Yields file, step and stream of each position that records them, as older versions do not."""
  for name in gcs.names(folder / STREAMS, where="checkpoint"):
    position = noted(folder / STREAMS / name)
    if "step" in position and "stream" in position:
      yield name, position["step"], position["stream"]


def _of_all_hosts(folder: epath.Path, *, step: int | None, largest: int | None) -> list[str]:
  local_faults = of_step(folder, step=step, largest=largest, share=(jax.process_index(), jax.process_count()))
  return [line for lines in hosts.gather(local_faults) for line in lines]


# ---- Checks before reading -------------------------------------------------------------------------------------------


def check(folder: epath.Path, *, where: str = "", full: bool = True, again: bool = False) -> None:
  """Raises an error for a damaged checkpoint.

  Args:
    folder: of one step.
    where: the option or key of the path, for messages.
    full: read all arrays; otherwise small files, and the sizes of all.
    again: also check a folder that this process has found intact before.

  Raises:
    DamagedCheckpoint: the message contains the damage, and the other existing steps.
  """
  look = _check.__wrapped__ if again else _check
  look(folder, where, None if full else _SMALL)


@functools.cache  # errors are not cached
def _check(folder: epath.Path, where: str, largest: int | None) -> None:
  # Each host checks the config's files alone, because the hosts may not have joined yet.
  faults = of_step(folder, largest=largest) if largest is not None else _of_all_hosts(folder, step=None, largest=None)
  if not faults:
    return
  other_steps = [step for step in steps(folder.parent) if str(step) != folder.name] if folder.name.isdigit() else []
  there = f" ({', '.join(map(str, other_steps))})" if other_steps else ""
  raise DamagedCheckpoint(
    f"{where}{folder}: this checkpoint is damaged:\n{_shown(faults)}\nGive another step{there}, or restore the"
    f" folder; `t2t checkpoint verify {folder.parent}` checks all steps."
  )


def _shown(faults: list[str]) -> str:
  more = [f"  and {len(faults) - _SHOWN} more"] if len(faults) > _SHOWN else []
  return "\n".join([f"  {line}" for line in faults[:_SHOWN]] + more)


# ---- Checks before resuming ------------------------------------------------------------------------------------------


def steps(directory: epath.Path) -> list[int]:
  """Returns the completely saved steps in a folder of checkpoints, including damaged ones; sorted."""
  names = _numbered(directory)
  if gcs.is_remote(directory):  # an interrupted save has the name of its step
    names = [name for name in names if manifests.COMMITTED in gcs.names(directory / name, where="--workdir")]
  return sorted(map(int, names))


def _numbered(directory: epath.Path) -> list[str]:
  names = gcs.names(directory, where="--workdir")
  return [name for name in names if name.isascii() and name.isdigit() and name == str(int(name))]


def _keep_whole(directory: epath.Path) -> None:
  """Protects complete steps in a bucket that Orbax would take for interrupted saves, and delete.

  Raises:
    UserError: a step of an older t2t was copied from a disk without its last object.
  """
  for name in _numbered(directory) if gcs.is_remote(directory) else ():
    folder = directory / name
    there = gcs.names(folder, where="--workdir")
    if manifests.COMMITTED in there:
      continue
    if manifests.NAME in there:
      if not of_step(folder, step=int(name)):
        gcs.Object(folder / manifests.COMMITTED, "text/plain").replace(b"")
    # A step without a manifest, but with streams that record their step, is incomplete. A read error must not count as
    # such, because Orbax would delete the step.
    elif manifests.ORBAX in there and noted(folder / manifests.ORBAX, surely=True).get("commit_timestamp_nsecs"):
      if any(_said_by_streams(folder)):
        continue
      raise UserError(
        f"{folder} has no {manifests.COMMITTED}. If the folder is a complete copy from a disk, put an empty file of "
        "this name into it. Otherwise move the folder away."
      )


def set_aside(directory: epath.Path) -> None:
  """Renames the damaged steps of a run, so that the newest intact step becomes the last.

  From the newest step down, every file is read until a step is intact; of older steps only small files, and the sizes
  of all. Nothing is deleted.

  Args:
    directory: of checkpoints, WORKDIR/checkpoints; it need not exist.

  Raises:
    UserError: all steps are damaged, or one cannot be read; then nothing is renamed.
  """
  if jax.process_index() == 0:
    _keep_whole(directory)
  there = hosts.share(steps(directory))
  damaged, sound = {}, None
  for step in reversed(there):
    largest = None if sound is None else _SMALL
    faults = _of_all_hosts(directory / str(step), step=step, largest=largest)
    if faults:
      damaged[step] = faults
    elif sound is None:
      sound = step
  earlier = hosts.share([name for name in gcs.names(directory, where="--workdir") if name.startswith(ASIDE)])
  if sound is None and (damaged or earlier):
    listing = "\n".join(f"{directory / str(step)}:\n{_shown(step_faults)}" for step, step_faults in damaged.items())
    raise UserError(
      f"{directory}: no step is intact" + (f":\n{listing}" if listing else f" ({', '.join(earlier)})") + "\nRestore"
      " a step, give another --workdir, or move these folders away to start anew."
    )
  for step, faults in damaged.items():
    target = directory / _free(f"{ASIDE}{step}", set(earlier))
    earlier.append(target.name)
    if jax.process_index() == 0:
      _move(directory / str(step), target)
    then = f"resuming from step {sound}" if step > sound else "this step is not needed"
    hosts.log_once(f"{directory / str(step)} is damaged, and was renamed to {target.name}; {then}:\n{_shown(faults)}")
  hosts.share(None)  # other hosts continue after the first has renamed
  if sound is not None and hosts.share(_manifest(directory / str(sound)) is None):
    hosts.log_once(f"{directory / str(sound)} cannot be verified, because an older t2t saved it without checksums")


def _free(name: str, taken: set[str]) -> str:
  names = (name, *(f"{name}_{number}" for number in range(2, len(taken) + 3)))
  return next(candidate for candidate in names if candidate not in taken)


def _move(folder: epath.Path, target: epath.Path) -> None:
  try:
    if gcs.is_remote(folder):
      from t2t.storage import gcs_folders

      gcs_folders.move(folder, target, first=manifests.MARKERS)
    else:
      folder.rename(target)
      manifests.sync(folder.parent)
  except OSError as error:
    raise UserError(f"{folder} is damaged, but cannot be renamed ({error}). Move the folder away.") from error
