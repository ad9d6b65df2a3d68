import sys

import pytest

from t2t.runtime import imports


def test_what_is_hidden_is_there_again():
  """And what was loaded before was there all the time."""
  sys.modules.pop("wave", None)
  with imports.without("wave", "json"):
    import json  # noqa: F401

    with pytest.raises(ImportError):
      import wave
  import wave  # noqa: F401


def test_it_is_there_again_after_an_error():
  sys.modules.pop("wave", None)
  with pytest.raises(ZeroDivisionError), imports.without("wave"):
    1 / 0  # noqa: B018
  assert "wave" not in sys.modules
