"""The positions of the data's streams in a checkpoint: a file for each, written by the one host that it is for."""

import dataclasses

from etils import epath
import orbax.checkpoint as ocp


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
    """The content of each stream asked for, and of what else is there of `args.others`."""
    there = [name for name in args.others if (directory / name).exists()]
    return {name: (directory / name).read_bytes() for name in (*args.names, *there)}


@ocp.args.register_with_handler(Handler, for_save=True)
@dataclasses.dataclass
class Save(ocp.args.CheckpointArgs):
  """Position of each stream that this host is to write, by name; no other host writes it."""

  streams: dict[str, bytes]


@ocp.args.register_with_handler(Handler, for_restore=True)
@dataclasses.dataclass
class Restore(ocp.args.CheckpointArgs):
  """The streams that this host will read, and what else was saved beside them if there was need."""

  names: tuple[str, ...]
  others: tuple[str, ...] = ()
