"""CSV, TSV, JSON lines and Parquet give the same records, or an error with file and line."""

import csv
import gzip
import io
import json
import pathlib

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from t2t import UserError
from t2t.data.sources import tables

ROWS = [
  {"text": "plain", "label": "a"},
  {"text": 'with "quotes", and commas', "label": "b"},
  {"text": "né", "label": "a"},
]


def written(path: pathlib.Path, rows) -> str:
  """Writes a table with the standard library or pyarrow, in the format of the file name."""
  if path.name.endswith(".parquet"):
    pa.parquet.write_table(pa.Table.from_pylist(list(rows)), path)
    return str(path)
  file = io.StringIO()
  if ".jsonl" in path.name:
    file.write("".join(json.dumps(row) + "\n" for row in rows))
  else:
    writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if ".tsv" in path.name else ",")
    writer.writeheader()
    writer.writerows(rows)
  content = file.getvalue().encode()
  path.write_bytes(gzip.compress(content) if path.name.endswith(".gz") else content)
  return str(path)


def values(*paths) -> list[dict]:
  return [dict(row.values) for row in tables.read_rows([str(path) for path in paths])]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.parquet", "a.csv.gz", "a.tsv.gz"])
def test_each_format_gives_the_same_records(name, tmp_path):
  path = written(tmp_path / name, ROWS)
  assert tables.columns([path]) == ("text", "label")
  assert values(path) == ROWS and values(path, path) == ROWS * 2


@hypothesis.settings(max_examples=50, deadline=None, derandomize=True, database=None)
@hypothesis.given(st.lists(st.tuples(st.text(), st.text()), min_size=1, max_size=4), st.sampled_from(",;\t|"))
def test_what_pythons_csv_writes_is_read(tmp_path_factory, rows, delimiter):
  """Any text in any field is read, with line breaks and quotes."""
  path = tmp_path_factory.getbasetemp() / "any.csv"
  with path.open("w", newline="", encoding="utf-8") as file:
    try:
      csv.writer(file, delimiter=delimiter, quoting=csv.QUOTE_ALL).writerows([("a", "b"), *rows])
    except UnicodeEncodeError:
      return
  assert [tuple(row.values()) for row in values(path)] == rows


