"""Reading files, sharding them, and errors in them."""

import bz2
import contextlib
import csv
import gzip
import io
import itertools
import json
import lzma
import pathlib

from array_record.python import array_record_module
import pyarrow as pa
import pyarrow.parquet
import pytest
import seqio
import tensorflow as tf

from t2t import UserError
from t2t.data import docs_corpus, sources
from t2t.data.sources import file_validation, text_files

TEXTS = [f"document number {i} of this test" for i in range(40)]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
  monkeypatch.setenv("T2T_CACHE_DIR", str(tmp_path / "cache"))


def write(folder: pathlib.Path, name: str, texts) -> str:
  """Writes texts in the format of the file name."""
  path = folder / name
  lines = "".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts))
  if name.endswith(".txt"):
    path.write_text("\n\n".join(texts))
  elif name.endswith(".jsonl"):
    path.write_text(lines)
  elif ".jsonl." in name:
    path.write_bytes(compressed(name, lines.encode()))
  elif ".csv" in name:
    file = io.StringIO()
    csv.writer(file).writerows([("id", "text"), *enumerate(texts)])
    path.write_bytes(compressed(name, file.getvalue().encode()))
  elif name.endswith(".parquet"):
    pa.parquet.write_table(pa.table({"text": list(texts)}), path, row_group_size=7)
  else:
    with record_writer(str(path)) as writer:
      for text in texts:
        writer.write(example(text))
  return str(path)


def example(text: str) -> bytes:
  value = tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode()]))
  return tf.train.Example(features=tf.train.Features(feature={"text": value})).SerializeToString()


def record_writer(path: str):
  if "array_record" in path:
    return contextlib.closing(array_record_module.ArrayRecordWriter(path, "group_size:3"))
  return tf.io.TFRecordWriter(path)


def compressed(name: str, content: bytes) -> bytes:
  """Returns the content, compressed by the end of the name."""
  if codec := {".zst": "zstd", ".br": "brotli"}.get(pathlib.Path(name).suffix):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as file:
      file.write(content)
    return sink.getvalue().to_pybytes()
  ways = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
  return ways.get(pathlib.Path(name).suffix, bytes)(content)


def read(source, split="train", *, shard=0, num_shards=1):
  dataset = source.get_dataset(split, shuffle=False, shard_info=seqio.ShardInfo(shard, num_shards))
  return [element["text"].decode() for element in dataset.as_numpy_iterator()]


def test_all_formats_in_one_list(tmp_path):
  """Each format contains a part of the texts; tf.data and plain Python read each text once."""
  names = ["a.txt", "b.jsonl", "c.jsonl.gz", "d.parquet", "e.tfrecord-00000-of-00001", "f.csv", "g.csv.gz"]
  names += ["h.jsonl.zst", "i.jsonl.bz2", "j.jsonl.xz", "k.jsonl.br", "l.array_record-00000-of-00001"]
  for number, name in enumerate(names):
    write(tmp_path, name, TEXTS[number :: len(names)])
  globs = ("*.txt", " *.jsonl*", "*.parquet", "*.tfrecord*", "*.csv*", "*.array_record*")
  files = text_files.find_files(",".join(f"{tmp_path}/{each.strip()}" for each in globs))
  assert [pathlib.Path(file).name for file in files] == names
  assert sorted(read(sources.FileSource({"train": files}))) == sorted(TEXTS)
  assert sorted(text for file in files for text in text_files.read_texts(file, field="text")) == sorted(TEXTS)
  assert file_validation.scan(files, field="text").documents == len(TEXTS)


def test_array_records_are_objects_examples_or_texts(tmp_path):
  """Each record of an ArrayRecord file may be JSON, a tf.train.Example or the text."""
  with record_writer(str(tmp_path / "a.array_record")) as writer:
    for record in (b'{"text": "one"}', example("two"), b"three", "\nviér ".encode(), b'{"body": "x"}'):
      writer.write(record)
  texts = text_files.read_texts(str(tmp_path / "a.array_record"), field="text")
  assert list(itertools.islice(texts, 4)) == ["one", "two", "three", "viér"]
  with pytest.raises(UserError, match="a.array_record, record 5: no field 'text'"):
    next(texts)
  with pytest.raises(UserError, match="gs://b/a.array_record: ArrayRecord files are read from disks only"):
    next(text_files.read_texts("gs://b/a.array_record", field="text"))


