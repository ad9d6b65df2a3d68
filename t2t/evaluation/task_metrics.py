"""Benchmarks' metrics: what `t2t.data.postprocessors` made of targets and predictions -> percentages, by name.

Every function takes the targets and the predictions of a split, in the same order, and defines a result for any of
them: without examples it is 0, and so is a correlation with something constant.  An unparseable prediction is wrong.
"""

import collections
from collections.abc import Callable, Mapping, Sequence
import re
import string
from typing import Any
import warnings

import numpy as np

from t2t.data import postprocessors

# scikit-learn, SciPy and rouge-score take 1 s each to import: tasks name these functions, few commands call them.

Metric = Callable[[Sequence[Any], Sequence[Any]], dict[str, float]]

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def score(task_metrics: Mapping[str, float]) -> float:
  """A task's one number: the mean of its metrics, as GLUE and SuperGLUE average them; 0 without any."""
  return float(np.mean(list(task_metrics.values()))) if task_metrics else 0.0


# ---- Labels ----------------------------------------------------------------------------------------------------------


def accuracy(targets: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
  """Share of predictions that are the target's label; of AX-g's targets too."""
  return {"accuracy": _percent([_is_right(*pair) for pair in zip(targets, predictions, strict=True)])}


def f1(targets: Sequence[int], predictions: Sequence[int]) -> dict[str, float]:
  """F1 of the positive class, label 1 of two (MRPC, QQP)."""
  return {"f1": _f1(targets, _wrong_where_unparseable(targets, predictions), classes=[1])}


def matthews(targets: Sequence[int], predictions: Sequence[int]) -> dict[str, float]:
  """Matthews' correlation coefficient of two classes, -100 to 100 (CoLA, AX-b)."""
  predictions = _wrong_where_unparseable(targets, predictions)
  value = 0.0
  if len(set(targets)) > 1 and len(set(predictions)) > 1:
    import sklearn.metrics

    value = 100 * float(sklearn.metrics.matthews_corrcoef(targets, predictions))
  return {"matthews_correlation": value}


def mean_multiclass_f1(num_classes: int) -> Metric:
  """A metric: the unweighted mean of the F1 of each class, also of one that never occurs, whose F1 is 0.

  An unparseable prediction is a miss of the target's class and a false alarm of none.
  """

  def f1(targets: Sequence[int], predictions: Sequence[int]) -> dict[str, float]:
    return {"f1": _f1(targets, predictions, classes=list(range(num_classes)))}

  return f1


def occurring_class_f1(targets: Sequence[int], predictions: Sequence[int]) -> dict[str, float]:
  """The unweighted mean of the F1 of each class that occurs in targets or predictions; see `mean_multiclass_f1`."""
  predicted = {prediction for prediction in predictions if not postprocessors.is_unparseable(prediction)}
  return {"f1": _f1(targets, predictions, classes=sorted({*targets, *predicted}))}


cb_f1 = mean_multiclass_f1(3)


def multirc_f1a(targets: Sequence[Mapping], predictions: Sequence[Mapping]) -> dict[str, float]:
  """F1 of the right answers over all answers of all questions (Khashabi et al. 2018)."""
  targets, predictions = ([value["value"] for value in values] for values in (targets, predictions))
  return {"f1a": f1(targets, predictions)["f1"]}


def multirc_exact_match(targets: Sequence[Mapping], predictions: Sequence[Mapping]) -> dict[str, float]:
  """Share of questions of which every answer is rated right."""
  questions = collections.defaultdict(list)
  for target, prediction in zip(targets, predictions, strict=True):
    questions[target["group"]].append(_is_right(target["value"], prediction["value"]))
  return {"exact_match": _percent([all(rated) for rated in questions.values()])}


def axg_parity(targets: Sequence[Mapping], predictions: Sequence[int]) -> dict[str, float]:
  """Share of pairs whose two predictions are the same label, right or wrong (Poliak et al. 2018).

  A pair of which only one half is there does not count.
  """
  pairs = collections.defaultdict(list)
  for target, prediction in zip(targets, predictions, strict=True):
    pairs[target["pair"]].append(prediction)
  same = [
    len(set(pair)) == 1 and not postprocessors.is_unparseable(pair[0]) for pair in pairs.values() if len(pair) > 1
  ]
  return {"gender_parity": _percent(same)}


def entity_f1(targets: Sequence[Sequence[str]], predictions: Sequence[Sequence[str] | None]) -> dict[str, float]:
  """F1 of whole entities, of all types together, as the script of CoNLL counts them (Tjong Kim Sang & De Meulder 2003).

  Targets and predictions are tags with B-, I- and O; an unparseable prediction has no entity. Words behind the last tag
  of a prediction have none, and tags behind the last word do not count.
  """
  import seqeval.metrics

  predicted = [
    [*(prediction or ()), *["O"] * len(right)][: len(right)]
    for right, prediction in zip(targets, predictions, strict=True)
  ]
  right = [list(tags) for tags in targets]
  return {"f1": 100 * float(seqeval.metrics.f1_score(right, predicted, zero_division=0)) if right else 0.0}


def word_accuracy(targets: Sequence[Sequence[str]], predictions: Sequence[Sequence[str] | None]) -> dict[str, float]:
  """Share of words that have their right tag; those of an unparseable prediction have none."""
  right = [
    expected == (prediction or ())[index : index + 1]
    for tags, prediction in zip(targets, predictions, strict=True)
    for index, expected in enumerate([[tag] for tag in tags])
  ]
  return {"word_accuracy": _percent(right)}


# ---- Numbers ---------------------------------------------------------------------------------------------------------


def pearson(targets: Sequence[float], predictions: Sequence[float | None]) -> dict[str, float]:
  """Pearson's correlation coefficient, -100 to 100.

  An unparseable prediction is the targets' minimum or maximum, whichever is farther from its own target: as for labels,
  the worst that could have been written.  A constant such as 0 would be right where the target is 0.
  """
  import scipy.stats

  return {"pearson_correlation": _correlation(scipy.stats.pearsonr, targets, predictions)}


def spearman(targets: Sequence[float], predictions: Sequence[float | None]) -> dict[str, float]:
  """Spearman's rank correlation coefficient, -100 to 100; unparseable predictions as in `pearson`."""
  import scipy.stats

  return {"spearman_correlation": _correlation(scipy.stats.spearmanr, targets, predictions)}


# ---- Text ------------------------------------------------------------------------------------------------------------


def squad(targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
  """Exact match and F1 of words with the best of the right answers, as the script of SQuAD 1.1 counts them.

  Case, punctuation, articles and white space do not matter.  Where nothing else is left of an answer, as of "The", the
  script finds an exact match with another such answer, and an F1 of 0.
  """
  exact, overlap = [], []
  for right, prediction in zip(targets, predictions, strict=True):
    prediction, right = _normalize(prediction), [_normalize(answer) for answer in right]
    exact.append(prediction in right)
    overlap.append(max((_word_f1(answer, prediction) for answer in right), default=0.0))
  return {"exact_match": _percent(exact), "f1": _percent(overlap)}


def squad_v2(targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
  """Exact match and F1 of words as the script of SQuAD 2.0 counts them, where a question may have no answer.

  An empty prediction and `postprocessors.UNANSWERABLE` say that there is no answer. Right answers of
  which normalization leaves nothing are no answers. Where nothing is left of the prediction or of the right answer,
  exact match and F1 are 100 if nothing is left of both, and else 0.

  Source: Rajpurkar et al. 2018.
  """
  exact, overlap = [], []
  for right, prediction in zip(targets, predictions, strict=True):
    prediction = "" if prediction == postprocessors.UNANSWERABLE else _normalize(prediction)
    right = [answer for answer in map(_normalize, right) if answer] or [""]
    exact.append(prediction in right)
    overlap.append(
      max(_word_f1(answer, prediction) if answer and prediction else answer == prediction for answer in right)
    )
  return {"exact_match": _percent(exact), "f1": _percent(overlap)}


def record(targets: Sequence[Mapping], predictions: Sequence[str]) -> dict[str, float]:
  """Exact match and F1 of words of ReCoRD's queries, whose script counts as SQuAD's.

  A query counts once: training splits repeat it for each of its answers.
  """
  queries: dict[Any, tuple[Sequence[str], str]] = {}
  for target, prediction in zip(targets, predictions, strict=True):
    queries.setdefault(target["group"], (target["answers"], prediction))
  return squad([right for right, _ in queries.values()], [prediction for _, prediction in queries.values()])


def rouge(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
  """ROUGE-1, ROUGE-2 and ROUGE-L of whole summaries: mean F-measure of stemmed words (Lin 2004).

  Sentences, which ROUGE-L compares one by one, end at a newline or at a " . ", as the summaries of CNN/Daily Mail do
  once a vocabulary has made spaces of their newlines (Raffel et al. 2020, whose code does not stem: lower numbers).
  """
  from rouge_score import rouge_scorer, tokenizers

  kinds = ("rouge1", "rouge2", "rougeLsum")
  scorer = rouge_scorer.RougeScorer(kinds, tokenizer=tokenizers.DefaultTokenizer(use_stemmer=True))
  scores = [
    scorer.score(*(summary.replace(" . ", " .\n") for summary in pair))
    for pair in zip(targets, predictions, strict=True)
  ]
  return {kind: _percent([rouge_score[kind].fmeasure for rouge_score in scores]) for kind in kinds}


def bleu(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
  """BLEU of the whole split by sacreBLEU, with the settings of Raffel et al. 2020; `bleu_signature` names them."""
  if len(targets) != len(predictions):
    raise ValueError(f"{len(targets)} targets and {len(predictions)} predictions")
  if len(targets) == 0:
    return {"bleu": 0.0}
  # A perfect score comes out of a mean of logarithms a little above 100.
  return {"bleu": min(_bleu_scorer().corpus_score(list(predictions), [list(targets)]).score, 100.0)}


def bleu_signature() -> str:
  """sacreBLEU's name for what `bleu` computes, to be reported with it.

  "nrefs:1|case:mixed|eff:no|tok:intl|smooth:exp|version:2.6.0"
  """
  scorer = _bleu_scorer()
  scorer.corpus_score(["a"], [["a"]])  # without which it does not know how many references there are
  return str(scorer.get_signature())


# ---- Their parts -----------------------------------------------------------------------------------------------------


def _percent(shares: Sequence[float]) -> float:
  return 100 * float(np.mean(shares)) if len(shares) else 0.0


def _is_right(target: Any, prediction: Any) -> bool:
  if isinstance(target, Mapping):
    target = target["label"]
  return not postprocessors.is_unparseable(prediction) and prediction == target


def _wrong_where_unparseable(targets: Sequence[int], predictions: Sequence[int]) -> list[int]:
  return [
    1 - target if postprocessors.is_unparseable(prediction) else prediction
    for target, prediction in zip(targets, predictions, strict=True)
  ]


def _f1(targets: Sequence[int], predictions: Sequence[int], *, classes: list[int]) -> float:
  if len(targets) != len(predictions):
    raise ValueError(f"{len(targets)} targets and {len(predictions)} predictions")
  if len(targets) == 0:
    return 0.0
  import sklearn.metrics

  return 100 * float(sklearn.metrics.f1_score(targets, predictions, labels=classes, average="macro", zero_division=0))


def _correlation(coefficient: Callable, targets: Sequence[float], predictions: Sequence[float | None]) -> float:
  low, high = min(targets, default=0.0), max(targets, default=0.0)
  parsed = [
    (high if target - low < high - target else low) if prediction is None else prediction
    for target, prediction in zip(targets, predictions, strict=True)
  ]
  if len(set(targets)) < 2 or len(set(parsed)) < 2:
    return 0.0
  with np.errstate(all="ignore"), warnings.catch_warnings():
    # Of values that differ by less than their rounding, which is as good as constant.
    warnings.simplefilter("ignore")
    value = float(coefficient(targets, parsed)[0])
  return 100 * min(max(value, -1.0), 1.0) if np.isfinite(value) else 0.0


def _normalize(answer: str) -> str:
  return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def _word_f1(answer: str, prediction: str) -> float:
  right, written = answer.split(), prediction.split()
  common = (collections.Counter(right) & collections.Counter(written)).total()
  # 2 x precision x recall / (precision + recall)
  return 2 * common / (len(right) + len(written)) if common else 0.0


def _bleu_scorer():
  import sacrebleu

  # `force` only keeps it from warning of text that looks tokenized: it is what the model wrote.
  return sacrebleu.BLEU(tokenize="intl", smooth_method="exp", lowercase=False, force=True)
