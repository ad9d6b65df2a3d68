"""Counts how often words occur near each other (GloVe), in sorted runs on disk that are merged to shuffled shards.

Memory holds one run of `most` pairs, or one shard. A count that was interrupted continues after its last run.
"""

from collections.abc import Iterable, Iterator, Sequence
import dataclasses
import hashlib
import json
import pathlib

import numpy as np

from t2t import UserError
from t2t.runtime import cache_folder

RECORDS = 128  # pairs in a line of a shard
_SETTINGS, _DONE = "counts.json", "shards.json"


@dataclasses.dataclass(frozen=True)
class PairSums:
  """Sorted pairs, int64 [n], each row * size + column, with sums of weights, float64 [n]."""

  pairs: np.ndarray
  weights: np.ndarray

  def __len__(self) -> int:
    return len(self.pairs)


def pairs_of(ids: np.ndarray, *, size: int, window: int) -> PairSums:
  """Returns all pairs of words of one text within the window, in both orders, with weight 1 / distance; not summed.

  In:  [3, 4, 3], size 10, window 2
  Out: pairs 34, 43, 43, 34, 33, 33 with weights 1, 1, 1, 1, 1/2, 1/2, in another order

  Source: Pennington et al. 2014, section 4.2.
  """
  pairs, weights = [], []
  for distance in range(1, min(window, len(ids) - 1) + 1):
    left, right = ids[:-distance].astype(np.int64), ids[distance:].astype(np.int64)
    pairs += [left * size + right, right * size + left]
    weights += [np.full(len(left), 1.0 / distance)] * 2
  empty = np.zeros(0)
  return PairSums(np.concatenate([empty.astype(np.int64), *pairs]), np.concatenate([empty, *weights]))


def summed(pairs: np.ndarray, weights: np.ndarray) -> PairSums:
  """Sorts pairs, and adds the weights of equal ones."""
  order = np.argsort(pairs, kind="stable")
  pairs, weights = pairs[order], weights[order]
  first = np.flatnonzero(np.concatenate([[True], pairs[1:] != pairs[:-1]])[: len(pairs)])
  return PairSums(pairs[first], np.add.reduceat(weights, first) if len(first) else weights)


