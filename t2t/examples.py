"""Shows what a model does: fill-in-the-blank examples as text."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class Vocabulary(Protocol):
  """What is needed of a seqio vocabulary."""

  def decode(self, ids: Sequence[int]) -> str:
    """Text of ids."""


def _spans(tokens: np.ndarray, sentinels: dict[int, int]) -> dict[int, list[int]]:
  """Number of a blank -> the ids that stand behind its sentinel."""
  spans: dict[int, list[int]] = {}
  current = None
  for token in tokens.tolist():
    if token in sentinels:
      current = sentinels[token]
      spans.setdefault(current, [])
    elif current is not None:
      spans[current].append(token)
  return spans


def fill_in_the_blank(
  inputs: np.ndarray,
  prediction: np.ndarray,
  targets: np.ndarray,
  *,
  vocabulary: Vocabulary,
  sentinel_ids: Sequence[int],
  eos_id: int,
  num_blanks: int = 3,
  context: int = 24,
) -> tuple[str, str, str]:
  """The beginning of a span-corrupted example, as text with numbered blanks: input, prediction, truth.

  Args:
    inputs, prediction, targets: int [length] each, one unpacked example.
    vocabulary: turns ids into text.
    sentinel_ids: of the first blank, the second, ...
    eos_id: ends an example.
    num_blanks: how many blanks are shown.
    context: tokens shown before the first blank and after the last.

  In:  "the <extra_id_0> sat on <extra_id_1> mat",
       "<extra_id_0> dog <extra_id_1> the", "<extra_id_0> cat <extra_id_1> the"
  Out: "the [1] sat on [2] mat", "[1] dog [2] the", "[1] cat [2] the"
  """
  sentinels = {token: number for number, token in enumerate(sentinel_ids, start=1)}

  def text(tokens: Sequence[int]) -> str:
    parts, run = [], []
    for token in [*tokens, None]:
      if token in sentinels or token is None:
        parts += [" ".join(vocabulary.decode(run).split())] if run else []
        parts += [f"[{sentinels[token]}]"] if token is not None else []
        run = []
      elif token not in (0, eos_id):
        run.append(token)
    return " ".join(part for part in parts if part)

  tokens = [token for token in inputs.tolist() if token not in (0, eos_id)]
  places = [index for index, token in enumerate(tokens) if token in sentinels][:num_blanks]
  if places:
    start, stop = max(0, places[0] - context), places[-1] + 1 + context
    later = [index for index in range(places[-1] + 1, min(stop, len(tokens))) if tokens[index] in sentinels]
    stop = min([stop, *later])
    shown = ("... " if start else "") + text(tokens[start:stop]) + (" ..." if stop < len(tokens) else "")
  else:
    shown = text(tokens[: 2 * context])
  numbers = [sentinels[tokens[place]] for place in places]

  def answers(tokens: np.ndarray) -> str:
    spans = _spans(tokens, sentinels)
    return "  ".join(f"[{number}] {text(spans.get(number, [])) or '-'}" for number in numbers)

  return shown, answers(prediction), answers(targets)
