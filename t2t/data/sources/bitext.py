"""Texts and translations: two columns of a line, two fields of a JSON line, or lines of two parallel files.

`config.data.translation` names the translation: a field of JSON lines, a language of TMX, or for parallel text files
the ends of both file names, ".en.txt=.fr.txt". The second column of a .tsv has no name.
"""

from collections.abc import Iterator, Sequence
import functools
import itertools
import json

from t2t import UserError
from t2t.data.sources import fields, text_files, tmx


class Aligned(bytes):
  """Line of text and its translation: `other`, a line of the file `path`."""

  other: bytes
  path: str

  def __new__(cls, line: bytes, translation: bytes, path: str):
    aligned = super().__new__(cls, line)
    aligned.other, aligned.path = translation, path
    return aligned


def beside(path: str, *, translation: str, where: str) -> str:
  """Returns the file that contains the translations of a text file, or "" if they are in the same file.

  In:  "news.en.txt", translation ".en.txt=.fr.txt"
  Out: "news.fr.txt"

  Raises:
    UserError: the file contains no translations, and no parallel file is named.
  """
  kind = text_files.kind(path, where=where)
  if kind in ("pairs", "json", "csv", "tmx"):
    return ""
  old, separator, new = translation.partition("=")
  if kind == "text" and separator and old != new and path.endswith(old):
    return path.removesuffix(old) + new
  parallel = "the ends of both file names, for example config.data.translation=.en.txt=.fr.txt"
  if kind == "text" and separator:
    raise UserError(
      f"{where}: {path} does not end in {old!r}, the first part of config.data.translation={translation}. Give"
      f" {parallel}."
    )
  raise UserError(
    f"{where}: {path} has no translations for config.data.translation={translation}. Give a .tsv with two columns, JSON"
    f" lines or CSV with two fields, or a .tmx. For parallel text files, give {parallel}."
  )


def lines(path: str, other_path: str, *, where: str) -> Iterator[tuple[int, Aligned]]:
  """Yields the lines of a file with the lines of its parallel file, numbered from 1.

  Raises:
    UserError: a file cannot be read to its end, or ends before the other; names the first line without a translation.
  """
  numbered_lines = (text_files.lines(line_path, where=where) for line_path in (path, other_path))
  for number, (line, translation) in enumerate(itertools.zip_longest(*numbered_lines), 1):
    if line is None or translation is None:
      longer, shorter = (other_path, path) if line is None else (path, other_path)
      raise UserError(
        f"{where}: {longer}, line {number}: {shorter} has no line {number}. Correct the files: lines with the same"
        " number must be translations of each other."
      )
    yield number, Aligned(line[1], translation[1], other_path)


def check(files: Sequence[str], *, field: str, translation: str, where: str, most: int) -> None:
  """Checks that files have translations, and that parallel files have equally many lines.

  Args:
    files: paths.
    field: of the texts.
    translation: see above; "": the objective reads no translations.
    where: the configuration key that names the files.
    most: maximum bytes of a file whose lines are counted before training; larger files are checked while they are read.

  Raises:
    UserError: a translation or a parallel file is missing, a line has no counterpart, or a TMX file lacks a language.
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
        f"{where}: {alone[0]} has texts and translations, but this objective reads no translations. Set"
        f" {section}.objective to translation, text_to_text or translation_lm, or give a file for each language."
        " `cut -f1` extracts the first column."
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
  """Refuses the ends of parallel file names if all files contain their translations.

  Args:
    files: paths.
    translation: see above.
    where: its configuration key.

  Raises:
    UserError: no file uses the setting.
  """
  if "=" in translation and all(text_files.kind(path, where=where) == "pairs" for path in files):
    raise UserError(
      f"{where}={translation} applies only to parallel text files, but {files[0]} has the translations in the second"
      f" column; leave {where} out"
    )


@functools.lru_cache(maxsize=1_024)
def _check_lines(path: str, other_path: str, where: str, stats: tuple[text_files.Stat, ...]) -> None:
  del stats  # cache key: the lines change only with the files
  for _ in lines(path, other_path, where=where):
    pass


def translated(path: str, number: int, record: bytes, *, translation: str, where: str) -> str:
  """Returns the translation of a record whose text `text_files.parse` has read; "" for a blank record.

  Raises:
    UserError: there is no translation; names the file and the line.
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
