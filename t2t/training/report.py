"""What training tells: each step and evaluation as they come, and at the end what came out."""

import collections
from collections.abc import Collection, Mapping, Sequence
import dataclasses
import importlib.util
import math
import sys
import textwrap
from typing import Any, Protocol

from etils import epath
import jax
import optax

from t2t import UserError
from t2t import metrics as metrics_lib
from t2t.losses import Baseline, Loss
from t2t.models.architecture import Batch
from t2t.runtime import memory, telling
from t2t.sections import Config
from t2t.stages import Stage
from t2t.training import class_files, collapse, numbers, trackers, tracking, writers
from t2t.training.histograms import Histogram
from t2t.training.throughput import Throughput


class TaskResult(Protocol):
  """How a model does at one task: see `evaluation.results.Result`."""

  task: str
  metrics: Mapping[str, float]
  score: float
  answers: Sequence
  unparseable: int
  percentages: Collection[str]
  tied: int
  without_gold: int
  classes: Any


@dataclasses.dataclass(frozen=True)
class Made:
  """A step that has been dispatched, and may not have been computed yet.

  wait_seconds: for its batch.
  epochs: of a mixture, how often each task has been gone through.
  """

  step: int
  metrics: metrics_lib.Metrics
  wait_seconds: float
  batch: Batch
  epochs: Mapping[str, int] = dataclasses.field(default_factory=dict)


def means(metrics: metrics_lib.Metrics) -> dict[str, float]:
  """Of each; what counts nothing, as a head that no example asked, has none, but for what is always told."""
  always = ("loss", "accuracy")
  found = {name: metric for name, metric in metrics.items() if metric.weight > 0 or name in always}
  return {name: float(metric.total / max(metric.weight, 1e-8)) for name, metric in found.items()}


# Batches without a position that counts after which it is reported, and rows of such batches after which a run ends.
_UNCOUNTED, _UNCOUNTED_ROWS = 10, 1_000


