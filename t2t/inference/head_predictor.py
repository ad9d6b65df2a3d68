"""Predictions of heads: batches of similar lengths, one program per shape, and conversion of logits to answers."""

from collections.abc import Callable, Iterator, Sequence
import functools
import math
from typing import Any, NamedTuple

from flax import nnx
import jax
import numpy as np

from t2t import UserError
from t2t.inference import prompt_builder, row_batches, ties
from t2t.inference.row_batches import Example
from t2t.losses import head_losses
from t2t.models import span_pair
from t2t.models.architecture import Batch
from t2t.models.config import TransformerConfig
from t2t.models.head_config import HeadConfig
from t2t.param_tree import Params
from t2t.runtime import lazy_table


def rows_of(example: Example) -> Sequence[Example]:
  """Returns the model rows of an example: the windows of its context, or the example itself."""
  return example.get("windows", [example])


def _logits(graphdef: nnx.GraphDef, name: str, params: Params, batch: Batch) -> jax.Array:
  return head_losses.all_answers(nnx.merge(graphdef, params), batch, [name])[name]


class Answerer:
  """Computes the logits of the heads of one model; compiles once for each batch shape.

  Every host calls it with the same examples, and gets all logits.

  Args:
    config: of the model.
    graphdef: structure of the model; each call takes the parameters, which may change during training.
    mesh: on which the parameters are loaded.
    pad_id: padding token.
    batch_size: rows of a batch, over all devices.
  """

  def __init__(
    self, config: TransformerConfig, graphdef: nnx.GraphDef, mesh: jax.sharding.Mesh, *, pad_id: int, batch_size: int
  ):
    self._side, self.graphdef = config.kind.answers, graphdef
    self.layers: list[int] = []  # layers of each row of the last call, if rows leave early
    self._batches = row_batches.RowBatches(config, mesh, pad_id=pad_id, batch_size=batch_size)
    self._numbers = {head.name: number for number, head in enumerate(config.heads, start=1)}
    self._programs = {head.name: jax.jit(functools.partial(_logits, graphdef, head.name)) for head in config.heads}

  def logits(
    self, params: Params, head: HeadConfig, examples: Sequence[Example], *, on_batch: Callable | None = None
  ) -> list[np.ndarray]:
    """Returns float32 [answered positions, classes] of each example, concatenated over its windows.

    A crf head has two columns instead: the number of the likeliest tag, and its log-probability.

    Args:
      params: nested dict.
      head: used for prediction.
      examples: see `Example`; an example with "windows" has several.
      on_batch: called after each batch with the numbers of its rows and their tokens, see `rows_of`.

    Raises:
      UserError: a logit is NaN or Inf.
    """
    rows = [row for example in examples for row in rows_of(example)]
    row_logits: list[np.ndarray] = [np.zeros(0)] * len(rows)
    for indices, logits in self.run(self._programs[head.name], params, head, rows, on_batch=on_batch):
      for i, row in zip(indices, logits, strict=False):
        row_logits[i] = row[: len(rows[i]["inputs"])][np.asarray(rows[i]["answer_heads"]) > 0]
        if not np.isfinite(row_logits[i]).all():
          raise UserError(f"--checkpoint: head {head.name} produced NaN or Inf; use a different checkpoint")
    of_rows = iter(row_logits)
    return [np.concatenate([next(of_rows) for _ in rows_of(example)]) for example in examples]

  def run(
    self,
    program: Callable[[Params, Batch], Any],
    params: Params,
    head: HeadConfig,
    rows: Sequence[Example],
    *,
    on_batch: Callable | None = None,
  ) -> Iterator[tuple[list[int], Any]]:
    """Yields the indices of the rows of a batch and the output of a program for a head; see `RowBatches.run`."""
    # Positions with an answer, and the spans of a pair.
    number = lambda row: self._numbers[head.name] * (np.asarray(row["answer_heads"]) > 0)
    beside = {f"{self._side}_answer_heads": ([number(row) for row in rows], self._batches.width)}
    if head.kind == "span_pair":
      beside[f"{self._side}_answer_targets"] = ([row["answer_marks"] for row in rows], self._batches.width)
    yield from self._batches.run(program, params, rows, beside=beside, on_batch=on_batch)

  def check(self, head: HeadConfig) -> None:
    """Raises an error for a head whose rows cannot leave early, if rows do."""


