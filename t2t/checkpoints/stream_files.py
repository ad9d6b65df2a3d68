"""Files of a checkpoint beside its arrays: the position of each data stream, and what callbacks save.

The one process that a stream is for writes its position.
"""

import dataclasses

from etils import epath
import orbax.checkpoint as ocp

STREAM = "stream-"  # prefix of the names of positions
_OF_ORBAX = ("commit_success", "_")  # its own files in a checkpoint's folder


class Handler(ocp.AsyncCheckpointHandler):
  """One file for each stream of the data."""

  async def async_save(self, directory: epath.Path, args: "Save") -> list[ocp.future.Future]:
    """Writes in the background, as soon as the checkpoint's folder is there."""

    async def write():
      for name, content in args.streams.items():
        # No part and no renaming: the folder itself is one that no reader takes before it is whole.
        (directory / name).write_bytes(content)

    return [ocp.future.CommitFutureAwaitingContractedSignals(write(), name="streams")]

  def save(self, directory: epath.Path, args: "Save") -> None:
    """Writes at once; only asynchronous checkpoints are made here."""
    del directory, args
    raise TypeError("streams are saved by an asynchronous checkpointer")

  def restore(self, directory: epath.Path, args: "Restore") -> dict[str, bytes]:
    """Returns the content of each requested stream, and of each file that is no stream."""
    others = [path.name for path in directory.iterdir() if not path.name.startswith((STREAM, *_OF_ORBAX))]
    return {name: (directory / name).read_bytes() for name in (*args.names, *sorted(others))}


@ocp.args.register_with_handler(Handler, for_save=True)
@dataclasses.dataclass
class Save(ocp.args.CheckpointArgs):
  """Position of each stream that this host is to write, by name; no other host writes it."""

  streams: dict[str, bytes]


@ocp.args.register_with_handler(Handler, for_restore=True)
@dataclasses.dataclass
class Restore(ocp.args.CheckpointArgs):
  """The streams that this process will read."""

  names: tuple[str, ...]