@pytest.mark.parametrize("num_files", [1, 3, 40])
def test_shards_share_out_the_records(tmp_path, num_files):
  """Every record is in exactly one shard; shards of few files differ by at most one record per file."""
  for number in range(num_files):
    write(tmp_path, f"{number:02}.jsonl", TEXTS[number::num_files])
  source = sources.FileSource({"train": text_files.find_files(f"{tmp_path}/*.jsonl")})
  shards = [read(source, shard=shard, num_shards=4) for shard in range(4)]
  assert sorted(sum(shards, [])) == sorted(TEXTS)
  assert all(abs(len(shard) - 10) <= min(num_files, 3) for shard in shards)


def test_held_out_documents_are_in_one_split_only(tmp_path):
  files = (write(tmp_path, "a.txt", TEXTS),)
  source = sources.FileSource({"train": files, "validation": files}, held_out_below=2**32 // 4)
  train, validation = read(source), read(source, "validation")
  assert sorted(train + validation) == sorted(TEXTS) and 0 < len(validation) < 20
  assert validation == [text for text in TEXTS if sources.text_hash(text) < 2**32 // 4]


def test_a_small_corpus_holds_out_one_document(tmp_path):
  found = file_validation.scan((write(tmp_path, "a.txt", TEXTS[:5]),), field="text")
  below = file_validation.held_out_below(found)
  assert sum(sources.text_hash(text) < below for text in TEXTS[:5]) == 1


def bad_file(name: str, content: bytes):
  return pytest.param(name, content, id=f"{name}-{content[:12]!r}")


GOOD = b'{"text": "good"}\n'


@pytest.mark.parametrize(
  "name, content, message",
  [
    ("a.jsonl", GOOD + b"{'text': 1}\n", r"a.jsonl, line 2: .* is not JSON \(Expecting property name"),
    ("a.jsonl", GOOD + GOOD + b'{"body": "x", "id": 3}\n', "a.jsonl, line 3: no field 'text' .fields: 'body', 'id'"),
    ("a.jsonl", GOOD + b'{"text": 7}\n', "a.jsonl, line 2: field 'text' has type number, not string"),
    ("a.jsonl", b'["x"]\n', "a.jsonl, line 1: the line has the JSON type list, not object"),
    ("a.jsonl", b'{"text": "\\ud800"}\n', "a.jsonl, line 1: field 'text' is not valid Unicode"),
    ("a.txt", b"good\nfran\xe7ais\n", "a.txt, line 2: not valid UTF-8 .byte 5 of the line is 0xe7"),
    ("a.txt", "good\nfine\n".encode("utf-16"), "a.txt, line 1: not valid UTF-8.*`iconv -f utf-16 -t utf-8`"),
    ("a.jsonl.gz", gzip.compress(b"\n" + GOOD + b"[]", mtime=0), "a.jsonl.gz, line 3: the line has the JSON type list"),
    ("a.tfrecord", None, "a.tfrecord, record 1: no feature 'text' .features: 'other'"),
  ],
)
def test_a_bad_record_is_named(tmp_path, name, content, message):
  """The scan names file and line, and so does training (tf.data) for records that no scan has read."""
  path = tmp_path / name
  if content is None:
    value = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"x"]))
    example = tf.train.Example(features=tf.train.Features(feature={"other": value}))
    with tf.io.TFRecordWriter(str(path)) as writer:
      writer.write(example.SerializeToString())
  else:
    path.write_bytes(content)
  with pytest.raises(UserError, match=f"config.data.files: .*{message}"):
    file_validation.scan((str(path),), field="text")
  with pytest.raises(tf.errors.OpError) as raised:
    read(sources.FileSource({"train": (str(path),)}))
  error = sources.user_error(raised.value)
  assert error is not None
  with pytest.raises(UserError, match=f"config.data.files: .*{message}"):
    raise error


def test_truncated_and_corrupt_files(tmp_path):
  whole = gzip.compress(GOOD * 5000)
  good = pathlib.Path(write(tmp_path, "good.tfrecord", TEXTS)).read_bytes()
  for name, content, message in [
    ("short.jsonl.gz", whole[:-20], r"short.jsonl.gz: truncated or corrupt gzip after line \d+"),
    ("not.jsonl.gz", GOOD, "not.jsonl.gz: is not compressed, but its name ends in .gz. Rename it to .*not.jsonl"),
    ("bad.tfrecord", b"x" * 100, "bad.tfrecord: truncated or corrupt TFRecord after record 0"),
    # One changed letter of an intact text.
    (
      "flip.tfrecord",
      good.replace(b"number 7", b"number 8"),
      "flip.tfrecord, record 8: the checksum of the record is wrong",
    ),
    ("bad.parquet", b"x" * 100, "bad.parquet cannot be read as a Parquet file .*Copy or download"),
  ]:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
      file_validation.scan((str(tmp_path / name),), field="text")