def test_rows_have_the_line_that_they_begin_in(tmp_path):
  (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbf,id,text\r\n0,1,"two\r\nlines"\r\n\r\n1,2,b\r\n')
  rows = list(tables.read_rows([str(tmp_path / "a.csv")]))
  assert [(row.number, dict(row.values)) for row in rows] == [
    (2, {"id": "1", "text": "two\r\nlines"}),  # without the nameless index column of pandas
    (5, {"id": "2", "text": "b"}),
  ]
  assert rows[1].location == f"{tmp_path}/a.csv, line 5"
  (tmp_path / "a.json").write_text('[\n {"id": 1},\n\n {"id":\n 2, "b": null}]')
  assert [(row.number, row.values["id"]) for row in tables.read_rows([str(tmp_path / "a.json")])] == [(2, 1), (4, 2)]
  assert tables.columns([str(tmp_path / "a.json")]) == ("id", "b")


@pytest.mark.parametrize(
  ("said", "header"), [(b"sep=;", b"a;b,c"), (b"\xef\xbb\xbfsep=,\r", b"a,b;c"), (b"SEP=\t", b"a\tb,c")]
)
def test_a_line_in_front_of_the_header_may_say_what_separates(said, header, tmp_path):
  """The line `sep=` of Excel sets the separator."""
  names = [b"a", header[2:]]
  (tmp_path / "a.csv").write_bytes(b"\n".join([said, header, header[1:2].join([b"1", b'" ""x"""']), b""]))
  (row,) = tables.read_rows([str(tmp_path / "a.csv")])
  assert row.number == 3 and dict(row.values) == {names[0].decode(): "1", names[1].decode(): ' "x"'}
  assert tables.columns([str(tmp_path / "a.csv")]) == tuple(name.decode() for name in names)


def test_narrow_numbers_of_parquet_have_the_digits_of_their_type(tmp_path):
  """Floats are read as the shortest decimal of their type."""
  columns = {"a": pa.array([0.1, None, 3.0], pa.float32()), "b": pa.array([0.1, 1e-7, 2.5], pa.float64())}
  pa.parquet.write_table(pa.table(columns | {"c": pa.array(np.float16([0.1, 1, 2]))}), tmp_path / "a.parquet")
  rows = [dict(row.values) for row in tables.read_rows([str(tmp_path / "a.parquet")])]
  assert rows == [{"a": 0.1, "b": 0.1, "c": 0.1}, {"a": None, "b": 1e-7, "c": 1.0}, {"a": 3.0, "b": 2.5, "c": 2.0}]


def test_quotes_in_a_table_of_tabs_are_letters(tmp_path):
  """Quotes around a whole field, with doubled inner quotes, are removed."""
  (tmp_path / "a.tsv").write_text('text\tlabel\n"a ""b"""\tx\n"so" it began\ty\nan "\tz\n')
  assert [row["text"] for row in values(tmp_path / "a.tsv")] == ['a "b"', '"so" it began', 'an "']


@pytest.mark.parametrize(
  ("name", "content", "message"),
  [
    (
      "a.csv",
      b"a,b\n1,2\n1,2,3\n",
      r"line 3: the row has 3 fields, separated by commas, but the header has 2 fields. Put a",
    ),
    ("a.csv", b'a,b\n1,2\n3,"x\n5,6\n', "line 3: a quote is opened here and never closed"),
    ("a.csv", b'a,b\n"x"y,2\n', "line 2: a quote is inside a quoted field; double the inner quote"),
    ("a.csv", b"a,a\n1,2\n", "line 1: the header, separated by commas, names 'a' 2 times"),
    ("a.csv", b"a,,c\n1,2,3\n", "line 1: column 2 of the header has no name"),
    ("a.csv", b"", "is empty; give a table with the names of the columns in the first line"),
    ("a.csv", "a,b\n1,é\n".encode("latin1"), "line 2: not valid UTF-8.*iconv -f latin1"),
    ("a.csv", "a,b\n1,é\n".encode("utf-16"), "line 1: not valid UTF-8.*iconv -f utf-16"),
    ("a.csv", b"PK\x03\x04\0\0\xff\n", "line 1: not valid UTF-8.*Excel workbook.*save the workbook as CSV"),
    ("a.csv", gzip.compress(b"a\n1\n", mtime=0), "is compressed with gzip, .* Rename it to .*a.csv.gz"),
    ("a.csv.gz", b"a\n1\n", "is not compressed, .* Rename it to .*a.csv$"),
    ("a.tsv", b"a\tb\n1\n", r"line 2: the row has no tabs, but the header has 2 fields. .*write the table as CSV"),
    ("a.csv", b'a,b\n1, "x"\n', "line 2: a quote after a comma and a space.*remove the space"),
    ("a.csv", b'a,b\n1, "x, y"\n', "line 2: a quote after a comma and a space"),
    ("a.csv", b'a; "b"\n1;2\n', "line 1: a quote after a semicolon and a space"),
    (
      "a.csv",
      b"sep=!\na!b\n",
      "line 1: the separator in 'sep=!' is not supported; separate columns by commas, semicolons, tabs or bars",
    ),
    ("a.csv", b"sep=;\n", "is empty; give a table with the names of the columns in the first line"),
    ("a.csv", b"sep=;\na;b\n1\n", r"line 3: the row has no semicolons, but the header has 2 fields"),
    (
      "a.jsonl",
      b'{"a": 1, "b": 2}\n{"a": 1, "a": 2}\n',
      "line 2: .* is not JSON .'a' is repeated in an object; give each",
    ),
    ("a.json", b'[{"a": 1},\n{"b": {"a": 1, "a": 2}}]\n', "line 2: not JSON .'a' is repeated in an object"),
    ("a.jsonl", b'{"a": 1}\n[1]\n', "line 2: the line has the JSON type list, not object"),
    ("a.json", b'[\n {"a": 1},\n {"a":', "line 3: not JSON"),
    ("a.txt", b"a\n", "is not a table; give a .csv, .tsv, .jsonl or .parquet file"),
  ],
)
def test_a_bad_table_is_named(name, content, message, tmp_path):
  path = tmp_path / name
  path.write_bytes(content)
  with pytest.raises(UserError, match=f"{name}.*{message}"):
    tables.columns([str(path)])
    values(path)


def test_tables_that_do_not_go_together(tmp_path, monkeypatch):
  paths = [written(tmp_path / "a.csv", ROWS), written(tmp_path / "b.csv", [{"text": "a", "other": "b"}])]
  with pytest.raises(UserError, match="a.csv has no column 'other' .columns: 'text', .*, but .*b.csv has this column"):
    tables.columns(paths)
  monkeypatch.setattr(tables, "_LARGEST", 10)
  with pytest.raises(UserError, match="more than the limit of 10 for a table in memory"):
    values(paths[0])
