"""Stop at a step: the run resumes as without the pause."""

import types

from t2t.training.callbacks.stop_at import StopAt


def test_it_ends_at_its_step_and_beyond():
  """The reason is set within the hook of the step, so that the step is saved; a rollback continues the run."""
  callback, run = StopAt(4, "a rung ends"), types.SimpleNamespace(step=3)
  for step, hook, reason in ((3, "on_start", ""), (3, "on_step", ""), (4, "on_step", "a rung ends")):
    run.step = step
    getattr(callback, hook)(run)
    assert callback.end_reason == reason
  run.step = 2
  callback.on_rollback(run)
  assert not callback.end_reason
  run.step = 6  # resumed beyond the step
  callback.on_start(run)
  assert callback.end_reason == "a rung ends"
