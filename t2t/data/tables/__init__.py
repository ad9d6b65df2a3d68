"""A table of a user's own as a task: its columns are found, its rows checked and split, its lengths measured."""

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
