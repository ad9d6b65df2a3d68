"""Linear probes: accuracy of a linear classifier on the vectors of each layer, for a task with classes.

Source: Alain & Bengio 2017. The model itself is not trained.
"""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any
import warnings

import jax
import numpy as np
import rich.box
import rich.console
import rich.table
import sklearn.exceptions
import sklearn.linear_model
import sklearn.pipeline
import sklearn.preprocessing

from t2t import UserError
from t2t.checkpoints import pretrained
from t2t.configuration.schema import DataConfig
from t2t.data import head_examples, pipeline, registry, run_sources, task_resolution
from t2t.evaluation import few_shot
from t2t.inference import embedding, ties
from t2t.models.head_config import HeadConfig

_STEPS = 1_000  # of the solver; it is close to convergence by then


@dataclasses.dataclass(frozen=True)
class Probe:
  """Probe results on a task.

  task: its name.
  split: evaluation split.
  examples: number of training examples, and of evaluation examples.
  constant: accuracy in percent of always predicting the majority class of the training examples.
  accuracy: layer -> accuracy in percent; layer 0 is the embeddings.
  fitted: layer -> accuracy in percent on the training examples.
  tied: layer -> number of evaluation examples with tied classes; each of k tied classes counts 1/k.
  """

  task: str
  split: str
  examples: tuple[int, int]
  constant: float
  accuracy: Mapping[int, float]
  fitted: Mapping[int, float]
  tied: Mapping[int, int] = dataclasses.field(default_factory=dict)


def probe(
  data: DataConfig,
  source: pretrained.Source,
  mesh: jax.sharding.Mesh,
  *,
  pool: str = "mean",
  layer: str = "all",
  limit: int = 5_000,
  batch_size: int = 32,
) -> Probe:
  """Fits a classifier to the vectors of each layer, and evaluates it on the split `data.eval_split`.

  Args:
    data: config whose `mixture` is the task; lengths.
    source: the checkpoint.
    mesh: for the parameters.
    pool: a key of `embedding.POOLS`.
    layer: see `embedding.layers_of`.
    limit: maximum number of examples of each split.
    batch_size: examples per batch, over all devices.

  Raises:
    UserError: the task, split or layer is unknown, or the task has no classes.
  """
  layers = embedding.layers_of(source.model, layer)
  vocabulary, model = pretrained.vocabulary(source), pretrained.abstract(source, mesh)
  architecture = model.config.architecture
  task, heads = _task(data, vocabulary, dataclasses.replace(model.config, heads=()))
  task = head_examples.for_heads(task, architecture, heads)
  train, held_out = (
    _labelled(few_shot.read(data, architecture, task, split, limit=limit), task.name, split, key=key)
    for key, split in (("train_split", data.train_split), ("eval_split", data.eval_split))
  )
  embedder = embedding.Embedder(
    model.config,
    model.graphdef,
    mesh,
    pool=pool,
    layers=layers,
    pad_id=max(vocabulary.pad_id, 0),
    batch_size=batch_size,
  )
  params = pretrained.load(source, mesh).params
  (x, y), (x_held_out, y_held_out) = (
    (embedder.vectors(params, examples), _labels(examples)) for examples in (train, held_out)
  )
  if len(set(y.tolist())) < 2:
    raise UserError(f"{task.name}: the first {len(y):,} training examples all have the same class; raise --examples")
  accuracy, fitted, tied = {}, {}, {}
  for i, number in enumerate(layers):
    classifier = fit(x[:, i], y)
    share, tied[number] = share_right(classifier, x_held_out[:, i], y_held_out)
    accuracy[number], fitted[number] = 100 * share, 100 * share_right(classifier, x[:, i], y)[0]
  constant = 100 * float(np.mean(y_held_out == np.bincount(y).argmax()))
  return Probe(task.name, data.eval_split, (len(y), len(y_held_out)), constant, accuracy, fitted, tied)


