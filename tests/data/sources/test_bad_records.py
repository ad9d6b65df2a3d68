"""Malformed records, truncated files and temporary disk errors are counted, retried and named."""

import builtins
import dataclasses
import errno
import functools
import gzip
import os
import pathlib
import random
import shutil
import struct

import folders
import hypothesis
from hypothesis import strategies as st
import jax
import pyarrow as pa
import pyarrow.parquet
import pytest
import test_file_sources

from t2t import UserError, sharding
from t2t.configuration.schema import DataConfig
from t2t.data import example_windows, pipeline, sources
from t2t.data.sources import bad_records, file_validation, parquet_files, text_files
from t2t.storage import tfrecord as tfrecords

TEXTS = test_file_sources.TEXTS
GOOD = test_file_sources.GOOD


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
  monkeypatch.setenv("T2T_CACHE_DIR", str(tmp_path / "cache"))
  monkeypatch.setattr(bad_records, "_WAITS", (0.0, 0.0))


def texts(path, *, malformed: float = 0.0) -> list[str]:
  return list(text_files.read_texts(str(path), field="text", tally=bad_records.Tally(malformed)))


def batches(folder: pathlib.Path, pattern: str, **options):
  data = DataConfig(files=f"{folder}/{pattern}", vocabulary="bytes", inputs_length=64, targets_length=24, num_streams=1)
  mesh = sharding.make_mesh({"fsdp": -1}, devices=jax.devices()[:1])
  return pipeline.train_batches(dataclasses.replace(data, **options), "encoder_decoder", mesh, batch_size=4, seed=1)


# ---- Records ---------------------------------------------------------------------------------------------------------


def spoiled(folder: pathlib.Path, name: str) -> pathlib.Path:
  """Writes a file of 40 texts; the record with "number 7" is malformed."""
  path = pathlib.Path(test_file_sources.write(folder, name, TEXTS))
  if name.endswith(".parquet"):
    pa.parquet.write_table(pa.table({"text": [None if "number 7 " in text else text for text in TEXTS]}), path)
  elif name.endswith(".gz"):
    path.write_bytes(
      gzip.compress(gzip.decompress(path.read_bytes()).replace(b'{"id": 7, "text"', b'{"id": 7, "texT"'))
    )
  else:
    old, new = {
      ".txt": (b"number 7 ", b"number \xff "),
      ".jsonl": (b'{"id": 7,', b'{"id" 7, '),
      ".csv": (b"\n7,", b"\n7,,"),
      ".tfrecord": (b"number 7 ", b"number 8 "),
    }[path.suffix]
    path.write_bytes(path.read_bytes().replace(old, new))
  return path


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.jsonl.gz", "a.csv", "a.parquet", "a.tfrecord"])
def test_a_malformed_record_is_told_and_left_out_if_it_may_be(name, tmp_path, capfd):
  """The other records are kept, also in training; without the key the error names file and line or record."""
  path = spoiled(tmp_path, name)
  places = {"a.txt": "line 15", "a.csv": "line 9", "a.jsonl": "line 8", "a.jsonl.gz": "line 8"}
  place = f"{path}, {places.get(name, 'record 8')}"
  with pytest.raises(UserError, match=place):
    file_validation.scan((str(path),), field="text")
  expected = [text for text in TEXTS if "number 7 " not in text]
  assert texts(path, malformed=0.001) == expected
  assert (
    f"skipped malformed record 1 of {15 if name == 'a.txt' else 8}: config.data.files: {place}"
    in capfd.readouterr().err
  )
  source = sources.FileSource({"train": (str(path),)}, malformed=0.001)
  assert test_file_sources.read(source) == expected
  assert file_validation.scan((str(path),), field="text", malformed=0.001).documents == len(expected)


def test_too_many_malformed_records_end_it(tmp_path, capfd):
  """The limit is a share of the records read, of at least a thousand; only some are logged."""
  (tmp_path / "a.jsonl").write_bytes(b"".join(b"[]\n" if i % 10 == 0 else GOOD for i in range(3_000)))
  assert len(texts(tmp_path / "a.jsonl", malformed=0.11)) == 2_700
  assert 10 < capfd.readouterr().err.count("skipped malformed record") < 30
  with pytest.raises(UserError, match=r"line 501: .*\n51 of the 501 records .*max_bad_record_fraction=0.05 allows"):
    texts(tmp_path / "a.jsonl", malformed=0.05)