def of_model(
  config: TransformerConfig,
  graphdef: nnx.GraphDef,
  mesh: jax.sharding.Mesh,
  *,
  exits: tuple[float, int] = (0.0, 0),
  where: str = "--",
  members: int = 1,
  **options: Any,
) -> Answerer:
  """Returns an `Answerer`: with entropy or patience in `exits` one whose rows leave early, see `early_exit.rule_of`;
  with several `members` one of an ensemble, see `ensemble_heads`.

  Raises:
    UserError: an ensemble with exits; or see `early_exit.rule_of`.
  """
  if members > 1:
    if any(exits):
      raise UserError(
        f"{where}exit_entropy, exit_patience: rows of an ensemble do not leave early, because its members would leave "
        "after different layers. Leave the keys out, or give one checkpoint."
      )
    answerer = lazy_table.load("t2t.inference.ensemble_heads:EnsembleAnswerer")  # few evaluations have ensembles
    return answerer(config, graphdef, mesh, members=members, **options)
  if not any(exits):
    return Answerer(config, graphdef, mesh, **options)
  exit_answerer = lazy_table.load("t2t.inference.early_exit:ExitAnswerer")  # few models have exits
  return exit_answerer(config, graphdef, mesh, exits=exits, where=where, **options)


# ---- Answers ---------------------------------------------------------------------------------------------------------


def _text(value: Any) -> str:
  return value.decode() if isinstance(value, bytes) else str(value)


def named(head: HeadConfig, number: int) -> str:
  """Returns the label of a class, or its number if the head has no labels."""
  return head.labels[number] if head.labels else str(number)


def _log_softmax(logits: np.ndarray) -> np.ndarray:
  return logits - np.logaddexp.reduce(logits)


def _best(logits: np.ndarray) -> int:
  """Returns the first of the highest logits up to rounding, so that the batch size does not decide."""
  return int(ties.best(logits)[0])


def _classes(head: HeadConfig, example: Example) -> Sequence:
  return example["classes"] if "classes" in example else head.labels or range(head.num_classes)


def _class(head: HeadConfig, example: Example, logits: np.ndarray) -> tuple[str, float]:
  texts = _classes(head, example)
  best = _best(logits[0])
  return _text(texts[best]), float(_log_softmax(logits[0])[best])


def _choice(head: HeadConfig, example: Example, logits: np.ndarray) -> tuple[str, float]:
  del head
  if not len(logits):
    return "", 0.0  # the text mentions no candidate
  best = _best(logits[:, 0])
  return _text(_candidates(example)[best]), float(_log_softmax(logits[:, 0])[best])


def _candidates(example: Example) -> Sequence:
  return example["options" if "options" in example else "candidates"]


def _score(head: HeadConfig, example: Example, logits: np.ndarray) -> tuple[str, float]:
  del head, example
  return repr(float(logits[0, 0])), 0.0


def _tags(head: HeadConfig, example: Example, logits: np.ndarray) -> tuple[list[str], np.ndarray]:
  """Returns the tag and log-probability of each word; "O" and 0 for words without a prediction."""
  tags, log_p = ["O"] * len(example["words"]), np.zeros(len(example["words"]))
  for number, word_logits in zip(example["asked_words"], logits, strict=True):
    tag, log_p[int(number)] = _best_tag(head, word_logits)
    tags[int(number)] = named(head, tag)
  return tags, log_p


def _best_tag(head: HeadConfig, word_logits: np.ndarray) -> tuple[int, float]:
  if head.kind == "crf":  # decoded with its transitions
    return int(word_logits[0]), float(word_logits[1])
  best = _best(word_logits)
  return best, float(_log_softmax(word_logits)[best])


def _tag(head: HeadConfig, example: Example, logits: np.ndarray) -> tuple[str, float]:
  tags, log_p = _tags(head, example, logits)
  return " ".join(tags), float(log_p.sum())


# Values of transformers' run_qa.
_BEST = 20  # number of starts and of ends per window
_LONGEST = 30  # maximum tokens of a span


