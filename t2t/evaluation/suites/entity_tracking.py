"""Entity tracking (Kim & Schuster 2023), as BabyLM ranks its answers."""

from t2t import UserError
from t2t.evaluation.suites import items as items_lib
from t2t.evaluation.suites.items import OptionItem
from t2t.inference.text_scores import ScoredText

FILES = ("regular", "ambiref", "move_contents")


def read(path: str, where: str) -> list[OptionItem]:
  """Reads input_prefix and options of each line, the right option first; numbers of operations count equally."""
  read_items = []
  for file in items_lib.files(path, where=where, expected=FILES):
    for place, row in items_lib.objects(file, where=where):
      prefix, texts = (
        items_lib.field(row, name, place, kind) for name, kind in (("input_prefix", str), ("options", list))
      )
      if len(texts) < 2 or not all(isinstance(text, str) and text for text in texts):
        raise UserError(f"{place}: field 'options' has {texts!r}; two or more texts are needed. Correct the file.")
      number = items_lib.field(row, "numops", place, int)
      options = tuple(ScoredText(prefix, text) for text in texts)
      groups = (file.name.removesuffix(".jsonl"), f"{number} operations")
      read_items.append(OptionItem(options, groups, f"{prefix}{texts[0]}"))
  return read_items
