"""User tables as tasks: finds columns, checks and splits rows, measures lengths."""

from t2t.data.tables.examples import candidates_of, texts_of
from t2t.data.tables.memory import keep
from t2t.data.tables.reading import TableRow
from t2t.data.tables.resolving import identity, make_task, on_disk, resolved, spec_of, with_table
from t2t.data.tables.spec import TASK, TableSpec, from_dict
from t2t.data.tables.values import text, words

__all__ = [
  "TASK",
  "TableRow",
  "TableSpec",
  "candidates_of",
  "from_dict",
  "identity",
  "keep",
  "make_task",
  "on_disk",
  "resolved",
  "spec_of",
  "text",
  "texts_of",
  "with_table",
  "words",
]