def merged(runs: Sequence[PairSums], *, most: int) -> Iterator[PairSums]:
  """Yields the sums of sorted runs in ascending parts, of at most about `most` pairs of all runs together."""
  places, step = [0] * len(runs), max(1, most // max(1, len(runs)))
  while any(place < len(run) for place, run in zip(places, runs, strict=True)):
    last = min(
      int(run.pairs[min(place + step, len(run)) - 1])
      for place, run in zip(places, runs, strict=True)
      if place < len(run)
    )
    ends = [int(np.searchsorted(run.pairs, last, side="right")) for run in runs]
    spans = [slice(place, end) for place, end in zip(places, ends, strict=True)]
    parts = [(run.pairs[span], run.weights[span]) for run, span in zip(runs, spans, strict=True)]
    yield summed(*(np.concatenate([np.asarray(x) for x in arrays]) for arrays in zip(*parts, strict=True)))
    places = ends


# ---- On disk ---------------------------------------------------------------------------------------------------------


def _write_array(path: pathlib.Path, array: np.ndarray) -> None:
  part = path.with_suffix(".part")
  with part.open("wb") as file:
    np.save(file, array, allow_pickle=False)
  part.replace(path)


def _open_run(folder: pathlib.Path, number: int) -> PairSums:
  read = lambda kind: np.load(folder / f"run-{number:05d}.{kind}.npy", mmap_mode="r", allow_pickle=False)
  return PairSums(read("pairs"), read("weights"))


def count(
  texts: Iterable[Sequence[int]],
  output_dir: str | pathlib.Path,
  *,
  size: int,
  window: int,
  settings: dict[str, object],
  most: int = 20_000_000,
  seed: int = 0,
) -> tuple[list[pathlib.Path], int]:
  """Writes shards of lines "ROW COLUMN WEIGHT ROW COLUMN WEIGHT ...", shuffled, of at most `RECORDS` pairs a line.

  The same call continues after an interruption, and returns at once if all shards exist.

  Args:
    texts: ids of each text, in an order that does not change, without unknown words.
    output_dir: local folder.
    size: number of ids.
    window: largest distance.
    settings: of vocabulary and text; a folder with other ones is refused.
    most: pairs in memory; about 50 bytes each.
    seed: of the shuffling.

  Returns:
    The shards, and the number of pairs.

  Raises:
    UserError: the window is below 1, the folder has counts of other settings, or no word has a neighbour.
  """
  if window < 1:
    raise UserError(f"--window {window}: a word needs neighbours. Give 1 or more (GloVe uses 10).")
  folder = pathlib.Path(output_dir)
  settings = json.loads(json.dumps({**settings, "window": window, "size": size, "most": most, "seed": seed}))
  state = {"settings": settings, "texts": [], "complete": False}
  if (folder / _SETTINGS).exists():
    state = json.loads((folder / _SETTINGS).read_text())
    if state["settings"] != settings:
      changed = sorted(key for key in settings if state["settings"].get(key) != settings[key])
      raise UserError(
        f"--output {folder} has counts with another {', '.join(changed)}. Give another folder, or delete this one."
      )
  if (folder / _DONE).exists():
    done = json.loads((folder / _DONE).read_text())
    return [folder / name for name in done["shards"]], done["pairs"]
  folder.mkdir(parents=True, exist_ok=True)
  save = lambda: cache_folder.write_atomically(folder / _SETTINGS, json.dumps(state).encode())
  save()

  # ---- Runs ----------------------------------------------------------------------------------------------------------
  if not state["complete"]:
    begin = sum(state["texts"])
    buffer: list[PairSums] = []
    num_texts = num_pairs = 0

    def end_run() -> None:
      nonlocal buffer, num_texts, num_pairs
      if num_pairs:
        run = summed(*(np.concatenate([getattr(part, name) for part in buffer]) for name in ("pairs", "weights")))
        number = len(state["texts"])
        _write_array(folder / f"run-{number:05d}.pairs.npy", run.pairs)
        _write_array(folder / f"run-{number:05d}.weights.npy", run.weights)
        state["texts"].append(num_texts)
        save()
        buffer, num_texts, num_pairs = [], 0, 0

    for number, ids in enumerate(texts):
      if number < begin:
        continue
      part = pairs_of(np.asarray(ids), size=size, window=window)
      buffer.append(part)
      num_texts, num_pairs = num_texts + 1, num_pairs + len(part)
      if num_pairs >= most:
        end_run()
    end_run()
    state["complete"] = True
    save()

  # ---- Shards --------------------------------------------------------------------------------------------------------
  runs = [_open_run(folder, number) for number in range(len(state["texts"]))]
  num_shards = max(1, -(-sum(map(len, runs)) // most))
  parts = [(folder / f"shard-{number:05d}.part").open("wb") for number in range(num_shards)]
  total = 0
  for block in merged(runs, most=most):
    total += len(block)
    # A pair's shard depends on the pair alone.
    mixed = (block.pairs.astype(np.uint64) + np.uint64(seed)) * np.uint64(0x9E3779B97F4A7C15)
    of_shard = (mixed >> np.uint64(33)) % np.uint64(num_shards)
    rows = np.rec.fromarrays([block.pairs, block.weights.astype("<f8")], dtype=[("pair", "<i8"), ("weight", "<f8")])
    for number, file in enumerate(parts):
      rows[of_shard == number].tofile(file)
  for file in parts:
    file.close()
  if not total:
    raise UserError("--input: no text has two words of the vocabulary within the window. Give other files.")
  shards = []
  for number in range(num_shards):
    part = folder / f"shard-{number:05d}.part"
    rows = np.fromfile(part, dtype=[("pair", "<i8"), ("weight", "<f8")])
    rows = rows[np.random.default_rng((seed, number)).permutation(len(rows))]
    shards.append(folder / f"pairs-{number:05d}-of-{num_shards:05d}.txt")
    cache_folder.write_atomically(shards[-1], "".join(_lines(rows, size)).encode())
    part.unlink()
  done = {"shards": [path.name for path in shards], "pairs": total}
  cache_folder.write_atomically(folder / _DONE, json.dumps(done).encode())
  for number in range(len(runs)):
    for kind in ("pairs", "weights"):
      (folder / f"run-{number:05d}.{kind}.npy").unlink()
  return shards, total


def _lines(rows: np.ndarray, size: int) -> Iterator[str]:
  for start in range(0, len(rows), RECORDS):
    block = rows[start : start + RECORDS]
    first, second = np.divmod(block["pair"], size)
    weights = block["weight"].astype(np.float32)
    yield " ".join(f"{i} {j} {x:.9g}" for i, j, x in zip(first, second, weights, strict=True)) + "\n"


def digest(paths: Sequence[str]) -> str:
  """Returns a hash of names and sizes of files, which changes if the text does."""
  named = [(pathlib.Path(path).name, pathlib.Path(path).stat().st_size) for path in paths]
  return hashlib.blake2b(json.dumps(named).encode(), digest_size=8).hexdigest()
