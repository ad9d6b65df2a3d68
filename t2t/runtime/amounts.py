"""Amounts as people read them: times, counts, bytes, each with few digits and a unit."""


def duration(seconds: float) -> str:
  """Seconds as m:ss or h:mm:ss."""
  minutes, seconds = divmod(int(seconds + 0.5), 60)
  hours, minutes = divmod(minutes, 60)
  return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def compact_count(number: float) -> str:
  """A count in at most five characters: 950, 12.3k, 4.56M."""
  for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
    if number >= 0.9995 * limit:  # what three digits round up to the next unit is shown in it
      return f"{number / limit:#.3g}".rstrip(".") + unit
  return f"{number:.0f}"


def with_prefix(number: float, *, digits: int = 4) -> str:
  """Some digits and a prefix, if any: 1.234 G, 56.7 k, 890; thousands, not 1,024s."""
  for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
    # What the digits round up to the next prefix is shown with it: never 1e+03 k.
    if abs(number) >= (1 - 0.5 * 10.0**-digits) * size:
      return f"{number / size:.{digits}g} {prefix}"
  return f"{number:.{digits}g}"


def nbytes(number: float, *, digits: int = 3) -> str:
  """Bytes: 1.23 GB, 45.6 kB, 0 B; thousands, as disks and chips are sold."""
  text = with_prefix(number, digits=digits)
  return f"{text}B" if text[-1].isalpha() else f"{text} B"
