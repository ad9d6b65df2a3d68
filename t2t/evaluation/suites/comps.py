"""COMPS (Misra et al. 2023): which of two concepts has a property."""

from t2t.evaluation.suites import items as items_lib
from t2t.evaluation.suites.items import OptionItem
from t2t.inference.text_scores import ScoredText

FILES = ("comps_base", "comps_wugs", "comps_wugs_dist-before", "comps_wugs_dist-in-between")


def read(path: str, where: str) -> list[OptionItem]:
  """Reads COMPS: the property is scored after the acceptable and after the unacceptable beginning.

  Each line has prefix_acceptable, prefix_unacceptable and property_phrase.
  """
  read_items = []
  for file in items_lib.files(path, where=where, expected=FILES):
    for place, row in items_lib.objects(file, where=where):
      prefixes = [items_lib.field(row, f"prefix_{kind}", place) for kind in ("acceptable", "unacceptable")]
      phrase = items_lib.field(row, "property_phrase", place)
      options = tuple(ScoredText(prefix, f" {phrase}") for prefix in prefixes)
      group = file.name.removesuffix(".jsonl").removeprefix("comps_")
      read_items.append(OptionItem(options, (group,), f"{prefixes[0]} {phrase}"))
  return read_items
