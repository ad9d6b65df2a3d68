"""Checks the user's files before training, so that a bad line is found at the start and not hours later."""

from collections.abc import Iterable, Iterator, Sequence
import concurrent.futures
import dataclasses
import functools
import hashlib
import itertools
import json

from absl import logging

from t2t import UserError
from t2t.data.sources import bad_records, text_files
from t2t.data.sources import files as sources
from t2t.runtime import cache_folder, progress

# A corpus up to this size on disk is read whole (45 MB of gzipped Wikipedia take 1 s, once). Of a larger one only the
# beginning of some files is read, and the pipeline reports a bad record when it reads it.
READ_WHOLE_BYTES = 256 * 2**20
SAMPLED_FILES = 8
SAMPLED_RECORDS = 1000
_VERSION = 5  # of the cached results


@dataclasses.dataclass(frozen=True)
class Scan:
  """Result of a scan; counts cover the records that were read, the whole corpus if `complete`."""

  complete: bool
  documents: int
  characters: int
  smallest_hash: int  # minimum `sources.text_hash` of the documents
  held_out: int  # documents with a hash below `HELD_OUT_BELOW`
  smallest: int  # documents with the smallest hash: copies of one text
  size: int  # bytes of the records, including other fields than the text


# One document in a hundred is held out if the user names no evaluation files.
HELD_OUT_BELOW = 2**32 // 100


def held_out_below(scan: Scan) -> int:
  """Returns the threshold for `sources.FileSource`: about 1 % of the documents, at least one of a small corpus."""
  some = 0 < scan.held_out < scan.documents
  return HELD_OUT_BELOW if some or not scan.complete else scan.smallest_hash + 1


def documents_by_split(scan: Scan) -> dict[str, int]:
  """Returns the numbers of training documents and held-out documents among those scanned.

  In:  600 documents, all of them read, of which 7 are held out
  Out: {"train": 593, "validation": 7}
  """
  held_out = scan.held_out if held_out_below(scan) == HELD_OUT_BELOW else scan.smallest
  return {"train": scan.documents - held_out, "validation": held_out}


def scan(files: Sequence[str], *, field: str, where: str = "config.data.files", malformed: float = 0.0) -> Scan:
  """Reads files, all or in part, and counts documents; results for unchanged files are cached.

  Args:
    files: paths, from `text_files.find_files`.
    field: name of the text field.
    where: the configuration key that names the files.
    malformed: allowed share of malformed records, which are not counted.

  Raises:
    UserError: a file or a record cannot be read, or there is no text at all.
  """
  stats = text_files.stats(files, where=where)
  return _scan(tuple((path, stat.size, stat.changed) for path, stat in stats.items()), field, where, malformed)


@functools.lru_cache(maxsize=16)
def _scan(stats: tuple[tuple[str, int, int], ...], field: str, where: str, malformed: float) -> Scan:
  key = hashlib.sha256(json.dumps([_VERSION, stats, field, malformed]).encode()).hexdigest()[:24]
  remembered = cache_folder.cache_dir() / "scan" / f"{key}.json"
  try:
    return Scan(**json.loads(remembered.read_bytes()))
  except (OSError, ValueError, TypeError):
    pass  # no valid cache entry
  complete = sum(size for _, size, _ in stats) <= READ_WHOLE_BYTES
  paths = [path for path, _, _ in stats]
  if not complete:
    paths = paths[:: max(1, len(paths) // SAMPLED_FILES)][:SAMPLED_FILES]
  number = None if complete else SAMPLED_RECORDS
  # Many small files in a bucket are requested in parallel.
  with concurrent.futures.ThreadPoolExecutor(16) as pool:
    tally = bad_records.Tally(malformed)
    counted = pool.map(lambda path: _count(path, number, tally, field=field, where=where), paths)
    counts = list(progress.track(counted, f"checking {len(paths)} file(s) of {where}", total=len(paths)))
  *sums, hashes, copies = zip(*counts, strict=True)
  documents, characters, held_out, size = map(sum, sums)
  smallest = sum(number for number, file_hash in zip(copies, hashes, strict=True) if file_hash == min(hashes))
  if not documents:
    raise UserError(
      f"{where}: no text in {_listing(paths)}; all records are blank, or the files have no records. Give files with"
      " text."
    )
  scanned = Scan(complete, documents, characters, min(hashes), held_out, smallest, size)
  try:
    cache_folder.write_atomically(remembered, json.dumps(dataclasses.asdict(scanned)).encode())
  except OSError as error:
    logging.info("cannot cache the result of the file check: %s", error)
  return scanned


def _count(path: str, number: int | None, tally: bad_records.Tally, *, field: str, where: str) -> tuple[int, ...]:
  """Counts the texts of a file: documents, characters, held out, bytes, smallest hash, and its number of copies."""
  size = 0

  def counted() -> Iterator[tuple[int, bytes]]:
    nonlocal size
    for record_number, record in text_files.records(path, field=field, where=where):
      size += len(record)
      yield record_number, record

  texts = text_files.texts(counted(), path, field=field, where=where, tally=tally)
  *sums, smallest_hash, copies = summed((text, len(text)) for text in itertools.islice(texts, number))
  return (*sums, size, smallest_hash, copies)


def summed(documents: Iterable[tuple[str | bytes, int]]) -> tuple[int, int, int, int, int]:
  """Counts documents, given with their lengths: documents, lengths, held out, smallest hash, and its copies."""
  number = lengths = held_out = smallest = 0
  smallest_hash = 2**32 - 1
  for content, length in documents:
    text_hash = sources.text_hash(content)
    number += 1
    lengths += length
    held_out += text_hash < HELD_OUT_BELOW
    smallest = 1 if text_hash < smallest_hash else smallest + (text_hash == smallest_hash)
    smallest_hash = min(smallest_hash, text_hash)
  return number, lengths, held_out, smallest_hash, smallest


def _listing(paths: Sequence[str]) -> str:
  return paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more file(s)"
