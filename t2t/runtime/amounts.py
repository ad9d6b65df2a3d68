"""Formats durations, counts and bytes with few digits and a unit."""


def duration(seconds: float) -> str:
  """Formats seconds as m:ss or h:mm:ss."""
  minutes, seconds = divmod(int(seconds + 0.5), 60)
  hours, minutes = divmod(minutes, 60)
  return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def compact_count(number: float) -> str:
  """Formats a count in at most five characters: 950, 12.3k, 4.56M."""
  for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
    if number >= 0.9995 * limit:  # three digits would round it up to the next unit
      return f"{number / limit:#.3g}".rstrip(".") + unit
  return f"{number:.0f}"


def with_prefix(number: float, *, digits: int = 4) -> str:
  """Formats a number with a decimal prefix, if any: 1.234 G, 56.7 k, 890."""
  for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
    # Numbers that round up to the next prefix get it: never 1e+03 k.
    if abs(number) >= (1 - 0.5 * 10.0**-digits) * size:
      return f"{number / size:.{digits}g} {prefix}"
  return f"{number:.{digits}g}"


def nbytes(number: float, *, digits: int = 3) -> str:
  """Formats bytes with decimal prefixes: 1.23 GB, 45.6 kB, 0 B."""
  text = with_prefix(number, digits=digits)
  return f"{text}B" if text[-1].isalpha() else f"{text} B"