class Report:
  """Brings metrics of steps and evaluations to the terminal and the files, and has the numbers of each step judged.

  Attributes:
    shown, shown_at: lines of samples, each a label and a text, and of which step they are.
  """

  def __init__(
    self,
    config: Config,
    workdir: epath.Path,
    schedule: optax.Schedule,
    throughput: Throughput,
    watch: numbers.Watch,
    *,
    start: int,
    unwritten: Mapping[str, bytes],
    resolved: Mapping[str, Any],
    followed: bool = False,
  ):
    """Opens the files, and what numbers are sent to besides; only the first host has any.

    Args:
      config: of the run.
      workdir: where metrics are written.
      schedule: the learning rate by step.
      throughput: what is told of speed.
      watch: judges each step.
      start: step that training goes on from.
      unwritten: see `writers.Writer`.
      resolved: the config as config.json has it.
      followed: whether `rows` is asked for, time and again; else none are kept.
    """
    self._config = config
    self._schedule = schedule
    self._throughput, self._watch = throughput, watch
    self._writer = self._line = self._tracking = None
    self._outcome = trackers.FAILED
    self._warned, self._start, self._workdir, self._followed = False, start, workdir, followed
    self._repeated: set[str] = set()  # tasks that were warned of
    self._uncounted: int | None = 0  # steps in which nothing has counted, since a stage began; None: something has
    self._rows: list[dict[str, float]] = []
    self._collapse: collapse.Collapse | None = None
    self._remarks: list[tuple[int, str]] = []
    self.shown_at: int | None = None
    self.shown: Sequence[Sequence[tuple[str, str]]] = ()
    if jax.process_index() == 0:
      self._writer = writers.Writer(workdir, start=start, unwritten=unwritten)
      self._line = writers.ProgressLine(start, config.train.steps)
      if config.logging.tracker != tracking.NONE:
        settings = config.logging
        self._tracking = tracking.Tracking(settings.tracker, settings.project, resolved, workdir, self._line.say)

  def steps(self, unread: "collections.deque[Made]", *, leaves: int) -> tuple[int, str] | None:
    """Reads the steps in order, waiting for each if need be, until so many are left.

    Returns:
      The step that the run is to go back because of, and why; None: all is well, as far as it has been read.

    Raises:
      UserError: the run is to end because of the numbers of a step.
    """
    while len(unread) > leaves:
      made = unread.popleft()
      why = self._step(made)
      if why:
        unread.clear()
        return made.step, why
    return None

  def _step(self, made: Made) -> str:
    """Reads one training step's metrics; why the run is to go back, "" if it is not."""
    host, step = jax.device_get(made.metrics), made.step
    squares = host.pop("grad_squares").total
    host.pop("skipped", None)
    values = means(host)
    values |= self._throughput.step(tokens=float(host["tokens"].total), wait_seconds=made.wait_seconds)
    self._check_counts(step, host, rows=len(next(iter(made.batch.values()))))
    found = self._watch.judge(step, values, squares, made.batch)
    if found.back:
      return found.why
    if self._line is None:
      return ""
    if found.why:
      self._line.say(found.why)
    if found.skipped is not None:
      values["skipped"] = found.skipped
    left = self._config.train.steps - step
    speed = values.get("steps_per_second")
    self._line.update(
      step,
      loss=values["loss"],
      tokens_per_second=values.get("tokens_per_second"),
      seconds_left=None if speed is None else left / speed,
    )
    self._warn_of_waiting(step, values.get("input_wait_average", 0.0))
    self._warn_of_repeats(step, made.epochs)
    if self._collapse is not None:
      self._remark(step, self._collapse.step(step, values))
    if step % self._config.train.log_every == 0 or step == self._config.train.steps:
      values["learning_rate"] = float(self._schedule(step - 1))
      values |= {f"epoch/{name}": float(epoch) for name, epoch in made.epochs.items()}
      values |= memory.used(jax.local_devices())
      # JSON has no NaN: of a step whose update was left out, what is no number is left out as well.
      told = {f"train/{name}": value for name, value in values.items() if math.isfinite(value)}
      self._write(step, told)
    return ""

  def _check_counts(self, step: int, metrics: metrics_lib.Metrics, *, rows: int) -> None:
    """Ends a run in which no position has counted since training began: the loss is 0, and nothing is learned.

    Few examples of a task may have an answer: a few batches without one are reported, many rows end the run.

    Raises:
      UserError: so it is.
    """
    losses = [metric for name, metric in metrics.items() if name == "loss" or name.endswith("_loss")]
    if self._uncounted is None or any(float(metric.weight) > 0 for metric in losses):
      self._uncounted = None
      return
    self._uncounted += 1
    what = (
      f"step {step}: in the {self._uncounted} batch(es) since training or its stage began no position counts in the"
      f" loss (config.train.loss={self._config.train.loss or 'cross_entropy'}: all weights are 0), so that nothing is"
      " learned. Look at the targets, loss weights and questions of heads that the data makes, with `t2t tasks show`"
      " or in the batches themselves, and give a task or a loss that goes with them"
    )
    is_last = step == self._config.train.steps
    is_enough = self._uncounted >= _UNCOUNTED and self._uncounted * rows >= _UNCOUNTED_ROWS
    if is_enough or (is_last and self._uncounted == step):
      raise UserError(what)
    if self._line is not None and (is_last or self._uncounted == _UNCOUNTED):
      self._line.say(what)

  def _write(self, step: int, values: Mapping[str, float]) -> None:
    """Records numbers, here and with the tracker; those that stand there already stay."""
    if self._writer.write(step, values):
      if self._followed:
        self._rows.append({"step": step, **values})
      if self._tracking is not None:
        self._tracking.write(step, values)

  def _remark(self, step: int, texts: Sequence[str]) -> None:
    for text in texts:
      self._line.say(text)
      self._remarks.append((step, text))

  def remarks(self) -> list[tuple[int, str]]:
    """Step and text of what was reported of a collapse since the last call; on the first host alone."""
    found, self._remarks = self._remarks, []
    return found

  def rows(self) -> list[dict[str, float]]:
    """What was written since it was asked for, each with its step, as in metrics.jsonl; on the first host alone."""
    found, self._rows = self._rows, []
    return found

  def stage(self, stage: Stage, loss: Loss, schedule: optax.Schedule) -> None:
    """Tells which stage is run from here on; of a run that has none, nothing.

    Args:
      stage: the stage.
      loss, schedule: of the stage.
    """
    self._uncounted = 0
    self._collapse = collapse.Collapse(stage.config, loss, schedule)
    if stage.described and self._line is not None:
      self._line.say(f"{stage.described}: {stage.changes or 'as the config has it'}")

  def rewind(self, start: int, saved: Mapping[str, bytes]) -> None:
    """Goes back to a step: what was measured behind it is taken away, as where a run is resumed there.

    Args:
      start: the step.
      saved: what stands beside its checkpoint.
    """
    self._watch.restore(saved)
    self._throughput.pause()
    self._warned, self._start, self.shown_at = False, start, None
    if self._writer is not None:
      self._writer.close()
      self._writer = writers.Writer(self._workdir, start=start, unwritten=saved)

  def _warn_of_repeats(self, step: int, epochs: Mapping[str, int]) -> None:
    most = self._config.data.most_epochs
    for name, epoch in epochs.items():
      if most and epoch >= most and name not in self._repeated:
        self._repeated.add(name)
        self._line.say(
          f"step {step}: {name} has been gone through {epoch} times (config.data.most_epochs={most:g}); give it more"
          f" text, or a lower rate"
        )

  def _warn_of_waiting(self, step: int, share: float) -> None:
    if share > 0.05 and not self._warned and step >= self._start + 20:
      self._warned = True  # once; how long each step has waited is in metrics.jsonl
      self._line.say(f"step {step}: {share:.0%} of the time is spent waiting for data (config.data)")

  def evaluation(
    self,
    step: int,
    metrics: metrics_lib.Metrics,
    by_source: Mapping[str, metrics_lib.Metrics] | None = None,
    *,
    baselines: Sequence[Baseline] = (),
  ) -> float:
    """Reads the metrics of an evaluation, and of some sources by themselves; its loss, which is of all.

    Args:
      step: that was evaluated.
      metrics: of all held-out batches.
      by_source: source -> its metrics.
      baselines: of all held-out batches.
    """
    values = means(jax.device_get(metrics))
    of_source = {name: means(jax.device_get(found))["loss"] for name, found in (by_source or {}).items()}
    if self._writer is not None:
      told = values | {f"loss/{name}": loss for name, loss in of_source.items()}
      self._write(step, {f"eval/{name}": value for name, value in told.items()})
      listed = "".join(f", {name} {loss:.4f}" for name, loss in of_source.items())
      accuracy = f"accuracy {values['accuracy']:.1%}"
      self._line.say(f"step {step}: held-out loss {values['loss']:.4f}{listed and f' ({listed[2:]})'}, {accuracy}")
      if self._collapse is not None:
        self._remark(step, self._collapse.evaluation(step, values["loss"], baselines))
    return values["loss"]

  def tasks(self, step: int, found: Sequence[TaskResult]) -> dict[str, float]:
    """Brings the metrics of tasks to the terminal and the files; all of them by name, "task/metric"."""
    values = {f"{each.task}/{name}": value for each in found for name, value in each.metrics.items()}
    values |= {f"{each.task}/score": each.score for each in found if each.metrics}
    if self._writer is not None:
      self._write(step, {f"eval/{name}": value for name, value in values.items()})
      for each in found:
        unit = lambda name, each=each: " %" if name in each.percentages else ""
        metrics = ", ".join(f"{name} {value:.2f}{unit(name)}" for name, value in each.metrics.items())
        counts = {
          "unparseable": each.unparseable,
          "tied": each.tied,
          "without a gold answer, and left out": each.without_gold,
        }
        told = "; ".join(f"{count} of {len(each.answers)} {what}" for what, count in counts.items() if count)
        self._line.say(f"step {step}: {each.task} {metrics}{told and f' ({told})'}")
      records = {each.task: each.classes.to_dict() for each in found if each.classes is not None}
      class_files.write(self._workdir, step, records)
    return values

  def samples(self, step: int, shown: Sequence[Sequence[tuple[str, str]]]) -> None:
    """Keeps what the model makes of held-out text, which `shown` has until the next."""
    self.shown_at, self.shown = step, shown
    if self._writer is not None:
      self._writer.samples(step, shown)

  def histograms(self, step: int, found: Mapping[str, Histogram]) -> None:
    """Brings how parameters and their updates are spread to TensorBoard."""
    if self._writer is not None:
      self._writer.histograms(step, found)

  def flush(self) -> dict[str, bytes]:
    """What could not be written yet (`writers.Writer.flush`), and what the watch remembers, to be saved elsewhere."""
    return self._watch.state() | ({} if self._writer is None else self._writer.flush())

  def end(self) -> None:
    """No step follows: all is written, and the line that changes stands."""
    self._outcome = trackers.FINISHED
    self.flush()
    if self._line is not None:
      self._line.close()

  def stopped(self, step: int) -> None:
    """Tells that the run ends before its last step."""
    self.end()
    self._outcome = trackers.STOPPED
    if self._line is not None:
      telling.tell(
        f"stopped after step {step} of {self._config.train.steps}, saved; the same command again goes on from there",
        file=sys.stdout,
      )

  def close(self) -> None:
    """Closes the files, however the run ends."""
    if self._line is not None:
      self._line.close()
      self._writer.close()
    if self._tracking is not None:
      self._tracking.finish(self._outcome)


