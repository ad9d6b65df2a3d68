"""Prints a summary at the end of a run."""

from collections.abc import Mapping, Sequence
import importlib.util
import textwrap
from typing import Any

from etils import epath
import jax

from t2t.checkpoints import retention
from t2t.configuration.stages import Stage
from t2t.losses import Baseline
from t2t.runtime import hosts
from t2t.training import loss_curve, metric_writers
from t2t.training.callbacks import collapse
from t2t.training.run import Callback, Run


class SummaryCallback(Callback):
  """Prints the held-out loss with its baselines, samples, and the paths of output files."""

  def on_start(self, run: Run) -> None:
    if run.step == run.config.train.steps:
      hosts.log_once(
        f"training already finished at step {run.step}; raise --config.train.steps to continue. Final evaluation:"
      )

  def on_stop(self, run: Run) -> None:
    run.logger.stopped(run.step)

  def on_end(self, run: Run) -> None:
    run.logger.end()
    if run.end_reason:
      hosts.log_once(run.end_reason)
    baselines = run.program.baselines
    if jax.process_index() != 0:
      return
    metrics = run.checkpoints.metrics()
    ends = [stage.end for stage in run.stages[:-1]]
    best = (retention.best_of_stages(metrics, ends) or [{}])[-1]
    measured: Any = run.measured
    loss, unit = measured["loss"], run.program.made.loss.unit
    summarise(run.workdir, loss, unit, baselines, run.samples, run.saved_step, metrics, best, run.stages)


def summarise(
  workdir: epath.Path,
  loss: float,
  unit: str,
  baselines: Sequence[Baseline],
  shown: Sequence[Sequence[tuple[str, str]]],
  saved_step: int | None,
  metrics: Mapping[int, Mapping[str, float]],
  best: Mapping[str, int],
  run: Sequence[Stage],
) -> None:
  """Prints the summary, and draws the loss curve.

  Args:
    workdir: of the run.
    loss, unit: held-out loss and its unit.
    baselines: losses of models that have learned nothing.
    shown: samples, each a sequence of (label, text) lines.
    saved_step: of the last checkpoint.
    metrics: of each checkpoint.
    best: metric -> step of the best checkpoint by it.
    run: its stages; the curve marks their ends.
  """
  picture = loss_curve.save(workdir, baselines=baselines, unit=unit, run=run)
  print(f"\nheld-out loss  {loss:.4f} {unit}")
  for baseline in baselines:
    print(f"{baseline.name:<15}{baseline.loss:.4f} ({baseline.knows})")
  at_chance = [baseline for baseline in baselines if collapse.is_at(loss, baseline)]
  if at_chance:
    advice = f"The loss is at chance, that of a model that {at_chance[0].knows}. Likely cause: {at_chance[0].cause}."
    print(textwrap.fill(advice, 80, initial_indent=" " * 15, subsequent_indent=" " * 15))
  elif any(loss > baseline.loss for baseline in baselines):
    advice = (
      "The loss is above this baseline. If the curve still falls, raise config.train.steps. If it has hardly "
      "fallen, change config.optimizer.learning_rate (larger for small models). If only the training loss has "
      "fallen, use more text or fewer steps."
    )
    print(textwrap.fill(advice, 80, initial_indent=" " * 15, subsequent_indent=" " * 15))
  for number, lines in enumerate(shown, start=1):
    print(f"\nexample {number}, held out")
    for label, text in lines:
      print(metric_writers.wrapped(label, text))
  best_loss = best.get("loss", "none: no checkpoint has a finite held-out loss")
  print(f"\ncheckpoints    {workdir / 'checkpoints'} (last {saved_step}, best by loss {best_loss})")
  for name, step in best.items():
    if name != "loss" and not name.endswith("/score"):  # a mean of the task's metrics, which are listed themselves
      print(f"  best {name} {metrics[step][name]:.2f} at step {step}")
  print(f"TensorBoard    tensorboard --logdir {workdir / 'tensorboard'}")
  if importlib.util.find_spec("tensorboard") is None:
    print(f"{'':<15}(pip install tensorboard)")
  print(f"metrics        {workdir / 'metrics.jsonl'}")
  print(f"config         {workdir / 'config.json'}")
  print(f"loss curve     {picture}")
