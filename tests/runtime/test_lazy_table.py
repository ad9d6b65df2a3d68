"""Tables whose values are imported on first use."""

import sys

import pytest

from t2t.runtime.lazy_table import LazyTable


@pytest.fixture
def table(tmp_path, monkeypatch):
  (tmp_path / "optional_row.py").write_text("VALUE = 3\n")
  monkeypatch.syspath_prepend(str(tmp_path))
  monkeypatch.delitem(sys.modules, "optional_row", raising=False)
  yield LazyTable({"row": "optional_row:VALUE"})
  sys.modules.pop("optional_row", None)


def test_names_import_nothing(table):
  assert "row" in table
  assert "other" not in table
  assert list(table) == ["row"]
  assert len(table) == 1
  assert "optional_row" not in sys.modules


def test_a_value_is_imported(table):
  assert table["row"] == 3
  assert "optional_row" in sys.modules
  with pytest.raises(KeyError):
    table["other"]
  assert table.get("other") is None
