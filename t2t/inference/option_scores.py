"""Scores of the options of a question: log-likelihoods, normalized so that options are comparable."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from t2t import UserError, did_you_mean
from t2t.inference import text_scores, ties
from t2t.inference.prompt_features import Tokens
from t2t.param_tree import Params

_NAME = "config.eval.normalize"


class Normalization(NamedTuple):
  """Conversion of log-likelihoods of options to comparable scores.

  score: (log-likelihood, tokens, UTF-8 bytes, log-likelihood after the neutral context) of an option -> its score.
  text: description of the score, for tables.
  needs_neutral: whether the score needs the log-likelihood after the neutral context.
  """

  score: Callable[[float, int, int, float], float]
  text: str
  needs_neutral: bool = False


# Brown et al. 2020 divide by the number of tokens, or by the probability after a context that fits any answer,
# "Answer: ". Holtzman et al. 2021 call the logarithm of this ratio PMI. Bytes do not depend on the tokenizer.
NORMALIZATIONS: dict[str, Normalization] = {
  "sum": Normalization(lambda log_p, tokens, size, neutral: log_p, "log p(option | input)"),
  "mean": Normalization(lambda log_p, tokens, size, neutral: log_p / max(tokens, 1), "log p(option | input) / tokens"),
  "bytes": Normalization(lambda log_p, tokens, size, neutral: log_p / max(size, 1), "log p(option | input) / bytes"),
  "unconditional": Normalization(
    lambda log_p, tokens, size, neutral: log_p - neutral, "log p(option | input) - log p(option | neutral)", True
  ),
}


def choose(name: str, *, is_generative: bool, where: str = _NAME) -> str:
  """Returns a key of `NORMALIZATIONS`: the given one, or by default sums of generative models and means of encoders.

  Args:
    name: a key; "": the default.
    is_generative: whether the model generates text.
    where: key or option of `name`, for messages.

  Raises:
    UserError: the name is unknown.
  """
  if name and name not in NORMALIZATIONS:
    raise UserError(
      f"{where}={name}: unknown value. Known values: {', '.join(NORMALIZATIONS)}{did_you_mean(name, NORMALIZATIONS)}"
    )
  return name or ("sum" if is_generative else "mean")


def check_neutral(name: str, context: str, *, where: str = "config.eval.neutral_context") -> None:
  """Checks that a neutral context is given only to a normalization that reads it.

  Args:
    name: key of `NORMALIZATIONS`.
    context: the neutral context.
    where: key or option of `context`, for messages.

  Raises:
    UserError: the normalization does not read it.
  """
  if context and not NORMALIZATIONS[name].needs_neutral:
    readers = " or ".join(key for key, row in NORMALIZATIONS.items() if row.needs_neutral)
    raise UserError(
      f"{where}={context!r}: the normalization {name!r} reads no neutral context. Leave it out, or normalize by "
      f"{readers}."
    )


class Option(NamedTuple):
  """An option, and its token ids as the model predicts them."""

  text: str
  tokens: Tokens


class Ranker:
  """Scores the options of each question.

  Args:
    scorer: of the model.
    normalize: key of `NORMALIZATIONS`.
    neutral: token ids of the neutral context, read as an input.
  """

  def __init__(self, scorer: text_scores.Scorer, *, normalize: str, neutral: Tokens = ()):
    self.scorer, self._neutral = scorer, list(neutral)
    self._normalization = NORMALIZATIONS[normalize]
    self.note = ""  # on the texts of the last call that are longer than the model

  def __call__(
    self,
    params: Params,
    inputs: Sequence[Tokens],
    options: Sequence[Sequence[Option]],
    *,
    suffixes: Sequence[Tokens] = (),
    on_batch: Callable[[float, int], None] | None = None,
  ) -> list[np.ndarray]:
    """Returns the scores of the options of each input, float64 [options].

    Args:
      params: nested dict.
      inputs: token ids of each input.
      options: of each input.
      suffixes: token ids that an encoder reads behind the options of each input; empty: nothing.
      on_batch: called after each batch with the numbers of inputs, which may be fractions, and of scored tokens.
    """
    item = lambda prefix, option, suffix=(): text_scores.ScoredText(
      prefix, option.tokens, len(option.text.encode()), suffix=suffix
    )
    of_inputs = zip(inputs, options, suffixes or [()] * len(inputs), strict=True)
    items = [item(prefix, option, suffix) for prefix, row, suffix in of_inputs for option in row]
    # Questions share options, such as the names of classes.
    neutral = {option: number for number, option in enumerate(self._distinct(options))}
    items += [item(self._neutral, option) for option in neutral]
    share = len(inputs) / max(len(items), 1)
    step = None if on_batch is None else lambda number, tokens: on_batch(number * share, tokens)
    scores = self.scorer(params, items, on_batch=step)
    self.note = self.scorer.long_note(scores)
    first_neutral, position, ranked = len(items) - len(neutral), 0, []
    for row in options:
      of_options = scores[position : position + len(row)]
      position += len(row)
      after_neutral = [scores[first_neutral + neutral[option]].log_p if neutral else 0.0 for option in row]
      ranked.append(
        np.array(
          [
            self._normalization.score(score.log_p, score.num_tokens, score.num_bytes, neutral_log_p)
            for score, neutral_log_p in zip(of_options, after_neutral, strict=True)
          ]
        )
      )
    return ranked

  def _distinct(self, options: Sequence[Sequence[Option]]) -> list[Option]:
    return list(dict.fromkeys(option for row in options for option in row)) if self._normalization.needs_neutral else []


def of_labels(scores: np.ndarray, labels: Sequence[str]) -> tuple[list[int], np.ndarray]:
  """Returns the score of each label, the logarithm of the sum of the exponentials over its words.

  In:  scores of "Yes", "Sure", "No": log([0.2, 0.1, 0.4]); labels ["yes", "yes", "no"]
  Out: [0, 2], log([0.3, 0.4])                     the likeliest word of each label, and the scores

  Args:
    scores: of the words, float64 [words].
    labels: of each word.
  """
  words, merged = [], []
  for label in dict.fromkeys(labels):
    numbers = [number for number, of_word in enumerate(labels) if of_word == label]
    words.append(max(numbers, key=lambda number: (scores[number], -number)))
    merged.append(np.logaddexp.reduce(scores[numbers]) if len(numbers) > 1 else scores[numbers[0]])
  return words, np.array(merged)


def best(scores: np.ndarray) -> list[int]:
  """Returns the indices of the options with the highest score, up to rounding; NaN is the lowest."""
  return ties.best(np.where(np.isnan(scores), -np.inf, scores)).tolist()
