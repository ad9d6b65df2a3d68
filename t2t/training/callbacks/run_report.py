"""Writes the history of a run and its report.html."""

from t2t.reports import history
from t2t.training.callbacks import one_of_many
from t2t.training.run import Callback, Run


class RunReport(Callback):
  """Records the start, remarks and the end of a run, and writes its report."""

  def on_start(self, run: Run) -> None:
    flops = run.program.flops if len(run.stages) == 1 else None
    history.started(run.workdir, run.step, flops_per_step=flops)

  def on_remark(self, run: Run, step: int, text: str) -> None:
    history.noted(run.workdir, step, text)

  def on_stop(self, run: Run) -> None:
    history.ended(run.workdir, run.step, history.STOPPED)
    _write(run, ends=False)

  def on_end(self, run: Run) -> None:
    loss, baselines = run.program.made.loss, run.program.baselines
    why = run.end_reason or history.FINISHED
    history.ended(run.workdir, run.step, why, unit=loss.unit, baselines=baselines, examples=run.samples)
    _write(run, ends=True)


def _write(run: Run, *, ends: bool) -> None:
  from t2t.reports import written

  written.at_end(run.workdir, ends=ends, prints=one_of_many.is_printed(run))
