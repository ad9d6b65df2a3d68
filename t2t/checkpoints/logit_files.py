"""Files with the logits of a teacher, `config.distillation.logits`: written once, and read by the digest of a row.

A folder has `logits.json`, the settings with the names and checksums of the files, and files
steps-BEGIN-END.safetensors with the rows of these training steps:

  digests           uint8 [rows, 16], BLAKE2b of the features of a row
  NAME/starts       int32 [rows + 1], where the positions of each row begin; NAME is tokens or heads/NAME
  NAME/positions    int32 [n], positions in the row
  NAME/values       float32 or bfloat16 [n, width], logits; if not all, the largest first
  NAME/ids          uint16 or int32 [n, width], if not all: the tokens of the values
  NAME/normalizer   float32 [n], if not all: log of the sum of exp(logit / temperature) over the whole vocabulary

A file appears whole under its name, and then in `logits.json`. Rows that occur again are written once.
"""

import collections
from collections.abc import Mapping, Sequence
import dataclasses
import hashlib
import json
import re
import time
from typing import TYPE_CHECKING, Any

from etils import epath
import jax
import numpy as np

from t2t import UserError, sharding
from t2t.checkpoints import workdir_lock
from t2t.configuration.schema import Config
from t2t.configuration.stages import Stage
from t2t.convert import safetensors
from t2t.losses import logits_student
from t2t.losses.distillation import DistillationConfig
from t2t.losses.logits_student import KEY, PREFIX, LogitsManifest, TeacherOutput
from t2t.param_tree import Vocabulary
from t2t.runtime import hosts
from t2t.storage import gcs, safe_read

if TYPE_CHECKING:
  from t2t.data.stage_iterator import StagedBatches

SETTINGS, FORMAT = "logits.json", 2
_DIGEST_BYTES = 16
_FILE_BYTES, _FILE_SECONDS = 2**28, 600.0  # a file ends after either
_SHOWN = 8  # token ids in a message
_CACHED_FILES = 8  # whose arrays are in memory, if the folder is in a bucket
_FILE = re.compile(r"steps-\d+-\d+\.safetensors(\.part)?")
_DTYPES = {**safetensors.DTYPES, **safetensors.INTEGERS}


def row_digests(features: Mapping[str, np.ndarray]) -> np.ndarray:
  """Returns a digest of each row of a batch, uint8 [rows, 16], of names, dtypes and values of all its features."""
  rows = len(next(iter(features.values())))
  hashers = [hashlib.blake2b(digest_size=_DIGEST_BYTES) for _ in range(rows)]
  for name in sorted(features):
    array = np.ascontiguousarray(features[name])
    head = f"{name} {array.dtype.str} {array.shape[1:]}\n".encode()
    for hasher, row in zip(hashers, array, strict=True):
      hasher.update(head)
      hasher.update(row.tobytes())
  return np.frombuffer(b"".join(hasher.digest() for hasher in hashers), np.uint8).reshape(rows, _DIGEST_BYTES)


def _keys(digests: np.ndarray) -> np.ndarray:
  """Returns digests as values that NumPy sorts, [rows]."""
  return np.ascontiguousarray(digests).view(f"S{_DIGEST_BYTES}").reshape(-1)


# ---- Settings --------------------------------------------------------------------------------------------------------


def _read_settings(folder: str) -> dict[str, Any]:
  path = gcs.absolute(folder) / SETTINGS
  if not path.exists():
    raise UserError(
      f"{KEY}={folder}: there is no {SETTINGS}. Give a folder that `t2t infer --checkpoint TEACHER --logits K --config "
      "NAME --output FOLDER` wrote."
    )
  settings = safe_read.read_json(path)
  if settings.get("format") != FORMAT:
    raise UserError(f"{path}: format {settings.get('format')!r} is unknown; write the logits again with this version.")
  return settings


def _manifest(path: Any, settings: Mapping[str, Any]) -> LogitsManifest:
  try:
    return LogitsManifest.from_json(json.dumps(settings["manifest"]))
  except (KeyError, TypeError, ValueError) as error:
    raise UserError(f"{path}: not the settings of logits ({error!r}). Write the logits again.") from error


