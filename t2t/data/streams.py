"""Streams: how the order of the data is made independent of the number of hosts, and resumed bit for bit.

The data is split in a fixed number of streams.  Stream s of S yields rows s * B / S to (s + 1) * B / S of every global
batch of B, and a host reads the streams whose rows its devices hold.  Each stream is a tf.data iterator with its own
shard of the data, its own seed and its own saved position.
"""

from collections.abc import Callable, Mapping
import json
import time
from typing import Any
import zlib

import jax
import numpy as np
import tensorflow as tf

from t2t import UserError, sharding
from t2t.data import sources

# Enough for two cores as for eight hosts, and few enough that filling their buffers does not delay the start.
DEFAULT_STREAMS = 8
_STATE_VERSION = 1


def stream_name(stream: int, num_streams: int) -> str:
  """What a stream's position is saved as.

  In:  3, 8
  Out: "stream-00003-of-00008"
  """
  return f"stream-{stream:05d}-of-{num_streams:05d}"


def host_rows(batch_sharding: jax.sharding.NamedSharding, batch_size: int) -> dict[int, set[tuple[int, int]]]:
  """Rows of a global batch that the devices of each host hold: process index -> {(start, stop), ...}.

  In:  4 devices on 2 hosts, the batch over all 4, batch_size 8
  Out: {0: {(0, 2), (2, 4)}, 1: {(4, 6), (6, 8)}}

  Raises:
    UserError: the batch does not divide over the mesh.
  """
  try:
    indices = batch_sharding.devices_indices_map((batch_size,))
  except ValueError as error:
    parts = sharding.num_shards("batch", batch_sharding.mesh)
    raise UserError(
      f"config.train.batch_size={batch_size} does not divide over the mesh's axes data and fsdp, {parts} parts;"
      f" a multiple of {parts} does, for example {max(1, round(batch_size / parts)) * parts}"
    ) from error
  rows: dict[int, set[tuple[int, int]]] = {}
  for device, (row_slice,) in indices.items():
    start, stop, _ = row_slice.indices(batch_size)
    rows.setdefault(device.process_index, set()).add((start, stop))
  return rows


