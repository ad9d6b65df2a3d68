"""The summary at the end of a run."""

from etils import epath
import pytest

from t2t.losses import Baseline
from t2t.reports import end_summary


@pytest.mark.parametrize(
  ("steps", "loss", "advice"),
  [
    (99, 6.0, "This run is too short to judge: raise config.train.steps."),
    (99, 5.0, "This run is too short to judge: raise config.train.steps."),
    (100, 6.0, "The loss is above that of the unigram model."),
    (100, 5.0, "The loss is at chance"),
    (99, 4.0, ""),
  ],
)
def test_a_short_run_has_no_advice_on_settings(steps, loss, advice, tmp_path, capsys):
  """Only the number of steps explains its loss."""
  baseline = Baseline("unigram model", 5.0, "knows frequencies", cause="ignores its input")
  folder = epath.Path(tmp_path)
  end_summary.show(folder, loss, "nats", [baseline], [], steps, {}, {"loss": steps}, folder / "loss.png")
  printed = capsys.readouterr().out.partition("(knows frequencies)\n")[2].partition("\ncheckpoints")[0].strip()
  assert printed.startswith(advice) and bool(printed) == bool(advice)
  assert ("learning_rate" in printed) == (advice.startswith("The loss is above"))
