"""Scores of suites with one model: the form in which it reads a text, and accuracies of options."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any, Protocol

import numpy as np

from t2t import UserError, did_you_mean
from t2t.checkpoints import pretrained
from t2t.evaluation import intervals, results
from t2t.evaluation.item_statistics import Statistics, value_of
from t2t.evaluation.suites import items as items_lib
from t2t.evaluation.suites.items import OptionItem
from t2t.inference import option_scores, text_scores, ties
from t2t.inference.text_scores import ScoredText
from t2t.param_tree import Params

Done = Callable[[float, int], None]
SPLIT = "test"  # in names of results, as tasks have a split

# How an encoder-decoder reads a text.
FORMS = {
  "prefix": "the encoder reads the prefix, or EOS alone; the decoder predicts the text and EOS",
  "span": "the encoder reads the prefix and <extra_id_0>; the decoder reads <extra_id_0> and predicts the text",
}
_OF_SPANS = ("span_corruption", "iid_span_corruption", "ul2", "r_denoising", "x_denoising")


@dataclasses.dataclass(frozen=True)
class SuiteScoring:
  """A model's scorer, with the rule of scores.

  normalize: key of `option_scores.NORMALIZATIONS`, without those of a neutral context.
  form: key of `FORMS`; "" for models of one stack.
  vocabulary: of the model.
  """

  scorer: text_scores.Scorer
  normalize: str
  form: str
  vocabulary: Any

  @property
  def rule(self) -> dict[str, str]:
    """Settings that scores depend on."""
    further = {"pseudo_likelihood": self.scorer.pseudo_likelihood, "form": self.form}
    return {"normalize": self.normalize} | {name: value for name, value in further.items() if value}

  def encoded(self, text: ScoredText) -> ScoredText:
    """Returns a text as the token ids that the model reads."""
    prompt, target = self.scorer.tokens(text)
    size = len(text.continuation.encode()) if isinstance(text.continuation, str) else text.num_bytes
    if self.form != "span":
      return ScoredText(prompt, target, size)
    from t2t.data import vocabularies

    sentinel, eos = vocabularies.sentinel_ids(self.vocabulary, 1)[0], self.vocabulary.eos_id
    words = prompt[:-1] if prompt[-1:] == [eos] else prompt
    return ScoredText([*words, sentinel, eos], [sentinel, *target[:-1]], size, num_unscored=1)

  def score(self, text: text_scores.TextScore) -> float:
    """Returns the normalized score of an option."""
    return option_scores.NORMALIZATIONS[self.normalize].score(text.log_p, text.num_tokens, text.num_bytes, 0.0)


def choose_form(name: str, source: pretrained.Source, vocabulary: Any) -> str:
  """Returns a key of `FORMS`, or "" for a model of one stack.

  A model that was trained to fill spans reads a span by default.

  Raises:
    UserError: the name is unknown, or does not fit the model.
  """
  from t2t.data import vocabularies

  kind = source.model.kind
  if name and name not in FORMS:
    raise UserError(f"--form {name}: unknown value. Give one of: {', '.join(FORMS)}{did_you_mean(name, FORMS)}")
  if not kind.has_encoder_and_decoder:
    if name:
      raise UserError(
        f"--form {name}: only encoder-decoders have several forms, but the model is {source.model.architecture}. "
        "Leave out --form."
      )
    return ""
  has_sentinels = vocabularies.num_sentinels(vocabulary) > 0
  if name == "span" and not has_sentinels:
    raise UserError("--form span: the vocabulary has no sentinel <extra_id_0>. Give --form prefix.")
  return name or ("span" if has_sentinels and _fills_spans(source) else "prefix")


def _fills_spans(source: pretrained.Source) -> bool:
  """Returns whether training removed spans; published encoder-decoders with sentinels did."""
  data: Any = source.run["data"]
  names = {data.get("objective", "")} if data.get("files") else set()
  if not names and data.get("mixture"):
    try:
      names = pretrained.objectives_of(source, data["mixture"])
    except UserError:
      names = set()
  return bool(names & set(_OF_SPANS)) or source.foreign is not None and not names


class Prepared(Protocol):
  """A suite with its items encoded for one model.

  name: of the suite.
  num_items: number of items.
  num_long: number of items that the model does not read at once.
  long_note: what happens with these items, for messages.
  """

  name: str
  num_items: int
  num_long: int
  long_note: str

  def run(self, params: Params, on_batch: Done | None = None) -> results.Result:
    """Scores the items."""


class OptionSuite:
  """Items with options: accuracies, each of k tied options counts 1/k.

  Args:
    name: of the suite.
    items: see `OptionItem`.
    scoring: of the model.
    contrasts: metric -> positions of the compared options, the right one first; empty: all options.
  """

  def __init__(
    self,
    name: str,
    items: Sequence[OptionItem],
    scoring: SuiteScoring,
    *,
    contrasts: Mapping[str, Sequence[Sequence[int]]],
    **unused: Any,
  ):
    del unused
    self.name, self._items, self._scoring, self._contrasts = name, items, scoring, contrasts
    self._texts = [scoring.encoded(option) for item in items for option in item.options]
    self.num_items = len(items)
    ends = np.cumsum([len(item.options) for item in items])
    is_long = np.array([scoring.scorer.layout(text).is_long for text in self._texts])
    self._slices = [slice(end - len(item.options), end) for item, end in zip(items, ends, strict=True)]
    self.num_long = sum(bool(is_long[part].any()) for part in self._slices)
    self.long_note = long_note(f"of {self.num_items:,} items are", scoring)

  def run(self, params: Params, on_batch: Done | None = None) -> results.Result:
    """Scores the items."""
    share = len(self._items) / max(len(self._texts), 1)
    step = None if on_batch is None else lambda number, tokens: on_batch(number * share, tokens)
    text_scores_ = self._scoring.scorer(params, self._texts, on_batch=step)
    scores = [np.array([self._scoring.score(score) for score in text_scores_[part]]) for part in self._slices]
    check_finite(scores)
    if all(item.human is not None for item in self._items):
      return self._correlation(scores)
    contrasts = self._contrasts or {"accuracy": [range(max(len(row) for row in scores))]}
    shares = {
      name: np.array([np.mean([_right(row, positions) for positions in rule]) for row in scores])
      for name, rule in contrasts.items()
    }
    tied = {
      name: np.array([any(_num_best(row, positions) > 1 for positions in rule) for row in scores])
      for name, rule in contrasts.items()
    }
    factors = items_lib.weights(self._items)
    statistics = {
      name: Statistics("mean", np.stack([values * factors, factors], axis=-1)) for name, values in shares.items()
    }
    first = next(iter(contrasts.values()))
    further = list(contrasts)[1:]
    answers = []
    for number, row in enumerate(scores):
      answer = self._answer(number, row, first[0])
      if names := [name for name in further if tied[name][number]]:
        answer = dataclasses.replace(answer, example={**answer.example, "tied_metrics": names})
      answers.append(answer)
    ties_of = {name: int(tied[name].sum()) for name in further}
    return self._result(answers, statistics, shares[next(iter(contrasts))], ties_of)

  def _correlation(self, scores: Sequence[np.ndarray]) -> results.Result:
    """Returns Spearman's correlation of the probability of the first option and the share of people who chose it."""
    model = [float(np.exp(row[0] - np.logaddexp.reduce(row))) for row in scores]
    rows = np.array([(item.human, value) for item, value in zip(self._items, model, strict=True)], float)
    answers = []
    for number, value in enumerate(model):
      answer = self._answer(number, scores[number], (0, 1))
      answers.append(dataclasses.replace(answer, value=value, target=self._items[number].human))
    return self._result(answers, {"spearman_correlation": Statistics("spearman", rows)}, None)

  def _answer(self, number: int, scores: np.ndarray, positions: Sequence[int]) -> results.Answer:
    item = self._items[number]
    compared = [position for position in positions if position < len(item.options)]
    best = ties.best(scores[compared])
    texts = [_text(item.options[position]) for position in compared]
    example = {"idx": number, "inputs_pretokenized": item.shown.encode(), "group": "/".join(item.groups)}
    example["option_scores"] = [float(score) for score in scores]
    # Among tied options the wrong one is the answer, so that a file shows no luck; the metric counts 1/k.
    chosen = int(best[-1])
    return results.Answer(
      example,
      texts[chosen],
      int(chosen == 0),
      1,
      float(scores[compared[chosen]]),
      tied=tuple(texts[index] for index in best) if len(best) > 1 else (),
    )

  def _result(
    self,
    answers: Sequence[results.Answer],
    statistics: Mapping[str, Statistics],
    shares: np.ndarray | None,
    ties_of: Mapping[str, int] | None = None,
  ) -> results.Result:
    units = [str(number) for number in range(len(answers))]
    details: dict[str, Any] = {"long": self.num_long}
    if ties_of:
      details["ties"] = ties_of
    if shares is not None:
      details["groups"] = groups(self._items, shares, [bool(answer.tied) for answer in answers])
    return results.Result(
      self.name,
      SPLIT,
      {name: value_of(rows) for name, rows in statistics.items()},
      answers,
      set(statistics),
      rule=self._scoring.rule,
      intervals=of_statistics(statistics, units),
      statistics=statistics,
      units=units,
      details=details,
    )


