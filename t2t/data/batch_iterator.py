"""Streams of training data: the order is independent of the number of hosts, and resumes bit for bit.

The data is split into a fixed number of streams. Stream s of S yields rows s * B / S to (s + 1) * B / S of every global
batch of B rows. A host reads the streams whose rows its devices hold. Each stream has its own share of the data, its
own seed, and its own position of a few integers (example_windows.py).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import json
import time
from typing import Any

import jax
import numpy as np
import tensorflow as tf

from t2t import UserError, feature_spec, sharding
from t2t.configuration.renamed_keys import current_key
from t2t.configuration.schema import DataConfig
from t2t.data import example_windows as rows_lib
from t2t.data import sources, vocabularies
from t2t.data.sources import bad_records, file_fingerprints, named
from t2t.runtime import console, waiting

# Streams per host: few enough to open without delaying the start. With more hosts later each reads fewer streams, and
# with more hosts than streams several share one.
DEFAULT_STREAMS = 8
_MOST_STREAMS = 256
# Keys that do not apply to a mixture, because its tasks define them.
OF_FILES = ("data.objective", "data.noise_density", "data.mean_noise_span_length", "data.field")
OF_FILES += ("data.mask_rate", "data.random_rate", "data.window", "data.subsampling")
_STATE_VERSION = 2


def stream_name(stream: int, num_streams: int) -> str:
  """Returns the name under which the position of a stream is saved.

  In:  3, 8
  Out: "stream-00003-of-00008"
  """
  return f"stream-{stream:05d}-of-{num_streams:05d}"


_SPECIAL_TOKENS = "data.special_tokens"
_KEPT = "vocabulary"  # name of the folder with a run's own copy of the vocabulary


def _is_same_vocabulary(old: str, new: str) -> bool:
  """Compares two vocabularies by content if both names have a digest, otherwise by name."""
  (old_spec, old_digest), (new_spec, new_digest) = vocabularies.unnamed(old), vocabularies.unnamed(new)
  if old_digest and new_digest:
    return old_digest == new_digest
  return old_spec == new_spec or new_spec == _KEPT  # vocabularies.check_saved has compared its content


def host_rows(batch_sharding: jax.sharding.NamedSharding, batch_size: int) -> dict[int, set[tuple[int, int]]]:
  """Returns the rows of a global batch that each host's devices hold: process index -> {(start, stop), ...}.

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
      f"config.train.batch_size={batch_size} is not a multiple of {parts}, the number of parts along the mesh axes "
      f"'data' and 'fsdp'. Give a multiple of {parts}, for example {max(1, round(batch_size / parts)) * parts}."
    ) from error
  rows: dict[int, set[tuple[int, int]]] = {}
  for device, (row_slice,) in indices.items():
    start, stop, _ = row_slice.indices(batch_size)
    rows.setdefault(device.process_index, set()).add((start, stop))
  return rows


