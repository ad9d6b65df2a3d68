"""WUG: inflections of invented words, compared with the share of people who chose each (Hofmann et al. 2024)."""

from t2t import UserError
from t2t.evaluation.suites import items as items_lib
from t2t.evaluation.suites.items import OptionItem
from t2t.inference.text_scores import ScoredText


def adjectives(path: str, where: str) -> list[OptionItem]:
  """Reads wug_adj_nominalization.jsonl."""
  return _read(path, where, "wug_adj_nominalization")


def past_tense(path: str, where: str) -> list[OptionItem]:
  """Reads wug_past_tense.jsonl."""
  return _read(path, where, "wug_past_tense")


def _read(path: str, where: str, name: str) -> list[OptionItem]:
  """Reads two sentences of each line, separated by a tab, and the human ratio of the first."""
  read_items = []
  for file in items_lib.files(path, where=where, expected=(name,)):
    for place, row in items_lib.objects(file, where=where):
      texts = items_lib.field(row, "sentences", place).split("\t")
      if len(texts) != 2 or not all(text.strip() for text in texts):
        raise UserError(f"{place}: field 'sentences' has {len(texts)} sentences, not two with a tab between them.")
      try:
        ratio = float(items_lib.field(row, "ratio", place, (float, int, str)))
      except ValueError as error:
        raise UserError(f"{place}: field 'ratio' is {row['ratio']!r}, not a number. Correct the file.") from error
      if not 0 <= ratio <= 1:  # also NaN
        raise UserError(f"{place}: field 'ratio' is {row['ratio']!r}, not a share from 0 to 1. Correct the file.")
      read_items.append(OptionItem(tuple(ScoredText("", text) for text in texts), (name,), texts[0], human=ratio))
  return read_items
