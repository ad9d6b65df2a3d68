"""Evaluates a model on tasks, by generation, by ranking options or with a head.

The module implements `t2t eval`; training calls `Evaluation` between steps.
"""

import collections
from collections.abc import Callable, Collection, Mapping, Sequence
import dataclasses
import sys
from typing import TYPE_CHECKING, Any

from flax import nnx
import jax
import numpy as np

from t2t import UserError, losses
from t2t.checkpoints import ensemble, pretrained
from t2t.configuration.schema import Config, DataConfig, EvalConfig
from t2t.data import first_examples, pipeline, postprocessors, registry, tables, task_ids, task_resolution, vocabularies
from t2t.data.sources import bad_records
from t2t.evaluation import classes, few_shot, intervals, item_statistics, methods, results, task_metrics
from t2t.inference import predictor, ties
from t2t.models import adapters as adapters_lib
from t2t.models.config import TransformerConfig
from t2t.param_tree import Params
from t2t.runtime import hosts
from t2t.runtime.lazy_table import load
from t2t.storage import gcs
from t2t.training import mesh_selection

if TYPE_CHECKING:  # seqio is imported by t2t.data, which silences TensorFlow's messages first
  import seqio


def find_tasks(data: DataConfig, architecture: str, names: Sequence[str]) -> "list[seqio.Task]":
  """Returns the tasks of `data.mixture` that have metrics, or the subset that `names` lists.

  Raises:
    UserError: a name is unknown, or a named task has no metrics.
  """
  tasks = pipeline.find_tasks(data, architecture, names)
  without_metrics = [task.name for task in tasks if not task.metric_fns]
  if names and without_metrics or len(without_metrics) == len(tasks):
    raise UserError(
      f"{', '.join(without_metrics)}: no metrics, so there is nothing to evaluate. Register the task with"
      " metric_fns=[t2t.evaluation.task_metrics.accuracy], or with your own functions"
      " (targets, predictions) -> {name: value}."
    )
  return [task for task in tasks if task.metric_fns]


