"""Predictions on the first held-out examples (`config.eval.num_logged_samples`), in samples.jsonl and in the report."""

from collections.abc import Mapping

from t2t.training import session_clock
from t2t.training.run import Callback, Run


class Samples(Callback):
  """Writes samples at the end, and at each evaluation if `config.logging.texts`."""

  def on_evaluation(self, run: Run, step: int, metrics: Mapping[str, float]) -> None:
    if run.program.stage.config.logging.texts:
      run.stop.saving()  # the first compilation takes longer than a batch
      _write(run)

  def on_end(self, run: Run) -> None:
    if run.samples_step != run.step:
      with run.clock.phase(session_clock.EVALUATION):
        _write(run)


def _write(run: Run) -> None:
  run.samples, run.samples_step = (), run.step
  if run.vocabulary is not None and run.config.train.loss != "bilm":  # which has logits of each half of a state
    from t2t.inference import eval_samples

    program, number = run.program, run.program.stage.config.eval.num_logged_samples
    state = program.program.evaluated(run.state)
    run.samples = eval_samples.show(
      program.program.reader, state, program.eval_batches[0], run.vocabulary, number=number
    )
  run.logger.samples(run.step, run.samples)