class _Spans(NamedTuple):
  """The best spans of all windows, likeliest first.

  log_p: log-probability of each span; the last is that of no answer, if the example allows it.
  starts, ends: bounds in characters.
  """

  log_p: np.ndarray
  starts: np.ndarray
  ends: np.ndarray

  def tied(self) -> list[int]:
    """Returns the indices of the best of `log_p` up to rounding; spans by their bounds, no answer last."""
    indices = ties.best(self.log_p).tolist() if len(self.log_p) else []
    bounds = [*zip(self.starts, self.ends, strict=True), (math.inf, math.inf)]
    return sorted(indices, key=lambda index: bounds[index])

  def best(self) -> int | None:
    """Returns the index of the predicted span; None: no answer."""
    first = next(iter(self.tied()), None)
    return None if first is None or first == len(self.starts) else first


def _spans_of(window: Example, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns scores and character bounds of a window's spans, likeliest start and likeliest end first."""
  head_mask = np.asarray(window["answer_heads"]) > 0
  starts, ends = (np.asarray(window[name])[head_mask] for name in ("context_starts", "context_ends"))
  inside = starts >= 0
  starts, ends, logits = starts[inside], ends[inside], logits[inside]
  first, last = (np.argsort(-column, kind="stable")[:_BEST] for column in logits.T)
  first, last = (x.ravel() for x in np.meshgrid(first, last, indexing="ij"))
  fits = (last >= first) & (last - first < _LONGEST) & (ends[last] > starts[first])
  first, last = first[fits], last[fits]
  return logits[first, 0] + logits[last, 1], starts[first], ends[last]


def _spans(example: Example, logits: np.ndarray) -> _Spans:
  """Combines the windows; predicts no answer if it beats every span and the example has "no_answer"."""
  numbers = [np.count_nonzero(window["answer_heads"]) for window in example["windows"]]
  window_spans, nothing = [], []
  for window, window_logits in zip(example["windows"], np.split(logits, np.cumsum(numbers)[:-1]), strict=True):
    window_spans.append(_spans_of(window, window_logits))
    head_mask = np.asarray(window["answer_heads"]) > 0
    nothing.append(float(window_logits[np.asarray(window["context_starts"])[head_mask] < 0].sum()))
  scores, starts, ends = (np.concatenate(column) for column in zip(*window_spans, strict=True))
  best = np.argsort(-scores, kind="stable")[:_BEST]
  # The window with the lowest score of no answer decides, because it is the likeliest to contain one.
  withheld = [min(nothing)] if "no_answer" in example else []
  return _Spans(_log_softmax(np.array([*scores[best], *withheld])), starts[best], ends[best])


def _span(head: HeadConfig, example: Example, logits: np.ndarray) -> tuple[str, float]:
  """Returns the best span of all windows, or "no_answer" if that is likelier."""
  del head
  best_spans = _spans(example, logits)
  best = best_spans.best()
  if best is None:
    return _text(example.get("no_answer", "")), float(best_spans.log_p[-1]) if len(best_spans.log_p) else 0.0
  return _text(example["context"])[best_spans.starts[best] : best_spans.ends[best]], float(best_spans.log_p[best])


def _tied_class(head: HeadConfig, example: Example, logits: np.ndarray) -> list[str]:
  texts = _classes(head, example)
  return [_text(texts[index]) for index in ties.best(logits[0])]


def _tied_choice(head: HeadConfig, example: Example, logits: np.ndarray) -> list[str]:
  del head
  return [_text(_candidates(example)[index]) for index in ties.best(logits[:, 0])] if len(logits) else []


def _tied_tags(head: HeadConfig, example: Example, logits: np.ndarray) -> list[str]:
  """Returns several tag sequences; each tied word takes its tied tags in turn."""
  tied = [ties.best(word_logits) for word_logits in logits]
  tags, tag_lines = ["O"] * len(example["words"]), []
  for number in ties.rounds([len(tied_classes) for tied_classes in tied], most=ties.MOST):
    for word, tied_classes in zip(example["asked_words"], tied, strict=True):
      tags[int(word)] = named(head, int(tied_classes[number % len(tied_classes)]))
    tag_lines.append(" ".join(tags))
  return tag_lines


def _tied_spans(head: HeadConfig, example: Example, logits: np.ndarray) -> list[str]:
  """Returns the spans tied with the best, including no answer; only among the spans in `_spans`."""
  del head
  best_spans = _spans(example, logits)
  texts = [_text(example["context"])[start:end] for start, end in zip(best_spans.starts, best_spans.ends, strict=True)]
  texts += [_text(example["no_answer"])] if "no_answer" in example else []
  return [texts[index] for index in best_spans.tied()]


# ---- Fields of a row -------------------------------------------------------------------------------------------------


def _rounded(value: float) -> float:
  return prompt_builder.rounded(float(value))


def _class_fields(head: HeadConfig, example: Example, logits: np.ndarray) -> dict[str, Any]:
  del example
  log_p, best = _log_softmax(logits[0]), _best(logits[0])
  probabilities = {named(head, i): _rounded(np.exp(x)) for i, x in enumerate(log_p)}
  return {"prediction": named(head, best), "score": _rounded(log_p[best]), "probabilities": probabilities}


def _choice_fields(head: HeadConfig, example: Example, logits: np.ndarray) -> dict[str, Any]:
  del head
  log_p, best = _log_softmax(logits[:, 0]), _best(logits[:, 0])
  probabilities = [_rounded(np.exp(x)) for x in log_p]
  return {"prediction": example["candidates"][best], "score": _rounded(log_p[best]), "probabilities": probabilities}


def _score_fields(head: HeadConfig, example: Example, logits: np.ndarray) -> dict[str, Any]:
  del head, example
  return {"prediction": _rounded(logits[0, 0])}


def _tag_fields(head: HeadConfig, example: Example, logits: np.ndarray) -> dict[str, Any]:
  """Returns the entities that the tags mark, in characters of the text; probabilities multiply over the words."""
  from t2t.data import postprocessors

  tags, log_p = _tags(head, example, logits)
  entities = []
  for label, first, behind in postprocessors.entities(tags):
    start, end = example["places"][first][0], example["places"][behind - 1][1]
    entity = {"label": label, "start": start, "end": end, "text": example["text"][start:end]}
    entities.append(entity | {"probability": _rounded(np.exp(log_p[first:behind].sum()))})
  return {"prediction": entities, "score": _rounded(log_p.sum()), "words": list(example["words"]), "tags": tags}


def _span_fields(head: HeadConfig, example: Example, logits: np.ndarray) -> dict[str, Any]:
  """Returns the answer with its bounds in the context, the five likeliest spans, and the probability of no answer."""
  del head
  best_spans, context = _spans(example, logits), example["context"]
  probabilities = [_rounded(x) for x in np.exp(best_spans.log_p)]
  spans: dict[tuple[int, int], dict[str, Any]] = {}
  for start, end, probability in zip(best_spans.starts.tolist(), best_spans.ends.tolist(), probabilities, strict=False):
    # Overlapping windows may repeat a span; the likelier comes first.
    spans.setdefault((start, end), {"text": context[start:end], "start": start, "end": end, "probability": probability})
  null = {"null": probabilities[-1]} if "no_answer" in example else {}
  chosen = best_spans.best()
  shown_span = {"text": "", "start": None, "end": None, "probability": null.get("null")}
  if chosen is not None:
    shown_span = spans[int(best_spans.starts[chosen]), int(best_spans.ends[chosen])]
  score = best_spans.log_p[-1 if chosen is None else chosen] if len(best_spans.log_p) else None
  return {
    "prediction": shown_span["text"],
    "score": None if score is None else _rounded(score),
    **{name: shown_span[name] for name in ("start", "end", "probability")},
    **null,
    "best": list(spans.values())[:_SHOWN],
  }


_SHOWN = 5  # spans in a row


# ---- Functions by kind of head ---------------------------------------------------------------------------------------


class _HeadFunctions(NamedTuple):
  """Converts a head's logits; the functions implement `answer`, `fields` and `tied`."""

  answer: Callable[[HeadConfig, Example, np.ndarray], tuple[str, float]]
  fields: Callable[[HeadConfig, Example, np.ndarray], dict[str, Any]]
  tied: Callable[[HeadConfig, Example, np.ndarray], list[str]] = lambda head, example, logits: []


KINDS: dict[str, _HeadFunctions] = {
  "class": _HeadFunctions(_class, _class_fields, _tied_class),
  "choice": _HeadFunctions(_choice, _choice_fields, _tied_choice),
  "score": _HeadFunctions(_score, _score_fields),
  "tag": _HeadFunctions(_tag, _tag_fields, _tied_tags),
  "crf": _HeadFunctions(_tag, _tag_fields),
  "span": _HeadFunctions(_span, _span_fields, _tied_spans),
  "cloze": _HeadFunctions(_class, _class_fields, _tied_class),
  "span_pair": _HeadFunctions(_class, _class_fields, _tied_class),
}


def answer(head: HeadConfig, example: Example, logits: np.ndarray) -> tuple[str, float]:
  """Returns the answer of a head as a text-to-text target, and its log-probability (0 for a number).

  Args:
    head: used for prediction.
    example: with the fields of its task.
    logits: [answered positions, classes], concatenated over the windows of the example.
  """
  return KINDS[head.kind].answer(head, example, logits)


def tied(head: HeadConfig, example: Example, logits: np.ndarray) -> tuple[str, ...]:
  """Returns all answers tied with `answer` if they differ; otherwise none.

  Args: see `answer`.
  """
  tied_answers = KINDS[head.kind].tied(head, example, logits)
  return tuple(tied_answers) if len(set(tied_answers)) > 1 else ()


def fields(head: HeadConfig, example: Example, logits: np.ndarray) -> dict[str, Any]:
  """Returns the prediction of a head as the fields of a row.

  In:  a class head with the labels no and yes, {}, [[0.0, 1.0]]
  Out: {"prediction": "yes", "score": -0.313262, "probabilities": {"no": 0.268941, "yes": 0.731059}}

  Args:
    head: used for prediction.
    example: a choice needs "candidates". Tags need "words", "asked_words", "text" and "places" of the words
      there. A span needs "context", "windows" and, if no answer is allowed, "no_answer".
    logits: [answered positions, classes], concatenated over the windows of the example.
  """
  return KINDS[head.kind].fields(head, example, logits)


# ---- Samples of a training batch -------------------------------------------------------------------------------------


def _bounds(logits: np.ndarray) -> tuple[int, int]:
  """Returns start and end of the likeliest span of a window: context positions from 1, or (0, 0) for no answer."""
  scores = logits[:, :1] + logits[:, 1]
  first, last = np.indices(scores.shape)
  fits = (first <= last) & (last - first < _LONGEST) & ((first > 0) | (last == 0))
  best = np.unravel_index(np.argmax(np.where(fits, scores, -np.inf)), scores.shape)
  return int(best[0]), int(best[1])


def sample(head: HeadConfig, logits: np.ndarray, targets: np.ndarray) -> tuple[str, str]:
  """Returns prediction and truth of an example of a training batch, as short texts.

  Args:
    head: used for prediction.
    logits: float32 [answered positions, classes], or the columns of a crf head.
    targets: int32 at these positions; see `head_losses.HeadTargets`.
  """
  if head.kind == "score":
    return f"{logits[0, 0]:.2f}", f"{float(head_losses.scores_of(targets)[0]):.2f}"
  if head.kind == "choice":
    right = np.flatnonzero(targets > 0)
    return f"candidate {int(np.argmax(logits[:, 0])) + 1}", f"candidate {', '.join(str(i + 1) for i in right)}"
  if head.kind == "span":
    bounds = (_bounds(logits), (int(np.argmax(targets % 2 == 1)), int(np.argmax(targets >= 2))))
    return tuple(f"tokens {first}-{last}" if last else "no answer" for first, last in bounds)
  if head.kind == "crf":
    predicted, right = logits[:, 0], targets
  elif head.kind == "class" and len(targets) > 1:  # a teacher's logits, see losses/distillation.py
    predicted, right = logits[:1].argmax(axis=-1), [int(np.argmax(head_losses.scores_of(targets)))]
  elif head.kind == "span_pair":
    predicted, right = logits[:1].argmax(axis=-1), targets[:1] >> span_pair.CLASS_BITS
  else:
    predicted, right = logits.argmax(axis=-1), targets
  return " ".join(named(head, int(i)) for i in predicted), " ".join(named(head, int(i)) for i in right)