def resolved(config: Config, saved: Mapping[str, object]) -> Config:
  """Returns the config with the settings of its logits.

  Args:
    config: of a run with config.distillation.logits.
    saved: config.distillation of the run's last checkpoint; empty for a new run.

  Raises:
    UserError: a folder has no logits or is incomplete, folders differ, or the run has learned from another teacher.
  """
  folders = config.distillation.logits
  manifests = {}
  for folder in folders:
    settings = _read_settings(folder)
    if not settings.get("complete"):
      raise UserError(
        f"{KEY}={folder} is incomplete: `t2t infer --logits` was interrupted. Run the same command again; it resumes."
      )
    manifests[folder] = _manifest(f"{folder}/{SETTINGS}", settings)
  first = manifests[folders[0]]
  for folder, manifest in manifests.items():
    if key := _difference(dataclasses.asdict(first), dataclasses.asdict(manifest)):
      raise UserError(
        f"{KEY}={','.join(folders)}: {folder} and {folders[0]} differ in {key}. Give folders of one teacher with the "
        "same settings."
      )
  earlier: Any = saved
  if earlier.get("teacher"):
    raise UserError(
      f"{KEY}={','.join(folders)}: the run has the teacher {','.join(earlier['teacher'])}. Give "
      "config.distillation.teacher, or another --workdir."
    )
  before = earlier.get("written")
  if before and (key := _difference(json.loads(before), json.loads(first.to_json()))):
    raise UserError(
      f"{KEY}={','.join(folders)}: the run has learned logits that differ in {key}. Give logits of the same teacher, "
      "or another --workdir."
    )
  streams = config.data.num_streams or first.num_streams
  return config.with_(distillation={"written": first.to_json()}, data={"num_streams": streams})


