"""Keeps the first training rows of each stage for the report."""

from t2t.models.architecture import Batch
from t2t.training.run import Callback, Run


class FirstBatches(Callback):
  """Writes the first rows of each stage to the workdir."""

  def on_batch(self, run: Run, batch: Batch) -> None:
    if run.step == run.program.stage.begin and run.vocabulary is not None:
      from t2t.reports import first_batches  # not needed by a resumed run

      first_batches.note(run.workdir, run.program.stage, batch, run.vocabulary)