def _task(data: DataConfig, vocabulary: Any, model) -> tuple[Any, tuple[HeadConfig, ...]]:
  """Returns the task, tokenized with the model's vocabulary, and the head that it needs."""
  modules = [*registry.load_shipped(), *data.task_modules]
  name = run_sources.of(data).name
  registry.task_or_mixture(name, modules=modules, where="--probe ", modules_where="--task_modules")
  tasks = task_resolution.tasks_of(pipeline.adapted(data, pipeline.registered(data)))
  if len(tasks) != 1:
    names = ", ".join(task.name for task in tasks)
    raise UserError(f"--probe {name} is a mixture of several tasks; give one of these tasks: {names}")
  task = task_resolution.adapt(tasks[0], vocabulary=vocabulary)
  heads = head_examples.heads_of([task], model, vocabulary)
  if heads[0].kind != "class":
    raise UserError(f"--probe {task.name} has no classes (kind of head: {heads[0].kind}); give a task with classes")
  return task, heads


def _labelled(examples: Sequence[Mapping[str, Any]], task: str, split: str, *, key: str) -> list[Mapping[str, Any]]:
  """Returns the examples with a gold class."""
  labelled = [example for example in examples if example["has_answer"]]
  if not labelled:
    raise UserError(f"{task}: split {split!r} has no labels; set --config.data.{key} to a labelled split")
  return labelled


def _labels(examples: Sequence[Mapping[str, Any]]) -> np.ndarray:
  return np.array([example["answer_targets"][np.argmax(example["answer_heads"])] for example in examples], np.int64)


def fit(x: np.ndarray, y: np.ndarray) -> sklearn.pipeline.Pipeline:
  """Fits a linear classifier: logistic regression on features of mean 0 and variance 1.

  Args:
    x: [examples, features].
    y: [examples], at least two classes.
  """
  classifier = sklearn.pipeline.make_pipeline(
    sklearn.preprocessing.StandardScaler(), sklearn.linear_model.LogisticRegression(max_iter=_STEPS)
  )
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", sklearn.exceptions.ConvergenceWarning)
    return classifier.fit(x, y)


def share_right(classifier: sklearn.pipeline.Pipeline, x: np.ndarray, y: np.ndarray) -> tuple[float, int]:
  """Returns the share of correct predictions, and the number of examples with tied classes.

  Args:
    classifier: see `fit`.
    x: [examples, features].
    y: [examples].
  """
  scores = np.asarray(classifier.decision_function(x))
  if scores.ndim == 1:  # two classes: the score of the second
    scores = np.stack([np.zeros_like(scores), scores], axis=1)
  best = [classifier.classes_[ties.best(row)] for row in scores]
  right = [np.mean(tied_labels == label) for tied_labels, label in zip(best, y, strict=True)]
  return float(np.mean(right)), sum(len(tied_labels) > 1 for tied_labels in best)


def print_table(result: Probe) -> None:
  """Prints a row for each layer, at 80 columns."""
  console = rich.console.Console(width=80, highlight=False)
  table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
  for heading, side in {"layer": "left", result.split: "right", "fitted to": "right"}.items():
    table.add_column(heading, justify=side)
  best = max(result.accuracy.values())
  for number, value in result.accuracy.items():
    name = "0 (embedded)" if number == 0 else str(number)
    style = "bold" if value == best else None
    table.add_row(name, f"{value:.2f}", f"{result.fitted[number]:.2f}", style=style)
  table.add_section()
  table.add_row("always the most frequent", f"{result.constant:.2f}", "")
  fitted, measured = result.examples
  console.print(
    f"{result.task}: accuracy (%) of a linear probe, fitted to {fitted:,} examples, evaluated on {measured:,}"
  )
  console.print(table)
  for number, count in result.tied.items():
    if count:
      console.print(
        f"layer {number}: the best classes of {count:,} examples are tied; each of k tied classes counts 1/k"
      )