class Evaluation:
  """Tasks of a mixture with their examples in memory, ready to evaluate any parameters of one model.

  Attributes:
    notes: sentences on texts that are cut.

  Args:
    data: config whose `mixture` contains the tasks.
    settings: which tasks to evaluate, and how.
    config: of the model.
    graphdef: of the model.
    mesh: the mesh of the model's parameters.
    vocabulary: of the model.
    split: of the tasks.
    batch_size: rows over all devices.
    ends_prompts: whether a decoder-only model was trained with EOS after its prompt; None: as each task has it.
    causal: whether a prefix LM reads prompts with causal attention.
    by_heads: whether the model was trained to predict with its heads.
    adapters: of the model; with task-specific adapters each task uses its own.
    members: number of models of an ensemble; 1: a single model.

  Raises:
    UserError: before any work on a device: an unknown task, a method that does not fit a task, a missing split or
      field.
  """

  def __init__(
    self,
    data: DataConfig,
    settings: EvalConfig,
    config: TransformerConfig,
    graphdef: nnx.GraphDef,
    mesh: jax.sharding.Mesh,
    *,
    vocabulary: "seqio.Vocabulary",
    split: str,
    batch_size: int,
    ends_prompts: bool | None = None,
    causal: bool = False,
    by_heads: bool = False,
    adapters: adapters_lib.Adapters | None = None,
    members: int = 1,
  ):
    self._data, self._split, self.mesh = data, split, mesh
    self._architecture = config.architecture
    vocabularies.check(vocabulary, config.vocab_size)
    self._vocabulary = vocabulary
    self.method = methods.check(settings, config, by_heads=by_heads)
    self._method = methods.METHODS[self.method](
      methods.EvaluationContext(
        data, settings, config, graphdef, mesh, vocabulary, batch_size, ends_prompts, causal, members
      )
    )
    tasks = find_tasks(data, config.architecture, settings.tasks)
    self._adapters = adapters or {}
    self._numbers = {}
    if len(adapters_lib.tasks(self._adapters)) > 1:
      task_names = {task.name for task in tasks}
      self._numbers = task_ids.check(data, self._adapters, pipeline.registered(data), counted_tasks=task_names)
    # Tasks are tokenized with the model's vocabulary, whichever they are registered with.
    self._tasks = [self._method.task(task_resolution.adapt(task, vocabulary=vocabulary)) for task in tasks]
    self._bases = {task.name: task.name for task in self._tasks}
    if data.templates:
      from t2t.data import templates

      self._bases = {task.name: templates.base_name(task) for task in self._tasks}
    self._seeds: dict[str, int] = {}
    if settings.num_shots and settings.num_shot_draws > 1:
      self._tasks = [self._draw(task, seed) for task in self._tasks for seed in range(settings.num_shot_draws)]
    self.notes: list[str] = []
    self._examples = {}
    for task in self._tasks:
      try:
        self._examples[task.name] = self._load(task, settings)
      except bad_records.NoExamples as error:
        if settings.tasks or not _is_never_drawn(data, task.name):
          raise
        hosts.log_once(
          f"{str(error).removesuffix('.')}. The mixture rate of this task is 0, so the task is not evaluated."
        )
    self._tasks = [task for task in self._tasks if task.name in self._examples]

  def _draw(self, task: "seqio.Task", seed: int) -> "seqio.Task":
    """Returns the task with a name for one draw of its shots."""
    name = f"{task.name}.draw{seed}"
    self._bases[name], self._seeds[name] = self._bases[task.name], seed
    if task.name in self._numbers:
      self._numbers[name] = self._numbers[task.name]
    return task.replace(name=name)

  @property
  def num_examples(self) -> int:
    """Number of examples over all tasks."""
    return sum(len(examples) for examples in self._examples.values())

  @property
  def examples(self) -> "dict[seqio.Task, list[dict[str, Any]]]":
    """Examples of each task."""
    return {task: self._examples[task.name] for task in self._tasks}

  def class_logits(self, params: Params) -> np.ndarray:
    """Returns the logits of the head of the only task, float32 [examples, classes].

    Raises:
      UserError: the model does not predict with a head of classes.
    """
    method = self._method
    if not isinstance(method, methods.HeadMethod) or len(self._tasks) != 1:
      raise UserError(
        f"config.eval.method={self.method}: classes of one task are needed. Train a head on one task with options."
      )
    return method.class_logits(self._tasks[0], self._examples[self._tasks[0].name], params)

  def exit_logits(self, params: Params) -> "dict[seqio.Task, np.ndarray]":
    """Returns the logits of each task's head after every layer, float32 [examples, layers, classes].

    Raises:
      UserError: the model does not predict with heads.
    """
    return {task: self._heads().exit_logits(task, self._examples[task.name], params) for task in self._tasks}

  def of_logits(self, task: "seqio.Task", logits: Sequence[np.ndarray]) -> results.Result:
    """Returns the result of a task with these logits of its head for each example."""
    answers = self._heads().answers_of(task, self._examples[task.name], logits)
    return self._result(task, answers, None, with_intervals=False)

  def of_majority(self, task: "seqio.Task") -> results.Result:
    """Returns the result of a task if every answer is the most frequent target text."""
    examples = self._examples[task.name]
    targets = [methods.text(x["targets_pretokenized"]) for x in examples if not _is_unlabelled(x)]
    return self.of_texts(task, [collections.Counter(targets).most_common(1)[0][0]] * len(examples))

  def of_texts(self, task: "seqio.Task", texts: Sequence[str]) -> results.Result:
    """Returns the result of a task with these answers to its examples."""
    answers = methods.Answers(texts, np.zeros(len(texts)), [()] * len(texts))
    return self._result(task, answers, None, with_intervals=False)

  def with_baseline(self, task_results: Sequence[results.Result]) -> list[results.Result]:
    """Returns results with the metrics of the most frequent class, see `most_frequent.beside`; uses no device."""
    if self.method == "most_frequent":
      return list(task_results)
    return load("t2t.contrib.static.most_frequent:beside")(self, self._data, self._architecture, task_results)

  def _heads(self) -> methods.HeadMethod:
    if not isinstance(self._method, methods.HeadMethod):
      raise UserError(f"config.eval.method={self.method}: heads are needed. Leave config.eval.method out.")
    return self._method

  def option_scores(self, params: Params) -> tuple[list[list[str]], list[np.ndarray]]:
    """Returns the options of each example of the only task, and their log-probabilities, float64 [options].

    Raises:
      UserError: the model does not rank options.
    """
    method, task = self._ranking()
    texts, scores = method.option_scores(task, self._examples[task.name], params)
    return texts, [of_options - np.logaddexp.reduce(of_options) for of_options in scores]

  def of_scores(self, texts: Sequence[Sequence[str]], scores: Sequence[np.ndarray]) -> results.Result:
    """Returns the result of the only task with other scores of its options, such as those of an ensemble.

    Args:
      texts: options of each example, see `option_scores`.
      scores: of the options, float64 [options].
    """
    method, task = self._ranking()
    return self._result(task, method.best(texts, scores), None, with_intervals=True)

  def _ranking(self) -> "tuple[methods.Ranks, seqio.Task]":
    if not isinstance(self._method, methods.Ranks) or len(self._tasks) != 1:
      raise UserError(
        f"config.eval.method={self.method}: options of one task are needed. Set config.eval.method=rank, and one task."
      )
    return self._method, self._tasks[0]

  def run(
    self,
    params: Params,
    *,
    only: Collection[str] | None = None,
    on_batch: Callable[[str, float, int], None] | None = None,
    with_intervals: bool = False,
  ) -> list[results.Result]:
    """Evaluates all tasks.

    Args:
      params: of the model.
      only: names of the tasks to evaluate, each with all its templates and draws of shots; None: all.
      on_batch: called after each batch with the task name and the numbers of finished examples and tokens.
      with_intervals: whether to compute the interval of each metric, which takes up to seconds.
    """
    chosen = [task for task in self._tasks if only is None or {task.name, self._bases[task.name]} & set(only)]
    return [self._ask(task, params, on_batch, with_intervals=with_intervals) for task in chosen]

  def metric_names(self) -> list[str]:
    """Returns the names of all metrics, "TASK/METRIC" and "TASK/score", found by scoring the gold answers.

    Raises:
      UserError: a user-defined metric fails.
    """
    full_names: list[str] = []
    variants = collections.Counter(self._bases[task.name] for task in self._tasks)
    for task in self._tasks:
      examples = [(x, x.get("targets_pretokenized", b"")) for x in self._examples[task.name] if not _is_unlabelled(x)]
      right = [self._answer(task, x, methods.text(text), 0.0, labelled=True) for x, text in examples]
      names = self._measure(task, right, np.zeros(len(right)))[0] if right else ()
      base = self._bases[task.name]
      for owner in (task.name, base) if variants[base] > 1 else (task.name,):
        full_names += [f"{owner}/{name}" for name in [*names, *(["score"] if names else [])]]
    return list(dict.fromkeys(full_names))

  def run_with_means(self, params: Params, **options: Any) -> tuple[list[results.Result], dict[str, float]]:
    """Returns the results of `run`, and the mean metrics of tasks with several templates or draws of shots.

    The means are named "TASK/METRIC" and "TASK/score".
    """
    task_results, means = self.run(params, **options), {}
    for spread in results.spreads(task_results):
      means |= {f"{spread.task}/{name}": value for name, value in spread.metrics.items()}
      means[f"{spread.task}/score"] = spread.score
    return task_results, means

  # ---- Examples ------------------------------------------------------------

  def _load(self, task: "seqio.Task", settings: EvalConfig) -> list[dict[str, Any]]:
    examples = few_shot.read(self._data, self._architecture, task, self._split_of(task), limit=settings.max_examples)
    self._method.check(task, examples[0])
    limits = pipeline.feature_lengths(self._data, self._architecture, task)
    counts = first_examples.counted(
      examples, task, self._split_of(task), limits, most=first_examples.MOST_EXAMPLES, whole=not settings.max_examples
    )
    if self.method == "generate":
      first_examples.check_options(counts, self._vocabulary)
    self.notes += first_examples.cuts(counts)
    if settings.num_shots:
      train = few_shot.read(self._data, self._architecture, task, self._data.train_split, limit=few_shot.POOL)
      examples = few_shot.with_shots(
        examples,
        train,
        settings.num_shots,
        vocabulary=self._vocabulary,
        max_inputs=self._data.inputs_length,
        seed=self._seeds.get(task.name, 0),
      )
    for example in examples:
      example["inputs"] = self._method.inputs(task, example)
    return examples

  def _split_of(self, task: "seqio.Task") -> str:
    """Returns the requested split, or the only split of a task that has just one (AX-b and AX-g)."""
    return task.splits[0] if len(task.splits) == 1 else self._split

  # ---- Answers -------------------------------------------------------------

  def _ask(self, task: "seqio.Task", params: Params, on_batch, *, with_intervals: bool) -> results.Result:
    examples = self._examples[task.name]
    if task.name in self._numbers:
      params = adapters_lib.of_task(params, self._adapters, self._numbers[task.name])
    done = None if on_batch is None else lambda number, tokens: on_batch(task.name, number, tokens)
    method_answers = methods.Answers([""] * len(examples), np.zeros(len(examples)), [()] * len(examples))
    if task.predict_metric_fns:
      method_answers = self._method.answer(task, examples, params, done)
    target_scores = None
    if task.score_metric_fns:
      target_scores = self._method.log_likelihood(examples, params, done)
      method_answers = (
        method_answers
        if task.predict_metric_fns
        else methods.Answers(method_answers.texts, target_scores, method_answers.tied)
      )
    return self._result(task, method_answers, target_scores, with_intervals=with_intervals)

  def _result(
    self, task: "seqio.Task", method_answers: methods.Answers, target_scores: np.ndarray | None, *, with_intervals: bool
  ) -> results.Result:
    examples = self._examples[task.name]
    labelled = not all(_is_unlabelled(example) for example in examples)
    task_answers = [
      self._answer(task, example, text, float(score), labelled=labelled, tied=tied)
      for example, text, score, tied in zip(examples, *method_answers, strict=True)
    ]
    if not labelled:
      return results.Result(
        task.name, self._split_of(task), {}, task_answers, rule=self._method.rule, base=self._bases[task.name]
      )
    # Examples without a gold answer are neither right nor wrong.
    counts = [index for index, answer in enumerate(task_answers) if answer.has_gold]
    gold = [task_answers[index] for index in counts]
    gold_scores = None if target_scores is None else target_scores[counts]
    metrics, percentages = self._measure(task, gold, gold_scores)
    uncertainty = self._uncertainty(task, gold, gold_scores) if with_intervals else {}
    return results.Result(
      *(task.name, self._split_of(task), metrics, task_answers, percentages),
      classes=classes.of_answers(gold, without_gold=len(task_answers) - len(gold)) if task.predict_metric_fns else None,
      rule=self._method.rule,
      base=self._bases[task.name],
      **uncertainty,
    )

  def _answer(
    self, task: "seqio.Task", example, text: str, score: float, *, labelled: bool, tied: Sequence[str] = ()
  ) -> results.Answer:
    value_of = lambda text: task.postprocess_fn(text, example=example, is_target=False)
    value, target = value_of(text), None
    if labelled and "targets_pretokenized" in example:
      target = task.postprocess_fn(methods.text(example["targets_pretokenized"]), example=example, is_target=True)
    # An empty text is a valid answer of "no answer" tasks.
    withheld = value == "" and "no_answer" in example
    is_lost = bool(task.predict_metric_fns) and postprocessors.is_unparseable(value) and not withheld
    return results.Answer(
      *(example, text, value, target, score),
      parseable=not is_lost,
      tied=tuple(value_of(tied_text) for tied_text in tied),
      has_gold=labelled and not _is_unlabelled(example),
    )

  def _measure(
    self, task: "seqio.Task", task_answers: Sequence[results.Answer], target_scores
  ) -> tuple[dict[str, float], set[str]]:
    """Returns the metrics, and the names of those in percent.

    With tied answers, a metric is the mean over rounds that break each tie differently: each of k tied answers counts
    1/k.
    """
    targets = [answer.target for answer in task_answers]
    values = _values_of_rounds(task_answers, most=max(_LEAST_ROUNDS, _MOST_MEASURED // max(len(task_answers), 1)))
    metrics: dict[str, float] = {}
    percentages: set[str] = set()
    metric_inputs = [(function, values) for function in task.predict_metric_fns]
    metric_inputs += [(function, [target_scores.tolist()]) for function in task.score_metric_fns]
    try:
      for function, values_of_rounds in metric_inputs:
        of_rounds = [function(targets, values) for values in values_of_rounds]
        measured = {name: float(np.mean([round_scores[name] for round_scores in of_rounds])) for name in of_rounds[0]}
        metrics |= measured
        ours = getattr(function, "__module__", "") == task_metrics.__name__
        percentages = percentages | set(measured) if ours else percentages - set(measured)
    except Exception as error:  # a user-defined metric may raise anything
      raise UserError(
        f"{task.name}: metric {_name(function)} raised {type(error).__name__} ({error}); correct this metric, or name "
        "only other tasks in config.eval.tasks"
      ) from error
    return metrics, percentages

  def _uncertainty(self, task: "seqio.Task", task_answers: Sequence[results.Answer], target_scores) -> dict[str, Any]:
    """Returns the intervals of the metrics, and the statistics and units of the answers, as fields of a result.

    The statistics of tied answers are means over rounds.
    """
    targets = [answer.target for answer in task_answers]
    units = item_statistics.units(targets)
    statistics: dict[str, item_statistics.Statistics] = {}
    metric_intervals: dict[str, intervals.Interval | None] = {}
    if not task_answers:
      return {}
    rounds = _values_of_rounds(task_answers, most=_LEAST_ROUNDS)
    for function in task.predict_metric_fns:
      of_rounds = [item_statistics.of_metric(function, targets, values) for values in rounds]
      for name, (value, _) in of_rounds[0].items():
        rows = np.mean([of_round[name].rows for of_round in of_rounds], axis=0)
        statistics[name] = item_statistics.Statistics(value, rows)
        metric_intervals[name] = intervals.of_metric(name, statistics[name], units)
      if not of_rounds[0]:
        for name in function(targets, rounds[0]):
          metric_intervals[name] = intervals.of_function(function, name, targets, rounds[0])
    for function in task.score_metric_fns:
      scores = target_scores.tolist()
      for name in function(targets, scores):
        metric_intervals[name] = intervals.of_function(function, name, targets, scores)
    known = {name: interval for name, interval in metric_intervals.items() if interval is not None}
    return {"intervals": known, "statistics": statistics, "units": units}


def _values_of_rounds(task_answers: Sequence[results.Answer], *, most: int) -> list[list[Any]]:
  """Returns the values of all answers, for each of at most `most` rounds that break ties differently."""
  tied = [len(answer.tied) for answer in task_answers if answer.tied]
  rounds = ties.rounds(tied, most=most) if tied else [0]
  return [
    [answer.tied[number % len(answer.tied)] if answer.tied else answer.value for answer in task_answers]
    for number in rounds
  ]


# Tie-breaking rounds: limited so that all rounds measure at most _MOST_MEASURED answers, but at least _LEAST_ROUNDS.
_MOST_MEASURED, _LEAST_ROUNDS = 1_000_000, 12


def _is_never_drawn(data: DataConfig, name: str) -> bool:
  """Returns whether a task is a component of a mixture with rate 0."""
  provider = pipeline.registered(data)
  rates = getattr(provider, "rate_per_task_name", {})
  return name in rates and not provider.get_rate(next(task for task in provider.tasks if task.name == name))


def _name(function: Callable) -> str:
  return getattr(function, "__name__", str(function))


def _is_unlabelled(example: Mapping[str, Any]) -> bool:
  """Returns whether an example has no gold answer, as in test sets."""
  if "label" in example:
    label = np.asarray(example["label"])
    return bool(np.isnan(label) if np.issubdtype(label.dtype, np.floating) else label == -1)
  if "tags" in example:
    return bool(np.any(np.asarray(example["tags"]) < 0))
  if "answers" not in example and "options" in example and "targets_pretokenized" in example:
    return methods.text(example["targets_pretokenized"]) not in [methods.text(text) for text in example["options"]]
  # A question without answers is labelled if the example gives the text for "no answer".
  return "answers" in example and not len(example["answers"]) and "no_answer" not in example


# ---- Command ---------------------------------------------------------------------------------------------------------


def of_training(config: Config, graphdef: nnx.GraphDef, mesh: jax.sharding.Mesh) -> Evaluation | None:
  """Returns the evaluation of the registered tasks of a training run, or None if no task has metrics.

  Args:
    config: of the run.
    graphdef, mesh: see `Evaluation`.
  """
  data = config.data
  if not data.reads_only_tasks or not any(
    task.metric_fns for task in pipeline.find_tasks(data, config.model.architecture, ())
  ):
    return None
  return Evaluation(
    data,
    config.eval,
    adapters_lib.as_asked(config.model, config.adapters),
    graphdef,
    mesh,
    vocabulary=pipeline.vocabulary(data),
    split=data.eval_split,
    batch_size=config.eval.batch_size or config.train.batch_size,
    by_heads=losses.answered_by_heads(config.train.loss),
    adapters=config.adapters,
  )


def prepare(
  config: Config,
  source: pretrained.Source,
  *,
  tasks: Sequence[str],
  split: str,
  others: Sequence[pretrained.Source] = (),
) -> Evaluation:
  """Returns the evaluation of a checkpoint that a config describes; uses no device.

  Args:
    config: see configs/default.py; only `data`, `eval` and the mesh are used.
    source: the checkpoint.
    tasks: names from `config.data.mixture`; empty: all.
    split: of the tasks.
    others: further members of an ensemble; its parameters are those of `ensemble.load`.

  Raises:
    UserError: tasks, data and checkpoint do not fit together, or the checkpoints do not.
  """
  if others:
    ensemble.check([source, *others])
  config = _of_its_table(config, source)
  data = config.data
  by_heads = pretrained.answers_by_heads(source)
  if methods.choose(config.eval.method, source.model, by_heads=by_heads) not in methods.WITHOUT_TOKENS:
    predictor.check_predicts_tokens(source.model, where=f"--checkpoint {source.name}")
  mesh, _ = mesh_selection.make(config)
  for module in data.task_modules:
    registry.load(module)  # modules from the command line, trusted even if the checkpoint names them too
  vocabulary = pretrained.vocabulary(source)
  if data.vocabulary and data.vocabulary != source.vocabulary:
    vocabularies.check_same(vocabulary, pipeline.vocabulary(data), spec=data.vocabulary)
  model = ensemble.abstract([source, *others], mesh)
  settings = dataclasses.replace(config.eval, tasks=tuple(tasks))
  batch_size = settings.batch_size or config.train.batch_size
  return Evaluation(
    data,
    settings,
    model.config,
    model.graphdef,
    mesh,
    vocabulary=vocabulary,
    split=split,
    batch_size=batch_size,
    ends_prompts=pretrained.ends_prompts(source)[0] if model.config.kind.is_decoder_only else None,
    causal=pretrained.reads_causally(source),
    by_heads=by_heads,
    adapters=source.adapters,
    members=1 + len(others),
  )


def _of_its_table(config: Config, source: pretrained.Source) -> Config:
  """Adds the table that a checkpoint was fine-tuned on to a config without tasks; other configs are unchanged.

  Raises:
    UserError: the checkpoint was not fine-tuned on a table, or the config names training files.
  """
  data, saved = config.data, source.run["data"].get("table")
  if data.has_tasks or data.table:
    return config
  if not saved:
    raise UserError(
      f"--checkpoint {source.name} names no evaluation data, because the model was not fine-tuned on "
      "a table; give --config superglue, or --config.data.mixture=TASKS"
    )
  if data.is_named or data.labels:
    files = next((data_source.files for data_source in data.source_list), "FILE")
    typed = data.named if data.is_named else f"config.data.labels={data.labels}"
    raise UserError(
      f"{typed} is only for training. Give --config.data.eval_files={files} instead, a table with the columns and "
      "classes of the training table."
    )
  spec = tables.from_dict(saved)
  if not data.eval_files and any(map(data.is_in_memory, (spec.files, spec.eval_files))):
    raise UserError(
      f"config.data.eval_files is empty, and the examples that a Python program passed to train --checkpoint"
      f" {source.name} are not saved. Give --config.data.eval_files=FILE, a table with the same columns."
    )
  files = "" if data.eval_files else spec.files
  spec = dataclasses.replace(spec, files=files, eval_files=data.eval_files or spec.eval_files)
  lengths = {key: getattr(data, key) or source.run["data"][key] for key in ("inputs_length", "targets_length")}
  config = config.with_(
    data={"files": "", "eval_files": "", "mixture": tables.TASK, "table": spec.to_dict(), **lengths}
  )
  is_one_of = spec.kind in ("class", "choice") and source.model.kind.is_generative
  if is_one_of and not config.eval.method and not pretrained.answers_by_heads(source):
    config = config.with_(eval={"method": "rank"})
  return config


def evaluate(
  config: Config, source: pretrained.Source, workdir: str, *, others: Sequence[pretrained.Source] = ()
) -> list[results.Result]:
  """Evaluates a checkpoint, or an ensemble, on the tasks of `config.data.mixture`, and writes the results.

  Args:
    config, source, others: see `prepare`.
    workdir: folder for results.json, predictions and leaderboard files.

  Raises:
    UserError: see `prepare`.
  """
  evaluation = prepare(config, source, tasks=config.eval.tasks, split=config.data.eval_split, others=others)
  if source.model.kind.is_decoder_only and evaluation.method != "head" and jax.process_index() == 0:
    ends, reason = pretrained.ends_prompts(source)
    if ends:
      print(f"prompts end in EOS, as in training: {reason}", file=sys.stderr)
  for note in evaluation.notes:
    hosts.log_once(note)
  params = ensemble.load([source, *others], evaluation.mesh).params
  with results.progress(evaluation.num_examples) as on_batch:
    task_results = evaluation.run(params, on_batch=on_batch, with_intervals=True)
  about = {
    "checkpoint": ",".join(x.name for x in [source, *others]),
    "method": evaluation.method,
    "shots": config.eval.num_shots,
    **source.read_as,
  }
  about |= {name: x for name in ("exit_entropy", "exit_patience") if (x := getattr(config.eval, name))}
  if jax.process_index() == 0:
    task_results = evaluation.with_baseline(task_results)
    results.publish(task_results, gcs.absolute(workdir), about=about, whole=not config.eval.max_examples)
  return task_results