def host_streams(rows: set[tuple[int, int]], *, batch_size: int, num_streams: int) -> list[int]:
  """Returns the streams of these rows, some perhaps only in part.

  In:  {(0, 2), (2, 4)}, batch_size 8, num_streams 4
  Out: [0, 1]
  """
  per_stream = batch_size // num_streams
  return sorted({row // per_stream for start, stop in rows for row in range(start, stop)})


def writers(rows: Mapping[int, set[tuple[int, int]]], *, batch_size: int, num_streams: int) -> dict[int, int]:
  """Returns the process that saves the position of each stream: the first one with rows of the stream.

  In:  {0: {(0, 4)}, 1: {(0, 4)}, 2: {(4, 8)}, 3: {(4, 8)}}, batch_size 8, num_streams 4
  Out: {0: 0, 1: 0, 2: 2, 3: 2}
  """
  per_stream, processes = batch_size // num_streams, {}
  for process in sorted(rows):
    for start, stop in rows[process]:
      for stream in range(start // per_stream, (stop - 1) // per_stream + 1):
        processes.setdefault(stream, process)
  return processes


def choose_num_streams(
  rows: Mapping[int, set[tuple[int, int]]],
  *,
  batch_size: int,
  wanted: int = 0,
  documents: int | None = None,
  named: str = "config.train.batch_size",
) -> int:
  """Returns the number of streams: `wanted`, or at most 8 per host.

  Such a run resumes on up to eight times as many hosts without more work. With still more hosts several share a stream:
  each makes the whole stream and takes its own rows.

  Args:
    rows: rows of each host, from `host_rows`.
    batch_size: rows of a global batch.
    wanted: the user's or the checkpoint's number; 0 to choose.
    documents: number of documents in the corpus, if known: a stream without a document would yield nothing.
    named: name of `batch_size` in messages.

  Raises:
    UserError: `wanted` does not divide the batch; the message lists valid numbers.
  """
  working = [number for number in range(1, batch_size + 1) if batch_size % number == 0]
  if wanted:
    if wanted in working:
      return wanted
    raise UserError(f"config.data.num_streams={wanted} does not divide {named}={batch_size}. Give one of {working}.")
  hosts = len({frozenset(host_ranges) for host_ranges in rows.values()})
  most = max(hosts, min(DEFAULT_STREAMS * hosts, _MOST_STREAMS))
  if documents is not None:
    # At most a quarter of the documents, because a stream of two or three may contain only held-out ones.
    most = min(most, max(1, documents // 4))
  exact_rows = lambda number: sum(
    len(host_streams(host_ranges, batch_size=batch_size, num_streams=number)) * (batch_size // number)
    == sum(stop - start for start, stop in host_ranges)
    for host_ranges in rows.values()
  )
  # The best number lets no host make rows that it does not need.
  return max((number for number in working if number <= most), key=lambda number: (exact_rows(number), number))


class BatchIterator:
  """Iterator over global batches of training examples, with a resumable position.

  Attributes:
    num_streams: number of streams on all hosts together.
    stream_names: names of the streams that this host reads.
    wait_seconds: time that the last `__next__` waited for data.
  """

  def __init__(
    self,
    plan: rows_lib.DataPlan,
    streams: Sequence[int],
    *,
    num_streams: int,
    batch_size: int,
    batch_sharding: jax.sharding.NamedSharding,
    identity: Mapping[str, Any],
    saved: Sequence[int] | None = None,
    files: Mapping[str, file_fingerprints.Contents] | None = None,
    allow_changed_files: bool = False,
    tally: bad_records.Tally | None = None,
    spelled: Callable[[], str] = lambda: "",
  ):
    """Creates an iterator at the beginning of the data; use `train_batches`.

    Args:
      plan: plan of the rows.
      streams: streams of this host.
      num_streams: number of streams on all hosts.
      batch_size: rows of a global batch.
      batch_sharding: sharding of the rows over devices.
      identity: settings that determine the order of the data; saved with the position and compared on restore.
      saved: streams whose position this host saves, if several hosts share one; None: all of `streams`.
      files: fingerprints of the files of this host, by config key; compared on restore. Hosts may have their own disks.
      allow_changed_files: whether to resume with other files than at the start.
      tally: count of the records read, saved with the positions; None: not counted.
      spelled: returns the control tokens that the text spells, for messages; called for a position of an older version.
    """
    self.num_streams = num_streams
    self.wait_seconds = 0.0
    self._plan = plan
    self._tasks = [task.name for task in plan.tasks]
    self._streams = tuple(streams)
    self._saved = self._streams if saved is None else tuple(saved)
    self._batch_size = batch_size
    self._batch_sharding = batch_sharding
    self._identity = dict(identity)
    self._files, self._allow_changed_files = dict(files or {}), allow_changed_files
    self._tally, self._spelled = tally, spelled
    self._skipped = False  # whether the rows before the next batch were not trained on
    self._positions = {stream: rows_lib.beginning(plan) for stream in streams}
    self._epochs = self._begun()
    # tf.data reads the starts of a mixture's tasks late, when others have moved on.
    self._starts = dict(self._positions)
    self._dataset = rows_lib.of_streams(
      plan,
      self._streams,
      lambda stream: self._starts[int(stream)],
      num_streams=num_streams,
      rows=batch_size // num_streams,
    )
    self._iterator = None

  @property
  def stream_names(self) -> tuple[str, ...]:
    """Names of the streams that this host restores from a checkpoint."""
    return tuple(stream_name(stream, self.num_streams) for stream in self._streams)

  @property
  def epochs(self) -> dict[str, int]:
    """Number of passes over each task of a mixture, from the most advanced stream of this host."""
    if len(self._tasks) < 2:
      return {}
    return dict(zip(self._tasks, np.max(self._epochs, axis=0).tolist(), strict=True))

  def _begun(self) -> list[np.ndarray]:
    """Returns for each stream the number of passes over each task, as its position records them."""
    return [rows_lib.epochs(position) for position in self._positions.values()]

  def __iter__(self) -> "BatchIterator":
    return self

  def next_rows(self) -> dict[int, dict[str, np.ndarray]]:
    """Returns the next part of a batch of each stream: stream -> feature -> [batch / num_streams, length].

    Raises:
      UserError: a record cannot be used (with file and line), or a stream has no text.
    """
    started = time.monotonic()
    if self._iterator is None:
      self._starts = dict(self._positions)
      self._iterator = iter(self._dataset)
    waiting.begin("the next batch, of streams " + ", ".join(map(str, self._streams)))
    try:
      features = arrays(next(self._iterator))
    except tf.errors.OpError as error:
      raise sources.user_error(error) or named.in_pipeline(error, self._plan.task.name) from None
    finally:
      waiting.end()
    positions = features.pop(rows_lib.POSITION)
    self._positions = {stream: positions[i, -1] for i, stream in enumerate(self._streams)}
    # Positions in a mixture are those of windows, which record a pass only when the next one begins.
    self._epochs = features.pop(rows_lib.EPOCHS)[:, -1] if rows_lib.EPOCHS in features else self._begun()
    self.wait_seconds = time.monotonic() - started
    return {stream: {name: array[i] for name, array in features.items()} for i, stream in enumerate(self._streams)}

  def __next__(self) -> dict[str, jax.Array]:
    """Returns the next global batch: each feature [batch, length], int32, or float32 for loss weights.

    Raises:
      UserError: see `next_rows`.
    """
    rows = self.next_rows()
    if self._skipped:
      rows = {stream: feature_spec.continuing_nothing(features) for stream, features in rows.items()}
      self._skipped = False
    return global_batch(rows, self._batch_sharding, self._batch_size)

  def skip(self, number: int) -> None:
    """Passes over some batches; rows of the next batch then continue no row, because these made no memory."""
    for _ in range(number):
      self.next_rows()
      self._skipped = True

  def state(self, step: int | None = None) -> dict[str, bytes]:
    """Returns the position of each stream that this host saves, by name: behind the rows returned, not the rows read
    ahead.

    Args:
      step: step of the checkpoint; stored with the stream's name in each position, so that a misplaced file is
        detected.
    """
    step_fields = lambda stream: {} if step is None else {"step": step, "stream": stream_name(stream, self.num_streams)}
    saved = {
      stream: {
        "version": _STATE_VERSION,
        **step_fields(stream),
        "position": rows_lib.position_to_json(self._plan, self._positions[stream]),
        "identity": self._identity,
      }
      for stream in self._saved
    }
    if self._tally is not None:
      for stream, part in zip(saved, self._tally.shared_out(max(1, len(saved))), strict=False):
        saved[stream]["records"] = part
    if self._files and saved:
      # The list is stored once per host, with digests in every stream, because a resumed run may have more hosts.
      saved[min(saved)]["contents"] = {key: files.saved() for key, files in self._files.items()}
      digests = {key: files.short() for key, files in self._files.items()}
      for stream_state in saved.values():
        stream_state["digests"] = digests
    return {
      stream_name(stream, self.num_streams): json.dumps(stream_state).encode() for stream, stream_state in saved.items()
    }

  def restore(self, state: Mapping[str, bytes], *, step: int) -> None:
    """Continues where `state` was taken; streams of other hosts are ignored.

    Args:
      state: state of each of `stream_names`.
      step: number of batches returned, from which a position of an older version of t2t is estimated.

    Raises:
      UserError: a stream is missing, or the state belongs to other data or settings; the message names the first
        difference.
    """
    missing = [name for name in self.stream_names if name not in state]
    if missing:
      raise UserError(
        f"the checkpoint has no data position for {missing[0]} (saved positions: "
        f"{', '.join(sorted(state)) or 'none'}). Set config.data.num_streams to the number at the start of training."
      )
    self._skipped = False
    self._check_files(state)
    if self._tally is not None:
      newer = (json.loads(state[name]) for name in self.stream_names if not state[name].startswith(b"1 "))
      self._tally.go_on(saved.get("records", (0, 0)) for saved in newer)
    self._positions = {
      stream: self._restored(stream, state[name], step)
      for stream, name in zip(self._streams, self.stream_names, strict=True)
    }
    self._epochs = self._begun()
    self._iterator = None
    self._tell_spelled(state)

  def _tell_spelled(self, state: Mapping[str, bytes]) -> None:
    """Prints a message if a run of an older version continues on text that spells control tokens."""
    saved = state[self.stream_names[0]]
    is_older = saved.startswith(b"1 ") or _SPECIAL_TOKENS not in json.loads(saved)["identity"]
    if is_older and self._identity.get(_SPECIAL_TOKENS) is False and (spelled_tokens := self._spelled()):
      console.tell(
        f"the text spells control tokens ({spelled_tokens}): up to the checkpoint an older version of t2t read "
        "them as control tokens, and from here on they are text. Set --config.data.special_tokens=True to keep "
        "the earlier behaviour."
      )

  def _check_files(self, state: Mapping[str, bytes]) -> None:
    """Compares this host's files with those of its streams; older checkpoints have no list, or only one for the first
    stream.
    """
    saved_states = [json.loads(state[name]) for name in self.stream_names if not state[name].startswith(b"1 ")]
    listed = [
      saved.get("contents") or ({"config.data.files": saved["files"]} if "files" in saved else {})
      for saved in saved_states
    ]
    for key, files in self._files.items():
      differences = sorted({line for before in _different(listed, key) for line in files.differences(before)})
      digests = _different([saved.get("digests", {}) for saved in saved_states], key)
      if not differences and any(map(files.differ, digests)):
        differences = ["their content, on this host"]  # only the host that saved the list knows the files
      if not differences:
        continue
      shown = file_fingerprints.shown(differences)
      if not self._allow_changed_files:
        raise UserError(
          f"{key} differ from the files of the checkpoint's data position: {shown}. Restore the files, or "
          "give another --workdir to start anew. Set config.data.allow_changed_files=True to continue at about the "
          "same part of the present files."
        )
      console.tell(
        f"{key} have changed since the checkpoint: {shown}; the data continues at about the same part of the "
        "present files"
      )
      self._skipped = True  # the rows before are of other text

  def go_on_from(self, before: "BatchIterator") -> None:
    """Starts behind the rows that another iterator has returned, for each task that both read from the same files.

    If only the batch size differs, the next row follows directly. Otherwise the rest of a window of text, some hundred
    examples, is skipped.

    Args:
      before: iterator over the same streams.
    """
    differ = {
      key for key in {**before._identity, **self._identity} if before._identity.get(key) != self._identity.get(key)
    }
    if differ <= {"train.batch_size"}:
      self._positions = dict(before._positions)
    else:
      from t2t.data import position_migration

      self._positions = {
        stream: position_migration.carried(before._plan, self._plan, stream, position, num_streams=self.num_streams)
        for stream, position in before._positions.items()
      }
    self._epochs = self._begun()
    self._iterator = None

  def close(self) -> None:
    """Stops reading ahead."""
    self._iterator = None

  def _restored(self, stream: int, state: bytes, step: int) -> np.ndarray:
    if state.startswith(b"1 "):
      if stream == 0:
        console.tell(
          "the checkpoint's data position is from an older version of t2t; the data continues at about the same "
          "part of its epoch, not at the same example"
        )
      from t2t.data import position_migration

      rows_read = step * self._batch_size // self.num_streams
      return position_migration.proportional(self._plan, stream, num_streams=self.num_streams, taken=rows_read)
    saved = json.loads(state)
    if saved["version"] != _STATE_VERSION:
      raise UserError(
        f"{stream_name(stream, self.num_streams)}: another version of t2t saved the data position, in format "
        f"{saved['version']} instead of {_STATE_VERSION}. Resume with the version of t2t that saved the checkpoint, or "
        "start a new workdir with config.init.checkpoint."
      )
    identity = {current_key(key): value for key, value in saved["identity"].items()}
    if identity.get("data.mixture"):  # older versions saved keys without effect on it
      identity = {key: value for key, value in identity.items() if key not in OF_FILES}
    for key in {**identity, **self._identity}:
      old, new = identity.get(key), self._identity.get(key)
      if key == _SPECIAL_TOKENS and old is None:  # older versions read letters in records as control tokens
        continue
      if key == "data.vocabulary" and _is_same_vocabulary(old or "", new or ""):
        continue
      if old != new and not (_is_of_files(key) and self._allow_changed_files):
        raise UserError(_changed(key, old, new))
    return rows_lib.position_from_json(self._plan, saved["position"])


# Parts of a table that follow from a key on the command line; all others follow from the columns.
_TYPED = {"classes": "data.labels", "kind": "data.labels", "prefix": "data.prefix"}


def _changed(key: str, old: Any, new: Any) -> str:
  """Returns the error message for a changed value in the data's identity."""
  remedy = "start a new workdir from the parameters with config.init.checkpoint."
  if any(isinstance(x, str) and DataConfig.is_in_memory(x) for x in (old, new)):
    return (
      f"examples: the checkpoint's data position belongs to {DataConfig.described(str(old))}, but these "
      f"examples or their order differ. Pass the same examples in the same order, or {remedy}"
    )
  if part := key.removeprefix("data.table.") if key.startswith("data.table.") else "":
    typed = _TYPED.get(part, "data.columns")
    return (
      f"config.{typed}: the {part} of the table would be {new!r}, but the checkpoint's data position belongs to "
      f"{old!r}. Restore the earlier value, or {remedy}"
    )
  now = "has no value" if new is None else f"is {new!r}"
  before = "a run without one" if old is None else repr(old)
  return (
    f"config.{key} {now}, but the checkpoint's data position belongs to {before}. Restore the earlier value, "
    f"or {remedy}"
  )


def _is_of_files(key: str) -> bool:
  """Returns true for identity keys of file contents: data.files, data.sources.NAME.files."""
  return key == "data.files" or (key.startswith("data.sources.") and key.endswith(".files"))


def global_batch(
  rows: Mapping[int, Mapping[str, np.ndarray]], batch_sharding: jax.sharding.NamedSharding, batch_size: int
) -> dict[str, jax.Array]:
  """Returns a batch on the mesh.

  Args:
    rows: stream -> feature -> [batch / num_streams, ...], for the streams with rows on this host's devices.
    batch_sharding: sharding of the rows over devices.
    batch_size: rows of the batch.
  """
  features = next(iter(rows.values()))
  per_stream = len(next(iter(features.values())))

  def global_array(name: str) -> jax.Array:
    def part(index: tuple[slice, ...]) -> np.ndarray:
      start, stop, _ = index[0].indices(batch_size)
      first, last = start // per_stream, (stop - 1) // per_stream
      stream_rows = np.concatenate([rows[stream][name] for stream in range(first, last + 1)])
      return stream_rows[start - first * per_stream : stop - first * per_stream]

    return jax.make_array_from_callback((batch_size, *features[name].shape[1:]), batch_sharding, part)

  return {name: global_array(name) for name in features}


def arrays(features: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
  """Converts model features to NumPy arrays: int32, and float32 for loss weights."""
  return as_batch({name: tensor.numpy() for name, tensor in features.items()})


def as_batch(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Returns the same arrays with the dtypes that models take."""
  # seqio's weights are integers; t2t multiplies them with losses.
  return {name: array.astype(np.float32) if name.endswith("loss_weights") else array for name, array in arrays.items()}


def _different(records: Iterable[Mapping[str, Any]], key: str) -> list[Any]:
  """Returns the distinct values under a key; streams of one host are equal, and comparing may read files."""
  return list({json.dumps(record[key]): record[key] for record in records if key in record}.values())
