"""Text that is not in UTF-8, and what would make it so."""

import codecs

_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def remedy(content: bytes) -> str:
  """What a person can do about a text, or its beginning, that is not UTF-8."""
  other = "utf-16" if content.startswith(_UTF_16) or b"\0" in content[:200] else "latin1"
  return f"convert the file, for example with `iconv -f {other} -t utf-8`"
