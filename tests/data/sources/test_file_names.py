"""File patterns: globs, literal names, links and folders; each file is read once."""

import gzip
import os

import pytest

from t2t import UserError
from t2t.data.sources import text_files


def found(folder, patterns: str) -> list[str]:
  return [os.path.relpath(path, folder) for path in text_files.find_files(patterns)]


@pytest.mark.parametrize("name", ["[a].txt", "a[1].txt", "a{b}.txt", "what?.txt", "a*.txt", "one, two.txt", "!x.txt"])
def test_a_literal_name_is_itself(name, tmp_path):
  """A name that would match something else as a glob is literal; a comma separates two names."""
  for other in (name, "a.txt", "a1.txt", "plain.txt"):
    (tmp_path / other).write_text("text\n")
  assert found(tmp_path, f"{tmp_path}/{name}") == [name]
  assert found(tmp_path, f"{tmp_path}/plain.txt,{tmp_path}/{name}") == sorted([name, "plain.txt"])


def test_brackets_of_a_folder_are_letters_where_no_class_matches(tmp_path):
  (tmp_path / "data[v1]").mkdir()
  (tmp_path / "data[v1]" / "a.txt").write_text("text\n")
  assert found(tmp_path, f"{tmp_path}/data[v1]/*.txt") == ["data[v1]/a.txt"]
  (tmp_path / "b1.txt").write_text("text\n")
  assert found(tmp_path, f"{tmp_path}/b[0-9].txt") == ["b1.txt"]


def test_each_file_is_found_once(tmp_path, capfd):
  """Linked folders, cyclic links, two globs and two spellings give each file once."""
  (tmp_path / "a").mkdir()
  (tmp_path / "a" / "x.txt").write_text("text\n")
  (tmp_path / "a" / ".hidden.txt").write_text("text\n")
  (tmp_path / "a" / "round").symlink_to(tmp_path)
  (tmp_path / "b").symlink_to(tmp_path / "a")
  (tmp_path / "y.txt").symlink_to(tmp_path / "a" / "x.txt")
  assert found(tmp_path, f"{tmp_path}/**/x.txt") == ["a/x.txt"]
  assert found(tmp_path, f"{tmp_path}/a/x.txt,{tmp_path}/b/x.txt") == ["a/x.txt"]
  assert "b/x.txt is the same file as" in capfd.readouterr().err
  assert found(tmp_path, f"{tmp_path}/a/*.txt,{tmp_path}/**/*.txt") == ["a/x.txt"]
  assert found(tmp_path, f"{tmp_path}/a/x.txt,{tmp_path}/./a/../a/x.txt") == ["a/x.txt"]
  assert found(tmp_path, f"{tmp_path}/a/.hidden.txt") == ["a/.hidden.txt"]


def test_folders_and_files_in_each_others_place(tmp_path):
  for name in ("a.csv", "b.csv", "c.txt", ".d"):
    (tmp_path / name).write_text("text\n")
  with pytest.raises(UserError, match=r"is a folder; give a glob of its files, for example '.*/\*\.csv'"):
    text_files.find_files(str(tmp_path))
  with pytest.raises(UserError, match=r"c.txt is a file, not a folder"):
    text_files.find_files(f"{tmp_path}/c.txt/*.txt")


@pytest.mark.parametrize(
  ("name", "content", "message"),
  [
    (
      "a.txt",
      gzip.compress(b"text\n", mtime=0),
      r"compressed with gzip, but its name has no extension for it. Rename it to .*a\.txt\.gz$",
    ),
    ("a.jsonl", b"\x28\xb5\x2f\xfd123", r"compressed with Zstandard, .* Rename it to .*a\.jsonl\.zst$"),
    ("a.txt.gz", b"\x28\xb5\x2f\xfd123", r"compressed with Zstandard, but its name ends in \.gz\. .*a\.txt\.zst$"),
    ("a.txt.bz2", b"text\n", r"not compressed, .* Rename it to .*a\.txt$"),
    ("a.txt.br", b"text\n", r"a\.txt\.br: truncated or corrupt Brotli after line 0 .*`brotli -t`"),
    ("a.txt", b"PAR1\xff", "the file is Parquet: rename it"),
    ("a.txt", b"PK\x03\x04\xff", "zip archive"),
    ("a.txt", b"\x7fELF\x02\x01\x01\0\0\0\xff", "the file is binary, not text"),
    ("a.txt", "text\n".encode("utf-16"), "`iconv -f utf-16"),
    ("a.txt", "text\n".encode("utf-16-be") + b"\xff", "`iconv -f utf-16"),
    ("a.txt", "a “quote”\n".encode("cp1252"), "`iconv -f cp1252"),
  ],
)
def test_a_name_that_does_not_fit_its_content(name, content, message, tmp_path):
  """The advice fits the content: never iconv for a compressed file."""
  (tmp_path / name).write_bytes(content)
  with pytest.raises(UserError, match=message) as raised:
    list(text_files.read_texts(str(tmp_path / name), field="text"))
  assert ("iconv" in str(raised.value)) == ("iconv" in message)


@pytest.mark.parametrize(("name", "step"), [("a.zip", "unzip"), ("a.tar.gz", "tar -xf"), ("a.xlsx", "as CSV")])
def test_what_is_not_read_has_a_step(name, step):
  with pytest.raises(UserError, match=f"unknown file format. .*{step}.*must end in .txt"):
    text_files.kind(name)