def long_note(subject: str, scoring: SuiteScoring) -> str:
  """Returns a sentence on items that are longer than the model, without their number."""
  scorer = scoring.scorer
  return (
    f"{subject} longer than the {scorer.max_tokens:,} tokens that the model reads at once, and scored in windows "
    f"with stride {scorer.stride:,}"
  )


def of_statistics(statistics: Mapping[str, Statistics], units: Sequence[str]) -> dict[str, intervals.Interval]:
  """Returns the interval of each metric that has one."""
  named = {name: intervals.of_metric(name, rows, units) for name, rows in statistics.items()}
  return {name: interval for name, interval in named.items() if interval is not None}


def groups(items: Sequence[OptionItem], shares: np.ndarray, tied: Sequence[bool]) -> dict[str, dict[str, Any]]:
  """Returns accuracy, number, exact interval and ties of each group of items."""
  members: dict[str, list[int]] = {}
  for number, item in enumerate(items):
    members.setdefault("/".join(item.groups), []).append(number)
  rows = {}
  for name, numbers in members.items():
    right = float(shares[numbers].sum())
    interval = intervals.exact(right, len(numbers))
    rows[name] = {
      "accuracy": 100 * right / len(numbers),
      "n": len(numbers),
      "low": interval.low,
      "high": interval.high,
      "tied": sum(tied[number] for number in numbers),
    }
  return rows


def _text(option: ScoredText) -> str:
  return f"{option.prefix}{option.continuation}"


def _best(scores: np.ndarray, positions: Sequence[int]) -> np.ndarray:
  """Returns which of `positions` have the best score."""
  return ties.best(scores[[position for position in positions if position < len(scores)]])


def _num_best(scores: np.ndarray, positions: Sequence[int]) -> int:
  return len(_best(scores, positions))


def _right(scores: np.ndarray, positions: Sequence[int]) -> float:
  """Returns 1/k if the first of `positions` is among the k best, else 0."""
  best = _best(scores, positions)
  return 1 / len(best) if best[0] == 0 else 0.0


def check_finite(scores: Sequence[np.ndarray]) -> None:
  """Raises an error if a score is NaN or Inf."""
  if not all(np.isfinite(row).all() for row in scores):
    raise UserError("--checkpoint: the model produced a score of NaN or Inf; use a different checkpoint")
