"""Draws texts at random from all texts, in bounded memory; used by `t2t vocab train`."""

from collections.abc import Iterable
import heapq
import random
import sys
from typing import NamedTuple

MOST_BYTES = 2 * 2**30  # of texts in memory; trainers need several times the memory of their text


class Sample(NamedTuple):
  """Texts drawn from all texts, in their order.

  texts: the drawn texts.
  lines: number of lines of the drawn texts.
  all_texts, all_lines: numbers of texts and lines that were read.
  limit: what bounds the sample, for messages; "" if all texts are in it.
  """

  texts: list[str]
  lines: int
  all_texts: int
  all_lines: int
  limit: str

  @property
  def note(self) -> str:
    """Words on what was drawn; "" if all texts are in the sample."""
    if not self.limit:
      return ""
    share = self.lines / self.all_lines
    return f"{self.lines:,} of {self.all_lines:,} lines of the text ({share:.1%}), drawn at random; {self.limit}"


def draw(texts: Iterable[str], *, most_lines: int, most_bytes: int = MOST_BYTES, seed: int = 0) -> Sample:
  """Draws as many texts as the limits allow, in one pass.

  Every text has a random key, and the texts with the smallest keys stay. So each text has the same probability, up to
  the text at the limit, which is left out more often if it is long. Without sampling the result is the texts
  themselves.

  Args:
    texts: one line or one document each.
    most_lines: maximum number of lines of the sample; one text always stays.
    most_bytes: maximum memory of its strings.
    seed: of the keys.

  Source: Cohen & Kaplan 2007 (bottom-k sampling), with a limit on size instead of k.
  """
  keys = random.Random(seed).random
  held: list[tuple[float, int, str, int]] = []  # a heap with the largest key first
  lines = num_bytes = all_texts = all_lines = 0
  largest, limits = 1.0, set()
  for number, text in enumerate(texts):
    of_text = text.count("\n") + 1
    all_texts, all_lines = number + 1, all_lines + of_text
    key = keys()
    if key >= largest:
      continue
    heapq.heappush(held, (-key, number, text, of_text))
    lines, num_bytes = lines + of_text, num_bytes + sys.getsizeof(text)
    while len(held) > 1 and (lines > most_lines or num_bytes > most_bytes):
      limits.add(f"--max_sentences {most_lines:,}" if lines > most_lines else f"{most_bytes / 2**30:.3g} GB of memory")
      negative, _, dropped, of_dropped = heapq.heappop(held)
      # Later texts with larger keys would be dropped as well; without this rule short ones would fill the gap.
      largest = -negative
      lines, num_bytes = lines - of_dropped, num_bytes - sys.getsizeof(dropped)
  drawn = [text for _, text in sorted((number, text) for _, number, text, _ in held)]
  limit = f"the limit is {' and '.join(sorted(limits))}" if limits else ""
  return Sample(drawn, lines, all_texts, all_lines, limit)