def test_parquet_columns(tmp_path):
  pa.parquet.write_table(pa.table({"body": ["x"], "n": [1]}), tmp_path / "a.parquet")
  pa.parquet.write_table(pa.table({"text": ["x", None]}), tmp_path / "b.parquet")
  with pytest.raises(UserError, match="a.parquet has no column 'text' .columns: 'body', 'n'"):
    file_validation.scan((str(tmp_path / "a.parquet"),), field="text")
  with pytest.raises(UserError, match="a.parquet: column 'n' has type int64, not string"):
    file_validation.scan((str(tmp_path / "a.parquet"),), field="n")
  with pytest.raises(UserError, match="b.parquet, record 2: field .text. is null"):
    file_validation.scan((str(tmp_path / "b.parquet"),), field="text")


def test_globs_that_match_nothing(tmp_path):
  write(tmp_path, "a.txt", TEXTS)
  with pytest.raises(UserError, match=rf"no file matches {tmp_path}/x/\*.txt. The nearest folder.* contains a.txt"):
    text_files.find_files(f"{tmp_path}/*.txt,{tmp_path}/x/*.txt")
  with pytest.raises(UserError, match=r"The nearest folder that exists, /, contains"):
    text_files.find_files("/no_such_folder/*.txt")
  with pytest.raises(UserError, match="is a folder; give a glob"):
    text_files.find_files(str(tmp_path))
  (tmp_path / "a.docx").write_text("")
  with pytest.raises(UserError, match="a.docx: unknown file format. The name must end in .txt"):
    text_files.find_files(f"{tmp_path}/a.docx")
  with pytest.raises(UserError, match="config.data.files is empty"):
    text_files.find_files(" , ")


def test_an_empty_corpus(tmp_path):
  (tmp_path / "a.txt").write_text("\n \n")
  with pytest.raises(UserError, match="no text in .*a.txt; all records"):
    file_validation.scan((str(tmp_path / "a.txt"),), field="text")


def test_a_scan_is_remembered_until_the_file_changes(tmp_path):
  path = write(tmp_path, "a.txt", TEXTS)
  assert file_validation.scan((path,), field="text").documents == 40
  file_validation._scan.cache_clear()
  remembered = list((tmp_path / "cache" / "scan").iterdir())
  assert len(remembered) == 1 and file_validation.scan((path,), field="text").documents == 40
  write(tmp_path, "a.txt", TEXTS[:3])
  assert file_validation.scan((path,), field="text").documents == 3


def test_a_scan_is_of_one_field(tmp_path):
  """Another field of the same files has other texts and another cache entry."""
  lines = [json.dumps({"title": text[:5], "text": text if index % 2 else ""}) for index, text in enumerate(TEXTS)]
  (tmp_path / "a.jsonl").write_text("\n".join(lines))
  path = str(tmp_path / "a.jsonl")
  assert file_validation.scan((path,), field="text").documents == 20
  assert file_validation.scan((path,), field="title").documents == 40


def test_prose():
  """Sentences stay; code and markup are removed."""
  docstring = """Returns the :class:`~numpy.ndarray` of sums along `axis` of the array.

    >>> add(1, 2)
    3

    ======  =====
    a       b
    ======  =====

    Too short a paragraph.
    """
  assert docs_corpus.prose(docstring) == "Returns the numpy.ndarray of sums along axis of the array."


def test_documents_of_a_file(tmp_path):
  sentence = "This is a sentence of a documentation string, and it is long enough to be kept as a document."
  (tmp_path / "a.py").write_text(
    f'"""{sentence} One."""\nclass A:\n  """{sentence} Two."""\n  def f(self):\n    """{sentence} Three."""\n'
  )
  assert list(docs_corpus.documents(tmp_path / "a.py")) == [f"{sentence} {n}." for n in ("One", "Two", "Three")]
  (tmp_path / "b.py").write_text("this is not Python")
  assert list(docs_corpus.documents(tmp_path / "b.py")) == []


def test_installed_documentation(tmp_path, monkeypatch):
  """A small package has two disjoint splits, and a second call reads nothing."""
  monkeypatch.setattr(docs_corpus, "PACKAGES", {"optax": "optax"})
  monkeypatch.setattr(docs_corpus.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path / "none")})
  source = sources.DocumentationSource()
  train, validation = read(source), read(source, "validation")
  assert len(train) > 100 and validation and not set(train) & set(validation)
  monkeypatch.setattr(docs_corpus, "documents", None)
  assert docs_corpus.files()["train"].exists()
