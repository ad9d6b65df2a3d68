"""Text that is not in UTF-8, and what would make it so."""

import codecs

_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def remedy(content: bytes) -> str:
  """What a person can do about a text, or its beginning, that is not UTF-8."""
  other = "utf-16" if content.startswith(_UTF_16) or b"\0" in content[:200] else "latin1"
  return f"convert the file, for example with `iconv -f {other} -t utf-8`"


def lone_surrogate(text: str) -> str:
  """What is wrong with a text that no UTF-8 file can hold; "" where it can.

  In:  "ab\\ud800"
  Out: "is not valid Unicode: character 3, \\ud800, is an unpaired surrogate, ..."
  """
  try:
    text.encode("utf-8")
  except UnicodeEncodeError as error:
    half = f"character {error.start + 1:,}, \\u{ord(text[error.start]):04x}, is an unpaired surrogate"
    return f"is not valid Unicode: {half}, half of a character; remove it, or give the other half as well"
  return ""
