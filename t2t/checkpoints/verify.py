"""Steps that are not as they were saved: how one is known, what is said of it, and how it is set aside.

All functions that read files are called by all hosts of a run alike: they share out the reading, and find the same.
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
BASE = "base"  # of a step: which checkpoint has the parameters that the step leaves out; see base_model_ref.py
ASIDE = "damaged_"  # what stands before the step of a folder that was set aside
_SHOWN = 5  # files of a step
_SMALL = 2**22  # bytes: files that are read of steps from which nothing is restored for now


class DamagedCheckpoint(UserError):
  """A checkpoint is not as it was saved."""


def of_step(
  folder: epath.Path, *, step: int | None = None, largest: int | None = None, share: tuple[int, int] = (0, 1)
) -> list[str]:
  """What is wrong with the folder of a step, a line for each file; [] where all is as it was saved.

  One without a manifest, of an older t2t, is looked at as far as that goes without: what it must have is there.

  Args:
    folder: of the step.
    step: that it should be of; None: any.
    largest: see `manifest.differences`.
    share: (index, number) of this host among those that look; each finds its part.

  Raises:
    UserError: its bucket cannot be listed, or a file that is there not be read, however often it was tried.
  """
  if share[0]:
    manifest = _manifest(folder)
    return [] if manifest is None else manifests.differences(folder, manifest, largest=largest, share=share)
  if not gcs.is_remote(folder) and not folder.is_dir():
    return ["it is a file, and not the folder of a step"]
  names = gcs.names(folder, where="checkpoint")
  if not names:
    return ["the folder is empty"]
  try:
    manifest = manifests.patiently(lambda: manifests.read(folder), folder / manifests.NAME)
  except UserError:  # which is a ValueError
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
  """`of_step` as far as small files and the sizes of all show it."""
  return of_step(folder, step=step, largest=_SMALL)


def _manifest(folder: epath.Path) -> manifests.Manifest | None:
  try:
    return manifests.read(folder)
  except (OSError, ValueError):
    return None  # the first host says so


def _items(folder: epath.Path) -> list[str]:
  """What a step without a manifest was saved with."""
  handlers = noted(folder / manifests.ORBAX).get("item_handlers")
  return sorted({"config", "state", *(handlers if isinstance(handlers, dict) else ())})


def noted(path: epath.Path, *, surely: bool = False) -> dict[str, object]:
  """The JSON object of a small file of a step; {} where there is none to be had.

  Args:
    path: of the file.
    surely: {} is returned only where the file is no such object, or not there.

  Raises:
    UserError: surely, and it cannot be read, however often it was tried.
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
  """Of a step without a manifest: what is JSON where it is whole."""
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
  """Streams that say of themselves that they are of another step, or another stream."""
  return [
    f"{STREAMS}/{name} is {stream} of step {stream_step}"
    for name, stream_step, stream in _said_by_streams(folder)
    if stream != name or stream_step != (stream_step if step is None else step)
  ]


def _said_by_streams(folder: epath.Path) -> Iterator[tuple[str, Any, Any]]:
  """File, step and stream of each position that says of which it is; those of an older t2t do not."""
  for name in gcs.names(folder / STREAMS, where="checkpoint"):
    position = noted(folder / STREAMS / name)
    if "step" in position and "stream" in position:
      yield name, position["step"], position["stream"]


def _of_all_hosts(folder: epath.Path, *, step: int | None, largest: int | None) -> list[str]:
  """`of_step` on all hosts, each reading its share."""
  local_faults = of_step(folder, step=step, largest=largest, share=(jax.process_index(), jax.process_count()))
  return [line for lines in hosts.gather(local_faults) for line in lines]


# ---- A checkpoint that is read ---------------------------------------------------------------------------------------


def check(folder: epath.Path, *, where: str = "", full: bool = True, again: bool = False) -> None:
  """Refuses a checkpoint that is not as it was saved.

  Args:
    folder: of one step.
    where: what the user named it with, for messages.
    full: reads all arrays; else what is small, and the size of all.
    again: reads what this process has found sound before as well.

  Raises:
    Damaged: names what is damaged, and the other steps that are there.
  """
  look = _check.__wrapped__ if again else _check
  look(folder, where, None if full else _SMALL)


