"""EWoK (Ivanova et al. 2024): targets that fit one of two contexts."""

from t2t.evaluation.suites import items as items_lib
from t2t.evaluation.suites.items import OptionItem
from t2t.inference.text_scores import ScoredText

DOMAINS = (
  *("agent-properties", "material-dynamics", "material-properties", "physical-dynamics", "physical-interactions"),
  *("physical-relations", "quantitative-properties", "social-interactions", "social-properties", "social-relations"),
  "spatial-relations",
)

# Positions in the options of an item. BabyLM compares two targets after the first context; Ivanova et al. compare the
# contexts of each target.
CONTRASTS = {"accuracy": ((0, 1),), "context_accuracy": ((0, 2), (3, 1))}


def read(path: str, where: str) -> list[OptionItem]:
  """Reads a .jsonl file for each domain, with Context1, Context2, Target1 and Target2 in each line."""
  read_items = []
  for file in items_lib.files(path, where=where, expected=DOMAINS):
    for place, row in items_lib.objects(file, where=where):
      contexts = [items_lib.field(row, f"Context{number}", place) for number in (1, 2)]
      targets = [items_lib.field(row, f"Target{number}", place) for number in (1, 2)]
      options = tuple(ScoredText(context, f" {target}") for context in contexts for target in targets)
      domain = str(row.get("Domain", file.name.removesuffix(".jsonl")))
      read_items.append(OptionItem(options, (domain,), f"{contexts[0]} {targets[0]}"))
  return read_items
