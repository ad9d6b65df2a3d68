"""The training loop."""

from collections.abc import Sequence

from t2t.configuration.schema import Config
from t2t.training import setup
from t2t.training.run import Callback, Rollback
from t2t.training.stage_program import Data
from t2t.training.train_state import TrainState


def train(config: Config, workdir: str, *, callbacks: Sequence[Callback] = (), data: Data | None = None) -> TrainState:
  """Trains until `config.train.steps`; resumes if the workdir has a checkpoint.

  Args:
    config: see `t2t.configuration.loading.records`, and configs/default.py for the keys.
    workdir: local or gs://; checkpoints, metrics and config.json are written there.
    callbacks: called after those that the config selects (`training.callbacks`).
    data: training data; None for the data of the config.

  Returns:
    The state after the last step.

  Raises:
    UserError: the config, the data or the workdir cannot be used. Most errors occur before the first step; a bad
      record, a loss that is not finite or a failed save may occur later.
    Stopped: a signal stopped the run, which is saved.
  """
  with setup.open_run(config, workdir, callbacks, data=data) as run:
    run.call("on_start")
    setup.write_config(run)
    if run.step:
      run.call("on_resume")

    while run.goes_on():
      run.enter_stage()
      batch = next(run.batches)
      run.call("on_batch", batch)
      run.state, metrics = run.train_step(run.state, batch, run.key)
      run.advance(metrics, batch)
      try:
        run.call("on_step")
      except Rollback as rollback:
        setup.roll_back(run, rollback)
      else:
        run.call("on_step_end")

    run.finish()
    run.call("on_end")
    return run.state