@functools.cache  # what it raises is not kept
def _check(folder: epath.Path, where: str, largest: int | None) -> None:
  # The first look, at its config, is at once on each host: which of them there are, is not known everywhere yet.
  faults = of_step(folder, largest=largest) if largest is not None else _of_all_hosts(folder, step=None, largest=None)
  if not faults:
    return
  other_steps = [step for step in steps(folder.parent) if str(step) != folder.name] if folder.name.isdigit() else []
  there = f"; there are {', '.join(map(str, other_steps))}" if other_steps else ""
  raise DamagedCheckpoint(
    f"{where}{folder}: this checkpoint is damaged:\n{_shown(faults)}\ngive another step of it{there}, or restore the"
    f" folder; `t2t checkpoint verify {folder.parent}` looks at all"
  )


def _shown(faults: list[str]) -> str:
  more = [f"  and {len(faults) - _SHOWN} more"] if len(faults) > _SHOWN else []
  return "\n".join([f"  {line}" for line in faults[:_SHOWN]] + more)


# ---- A run that goes on ----------------------------------------------------------------------------------------------


def steps(directory: epath.Path) -> list[int]:
  """The steps in a folder of checkpoints that were saved to their end, damaged ones among them; sorted."""
  names = _numbered(directory)
  if gcs.is_remote(directory):  # where what a save was killed in has the name of its step
    names = [name for name in names if manifests.COMMITTED in gcs.names(directory / name, where="--workdir")]
  return sorted(map(int, names))


def _numbered(directory: epath.Path) -> list[str]:
  names = gcs.names(directory, where="--workdir")
  return [name for name in names if name.isascii() and name.isdigit() and name == str(int(name))]


def _keep_whole(directory: epath.Path) -> None:
  """Sees to steps of a bucket that Orbax would take for what a save was killed in, and delete, though they are whole.

  Raises:
    UserError: one that an older t2t saved was copied from a disk without its last object.
  """
  for name in _numbered(directory) if gcs.is_remote(directory) else ():
    folder = directory / name
    there = gcs.names(folder, where="--workdir")
    if manifests.COMMITTED in there:
      continue
    if manifests.NAME in there:
      if not of_step(folder, step=int(name)):
        gcs.Object(folder / manifests.COMMITTED, "text/plain").replace(b"")
    # Without a manifest, a step of a t2t that writes them, whose streams say of which they are, is a part.
    # What cannot be read for now must not be taken for one: Orbax would delete it.
    elif manifests.ORBAX in there and noted(folder / manifests.ORBAX, surely=True).get("commit_timestamp_nsecs"):
      if any(_said_by_streams(folder)):
        continue
      raise UserError(
        f"{folder}: was saved to its end, but has no {manifests.COMMITTED}, as where it was copied from a disk; put"
        " an empty one there if the copy is whole, or move the folder away"
      )


def set_aside(directory: epath.Path) -> None:
  """Gives the damaged steps of a run other names, so that the last sound one is the last.

  Of the newest every file is read, and of others before it, until one is sound; of the rest what is small, and the size
  of all.  Nothing is deleted.

  Args:
    directory: of checkpoints, WORKDIR/checkpoints; it need not be there.

  Raises:
    UserError: no sound step is left, but damaged ones are, or one cannot be read; then all stays as it is.
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
      f"{directory}: no step is as it was saved"
      + (f":\n{listing}" if listing else f" ({', '.join(earlier)})")
      + "\nrestore"
      " one of them; or start afresh in another --workdir, or here when you have moved these away"
    )
  for step, faults in damaged.items():
    target = directory / _free(f"{ASIDE}{step}", set(earlier))
    earlier.append(target.name)
    if jax.process_index() == 0:
      _move(directory / str(step), target)
    then = f"going on from step {sound}" if step > sound else "it was not needed"
    hosts.log_once(f"{directory / str(step)} is damaged, and set aside as {target.name}; {then}:\n{_shown(faults)}")
  hosts.share(None)  # no host looks before the first has renamed
  if sound is not None and hosts.share(_manifest(directory / str(sound)) is None):
    hosts.log_once(f"{directory / str(sound)}: was saved without checksums, by an older t2t: it cannot be verified")


def _free(name: str, taken: set[str]) -> str:
  names = (name, *(f"{name}_{number}" for number in range(2, len(taken) + 3)))
  return next(candidate for candidate in names if candidate not in taken)


def _move(folder: epath.Path, target: epath.Path) -> None:
  try:
    if gcs.is_remote(folder):
      gcs.move(folder, target, first=manifests.MARKERS)
    else:
      folder.rename(target)
      manifests.sync(folder.parent)
  except OSError as error:
    raise UserError(f"{folder}: is damaged, and cannot be renamed ({error}); move it away") from error
