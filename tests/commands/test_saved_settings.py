"""Saved settings of a folder with many runs."""

from etils import epath
import pytest

from t2t import UserError
from t2t.commands import saved_settings


def test_other_settings_are_refused_by_name(tmp_path):
  """The first call saves; later calls pass with equal settings, also where JSON has a list for a tuple."""
  path = epath.Path(tmp_path / "settings.json")
  config, options = {"train.steps": 4, "optimizer.no_decay": ("norm", "bias")}, {"best": True}
  for _ in range(2):
    saved_settings.check(path, config, options, kind="curve")
  for changed, message in (
    (
      ({**config, "train.steps": 5}, options),
      "config.train.steps=5: the curve in .* was made with 4. Give the earlier",
    ),
    ((config, {"best": False}), "--best=False: the curve in .* was made with True"),
    (({**config, "lora.rank": 8}, options), "config.lora.rank=8: the curve in .* was made with None"),
    (
      ({"train.steps": 4}, options),
      r"config.optimizer.no_decay=None: the curve in .* was made with \['norm', 'bias'\]",
    ),
  ):
    with pytest.raises(UserError, match=message):
      saved_settings.check(path, *changed, kind="curve")
