"""Evaluates every `config.eval.every` steps: the held-out loss and the metrics of tasks."""

from collections.abc import Collection, Mapping, Sequence
import contextlib
import math
from typing import Protocol

import jax

from t2t import metrics as metrics_lib
from t2t.losses import answered_by_heads, compares_texts
from t2t.models.architecture import Batch
from t2t.param_tree import join_frozen
from t2t.runtime import preemption
from t2t.training import class_files
from t2t.training.callbacks.metrics import means
from t2t.training.run import Callback, Run

_MOST_NATS = 700.0  # exp of more is infinite


class ClassReport(Protocol):
  """Per-class scores; see `evaluation.classification_report.ClassificationReport`."""

  def to_dict(self) -> dict[str, object]:
    """Returns the JSON record."""


class TaskResult(Protocol):
  """Metrics of a model on one task; see `evaluation.results.Result`."""

  task: str
  metrics: Mapping[str, float]
  score: float
  answers: Sequence[object]
  unparseable: int
  percentages: Collection[str]
  tied: int
  without_gold: int
  rule: Mapping[str, str]
  classes: ClassReport | None


class EvaluationCallback(Callback):
  """Runs evaluations when they are due, and calls `on_evaluation`."""

  def on_resume(self, run: Run) -> None:
    """Repeats an evaluation that a preemption interrupted; a second preemption ends the run."""
    is_due = run.step < run.config.train.steps and run.is_due(run.program.stage.config.eval.every)
    if is_due and not run.checkpoints.was_measured(run.step):
      with contextlib.suppress(preemption.Abandoned):
        _evaluate(run)

  def on_step(self, run: Run) -> None:
    if run.evaluates:
      with run.paused(), contextlib.suppress(preemption.Abandoned):
        _evaluate(run)

  def on_end(self, run: Run) -> None:
    if run.measured_step != run.step:
      _evaluate(run)


def _evaluate(run: Run) -> None:
  """Computes the held-out loss and the metrics of tasks; also the loss of each source if sources name their language.

  Raises:
    Abandoned: a signal arrived, and the state must be saved first.
  """
  program = run.program

  def evaluated(batches: Sequence[Batch]) -> metrics_lib.Metrics:
    return program.program.evaluate(run.state, run.stop.abandonable(batches))

  by_source = {name: evaluated(batches) for name, batches in program.by_source.items()}
  values = {"loss": _log_loss(run, evaluated(program.eval_batches), by_source)}
  if program.tasks is not None:
    state = program.program.evaluated(run.state)
    params = join_frozen(state.params, state.frozen_params)
    values |= _log_tasks(run, program.tasks.run(params, on_batch=run.stop.between))
  run.measured, run.measured_step = values, run.step
  run.call("on_evaluation", run.step, values)


def _log_loss(run: Run, metrics: metrics_lib.Metrics, by_source: Mapping[str, metrics_lib.Metrics]) -> float:
  values = means(jax.device_get(metrics))
  of_source = {name: means(jax.device_get(source_metrics))["loss"] for name, source_metrics in by_source.items()}
  of_text = {}
  if bytes_per_target := run.program.bytes_per_target:
    of_text = {
      "perplexity": math.exp(min(values["loss"], _MOST_NATS)),
      "bits_per_byte": values["loss"] / math.log(2) / bytes_per_target,
    }
  rows = values | of_text | {f"loss/{name}": loss for name, loss in of_source.items()}
  run.logger.write(run.step, {f"eval/{name}": value for name, value in rows.items()})
  listed = "".join(f", {name} {loss:.4f}" for name, loss in of_source.items())
  # A task has its own accuracy; this one counts target tokens.
  loss = run.config.train.loss
  accuracy_name = "accuracy" if answered_by_heads(loss) or compares_texts(loss) else "token accuracy"
  text = ""
  if of_text:
    text = f", perplexity {of_text['perplexity']:.4g}, {of_text['bits_per_byte']:.4g} bits per byte"
  summary = (
    f"held-out loss {values['loss']:.4f}{listed and f' ({listed[2:]})'}{text}, {accuracy_name} {values['accuracy']:.1%}"
  )
  run.logger.say(f"step {run.step}: {summary}")
  return values["loss"]


def _log_tasks(run: Run, results: Sequence[TaskResult]) -> dict[str, float]:
  values = {f"{result.task}/{name}": value for result in results for name, value in result.metrics.items()}
  values |= {f"{result.task}/score": result.score for result in results if result.metrics}
  if not run.logger.is_first:
    return values
  run.logger.write(run.step, {f"eval/{name}": value for name, value in values.items()})
  for result in results:
    unit = lambda name, result=result: " %" if name in result.percentages else ""
    metrics = ", ".join(f"{name} {value:.2f}{unit(name)}" for name, value in result.metrics.items())
    counts = {
      "unparseable": result.unparseable,
      "tied": result.tied,
      "without a gold answer (left out)": result.without_gold,
    }
    rule = [", ".join(f"{name}={value or repr(value)}" for name, value in result.rule.items())]
    listed = [f"{count} of {len(result.answers)} {label}" for label, count in counts.items() if count]
    notes = "; ".join(note for note in (*rule, *listed) if note)
    run.logger.say(f"step {run.step}: {result.task} {metrics}{notes and f' ({notes})'}")
  class_files.write(
    run.workdir, run.step, {result.task: result.classes.to_dict() for result in results if result.classes is not None}
  )
  return values
