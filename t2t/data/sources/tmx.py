"""TMX, the exchange format of translation memories: units with the same text in several languages.

A unit is {"en": "Red.", "fr": "Rouge."}, so a language in TMX corresponds to a field in JSON lines. Files are parsed in
blocks; declared entities are not expanded, and external files are not opened.
"""

from collections.abc import Iterable, Iterator, Mapping
import io
from xml.parsers import expat

from t2t import UserError, did_you_mean

_BLOCK = 2**16  # bytes parsed at a time
_LARGEST_UNIT = 2**24  # characters of a unit
# Elements in a segment that hold another program's codes, not text (TMX 1.4b, section "Content markup").
_CODES = frozenset({"bpt", "ept", "it", "ph", "sub", "ut"})


class _Units:
  """Collects the units found by a parser."""

  def __init__(self) -> None:
    self.units: list[dict[str, str]] = []
    self._unit: dict[str, str] | None = None
    self._language = ""
    self._segment: list[str] | None = None
    self._codes = self._size = 0  # open code elements; characters of the unit

  def parser(self) -> expat.XMLParserType:
    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
    parser.CharacterDataHandler = self._text
    # Declared entities may refer to local files or expand to billions of others.
    parser.EntityDeclHandler = self._declares
    parser.SkippedEntityHandler = self._skipped
    return parser

  def _start(self, name: str, attributes: Mapping[str, str]) -> None:
    if name == "tu":
      self._unit, self._size = {}, 0
    elif name == "tuv" and self._unit is not None:
      self._language = attributes.get("xml:lang") or attributes.get("lang", "")
    elif name == "seg" and self._unit is not None:
      self._segment, self._codes = [], 0
    elif name in _CODES and self._segment is not None:
      self._codes += 1

  def _end(self, name: str) -> None:
    if name == "tu" and self._unit is not None:
      self.units.append(self._unit)
      self._unit = None
    elif name == "seg" and self._segment is not None:
      self._unit[self._language] = " ".join("".join(self._segment).split())
      self._segment = None
    elif name in _CODES and self._segment is not None:
      self._codes -= 1

  def _text(self, text: str) -> None:
    if self._segment is None or self._codes:
      return
    self._size += len(text)
    if self._size > _LARGEST_UNIT:
      raise ValueError(f"a unit has more than {_LARGEST_UNIT:,} characters; split the unit")
    self._segment.append(text)

  def _declares(self, name: str, *_) -> None:
    raise ValueError(f"the declared entity {name!r} is not supported; write its text instead")

  def _skipped(self, name: str, *_) -> None:
    raise ValueError(f"the entity {name!r} is not declared; write its text instead")


def units(file: io.BufferedIOBase) -> Iterator[dict[str, str]]:
  """Yields the units of a file in order: language, as spelled in the file -> text, without codes, on one line.

  In:  <tu><tuv xml:lang="en"><seg>A <bpt i="1">&lt;b></bpt>red<ept i="1">&lt;/b></ept> house.</seg></tuv>
       <tuv xml:lang="fr"><seg>Une maison rouge.</seg></tuv></tu>
  Out: {"en": "A red house.", "fr": "Une maison rouge."}

  Raises:
    ValueError: the file is not XML, declares entities, or has a unit that is too long; names the line.
  """
  collected = _Units()
  parser = collected.parser()
  try:
    while block := file.read(_BLOCK):
      parser.Parse(block)
      yield from collected.units
      collected.units.clear()
    parser.Parse(b"", True)
  except expat.ExpatError as error:
    raise ValueError(f"XML, line {error.lineno}: {expat.ErrorString(error.code)}") from error
  except ValueError as error:
    raise ValueError(f"XML, line {parser.CurrentLineNumber}: {error}") from error


def text(unit: Mapping[str, str], language: str) -> str:
  """Returns the unit's text in a language, or in its only regional variant; "" if it has none.

  In:  {"EN-GB": "Red.", "fr": "Rouge."}, "en"; "fr"; "de"
  Out: "Red."; "Rouge."; ""
  """
  names = {name.lower().replace("_", "-"): name for name in unit}
  wanted = language.lower().replace("_", "-")
  kinds = [name for name in names if name.startswith(f"{wanted}-")]
  name = wanted if wanted in names else kinds[0] if len(kinds) == 1 else None
  return "" if name is None else unit[names[name]]


def check(tmx_units: Iterable[Mapping[str, str]], wanted: Mapping[str, str], *, path: str) -> None:
  """Checks that a file has text in each language; reads until all languages have occurred.

  Args:
    tmx_units: its units.
    wanted: configuration key -> language.
    path: of the file.

  Raises:
    UserError: the file has no text in a language; the message suggests the nearest language.
  """
  missing, languages = dict(wanted), dict[str, None]()
  for unit in tmx_units:
    languages |= dict.fromkeys(unit)
    missing = {key: language for key, language in missing.items() if not text(unit, language)}
    if not missing:
      return
  for key, language in missing.items():
    near = did_you_mean(language, languages)
    remedy = f"Give a language of the file: {', '.join(languages)}." if languages else "The file has no text at all."
    raise UserError(f"{key}={language}: {path} has no text in this language{near or '.'} {remedy}")
