"""Rules that decide from the rows of a study whether they agree with a claim: agree, disagree or undecided."""

from collections.abc import Callable, Sequence
import dataclasses
import math

from t2t.studies import results
from t2t.studies.results import StudyRow

AGREE, DISAGREE, UNDECIDED = "agree", "disagree", "undecided"
_ALPHA = 0.05


@dataclasses.dataclass(frozen=True)
class Verdict:
  """Outcome of a rule.

  word: `AGREE`, `DISAGREE` or `UNDECIDED`.
  because: the figures that decide, in a sentence.
  parts: of a rule of several, a summary and a sentence for each; otherwise ().
  """

  word: str
  because: str
  parts: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class ClaimRule:
  """ClaimRule of a study, stated before its runs.

  text: sentences for readers.
  decide: rows of one scale -> verdict.
  parts: of a rule of several, how they combine and the text of each; otherwise ().
  """

  text: str
  decide: Callable[[Sequence[StudyRow]], Verdict]
  parts: tuple[str, ...] = ()


def higher(arm: str, *, than: str, column: str) -> ClaimRule:
  """Returns the rule that an arm has a higher value than another, with the difference paired by seed."""
  return _ordered(arm, than, column, sign=1.0)


def lower(arm: str, *, than: str, column: str) -> ClaimRule:
  """Returns the rule that an arm has a lower value than another; see `higher`."""
  return _ordered(arm, than, column, sign=-1.0)


def _ordered(arm: str, than: str, column: str, *, sign: float) -> ClaimRule:
  direction = "above" if sign > 0 else "below"

  def decide(rows: Sequence[StudyRow]) -> Verdict:
    paired = results.difference(rows, arm, than, column)
    because = _described(paired, arm, than, column)
    if paired.seeds < 2 or not paired.p < _ALPHA:
      return Verdict(UNDECIDED, because)
    return Verdict(AGREE if sign * paired.mean > 0 else DISAGREE, because)

  text = (
    f"Agree: {column} of {arm} is {direction} that of {than}, paired by seed, and the 95 % interval of the difference "
    "excludes 0. Disagree: the interval is on the other side of 0. Undecided: it includes 0."
  )
  return ClaimRule(text, decide)


def _described(paired: results.PairedDifference, arm: str, than: str, column: str) -> str:
  if paired.seeds == 0:
    return f"No seed has {column} of both {arm} and {than}."
  begin = f"{column}: {arm} minus {than} is {results.number(paired.mean)}"
  if paired.seeds < 2:
    return f"{begin}, with one seed, which has no interval."
  low, high = paired.mean - paired.margin, paired.mean + paired.margin
  interval = f"{results.number(low)} to {results.number(high)}"
  return f"{begin} ({interval}; p = {paired.p:.2g}, {paired.seeds} seeds)."


def within(arm: str, *, of: str, column: str, margin: float) -> ClaimRule:
  """Returns the rule that two arms are equivalent: the 95 % interval of their difference lies within a margin."""

  def decide(rows: Sequence[StudyRow]) -> Verdict:
    paired = results.difference(rows, arm, of, column)
    because = _described(paired, arm, of, column)
    if paired.seeds < 2:
      return Verdict(UNDECIDED, because)
    low, high = paired.mean - paired.margin, paired.mean + paired.margin
    if -margin < low and high < margin:
      return Verdict(AGREE, because)
    return Verdict(DISAGREE if low > margin or high < -margin else UNDECIDED, because)

  text = (
    f"Agree: the 95 % interval of the difference of {column} between {arm} and {of}, paired by seed, lies within "
    f"±{margin:g}. Disagree: it lies outside. Undecided: it crosses a bound."
  )
  return ClaimRule(text, decide)


def order(*best_first: str, column: str, lower_is_better: bool = False) -> ClaimRule:
  """Returns the rule that arms are ordered as the paper's, by Page's test of ordered alternatives."""

  def decide(rows: Sequence[StudyRow]) -> Verdict:
    ascending = best_first if lower_is_better else best_first[::-1]
    seeds, p, p_reversed = results.order_p(rows, ascending, column)
    if math.isnan(p):
      return Verdict(UNDECIDED, f"Page's test needs two seeds that all these arms have; there are {seeds}.")
    because = f"Page's L: p = {p:.2g} for this order, p = {p_reversed:.2g} for the reversed one, {seeds} seeds."
    return Verdict(AGREE if p < _ALPHA else DISAGREE if p_reversed < _ALPHA else UNDECIDED, because)

  text = (
    f"Page's test of the order by {column}, each seed a block, best first: {', '.join(best_first)}. Agree: p < 0.05. "
    "Disagree: p < 0.05 for the reversed order. Undecided: neither."
  )
  return ClaimRule(text, decide)


def all_of(*rules: ClaimRule) -> ClaimRule:
  """Returns the rule that agrees if every rule does, and disagrees if any does."""

  def decide(rows: Sequence[StudyRow]) -> Verdict:
    verdicts = [rule.decide(rows) for rule in rules]
    words = [verdict.word for verdict in verdicts]
    word = DISAGREE if DISAGREE in words else AGREE if set(words) == {AGREE} else UNDECIDED
    parts = [f"{_capital(verdict.word)}. {verdict.because}" for verdict in verdicts]
    summary = ", ".join(f"{words.count(each)} {each}" for each in (AGREE, DISAGREE, UNDECIDED) if each in words)
    because = " ".join(f"{verdict.because} ({verdict.word})" for verdict in verdicts)
    return Verdict(word, because, (f"Parts of the rule: {summary}.", *parts))

  combined = "All of these agree: agree; any disagrees: disagree; otherwise undecided."
  numbered = " ".join(f"({number}) {rule.text}" for number, rule in enumerate(rules, start=1))
  return ClaimRule(f"{combined} {numbered}", decide, (combined, *(_capital(rule.text) for rule in rules)))


def _capital(text: str) -> str:
  return text[:1].upper() + text[1:]
