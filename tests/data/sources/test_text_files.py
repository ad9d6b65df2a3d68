"""Texts in every Parquet string type, in nested objects, and in lists."""

import dataclasses
import json

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import test_file_sources

from t2t import UserError, sharding
from t2t.configuration.schema import DataConfig
from t2t.data import pipeline
from t2t.data.sources import bad_records, text_files

TEXTS = ["one a", "two b", "one a", "thrée"]
MESSAGES = [
  {"role": "user", "content": "hi"},
  {"role": "assistant", "content": None},
  {"role": "user", "content": "yo"},
]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
  monkeypatch.setenv("T2T_CACHE_DIR", str(tmp_path / "cache"))


def read(path, field: str, malformed: float = 0.0) -> list[str]:
  return list(text_files.read_texts(str(path), field=field, tally=bad_records.Tally(malformed)))


# pandas writes string, large_string and dictionaries (categories); polars writes large_string, string_view and
# dictionaries (Categorical and Enum). Binary types have bytes in place of strings.
_TYPES = (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view())


@pytest.mark.parametrize("kind", _TYPES, ids=str)
def test_every_type_of_text_in_parquet(kind, tmp_path):
  """Texts are read from a column, a struct, a list and a dictionary type; a null is a malformed record."""
  plain = pa.array(TEXTS, kind)
  in_struct = pa.StructArray.from_arrays([plain, pa.array(range(4))], ["text", "n"])
  lists = pa.array([[text, None, text] for text in TEXTS], pa.list_(kind))
  columns = {"text": plain, "meta": in_struct, "lists": lists, "null": pa.array([*TEXTS[:3], None], kind)}
  if "view" not in str(kind):
    columns["category"] = pa.array(TEXTS).dictionary_encode().cast(pa.dictionary(pa.int8(), kind))
  path = tmp_path / "a.parquet"
  pa.parquet.write_table(pa.table(columns), path, row_group_size=4 if "view" in str(kind) else 3)
  for field in ("text", "meta.text", *(["category"] if "category" in columns else [])):
    assert read(path, field) == TEXTS
  assert read(path, "lists") == [f"{text}\n{text}" for text in TEXTS] and read(path, "lists.-1") == TEXTS
  assert read(path, "null", 0.5) == TEXTS[:3]
  with pytest.raises(UserError, match="record 4: field 'null' is null; remove .*--config.data.max_bad_record_fraction"):
    read(path, "null")


@pytest.mark.parametrize(
  ("field", "message"),
  [
    ("n", "column 'n' has type int64, not string; set config.data.field to .* .columns of text: .*'meta.text'"),
    ("meta", "column 'meta' has type struct<.*>, not string; .* .columns of text: 'meta.text'"),
    ("messages", r"column 'messages' has type list<.*>, not string; .*'messages.content'"),
    (
      "text",
      r"has no column 'text' \(columns: 'n', .*\); set config.data.field to .*, for example 'meta.text'",
    ),
    ("bytes", r"record 1: field 'bytes' is not valid UTF-8 .*set config.data.field"),
  ],
)
def test_a_column_that_is_not_text(field, message, tmp_path):
  columns = {
    "n": [1, 2],
    "meta": [{"text": "a"}] * 2,
    "messages": [MESSAGES] * 2,
    "bytes": [b"\xff"] * 2,
  }
  pa.parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
  with pytest.raises(UserError, match=rf"a.parquet.*{message}"):
    read(tmp_path / "a.parquet", field)


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
@pytest.mark.parametrize(
  ("field", "text"),
  [
    ("meta.text", "deep"),
    ("messages.content", "hi\nyo"),
    ("messages.0.content", "hi"),
    ("messages.-1.content", "yo"),
    ("lines", "a\nb"),
    ("dotted.name", "literal"),
  ],
)
def test_the_path_to_a_text(name, field, text, tmp_path):
  """JSON lines and Parquet use the same rule; a literal field name has priority."""
  record = {"meta": {"text": "deep"}, "messages": MESSAGES, "lines": ["a", "b"]}
  record |= (
    {"dotted.name": "literal", "dotted": {"name": "within"}} if name == "a.jsonl" else {"dotted.name": "literal"}
  )
  if name.endswith(".jsonl"):
    (tmp_path / name).write_text(json.dumps(record) + "\n")
  else:
    pa.parquet.write_table(pa.Table.from_pylist([record]), tmp_path / name)
  assert read(tmp_path / name, field) == [text]


@pytest.mark.parametrize(
  ("record", "field", "message"),
  [
    ({"messages": MESSAGES}, "text", "no field 'text' .fields: 'messages'.; .*, for example 'messages.content'"),
    (
      {"messages": MESSAGES},
      "messages",
      "is a list of objects .fields: 'role', 'content'.*: 'messages.content' reads all objects",
    ),
    ({"messages": MESSAGES}, "messages.9.content", "no field 'messages.9.content'"),
    ({"text": None}, "text", "field 'text' is null; remove the record, or .*--config.data.max_bad_record_fraction"),
    ({"text": ["a", 3]}, "text", "is a list with an element of type number, not string"),
    ({"text": "a\ud800"}, "text", r"character 2, \\ud800, is an unpaired surrogate"),
    ([{"text": "a"}], "text", "the line has the JSON type list, not object. .*`jq -c '.\\[\\]'` converts a list"),
  ],
)
def test_advice_on_a_record_that_is_not_read_helps(record, field, message, tmp_path):
  (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
  with pytest.raises(UserError, match=f"a.jsonl, line 1: .*{message}"):
    read(tmp_path / "a.jsonl", field)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.csv"])
def test_a_run_goes_on_at_the_very_next_row(name, tmp_path):
  """A saved position is exact in every format."""
  data = DataConfig(vocabulary="bytes", inputs_length=32, targets_length=16, num_streams=2, files=f"{tmp_path}/{name}")
  test_file_sources.write(tmp_path, name, test_file_sources.TEXTS)
  data = dataclasses.replace(data, field="text", shuffle_buffer=4)
  mesh = sharding.make_mesh({"fsdp": -1}, devices=jax.devices()[:1])
  whole = pipeline.train_batches(data, "encoder_decoder", mesh, batch_size=4, seed=1)
  batches = [jax.tree.map(np.asarray, next(whole)) for _ in range(6)]
  first = pipeline.train_batches(data, "encoder_decoder", mesh, batch_size=4, seed=1)
  for _ in range(3):
    next(first)
  state = first.state(3)
  resumed = pipeline.train_batches(data, "encoder_decoder", mesh, batch_size=4, seed=1)
  resumed.restore(state, step=3)
  for expected in batches[3:]:
    jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.asarray, next(resumed)), expected)