def host_streams(rows: set[tuple[int, int]], *, batch_size: int, num_streams: int) -> list[int] | None:
  """The streams that make up exactly these rows; None if the rows are not whole streams.

  In:  {(0, 2), (2, 4)}, batch_size 8, num_streams 4
  Out: [0, 1]
  """
  held = {row for start, stop in rows for row in range(start, stop)}
  per_stream = batch_size // num_streams
  streams = sorted({row // per_stream for row in held})
  return streams if len(streams) * per_stream == len(held) else None


def choose_num_streams(
  rows: Mapping[int, set[tuple[int, int]]], *, batch_size: int, wanted: int = 0, documents: int | None = None
) -> int:
  """The number of streams: what is wanted if it works, else 8, or the number that works and is nearest below.

  Args:
    rows: of each host, from `host_rows`.
    batch_size: rows of a global batch.
    wanted: the user's or the checkpoint's number; 0 to choose.
    documents: in the corpus, if known: a stream without a document would have nothing to yield.

  Raises:
    UserError: `wanted` does not divide the batch, or a host would hold part of a stream; says which numbers work.
  """

  def works(number: int) -> bool:
    return batch_size % number == 0 and all(
      host_streams(held, batch_size=batch_size, num_streams=number) is not None for held in rows.values()
    )

  working = [number for number in range(1, batch_size + 1) if works(number)]
  if wanted:
    if wanted in working:
      return wanted
    reason = (
      f"does not divide config.train.batch_size={batch_size}"
      if batch_size % wanted
      else f"would give one of the {len(rows)} hosts a part of a stream"
    )
    raise UserError(f"config.data.num_streams={wanted} {reason}; these numbers work: {working}")
  most = DEFAULT_STREAMS
  if documents is not None:
    # A quarter of the documents: those held out may be all that a stream of two or three has.
    most = min(most, max(1, documents // 4))
  return max((number for number in working if number <= most), default=working[0])


class BatchIterator:
  """Global batches of training examples, and the position to go on from.

  Attributes:
    num_streams: in how many parts the data is split, on all hosts together.
    stream_names: those that this host reads.
    wait_seconds: how long the last `__next__` waited for the data.
  """

  def __init__(
    self,
    streams: Mapping[int, Callable[[], tf.data.Dataset]],
    *,
    num_streams: int,
    batch_size: int,
    batch_sharding: jax.sharding.NamedSharding,
    identity: Mapping[str, Any],
  ):
    """An iterator at the beginning of the data; use `train_batches`.

    Args:
      streams: this host's, by number; each call makes the same dataset anew.
      num_streams: of all hosts.
      batch_size: rows of a global batch.
      batch_sharding: how its rows lie on the devices.
      identity: what the order of the data depends on, saved with the position and compared when it is restored.
    """
    self.num_streams = num_streams
    self.stream_names = tuple(stream_name(stream, num_streams) for stream in streams)
    self.wait_seconds = 0.0
    self._batch_size = batch_size
    self._batch_sharding = batch_sharding
    self._identity = dict(identity)
    self._streams = dict(streams)
    self._iterators = {stream: iter(dataset()) for stream, dataset in self._streams.items()}
    self._started = False

  def __iter__(self) -> "BatchIterator":
    """Itself."""
    return self

  def next_rows(self) -> dict[int, dict[str, np.ndarray]]:
    """The next part of a batch of each stream of this host: stream -> feature -> [batch / num_streams, length].

    Raises:
      UserError: a record that cannot be used, with file and line, or a stream without any text.
    """
    started = time.monotonic()
    self._started = True
    rows = {}
    for stream, iterator in self._iterators.items():
      try:
        features = next(iterator)
      except StopIteration:
        raise UserError(
          f"stream {stream} of {self.num_streams} has no text: the corpus is too small to be split so;"
          " give more text or a smaller config.data.num_streams"
        ) from None
      except tf.errors.OpError as error:
        raise sources.user_error(error) or error from None
      rows[stream] = arrays(features)
    self.wait_seconds = time.monotonic() - started
    return rows

  def __next__(self) -> dict[str, jax.Array]:
    """The next global batch: each feature int32 or (loss weights) float32, [batch, length].

    Raises:
      UserError: see `next_rows`.
    """
    rows = self.next_rows()
    per_stream = self._batch_size // self.num_streams
    features = next(iter(rows.values()))

    def global_array(name: str) -> jax.Array:
      def part(index: tuple[slice, ...]) -> np.ndarray:
        start, stop, _ = index[0].indices(self._batch_size)
        first, last = start // per_stream, (stop - 1) // per_stream
        held = np.concatenate([rows[stream][name] for stream in range(first, last + 1)])
        return held[start - first * per_stream : stop - first * per_stream]

      shape = (self._batch_size, *features[name].shape[1:])
      return jax.make_array_from_callback(shape, self._batch_sharding, part)

    return {name: global_array(name) for name in features}

  def state(self) -> dict[str, bytes]:
    """The position of each stream of this host, by its name: what has been handed out, whatever has been prefetched."""
    identity = json.dumps(self._identity).encode()
    return {
      name: b"%d %d\n" % (_STATE_VERSION, len(identity)) + identity + zlib.compress(_iterator_state(iterator), 1)
      for name, iterator in zip(self.stream_names, self._iterators.values(), strict=True)
    }

  def restore(self, state: Mapping[str, bytes]) -> None:
    """Goes on where `state` was taken; streams of other hosts in it are ignored.

    Raises:
      UserError: a stream is missing, or the state is of other data or other settings; names the first that differs.
    """
    missing = [name for name in self.stream_names if name not in state]
    if missing:
      raise UserError(
        f"the checkpoint has no position for {missing[0]} (it has {', '.join(sorted(state)) or 'none'});"
        " config.data.num_streams must be what training was started with"
      )
    positions = []
    for name in self.stream_names:
      header, _, rest = state[name].partition(b"\n")
      version, size = (int(number) for number in header.split())
      if version != _STATE_VERSION:
        raise UserError(f"{name}: the position was saved by another version of t2t (format {version})")
      saved = json.loads(rest[:size])
      for key in {**saved, **self._identity}:
        if saved.get(key) != self._identity.get(key):
          raise UserError(
            f"config.{key} is {self._identity.get(key)!r}, but the checkpoint's data position belongs to"
            f" {saved.get(key)!r};"
            " set it back, or start a new workdir from the parameters with config.init.checkpoint"
          )
      positions.append(zlib.decompress(rest[size:]))
    if self._started:
      # New datasets, not only new iterators: the seeds of shuffling belong to the dataset, and what the old iterators
      # are still prefetching would advance them under the new ones.
      self._iterators = {stream: iter(dataset()) for stream, dataset in self._streams.items()}
      self._started = False
    for iterator, position in zip(self._iterators.values(), positions, strict=True):
      _restore_iterator(iterator, position)


def _iterator_state(iterator) -> bytes:
  # What tf.train.Checkpoint does, without its files.
  policy = tf.data.experimental.ExternalStatePolicy.IGNORE.value
  state = tf.raw_ops.SerializeIterator(resource_handle=iterator._iterator_resource, external_state_policy=policy)
  return tf.io.serialize_tensor(state).numpy()


def _restore_iterator(iterator, state: bytes) -> None:
  tf.raw_ops.DeserializeIterator(
    resource_handle=iterator._iterator_resource, serialized=tf.io.parse_tensor(state, tf.variant)
  )


def arrays(features: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
  """Model features as numpy arrays, int32 but for the loss weights, which are float32."""
  arrays = {name: tensor.numpy() for name, tensor in features.items()}
  # seqio's weights are integers; ours are multiplied with losses.
  return {name: array.astype(np.float32) if name.endswith("loss_weights") else array for name, array in arrays.items()}
