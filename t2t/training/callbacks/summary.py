"""Prints a summary at the end of a run."""

from typing import Any

import jax

from t2t.checkpoints import retention
from t2t.runtime import hosts
from t2t.training.callbacks import one_of_many
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
    from t2t.reports import end_summary, ngram_record  # these are needed at the end only
    from t2t.training import loss_curve

    baselines = [*baselines, *ngram_record.read(run.workdir)]
    picture = loss_curve.save(run.workdir, baselines=baselines, unit=unit, run=run.stages)
    if one_of_many.is_printed(run):
      end_summary.show(run.workdir, loss, unit, baselines, run.samples, run.saved_step, metrics, best, picture)
