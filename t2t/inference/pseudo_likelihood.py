"""Pseudo-log-likelihoods of encoders: the tokens that are masked while others are scored."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from t2t import UserError, did_you_mean


class MaskedPass(NamedTuple):
  """Pass of an encoder over a text: positions of the tokens that are scored, and that are masked."""

  scored: list[int]
  masked: list[int]


def joint(starts_word: np.ndarray) -> list[MaskedPass]:
  """Masks and scores all tokens at once, so that no token of the text helps to predict another.

  In:  three tokens
  Out: [([0, 1, 2], [0, 1, 2])]
  """
  positions = list(range(len(starts_word)))
  return [MaskedPass(positions, positions)]


def each_token(starts_word: np.ndarray) -> list[MaskedPass]:
  """Masks one token at a time (Salazar et al. 2020, PLL).

  In:  three tokens
  Out: [([0], [0]), ([1], [1]), ([2], [2])]
  """
  return [MaskedPass([position], [position]) for position in range(len(starts_word))]


def word_left_to_right(starts_word: np.ndarray) -> list[MaskedPass]:
  """Masks each token together with the later tokens of the same word (Kauf & Ivanova 2023, PLL-word-l2r).

  In:  "un ##seen cat": [True, False, True]
  Out: [([0], [0, 1]), ([1], [1]), ([2], [2])]
  """
  length = len(starts_word)
  ends = np.append(np.flatnonzero(starts_word), length)
  end_of = lambda position: int(ends[np.searchsorted(ends, position, side="right")])
  return [MaskedPass([position], list(range(position, end_of(position)))) for position in range(length)]


# config.eval.pseudo_likelihood -> (bool [tokens], which start a word) -> passes. The first is the default: PLL inflates
# the scores of words of several tokens, whose tokens give each other away, and PLL-word-l2r agrees best with the
# log-likelihoods of autoregressive models (Kauf & Ivanova 2023).
PSEUDO_LIKELIHOODS: dict[str, Callable[[np.ndarray], list[MaskedPass]]] = {
  "pll_word_l2r": word_left_to_right,
  "pll": each_token,
  "joint": joint,
}
DEFAULT = next(iter(PSEUDO_LIKELIHOODS))


def choose(name: str, *, is_generative: bool, where: str = "config.eval.pseudo_likelihood") -> str:
  """Returns a key of `PSEUDO_LIKELIHOODS`, or "" for a generative model, which has a likelihood.

  Args:
    name: a key; "": the default.
    is_generative: whether the model generates text.
    where: key or option of `name`, for messages.

  Raises:
    UserError: the name is unknown, or the model needs none.
  """
  if name and name not in PSEUDO_LIKELIHOODS:
    raise UserError(
      f"{where}={name}: unknown value. Known values: {', '.join(PSEUDO_LIKELIHOODS)}"
      f"{did_you_mean(name, PSEUDO_LIKELIHOODS)}"
    )
  if is_generative and name:
    raise UserError(
      f"{where}={name}: only encoders have pseudo-log-likelihoods; this model computes log-likelihoods from left to "
      f"right. Leave out {where}."
    )
  return "" if is_generative else name or DEFAULT
