"""Metrics of benchmarks: postprocessed targets and predictions (`t2t.data.postprocessors`) -> metric name -> value.

Every function takes the targets and predictions of a split, in the same order. Values are percentages. Without examples
a metric is 0, and so is a correlation with a constant. Unparseable predictions are wrong.
"""

import collections
from collections.abc import Callable, Mapping, Sequence
import re
import string
from typing import Any
import warnings

import numpy as np

from t2t.data import postprocessors

# scikit-learn, SciPy and rouge-score take 1 s each to import, so functions import them when called.

Metric = Callable[[Sequence[Any], Sequence[Any]], dict[str, float]]

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def score(task_metrics: Mapping[str, float]) -> float:
  """Returns the score of a task: the mean of its metrics, as GLUE and SuperGLUE average them; 0 without metrics."""
  return float(np.mean(list(task_metrics.values()))) if task_metrics else 0.0


# ---- Labels ----------------------------------------------------------------------------------------------------------


def accuracy(targets: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
  """Computes the share of predictions that equal the target label; AX-g targets are mappings with a label."""
  return {"accuracy": _percent([_is_right(*pair) for pair in zip(targets, predictions, strict=True)])}


def f1(targets: Sequence[int], predictions: Sequence[int]) -> dict[str, float]:
  """Computes the F1 of the positive class, label 1 of two (MRPC, QQP)."""
  return {"f1": _f1(targets, wrong_where_unparseable(targets, predictions), classes=[1])}


def matthews(targets: Sequence[int], predictions: Sequence[int]) -> dict[str, float]:
  """Computes the Matthews correlation coefficient of two classes, -100 to 100 (CoLA, AX-b)."""
  predictions = wrong_where_unparseable(targets, predictions)
  value = 0.0
  if len(set(targets)) > 1 and len(set(predictions)) > 1:
    import sklearn.metrics

    value = 100 * float(sklearn.metrics.matthews_corrcoef(targets, predictions))
  return {"matthews_correlation": value}


def mean_multiclass_f1(num_classes: int) -> Metric:
  """Returns a metric: the unweighted mean F1 over all classes; a class that never occurs has F1 0.

  An unparseable prediction is a false negative for the target's class and no false positive.
  """

  def f1(targets: Sequence[int], predictions: Sequence[int]) -> dict[str, float]:
    return {"f1": _f1(targets, predictions, classes=list(range(num_classes)))}

  f1.num_classes = num_classes
  return f1


def occurring_class_f1(targets: Sequence[int], predictions: Sequence[int]) -> dict[str, float]:
  """Computes the unweighted mean F1 over classes that occur in targets or predictions; see `mean_multiclass_f1`."""
  predicted = {prediction for prediction in predictions if not postprocessors.is_unparseable(prediction)}
  return {"f1": _f1(targets, predictions, classes=sorted({*targets, *predicted}))}


cb_f1 = mean_multiclass_f1(3)


def multirc_f1a(targets: Sequence[Mapping], predictions: Sequence[Mapping]) -> dict[str, float]:
  """Computes the F1 of correct answers over all answers of all questions (Khashabi et al. 2018)."""
  targets, predictions = ([value["value"] for value in values] for values in (targets, predictions))
  return {"f1a": f1(targets, predictions)["f1"]}


def multirc_exact_match(targets: Sequence[Mapping], predictions: Sequence[Mapping]) -> dict[str, float]:
  """Computes the share of questions with all answers rated correctly."""
  questions = collections.defaultdict(list)
  for target, prediction in zip(targets, predictions, strict=True):
    questions[target["group"]].append(_is_right(target["value"], prediction["value"]))
  return {"exact_match": _percent([all(rated) for rated in questions.values()])}


def axg_parity(targets: Sequence[Mapping], predictions: Sequence[int]) -> dict[str, float]:
  """Computes the share of pairs with two equal predictions, right or wrong (Poliak et al. 2018).

  Incomplete pairs do not count.
  """
  pairs = collections.defaultdict(list)
  for target, prediction in zip(targets, predictions, strict=True):
    pairs[target["pair"]].append(prediction)
  same = [
    len(set(pair)) == 1 and not postprocessors.is_unparseable(pair[0]) for pair in pairs.values() if len(pair) > 1
  ]
  return {"gender_parity": _percent(same)}


def entity_f1(targets: Sequence[Sequence[str]], predictions: Sequence[Sequence[str] | None]) -> dict[str, float]:
  """Computes the F1 of whole entities over all types, as the CoNLL script (Tjong Kim Sang & De Meulder 2003).

  Targets and predictions are tags with B-, I- and O. An unparseable prediction has no entity. Words without a predicted
  tag count as O, and surplus tags are ignored.
  """
  import seqeval.metrics

  predicted = [
    [*(prediction or ()), *["O"] * len(right)][: len(right)]
    for right, prediction in zip(targets, predictions, strict=True)
  ]
  right = [list(tags) for tags in targets]
  return {"f1": 100 * float(seqeval.metrics.f1_score(right, predicted, zero_division=0)) if right else 0.0}


def word_accuracy(targets: Sequence[Sequence[str]], predictions: Sequence[Sequence[str] | None]) -> dict[str, float]:
  """Computes the share of words with the correct tag; an unparseable prediction has no correct tags."""
  right = [
    expected == (prediction or ())[index : index + 1]
    for tags, prediction in zip(targets, predictions, strict=True)
    for index, expected in enumerate([[tag] for tag in tags])
  ]
  return {"word_accuracy": _percent(right)}


# ---- Numbers ---------------------------------------------------------------------------------------------------------


def pearson(targets: Sequence[float], predictions: Sequence[float | None]) -> dict[str, float]:
  """Computes Pearson's correlation coefficient, -100 to 100.

  An unparseable prediction counts as the minimum or maximum of the targets, whichever is farther from its own target. A
  constant such as 0 would be correct where the target is 0.
  """
  import scipy.stats

  return {"pearson_correlation": _correlation(scipy.stats.pearsonr, targets, predictions)}


def spearman(targets: Sequence[float], predictions: Sequence[float | None]) -> dict[str, float]:
  """Computes Spearman's rank correlation coefficient, -100 to 100; unparseable predictions as in `pearson`."""
  import scipy.stats

  return {"spearman_correlation": _correlation(scipy.stats.spearmanr, targets, predictions)}


# ---- Text ------------------------------------------------------------------------------------------------------------


def squad(targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
  """Computes exact match and word F1 against the best gold answer, as the SQuAD 1.1 script.

  Case, punctuation, articles and white space are ignored. If nothing else is left of an answer, such as "The", the
  script counts an exact match with another such answer, and an F1 of 0.
  """
  exact, overlap = [], []
  for right, prediction in zip(targets, predictions, strict=True):
    prediction, right = normalize_answer(prediction), [normalize_answer(answer) for answer in right]
    exact.append(prediction in right)
    overlap.append(max((word_f1(answer, prediction) for answer in right), default=0.0))
  return {"exact_match": _percent(exact), "f1": _percent(overlap)}


def squad_v2(targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
  """Computes exact match and word F1 as the SQuAD 2.0 script, for questions that may have no answer.

  An empty prediction and `postprocessors.UNANSWERABLE` mean "no answer". Gold answers that are empty after
  normalization are dropped. If the prediction or the gold answer is empty, exact match and F1 are 100 if both are, else
  0.

  Source: Rajpurkar et al. 2018.
  """
  exact, overlap = [], []
  for right, prediction in zip(targets, predictions, strict=True):
    prediction = "" if prediction == postprocessors.UNANSWERABLE else normalize_answer(prediction)
    right = [answer for answer in map(normalize_answer, right) if answer] or [""]
    exact.append(prediction in right)
    overlap.append(
      max(word_f1(answer, prediction) if answer and prediction else answer == prediction for answer in right)
    )
  return {"exact_match": _percent(exact), "f1": _percent(overlap)}


def record(targets: Sequence[Mapping], predictions: Sequence[str]) -> dict[str, float]:
  """Computes exact match and word F1 of ReCoRD queries, as the SQuAD script.

  Each query counts once; training splits repeat it for each of its answers.
  """
  queries: dict[Any, tuple[Sequence[str], str]] = {}
  for target, prediction in zip(targets, predictions, strict=True):
    queries.setdefault(target["group"], (target["answers"], prediction))
  return squad([right for right, _ in queries.values()], [prediction for _, prediction in queries.values()])


def rouge(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
  """Computes ROUGE-1, ROUGE-2 and ROUGE-L of whole summaries: mean F-measure of stemmed words (Lin 2004).

  ROUGE-L compares sentences, which end at a newline or at " . ". CNN/Daily Mail has the latter, because vocabularies
  replace newlines by spaces. Raffel et al. 2020 do not stem, which gives lower numbers.
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
  """Computes the corpus BLEU with sacreBLEU and the settings of Raffel et al. 2020; see `bleu_signature`."""
  if len(targets) != len(predictions):
    raise ValueError(f"{len(targets)} targets and {len(predictions)} predictions; give one prediction for each target")
  if len(targets) == 0:
    return {"bleu": 0.0}
  # Floating-point logarithms give perfect scores slightly above 100.
  return {"bleu": min(_bleu_scorer().corpus_score(list(predictions), [list(targets)]).score, 100.0)}


def bleu_signature() -> str:
  """Returns sacreBLEU's signature of `bleu`, to report with the score.

  "nrefs:1|case:mixed|eff:no|tok:intl|smooth:exp|version:2.6.0"
  """
  scorer = _bleu_scorer()
  scorer.corpus_score(["a"], [["a"]])  # sets the number of references in the signature
  return str(scorer.get_signature())


# ---- Helpers ---------------------------------------------------------------------------------------------------------


def _percent(shares: Sequence[float]) -> float:
  return 100 * float(np.mean(shares)) if len(shares) else 0.0


def _is_right(target: Any, prediction: Any) -> bool:
  if isinstance(target, Mapping):
    target = target["label"]
  return not postprocessors.is_unparseable(prediction) and prediction == target


def wrong_where_unparseable(targets: Sequence[int], predictions: Sequence[int]) -> list[int]:
  """Returns predictions of two classes; an unparseable prediction becomes the wrong class."""
  return [
    1 - target if postprocessors.is_unparseable(prediction) else prediction
    for target, prediction in zip(targets, predictions, strict=True)
  ]


def _f1(targets: Sequence[int], predictions: Sequence[int], *, classes: list[int]) -> float:
  if len(targets) != len(predictions):
    raise ValueError(f"{len(targets)} targets and {len(predictions)} predictions; give one prediction for each target")
  if len(targets) == 0:
    return 0.0
  import sklearn.metrics

  return 100 * float(sklearn.metrics.f1_score(targets, predictions, labels=classes, average="macro", zero_division=0))


def farthest_where_unparseable(targets: Sequence[float], predictions: Sequence[float | None]) -> list[float]:
  """Returns predictions; an unparseable one becomes the minimum or maximum of the targets, see `pearson`."""
  low, high = min(targets, default=0.0), max(targets, default=0.0)
  return [
    (high if target - low < high - target else low) if prediction is None else prediction
    for target, prediction in zip(targets, predictions, strict=True)
  ]


def _correlation(coefficient: Callable, targets: Sequence[float], predictions: Sequence[float | None]) -> float:
  parsed = farthest_where_unparseable(targets, predictions)
  if len(set(targets)) < 2 or len(set(parsed)) < 2:
    return 0.0
  with np.errstate(all="ignore"), warnings.catch_warnings():
    # SciPy warns of values that differ by less than rounding errors, which count as constant.
    warnings.simplefilter("ignore")
    value = float(coefficient(targets, parsed)[0])
  return 100 * min(max(value, -1.0), 1.0) if np.isfinite(value) else 0.0


def normalize_answer(answer: str) -> str:
  """Returns the words of an answer as the SQuAD script compares them."""
  return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def word_f1(answer: str, prediction: str) -> float:
  """Computes the F1 of the words of two normalized answers, 0 to 1."""
  right, written = answer.split(), prediction.split()
  common = (collections.Counter(right) & collections.Counter(written)).total()
  # 2 x precision x recall / (precision + recall)
  return 2 * common / (len(right) + len(written)) if common else 0.0


def _bleu_scorer():
  import sacrebleu

  # `force` suppresses the warning about tokenized text, because the text is the model's output.
  return sacrebleu.BLEU(tokenize="intl", smooth_method="exp", lowercase=False, force=True)