def test_what_is_odd_but_text(tmp_path):
  """A byte order mark, Windows line ends and NUL characters are accepted."""
  (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntw\0o\r\n\r\nthree")
  assert texts(tmp_path / "a.txt") == ["one", "tw\0o", "three"]
  (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + GOOD.strip() + b"\r\n" + GOOD)
  assert texts(tmp_path / "a.jsonl") == ["good", "good"]


def test_lines_without_end(tmp_path, monkeypatch):
  """A line that is too long is one malformed record, kept only in part; an endless line is not text."""
  monkeypatch.setattr(text_files, "_LONGEST_LINE", 3 * 2**20)
  bomb = b" " * 9_000_000
  for name in ("a.txt", "a.txt.gz"):
    write = gzip.compress if name.endswith("gz") else bytes
    (tmp_path / name).write_bytes(write(b"one\n" + bomb + b"\ntwo\n" + b"x" * 3_000_000))
    assert [len(text) for text in texts(tmp_path / name, malformed=0.1)] == [3, 3, 3_000_000]
    with pytest.raises(UserError, match=r"line 2: the line has 9,000,00\d bytes, more than the limit of 3,145,728"):
      texts(tmp_path / name)
  monkeypatch.setattr(text_files, "_ENDLESS", 3 * 2**20)
  with pytest.raises(UserError, match=r"a.txt.gz is not text after line 1 .no line ends within"):
    texts(tmp_path / "a.txt.gz", malformed=0.1)


# ---- Files -----------------------------------------------------------------------------------------------------------


def test_a_parquet_file_whose_record_of_a_column_is_spoiled(tmp_path):
  """pyarrow would crash the process when it reads that record; found by benchmarks/fuzz.py."""
  path = shutil.copy(folders.TESTS / "spoiled" / "histogram.parquet", tmp_path)
  with pytest.raises(UserError, match=r"histogram.parquet: row group 0 cannot be read \(Definition level histogram"):
    texts(path, malformed=0.5)


def test_a_large_row_group_is_read_if_its_text_is_small(tmp_path, monkeypatch):
  """Other columns do not count; a text beyond the limit is refused."""
  path, name = tmp_path / "a.parquet", "a.parquet"
  pa.parquet.write_table(pa.table({"text": ["a", "b"], "other": ["x" * 5_000, "y" * 5_000]}), path, compression="none")
  monkeypatch.setattr(parquet_files, "_LARGEST_ROW_GROUP", 500)
  assert texts(path) == ["a", "b"]
  monkeypatch.setattr(parquet_files, "_LARGEST_ROW_GROUP", 5)
  with pytest.raises(
    UserError, match=rf"{name}: row group 0 cannot be read \(the row group declares \d+ bytes of 'text'"
  ):
    texts(path)


def test_a_length_that_no_record_has(tmp_path):
  """No memory is allocated for a length in a header."""
  length = struct.pack("<Q", 2**62)
  (tmp_path / "a.tfrecord").write_bytes(length + tfrecords._checksum(length) + b"x" * 50)
  with pytest.raises(UserError, match="a.tfrecord: truncated or corrupt TFRecord after record 0 .*4,611,686"):
    texts(tmp_path / "a.tfrecord")


@pytest.mark.exhaustive_from(4)
@pytest.mark.parametrize(
  "name", ["a.txt.gz", "a.txt.zst", "a.txt.bz2", "a.txt.xz", "a.tfrecord", "a.parquet", "a.txt.br", "a.array_record"]
)
def test_a_file_that_ends_too_soon_ends_the_run(name, tmp_path, monkeypatch):
  """In a part that no scan has read, the error is one sentence that names the file."""
  monkeypatch.setattr(file_validation, "READ_WHOLE_BYTES", 0)
  monkeypatch.setattr(file_validation, "SAMPLED_RECORDS", 5)
  draws = random.Random(0)
  long = [f"{text} {draws.randbytes(40).hex()}" for text in TEXTS * 50]
  path = tmp_path / name
  if ".txt." in name:
    path.write_bytes(test_file_sources.compressed(name, "\n".join(long).encode()))
  elif name.endswith(".parquet"):
    # Without checksums, changed letters of a text are not detected.
    table = pa.table({"text": long})
    pa.parquet.write_table(table, path, row_group_size=7, write_page_checksum=True)
  else:
    test_file_sources.write(tmp_path, name, long)
  content = path.read_bytes()
  flipped = bytearray(content)
  flipped[len(content) // 2 : len(content) // 2 + 64] = b"\0" * 64
  path.write_bytes(bytes(flipped) if name == "a.parquet" else content[: len(content) // 2 - 7])
  with pytest.raises(UserError, match=rf"config.data.files: {path}"):
    iterator = batches(tmp_path, name)
    for _ in range(2_000):
      next(iterator)


def test_a_file_that_is_away_for_a_moment(tmp_path, monkeypatch):
  """The file is opened again and read from the same position; a permanent error names it."""
  path = test_file_sources.write(tmp_path, "a.jsonl", TEXTS)
  opened, fails = [], 2

  class Flaky:
    """File whose fifth line cannot be read."""

    def __init__(self, file):
      self.file, self.count = file, 0

    def readline(self, size):
      self.count += 1
      if self.count == 5 and len(opened) <= fails:
        raise OSError(errno.EIO, os.strerror(errno.EIO))
      return self.file.readline(size)

    def __enter__(self):
      return self

    def __exit__(self, *error):
      self.file.close()

  def flaky(name, *arguments, **options):
    file = builtins.open(name, *arguments, **options)  # noqa: SIM115  who opens it so closes it
    if name != path:
      return file
    opened.append(name)
    return Flaky(file)

  monkeypatch.setattr(text_files, "open", flaky, raising=False)
  assert texts(path) == TEXTS and len(opened) == 3
  fails = 99
  with pytest.raises(UserError, match="a.jsonl cannot be read after line 4 .Input/output error"):
    texts(path)


def test_an_error_of_the_pipeline_is_itself(tmp_path, monkeypatch):
  """The error keeps its Python traceback, without TensorFlow's hundred lines."""
  test_file_sources.write(tmp_path, "a.txt", TEXTS)
  iterator = batches(tmp_path, "a.txt")

  def fail(*unused):
    raise KeyError("of a preprocessor")

  monkeypatch.setattr(example_windows.TaskSource, "windows", fail)
  with pytest.raises(KeyError, match="of a preprocessor") as raised:
    next(iterator)
  (note,) = raised.value.__notes__
  assert "test_bad_records.py" in note and "tensorflow" not in note and len(note.splitlines()) < 12
  assert raised.value.__suppress_context__


# ---- Arbitrary bytes -------------------------------------------------------------------------------------------------

_FUZZ = hypothesis.settings(
  max_examples=int(os.environ.get("T2T_FUZZ_EXAMPLES", 25)), deadline=None, derandomize=True, database=None
)


@functools.cache
def whole(name: str) -> bytes:
  import tempfile

  with tempfile.TemporaryDirectory() as folder:
    return pathlib.Path(test_file_sources.write(pathlib.Path(folder), name, TEXTS[:12])).read_bytes()


@pytest.fixture(scope="module")
def anywhere(tmp_path_factory):
  return tmp_path_factory.mktemp("fuzz")


@_FUZZ
@hypothesis.given(
  st.sampled_from(
    ["a.txt", "a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.jsonl.xz", "a.csv", "a.parquet", "a.tfrecord", "a.jsonl.br"]
  ),
  st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4),
  st.floats(0, 1) | st.just(1.0),
)
def test_any_bytes_in_any_format(anywhere, name, changes, kept):
  """Truncated files and files with changed bytes are read, or refused with an error that names the file."""
  content = bytearray(whole(name))
  for place, value in changes:
    content[int(place * len(content))] = value
  path = anywhere / name
  path.write_bytes(content[: int(kept * len(content))])
  for malformed in (0.0, 0.5):
    try:
      texts(path, malformed=malformed)
    except UserError as error:
      assert str(path) in str(error)


@pytest.mark.slow
def test_malformed_records_count_on_when_a_run_does(tmp_path, monkeypatch):
  """The tally continues after a resume, so that frequent restarts do not allow more malformed records."""
  monkeypatch.setattr(bad_records, "_LEAST_RECORDS", 1)
  test_file_sources.write(tmp_path, "a.jsonl", TEXTS)
  first = batches(tmp_path, "*.jsonl", max_bad_record_fraction=0.3, num_streams=2)
  first._tally.good(70)
  for _ in range(25):
    first._tally.bad(UserError("a"))
  state = first.state(3)
  resumed = batches(tmp_path, "*.jsonl", max_bad_record_fraction=0.3, num_streams=2)
  resumed.restore(state, step=3)
  for _ in range(4):
    resumed._tally.bad(UserError("b"))
  assert resumed._tally.shared_out(2) == [[50, 15], [49, 14]]
  resumed._tally.bad(UserError("c"))
  with pytest.raises(UserError, match=r"31 of the 101 records that this process has read are malformed, more than"):
    resumed._tally.bad(UserError("d"))
