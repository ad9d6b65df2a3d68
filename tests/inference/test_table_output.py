"""Files of predictions: an old one is replaced when the new one is complete."""

import pytest

from t2t import UserError
from t2t.inference import table_output


def test_a_file_is_replaced_when_it_is_complete(tmp_path):
  """An error of the file system keeps the old content, and names the option."""
  output = tmp_path / "a.tsv"
  output.write_text("old")
  error = pytest.raises(UserError, match=r"--output .*a.tsv cannot be written \(No space left\); free space")
  with error, table_output.replacing(str(output)) as part:
    part.write_text("new")
    raise OSError(28, "No space left")
  assert output.read_text() == "old"
  with table_output.replacing(str(output)) as part:
    part.write_text("new")
    assert output.read_text() == "old"
  assert output.read_text() == "new" and list(tmp_path.iterdir()) == [output]
