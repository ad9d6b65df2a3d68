"""Heads of an ensemble: the mean of the members' probabilities of an answer."""

from collections.abc import Callable, Sequence
import functools
from typing import Any

from flax import nnx
import jax
import numpy as np

from t2t import UserError
from t2t.inference import head_predictor
from t2t.inference.row_batches import Example
from t2t.losses import head_losses
from t2t.models.architecture import Batch
from t2t.models.config import TransformerConfig
from t2t.models.head_config import HeadConfig
from t2t.param_tree import Params


def _mean_over(axis: int, logits: Sequence[np.ndarray]) -> np.ndarray:
  """Returns the logarithm of the mean of softmaxes over an axis of [answered positions, classes]."""
  log_p = [np.float64(x) - np.logaddexp.reduce(np.float64(x), axis=axis, keepdims=True) for x in logits]
  return np.logaddexp.reduce(log_p, axis=0) - np.log(len(logits))


_OVER_CLASSES, _OVER_POSITIONS = functools.partial(_mean_over, -1), functools.partial(_mean_over, 0)
# kind of a head -> the ensemble's logits from those of the members, [answered positions, classes] of an example. The
# candidates of a choice, and the starts and ends of spans, share one softmax over all windows.
MEANS: dict[str, Callable[[Sequence[np.ndarray]], np.ndarray]] = {
  "class": _OVER_CLASSES,
  "tag": _OVER_CLASSES,
  "cloze": _OVER_CLASSES,
  "span_pair": _OVER_CLASSES,
  "choice": _OVER_POSITIONS,
  "span": _OVER_POSITIONS,
  "score": lambda logits: np.mean(np.float64(logits), axis=0),
}


def mean_logits(head: HeadConfig, logits: Sequence[np.ndarray]) -> np.ndarray:
  """Returns the logarithms of the mean probabilities of an example's answers; of a score head the mean score.

  In:  a class head, [[0, log 3]] and [[0, 0]]
  Out: log of [[0.375, 0.625]]                      the mean of [0.25, 0.75] and [0.5, 0.5]

  Args:
    head: of a kind in `MEANS`.
    logits: of each member, float32 [answered positions, classes], over all windows of the example.
  """
  return MEANS[head.kind](logits) if len(logits[0]) else logits[0]


class EnsembleAnswerer(head_predictor.Answerer):
  """Computes the mean predictions of the heads of an ensemble, member by member.

  Args:
    config, mesh: see `head_predictor.Answerer`.
    graphdef: of a `models.ensemble.EnsembleModel`.
    members: their number.
    options: see `head_predictor.Answerer`.
  """

  def __init__(
    self, config: TransformerConfig, graphdef: nnx.GraphDef, mesh: jax.sharding.Mesh, *, members: int, **options: Any
  ):
    super().__init__(config, graphdef, mesh, **options)
    of_head = lambda name: [jax.jit(functools.partial(_logits, graphdef, name, i)) for i in range(members)]
    self._of_members = {head.name: of_head(head.name) for head in config.heads}

  def logits(
    self, params: Params, head: HeadConfig, examples: Sequence[Example], *, on_batch: Callable | None = None
  ) -> list[np.ndarray]:
    """Returns `mean_logits` of each example; see `head_predictor.Answerer.logits`."""
    programs = self._of_members[head.name]
    step = None if on_batch is None else lambda number, tokens: on_batch(number / len(programs), tokens)
    of_members = []
    for program in programs:
      self._programs[head.name] = program
      of_members.append(super().logits(params, head, examples, on_batch=step))
    return [mean_logits(head, of_example) for of_example in zip(*of_members, strict=True)]

  def check(self, head: HeadConfig) -> None:
    """Refuses a head whose outputs are no probabilities of single answers."""
    if head.kind not in MEANS:
      raise UserError(
        f"--checkpoint: the head {head.name} has the kind {head.kind}, which decodes all tags of a text together, so "
        f"probabilities of an ensemble have no mean. Give one checkpoint, or heads of the kinds {', '.join(MEANS)}."
      )


def _logits(graphdef: nnx.GraphDef, name: str, member: int, params: Params, batch: Batch) -> jax.Array:
  model = nnx.merge(graphdef, params).member(member)
  return head_losses.all_answers(model, batch, [name])[name]
