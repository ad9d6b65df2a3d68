"""Evaluates every `config.eval.every` steps: the held-out loss and the metrics of tasks."""

from collections.abc import Collection, Mapping, Sequence
import contextlib
from typing import Protocol

import jax

from t2t import losses
from t2t import metrics as metrics_lib
from t2t.losses import text_figures
from t2t.models.architecture import Batch
from t2t.param_tree import join_frozen
from t2t.runtime import preemption
from t2t.training import session_clock
from t2t.training.callbacks.metrics import means
from t2t.training.run import Callback, Run


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
      with run.clock.phase(session_clock.EVALUATION), contextlib.suppress(preemption.Abandoned):
        _evaluate(run)

  def on_step(self, run: Run) -> None:
    if run.evaluates:
      with run.paused(session_clock.EVALUATION), contextlib.suppress(preemption.Abandoned):
        _evaluate(run)

  def on_end(self, run: Run) -> None:
    if run.measured_step != run.step:
      with run.clock.phase(session_clock.EVALUATION):
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
    values |= _log_tasks(run, *program.tasks.run_with_means(params, on_batch=run.stop.between))
  run.measured, run.measured_step = values, run.step
  run.call("on_evaluation", run.step, values)


def _log_loss(run: Run, metrics: metrics_lib.Metrics, by_source: Mapping[str, metrics_lib.Metrics]) -> float:
  values = means(jax.device_get(metrics))
  of_source = {name: means(jax.device_get(source_metrics))["loss"] for name, source_metrics in by_source.items()}
  bytes_per_target = run.program.bytes_per_target
  of_text = text_figures.of_loss(values["loss"], bytes_per_target) if bytes_per_target else {}
  rows = values | of_text | {f"loss/{name}": loss for name, loss in of_source.items()}
  run.logger.write(run.step, {f"eval/{name}": value for name, value in rows.items()})
  listed = "".join(f", {name} {loss:.4f}" for name, loss in of_source.items())
  # A task has its own accuracy; this one counts target tokens.
  loss = run.config.train.loss
  accuracy_name = "accuracy" if losses.answered_by_heads(loss) or losses.compares_texts(loss) else "token accuracy"
  named = f"{listed and f' ({listed[2:]})'}{text_figures.note(of_text)}"
  summary = f"held-out loss {values['loss']:.4f}{named}, {accuracy_name} {values['accuracy']:.1%}"
  with_teacher = "".join(f", {name} {value:.1%}" for name, value in values.items() if name.endswith("agreement"))
  run.logger.say(f"step {run.step}: {summary}{with_teacher}")
  return values["loss"]


def _log_tasks(run: Run, results: Sequence[TaskResult], task_means: Mapping[str, float]) -> dict[str, float]:
  values = {f"{result.task}/{name}": value for result in results for name, value in result.metrics.items()}
  values |= {f"{result.task}/score": result.score for result in results if result.metrics}
  values |= task_means
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
  if of_scores := [f"{name} {value:.2f}" for name, value in task_means.items() if name.endswith("/score")]:
    run.logger.say(f"step {run.step}: means over templates and draws of shots: {', '.join(of_scores)}")
  if classes := {result.task: result.classes.to_dict() for result in results if result.classes is not None}:
    from t2t.training import class_files  # few runs have tasks with classes

    class_files.write(run.workdir, run.step, classes)
  return values