def summarise(
  workdir: epath.Path,
  loss: float,
  unit: str,
  baselines: Sequence[Baseline],
  shown: Sequence[Sequence[tuple[str, str]]],
  saved_step: int,
  metrics: Mapping[int, Mapping[str, float]],
  best: Mapping[str, int],
  run: Sequence[Stage],
) -> None:
  """Prints what a person wants to know at the end, and draws the curve of the loss.

  Args:
    workdir: of the run.
    loss, unit: held-out, and what it is in.
    baselines: the loss of who has learned nothing.
    shown: lines of examples, each a label and a text.
    saved_step: of the last checkpoint.
    metrics: of each checkpoint.
    best: metric -> step of the checkpoint that is the best by it.
    run: its stages, whose ends the curve marks.
  """
  picture = writers.plot_loss(workdir, baselines=baselines, unit=unit, run=run)
  print(f"\nheld-out loss  {loss:.4f} {unit}")
  for baseline in baselines:
    print(f"{baseline.name:<15}{baseline.loss:.4f} ({baseline.knows})")
  at_chance = [baseline for baseline in baselines if collapse.is_at(loss, baseline)]
  if at_chance:
    advice = f"The loss is at chance, that of a model that {at_chance[0].knows}. Likely cause: {at_chance[0].cause}."
    print(textwrap.fill(advice, 80, initial_indent=" " * 15, subsequent_indent=" " * 15))
  elif any(loss > baseline.loss for baseline in baselines):
    advice = (
      "It is above the loss of a model that knows only that. Look at the curve: if it still falls, more"
      " config.train.steps help; if it has hardly fallen, another config.optimizer.learning_rate, larger for small"
      " models; if the training loss alone has fallen, more text, or fewer steps."
    )
    print(textwrap.fill(advice, 80, initial_indent=" " * 15, subsequent_indent=" " * 15))
  for number, lines in enumerate(shown, start=1):
    print(f"\nexample {number}, held out")
    for label, text in lines:
      print(writers.wrapped(label, text))
  best_loss = best.get("loss", "none: none has a held-out loss that is a number")
  print(f"\ncheckpoints    {workdir / 'checkpoints'} (last {saved_step}, best {best_loss})")
  for name, step in best.items():
    if name != "loss" and not name.endswith("/score"):  # the mean of the task's metrics, which are told one by one
      print(f"  best {name} {metrics[step][name]:.2f} at step {step}")
  print(f"TensorBoard    tensorboard --logdir {workdir / 'tensorboard'}")
  if importlib.util.find_spec("tensorboard") is None:
    print(f"{'':<15}(pip install tensorboard)")
  print(f"metrics        {workdir / 'metrics.jsonl'}")
  print(f"config         {workdir / 'config.json'}")
  print(f"loss curve     {picture}")
