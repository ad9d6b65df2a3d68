"""Diagnoses content that is not UTF-8 text, and suggests a remedy."""

import codecs

from t2t.storage import compression

_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_UTF_32 = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)
_ARCHIVES = {
  b"PK\x03\x04": "the file is a zip archive or an Excel workbook: unpack it, or save the workbook as CSV (UTF-8)",
  b"PAR1": "the file is Parquet: rename it to end in .parquet",
  b"ARROW1": "the file is Arrow or Feather: write it as Parquet",
}
_SHOWN = 400  # bytes that are inspected


def remedy(content: bytes, head: bytes = b"") -> str:
  """Returns the step that makes a file readable that is not UTF-8.

  Args:
    content: a line of it, or all.
    head: the beginning of the file, if `content` is not.
  """
  head = head or content
  if suffix := compression.sniff(head):
    return f"the file is compressed with {compression.FORMATS[suffix].name}: rename it to end in {suffix}"
  for magic, step in _ARCHIVES.items():
    if head.startswith(magic):
      return step
  charset = _charset(head) or _charset(content)
  if not charset:
    return "the file is binary, not text; convert it to text in UTF-8"
  return f"convert the file, for example with `iconv -f {charset} -t utf-8`"


def not_utf8(content: bytes, error: UnicodeDecodeError, *, unit: str = "line", head: bytes = b"") -> str:
  """Returns the reason why a record is not text: the invalid byte, and a remedy."""
  return (
    f"not valid UTF-8 (byte {error.start + 1} of the {unit} is 0x{content[error.start]:02x}, {error.reason});"
    f" {remedy(content, head)}"
  )


def unpaired_surrogate(text: str) -> str:
  r"""Returns the reason why a text is not valid Unicode; "" if it is.

  JSON can escape half of a surrogate pair, and Python decodes an invalid byte of a file name to one. UTF-8 text cannot
  contain it.

    In:  "ab\\ud800"
    Out: "is not valid Unicode: character 3, \\ud800, is an unpaired surrogate, ..."
  """
  try:
    text.encode("utf-8")
  except UnicodeEncodeError as error:
    half = f"character {error.start + 1:,}, \\u{ord(text[error.start]):04x}, is an unpaired surrogate"
    return f"is not valid Unicode: {half}, half of a character. Remove this half, or add the other half."
  return ""


def lines(text: str) -> list[str]:
  r"""Returns the lines of a text file: divided at "\n" alone, without a "\r" at their ends.

  `str.splitlines` also divides at characters within texts, such as U+2028, U+0085 and form feeds.

    In:  "a\u2028b\r\nc\n"
    Out: ["a\u2028b", "c"]
  """
  return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def _charset(content: bytes) -> str:
  """Returns iconv's name for the likeliest encoding; "" if there is none."""
  content = content[:_SHOWN]
  if content.startswith(_UTF_32):  # first, because its byte-order mark begins with UTF-16's
    return "utf-32"
  if content.startswith(_UTF_16):
    return "utf-16"
  if b"\0" in content:
    # ASCII in UTF-16 has a zero in every second byte; the cut of the line decides in which.
    zeros = [content[i::2].count(0) / max(len(content[i::2]), 1) for i in range(2)]
    return "utf-16" if max(zeros) > 0.3 and min(zeros) < 0.1 else ""
  odd = sum(byte < 32 and byte not in b"\t\n\f\r\x1b" for byte in content)
  if odd > len(content) / 20:
    return ""
  # Windows-1252 has quotation marks and dashes where Latin-1 has control codes.
  return "cp1252" if any(0x80 <= byte < 0xA0 for byte in content) else "latin1"
