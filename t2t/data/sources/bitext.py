"""Texts and their translations: two columns of a line, two fields of a JSON line, or lines of two files side by side.

A translation is found by `config.data.translation`: in JSON lines it is the name of a field, in TMX a language, beside
files of text how the name of the file beside ends, ".en.txt=.fr.txt"; the second column of a .tsv has no name.
"""

from collections.abc import Iterator, Sequence
import functools
import itertools
import json

from t2t import UserError
from t2t.data.sources import fields, text_files, tmx


class Aligned(bytes):
  """A line of text, and that of the file beside: `other`, a line of `path`."""

  other: bytes
  path: str

  def __new__(cls, line: bytes, translation: bytes, path: str):
    """A line and its translation."""
    aligned = super().__new__(cls, line)
    aligned.other, aligned.path = translation, path
    return aligned


def beside(path: str, *, translation: str, where: str) -> str:
  """The file whose lines translate those of another, or "" where the translation stands in the same file.

  In:  "news.en.txt", translation ".en.txt=.fr.txt"
  Out: "news.fr.txt"

  Raises:
    UserError: the file has no translation in it, and none beside it is named.
  """
  kind = text_files.kind(path, where=where)
  if kind in ("pairs", "json", "csv", "tmx"):
    return ""
  old, separator, new = translation.partition("=")
  if kind == "text" and separator and old != new and path.endswith(old):
    return path.removesuffix(old) + new
  accepted = "a .tsv of two columns, JSON lines or CSV of two fields, a .tmx, or the file beside, as '.en.txt=.fr.txt'"
  if kind == "text" and separator:
    raise UserError(
      f"{where}: {path}: its name does not end in {old!r}, as config.data.translation={translation} has it, which names"
      " the end of a name and that of its translation's"
    )
  raise UserError(
    f"{where}: {path}: has no translations; config.data.translation={translation} names a field of JSON lines. Give"
    f" {accepted}"
  )


def lines(path: str, other_path: str, *, where: str) -> Iterator[tuple[int, Aligned]]:
  """The lines of a file with those of the file beside, numbered from 1.

  Raises:
    UserError: a file that cannot be read to its end; one that ends before the other, which names the first line that
      has no translation.
  """
  numbered_lines = (text_files.lines(line_path, where=where) for line_path in (path, other_path))
  for number, (line, translation) in enumerate(itertools.zip_longest(*numbered_lines), 1):
    if line is None or translation is None:
      longer, shorter = (other_path, path) if line is None else (path, other_path)
      raise UserError(
        f"{where}: {longer}, line {number}: has no line beside it in {shorter}, which ends before it; in files side by"
        " side each line translates the one of the same number"
      )
    yield number, Aligned(line[1], translation[1], other_path)


def check(files: Sequence[str], *, field: str, translation: str, where: str, most: int) -> None:
  """Whether files have translations where they are read, and those side by side have as many lines.

  Args:
    files: paths.
    field: of the texts.
    translation: see above; "": the objective reads none.
    where: the configuration key that names the files.
    most: bytes of a file whose lines are counted before training; of a larger one they are while it is read.

  Raises:
    UserError: no translation; a file beside that is not there; the first line that has none beside it; a language that
      a TMX file does not have.
  """
  section = where.rpartition(".")[0]
  languages = {f"{section}.field": field} | ({f"{section}.translation": translation} if translation else {})
  for path in files:
    if text_files.kind(path, where=where) == "tmx":
      tmx_units = (json.loads(unit) for _, unit in text_files.units(path, where=where))
      tmx.check(tmx_units, languages, path=path)
  if not translation:
    if alone := [path for path in files if text_files.kind(path, where=where) == "pairs"]:
      raise UserError(
        f"{where}: {alone[0]}: has texts and their translations, which the objectives translation, text_to_text and"
        " translation_lm read; for others give a file for each language, `cut -f1` makes one"
      )
    return
  paths_beside = {
    path: other_path for path in files if (other_path := beside(path, translation=translation, where=where))
  }
  stats = text_files.stats([*paths_beside], where=where)
  stats |= text_files.stats([*paths_beside.values()], where=f"{section}.translation={translation}")
  for path, other_path in paths_beside.items():
    if stats[path].size <= most:
      _check_lines(path, other_path, where, (stats[path], stats[other_path]))


def check_used(files: Sequence[str], *, translation: str, where: str) -> None:
  """Refuses how the names of files beside end where all files have their translations in them.

  Args:
    files: paths.
    translation: see above.
    where: the configuration key that has it.

  Raises:
    UserError: nothing reads it.
  """
  if "=" in translation and all(text_files.kind(path, where=where) == "pairs" for path in files):
    raise UserError(
      f"{where}={translation}: is for lines of text files side by side, and {files[0]} has the translations in its"
      f" second column; leave {where} out"
    )


@functools.lru_cache(maxsize=1_024)
def _check_lines(path: str, other_path: str, where: str, stats: tuple[text_files.Stat, ...]) -> None:
  del stats  # as long as they are the same, so are the lines
  for _ in lines(path, other_path, where=where):
    pass


def translated(path: str, number: int, record: bytes, *, translation: str, where: str) -> str:
  """The translation of a record whose text `text_files.parse` has read; "" for a blank one.

  Raises:
    UserError: it has none; names the file and the line.
  """
  if isinstance(record, Aligned):
    return text_files.parse(record.path, number, record.other, field="", where=where)
  if text_files.kind(path, where=where) == "tmx":
    return tmx.text(json.loads(record), translation)
  text = record.decode("utf-8-sig" if number == 1 else "utf-8")
  if text_files.kind(path, where=where) == "pairs":
    return text.rstrip("\r\n").split("\t")[1].strip()
  try:
    key = "set config.data.translation to the field of the translation"
    return fields.text(json.loads(text), translation, key=key).strip()
  except fields.UnreadableField as error:
    raise UserError(f"{where}: {path}, line {number}: {error}") from error
