"""Labels of an ensemble for records without labels: mean logits (PET), and growing training sets (iPET)."""

from collections.abc import Iterable, Mapping, Sequence
import json
from typing import Any, NamedTuple

from etils import epath
import numpy as np

from t2t import UserError
from t2t.checkpoints import pretrained
from t2t.configuration.schema import Config
from t2t.data import train_subset
from t2t.evaluation import evaluate
from t2t.runtime import hosts
from t2t.storage import gcs


class LabelledRow(NamedTuple):
  """A line of config.data.train_labels: index of a record in the order of its split, and its class or logits."""

  split: str
  index: int
  label: int | None = None
  logits: Sequence[float] | None = None


def write(path: epath.Path, rows: Iterable[LabelledRow]) -> None:
  """Writes a file for config.data.train_labels."""
  lines = [json.dumps({key: x for key, x in row._asdict().items() if x is not None}) for row in rows]
  gcs.write(path, "\n".join(lines) + "\n")


def training_rows(config: Config, source: pretrained.Source) -> list[LabelledRow]:
  """Returns the labeled training records of the task of a config.

  Raises:
    UserError: there are several tasks, or see `evaluate.prepare`.
  """
  evaluation = evaluate.prepare(config, source, tasks=(), split=config.data.train_split)
  task, examples = _only(evaluation.examples)
  subset = task.source
  indices = subset.indices if isinstance(subset, train_subset.SubsetSource) else range(len(examples))
  rows = zip(indices, examples, strict=True)
  labelled = [(int(index), int(example["label"])) for index, example in rows if "label" in example]
  return [LabelledRow(config.data.train_split, index, label) for index, label in labelled if label >= 0]


def _only(examples: Mapping[Any, Any]) -> tuple[Any, Any]:
  if len(examples) != 1:
    names = ", ".join(task.name for task in examples)
    raise UserError(f"config.data.mixture: {names} are several tasks, but an ensemble labels one. Name one task.")
  return next(iter(examples.items()))


def logits(config: Config, checkpoint: str, *, split: str) -> np.ndarray:
  """Returns the logits of a model's head for all records of a split, float32 [records, classes]."""
  source = pretrained.read_source(checkpoint)
  evaluation = evaluate.prepare(config, source, tasks=(), split=split)
  params = pretrained.load(source, evaluation.mesh).params
  return evaluation.class_logits(params)


def option_scores(
  config: Config, checkpoint: str, *, split: str
) -> tuple[evaluate.Evaluation, list[list[str]], list[np.ndarray]]:
  """Returns the evaluation of a split by ranking, the options of its examples, and their log-probabilities."""
  source = pretrained.read_source(checkpoint)
  evaluation = evaluate.prepare(config.with_(eval={"method": "rank"}), source, tasks=(), split=split)
  return evaluation, *evaluation.option_scores(pretrained.load(source, evaluation.mesh).params)


def soft_rows(members: Sequence[np.ndarray], *, split: str) -> list[LabelledRow]:
  """Returns the mean logits of several models as soft labels.

  Args:
    members: float32 [records, classes] of each model.
    split: of the records.
  """
  means = np.mean(members, axis=0)
  return [LabelledRow(split, index, logits=[round(float(x), 5) for x in row]) for index, row in enumerate(means)]


def chosen_rows(
  members: Sequence[np.ndarray], labelled: Sequence[LabelledRow], *, number: int, split: str, seed: Sequence[int]
) -> list[LabelledRow]:
  """Returns the labeled records, and records with the labels of an ensemble, in the same shares of the classes.

  Records of a class are drawn with the ensemble's probability of the class, so that confident labels are preferred.

  Args:
    members: float32 [records, classes] of each model of the ensemble.
    labelled: records with their own labels.
    number: records of the result.
    split: of the records without labels.
    seed: of the draw.

  Source: Schick & Schuetze 2021 (PET), section 3.4.
  """
  random = np.random.default_rng(np.random.SeedSequence(list(seed)))
  means = np.mean(members, axis=0, dtype=np.float64)
  probabilities = np.exp(means - np.logaddexp.reduce(means, axis=1, keepdims=True))
  predicted, added = probabilities.argmax(axis=1), []
  for label in sorted({row.label for row in labelled}):
    share = sum(row.label == label for row in labelled) / len(labelled)
    indices = np.flatnonzero(predicted == label)
    wanted = min(len(indices), round(share * max(0, number - len(labelled))))
    if wanted:
      weights = probabilities[indices, label] / probabilities[indices, label].sum()
      drawn = random.choice(indices, wanted, replace=False, p=weights)
      added += [LabelledRow(split, int(index), label) for index in sorted(drawn)]
  if number > len(labelled) + len(added):
    hosts.log_once(f"pet: a generation has {len(labelled) + len(added):,} of {number:,} records; no more have a label")
  return [*labelled, *added]