def _difference(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> str:
  """Returns the first key whose values differ, "a.b"; "" if there is none."""
  for key in {**old, **new}:
    ours, theirs = old.get(key), new.get(key)
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
      if inner := _difference(ours, theirs, f"{prefix}{key}."):
        return inner
    elif ours != theirs:
      return f"{prefix}{key}"
  return ""


def check_vocabulary(config: Config, vocabulary: Vocabulary | None) -> None:
  """Checks that the ids of a run have the same tokens as those of its logits.

  Raises:
    UserError: the vocabularies differ.
  """
  where = f"{KEY}={','.join(config.distillation.logits)}"
  ours, theirs = vocabulary_digest(vocabulary), logits_student.manifest_of(config.distillation).vocabulary
  if not (ours and theirs):
    hosts.log_once(f"{where}: the vocabularies cannot be compared, because one of them is unknown")
  elif ours != theirs:
    raise UserError(
      f"{where}: the logits have another vocabulary (digest {theirs}) than config.data.vocabulary="
      f"{config.data.vocabulary} (digest {ours}). Set config.data.vocabulary and config.data.extra_ids as in "
      "`t2t infer --logits`, or write the logits with this run's config."
    )


def vocabulary_digest(vocabulary: Vocabulary | None) -> str:
  """Returns a digest of all tokens; "" for a custom or unknown vocabulary."""
  if vocabulary is None:
    return ""
  from t2t.data.vocabularies import vocab_checkpoint

  known: Any = vocabulary
  return vocab_checkpoint.digest(known)


# ---- Writing ---------------------------------------------------------------------------------------------------------


class LogitsWriter:
  """Writes the logits of a run's rows to a folder; a writer of the same folder goes on where the last one stopped.

  The first process writes; others only count. One writer at a time: lock the folder, see `workdir_lock`.

  Attributes:
    step: number of training steps whose rows are in whole files.
    rows: number of different rows.

  Args:
    folder: local or gs://.
    manifest: settings that a student needs.
    about: settings that the rows depend on, as JSON; compared if the folder has files.
    dtype: of the values, F32 or BF16.

  Raises:
    UserError: the folder has logits of other settings, other files, or lacks files.
  """

  def __init__(self, folder: epath.Path, manifest: LogitsManifest, about: Mapping[str, object], *, dtype: str):
    self._folder, self._manifest = folder, manifest
    self._settings = {"format": FORMAT, "manifest": json.loads(manifest.to_json()), "dtype": dtype, "about": about}
    self._settings = json.loads(json.dumps(self._settings))
    self._writes = jax.process_index() == 0
    self._clear()
    self._files: dict[str, Any] = {}
    self._progress: dict[str, Any] = {"complete": False, "repeats": False}
    self.step, self._known = 0, set[bytes]()
    self._open()
    for name, entry in self._files.items():
      self._known.update(_keys(_LogitsFile(folder / name, entry, manifest.teacher)("digests")).tolist())

  @property
  def rows(self) -> int:
    return len(self._known)

  def _open(self) -> None:
    path = self._folder / SETTINGS
    if not path.exists():
      # Others may see a folder in which the first process is about to write the settings.
      if self._writes and self._folder.exists() and any(_is_foreign(path.name) for path in self._folder.iterdir()):
        raise UserError(f"--output {self._folder} has files, but no {SETTINGS}. Give another folder.")
      self._folder.mkdir(parents=True, exist_ok=True)
      self._save()
      return
    saved = safe_read.read_json(path)
    if key := _difference({key: value for key, value in saved.items() if key in self._settings}, self._settings):
      raise UserError(
        f"--output {self._folder} has logits of other settings ({key} differs). Give another folder, or the command "
        "that began it."
      )
    # The folder stays complete for its steps while a writer goes on to more steps.
    self._progress = {key: saved[key] for key in self._progress}
    self.step, self._files = saved["steps"], saved["files"]
    if self._writes:
      for path in self._folder.iterdir():
        if _FILE.fullmatch(path.name) and path.name not in self._files:  # of a writer that was killed
          path.unlink()

  def _save(self) -> None:
    if not self._writes:
      return
    progress = self._progress | {"steps": self.step, "rows": self.rows, "files": self._files}
    text = json.dumps(self._settings | progress, indent=2) + "\n"
    path = self._folder / SETTINGS
    if "://" in str(path):  # a bucket's files appear whole
      path.write_text(text)
      return
    part = path.with_name(f"{SETTINGS}.part")
    part.write_text(text)
    part.replace(path)

  def _clear(self) -> None:
    self._digests: list[np.ndarray] = []
    self._arrays: list[dict[str, np.ndarray]] = []
    self._nbytes, self._began = 0, time.monotonic()

  def new(self, digests: np.ndarray) -> np.ndarray:
    """Returns the numbers of the rows that the folder lacks, each different row once."""
    indices: dict[bytes, int] = {}
    for index, key in enumerate(_keys(digests).tolist()):
      if key not in self._known:
        indices.setdefault(key, index)
    return np.array(list(indices.values()), np.int64)

  def add(self, digests: np.ndarray, outputs: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """Adds rows, see `logits_student.written`.

    Args:
      digests: uint8 [rows, 16].
      outputs: name -> "at", bool [rows, length], and arrays [n, ...] of the n positions where "at" is True.
    """
    arrays = {f"{name}/{key}": value for name, output in outputs.items() for key, value in _packed(output).items()}
    self._known.update(_keys(digests).tolist())
    if not self._writes:
      return
    self._digests.append(digests)
    self._arrays.append(arrays)
    self._nbytes += digests.nbytes + sum(x.nbytes for x in arrays.values())

  @property
  def is_due(self) -> bool:
    """True if a file is full."""
    return self._nbytes >= _FILE_BYTES or (bool(self._digests) and time.monotonic() - self._began > _FILE_SECONDS)

  def flush(self, step: int) -> None:
    """Writes a file with the rows added since the last one, if any, and the number of steps.

    Args:
      step: number of training steps so far.
    """
    if self._digests:
      joined = {"digests": np.concatenate(self._digests)}
      for name in self._arrays[0]:
        joined[name] = np.concatenate([arrays[name] for arrays in self._arrays])
        if name.endswith("/starts"):  # were the numbers of positions
          joined[name] = np.concatenate([[0], np.cumsum(joined[name])]).astype(np.int32)
      name = f"steps-{self.step:08d}-{step:08d}.safetensors"
      checksums = self._write(self._folder / name, joined)
      self._files = self._files | {name: {"rows": len(joined["digests"]), "checksums": checksums}}
    self.step = step
    self._clear()
    self._save()

  def _write(self, path: epath.Path, arrays: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Writes a file; returns the checksum of each array."""
    sizes = {output.name: output.size for output in self._manifest.outputs}
    kinds = {"digests": "U8", "starts": "I32", "positions": "I32", "normalizer": "F32"}
    kinds["values"] = str(self._settings["dtype"])
    dtypes: dict[str, str] = {}
    for name in arrays:
      output, _, key = name.rpartition("/")
      dtypes[name] = kinds.get(key) or ("U16" if sizes[output] <= 2**16 else "I32")
    part = path if "://" in str(path) else path.with_name(f"{path.name}.part")
    shapes = {name: x.shape for name, x in arrays.items()}
    checksums = {}
    metadata = {"teacher": self._manifest.teacher}
    with safetensors.SafetensorsWriter(part, shapes, dtype=dtypes, metadata=metadata) as file:
      for name, array in arrays.items():
        array = np.ascontiguousarray(array, _DTYPES[dtypes[name]])
        checksums[name] = _checksum(array)
        file.write(name, array)
    if part != path:
      part.replace(path)
    return checksums

  def finish(self, step: int, *, repeats: bool | None = None) -> None:
    """Writes the remaining rows and marks the folder as complete.

    Args:
      step: number of training steps so far.
      repeats: whether the rows of later steps are among those of the folder; None: unchanged.
    """
    if repeats is not None:
      self._progress["repeats"] = repeats
    self.flush(step)
    self._progress["complete"] = True
    self._save()


def _is_foreign(name: str) -> bool:
  """Returns whether a file is neither a lock nor left by a writer that was killed."""
  return name != workdir_lock.NAME and not name.endswith(".part")


def _checksum(array: np.ndarray) -> str:
  content = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
  return hashlib.blake2b(content, digest_size=8).hexdigest()


def saved_streams(folder: epath.Path) -> int | None:
  """Returns the number of data streams of the logits in a folder; None if there are none.

  Raises:
    UserError: the settings are damaged.
  """
  path = folder / SETTINGS
  return _manifest(path, safe_read.read_json(path)).num_streams if path.exists() else None


def _packed(output: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Returns the arrays, the positions, [n], and their number in each row as "starts"."""
  at = output["at"]
  arrays = {"starts": at.sum(axis=1).astype(np.int32), "positions": np.nonzero(at)[1].astype(np.int32)}
  return arrays | {name: x for name, x in output.items() if name != "at"}


def nbytes_of(outputs: Sequence[TeacherOutput], counts: Mapping[str, float], *, dtype: str) -> float:
  """Returns the bytes of a row.

  Args:
    outputs: kinds of logits.
    counts: name -> positions of a row with logits.
    dtype: of the values.
  """
  total = float(_DIGEST_BYTES)
  for output in outputs:
    position = 4 + output.width * _DTYPES[dtype].itemsize
    position += 0 if output.is_whole else output.width * (2 if output.size <= 2**16 else 4) + 4
    total += 4 + counts[output.name] * position
  return total


# ---- Reading ---------------------------------------------------------------------------------------------------------


class _LogitsFile:
  """Arrays of a file; those of a local file are mapped into memory, others kept until `release`.

  Args:
    path: the file.
    entry: number of rows and checksums of the arrays, of `logits.json`.
    teacher: digest of the teacher.

  Raises:
    UserError: the file is missing or truncated, or has the logits of another teacher.
  """

  def __init__(self, path: epath.Path, entry: Mapping[str, Any], teacher: str):
    self.path, self._checksums = path, entry["checksums"]
    self._arrays: dict[str, np.ndarray] = {}
    self._checked: set[str] = set()
    if not path.exists():
      raise UserError(
        f"{path} is missing, which {SETTINGS} names. Copy the file to the folder, or write the logits to a new folder."
      )
    self._entries, metadata = safetensors.read_entries_and_metadata(path)
    if metadata.get("teacher") != teacher:
      raise UserError(
        f"{path} has the logits of another teacher (digest {metadata.get('teacher')}) than {SETTINGS} (digest "
        f"{teacher}). Copy the file again, or write the logits to a new folder."
      )

  def release(self) -> None:
    """Frees the arrays in memory."""
    self._arrays.clear()

  def __call__(self, name: str) -> np.ndarray:
    """Returns an array.

    Raises:
      UserError: the file lacks it, or its content is not what was written.
    """
    if name not in self._arrays:
      self._arrays[name] = self._read(name)
    return self._arrays[name]

  def _read(self, name: str) -> np.ndarray:
    entry = self._entries.get(name)
    if entry is None:
      raise UserError(f"{self.path} has no {name}. Write the logits again.")
    if "://" not in str(self.path) and entry.nbytes:
      array: np.ndarray = np.memmap(str(self.path), _DTYPES[entry.dtype], "r", entry.begin, entry.shape)
    else:
      with self.path.open("rb") as file:
        file.seek(entry.begin)
        array = np.frombuffer(file.read(entry.nbytes), _DTYPES[entry.dtype]).reshape(entry.shape)
    if name not in self._checked and _checksum(array) != self._checksums.get(name):
      raise UserError(
        f"{self.path} is damaged: the checksum of {name} is not that of {SETTINGS}. Copy the file again, or write the "
        "logits to a new folder."
      )
    self._checked.add(name)
    return array


def _opened(folder: str) -> list[_LogitsFile]:
  """Opens the files of a folder that its settings name.

  Raises:
    UserError: files are missing, truncated, or of another teacher.
  """
  path, settings = gcs.absolute(folder), _read_settings(folder)
  teacher = _manifest(path / SETTINGS, settings).teacher
  return [_LogitsFile(path / name, entry, teacher) for name, entry in settings["files"].items()]


def check_steps(run: Sequence[Stage]) -> None:
  """Checks that the logits of a run, if it reads any, have the rows of all its steps, unless the rows repeat.

  Raises:
    UserError: the run is longer than the run of the files.
  """
  if not (logits := run[-1].config.distillation.logits):
    return
  folders = [_read_settings(folder) for folder in logits]
  steps, size = max(settings["steps"] for settings in folders), run[-1].config.train.batch_size
  sizes = [stage["train"]["batch_size"] for settings in folders for stage in settings["about"].values()]
  # Batches of another size have the same rows in other steps.
  needed = run[-1].end if len(run) > 1 or not sizes else -(-run[-1].end * size // max(sizes))
  if needed > steps and not any(settings["repeats"] for settings in folders):
    raise UserError(
      f"config.train.steps={run[-1].end}: {KEY}={','.join(logits)} has logits of {steps:,} steps. Run "
      f"`t2t infer --logits` again with --config.train.steps={needed}, which continues, or set "
      f"--config.train.steps={run[-1].end * steps // needed}."
    )


class LogitsReader:
  """Logits of rows, by their digests.

  Args:
    settings: config.distillation with the settings of the files.

  Raises:
    UserError: a file is missing or truncated.
  """

  def __init__(self, settings: DistillationConfig):
    self._where = f"{KEY}={','.join(settings.logits)}"
    self._folders = settings.logits
    self._outputs = logits_student.manifest_of(settings).outputs
    self._files = [file for folder in settings.logits for file in _opened(folder)]
    keys = [_keys(file("digests")) for file in self._files]
    for file in self._files:
      file.release()
    joined = np.concatenate(keys) if keys else np.zeros(0, f"S{_DIGEST_BYTES}")
    self._order = np.argsort(joined, kind="stable")
    self._sorted = joined[self._order]
    self._begins = np.cumsum([0, *map(len, keys)])
    self._recent: collections.OrderedDict[int, _LogitsFile] = collections.OrderedDict()

  def __len__(self) -> int:
    return len(self._sorted)

  def read(self, features: Mapping[str, np.ndarray], *, first_row: int = 0) -> dict[str, np.ndarray]:
    """Returns the logits of rows as features of a batch; positions without logits have 0.

    Args:
      features: of a batch, [rows, length].
      first_row: number of the first row in the batch, for messages.

    Raises:
      UserError: a row has no logits.
    """
    keys = _keys(row_digests(features))
    at = np.minimum(np.searchsorted(self._sorted, keys), max(len(self) - 1, 0))
    known = self._sorted[at] == keys if len(self) else np.zeros(len(keys), bool)
    if not known.all():
      self._raise_missing(features, int(np.argmin(known)), first_row)
    lengths = {output.side: features[f"{output.side}_input_tokens"].shape[1] for output in self._outputs}
    arrays = {
      f"{PREFIX}{output.name}/{name}": np.zeros((len(keys), lengths[output.side], *shape), dtype)
      for output in self._outputs
      for name, (dtype, shape) in output.arrays.items()
    }
    numbers = self._order[at]
    for row in np.argsort(numbers, kind="stable").tolist():  # file by file
      number = int(numbers[row])
      index = int(np.searchsorted(self._begins, number, side="right")) - 1
      file, row_of_file = self._used(index), number - int(self._begins[index])
      for output in self._outputs:
        begin, end = file(f"{output.name}/starts")[row_of_file : row_of_file + 2].tolist()
        positions = file(f"{output.name}/positions")[begin:end]
        for name in output.arrays:
          arrays[f"{PREFIX}{output.name}/{name}"][row, positions] = file(f"{output.name}/{name}")[begin:end]
    return arrays

  def _used(self, index: int) -> _LogitsFile:
    """Returns a file, and frees the arrays of the file whose use is longest ago."""
    file = self._recent[index] = self._files[index]
    self._recent.move_to_end(index)
    if len(self._recent) > _CACHED_FILES:
      self._recent.popitem(last=False)[1].release()
    return file

  def _raise_missing(self, features: Mapping[str, np.ndarray], row: int, first_row: int) -> None:
    tokens = next(features[name] for name in sorted(features) if name.endswith("input_tokens"))[row]
    shown = ", ".join(map(str, tokens[:_SHOWN].tolist()))
    raise UserError(
      f"{self._where}: no logits of row {first_row + row} of the batch (tokens {shown}, ...) among the {len(self):,} "
      f"rows of {len(self._files)} files. Run `t2t infer --logits` with this run's config: config.data, "
      "config.train.seed, config.train.batch_size and at least its config.train.steps; after a rollback "
      "(config.nan_policy) with more, because a rollback leaves batches out and reads later ones. "
      f"{gcs.absolute(self._folders[0]) / SETTINGS} has the settings of the files."
    )


class LabelledBatches:
  """Batches with the logits of their rows as further features; otherwise like the batches themselves.

  Args:
    batches: see `data.stage_iterator.StagedBatches`.
    settings: config.distillation with the settings of the files.
    mesh: of the batches.
  """

  def __init__(self, batches: "StagedBatches", settings: DistillationConfig, mesh: jax.sharding.Mesh):
    self._batches, self._reader, self._seconds = batches, LogitsReader(settings), 0.0
    self._sharding = sharding.batch_sharding(mesh)

  def __getattr__(self, name: str) -> Any:
    return getattr(self._batches, name)

  @property
  def wait_seconds(self) -> float:
    return self._batches.wait_seconds + self._seconds

  def __iter__(self) -> "LabelledBatches":
    return self

  def __next__(self) -> dict[str, jax.Array]:
    """Returns the next batch with its logits.

    Raises:
      UserError: a row has no logits; or see `StagedBatches`.
    """
    batch = next(self._batches)
    started = time.monotonic()
    size = len(next(iter(batch.values())))
    parts: dict[tuple[int, int], dict[str, np.ndarray]] = {}
    for name, array in batch.items():
      for shard in array.addressable_shards:
        start, stop, _ = shard.index[0].indices(size)
        rows = parts.setdefault((start, stop), {})
        if name not in rows:
          rows[name] = np.asarray(shard.data)
    logits = {rows: self._reader.read(features, first_row=rows[0]) for rows, features in parts.items()}

    def placed(name: str, shape: tuple[int, ...]) -> jax.Array:
      part = lambda index: logits[index[0].indices(size)[:2]][name]
      return jax.make_array_from_callback((size, *shape[1:]), self._sharding, part)

    shapes = {name: x.shape for name, x in next(iter(logits.values())).items()}
    self._seconds = time.monotonic() - started
    return batch | {name: placed(name, shape) for name, shape in shapes.items()}
