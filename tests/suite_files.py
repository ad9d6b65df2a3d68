"""Tiny files in the formats of the suites, with invented content."""

import json
import pathlib

from t2t.evaluation.suites import comps, entity_tracking, ewok, minimal_pairs

NOUNS = ("cat", "old dog", "fox", "wizard")


def lines(path: pathlib.Path, rows: list[dict]) -> pathlib.Path:
  """Writes JSON lines, and the folders above."""
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return path


def pair(name: str, number: int, *, uid: bool = True) -> dict:
  """Returns a minimal pair in BLiMP's format."""
  noun = NOUNS[number % len(NOUNS)]
  sentences = {"sentence_good": f"The {noun} sees {name[:3]}.", "sentence_bad": f"The {noun} see {name[:3]}."}
  return sentences | ({"UID": name, "field": "syntax", "linguistics_term": "agreement"} if uid else {})


def babylm(folder: pathlib.Path) -> pathlib.Path:
  """Writes BabyLM's full evaluation data: blimp_filtered with one or two pairs a file, and the other suites."""
  for index, name in enumerate(minimal_pairs.BLIMP):
    lines(folder / "blimp_filtered" / f"{name}.jsonl", [pair(name, i) for i in range(1 + index % 2)])
  for name in minimal_pairs.SUPPLEMENT:
    lines(folder / "supplement_filtered" / f"{name}.jsonl", [pair(name, i, uid=False) for i in range(2)])
  for index, name in enumerate(ewok.DOMAINS):
    row = {"Domain": name, "Context1": f"Ali {name[:4]} Bo.", "Context2": f"Bo {name[:4]} Ali."}
    row |= {"Target1": "Bo is kept.", "Target2": "Ali is kept now."}
    lines(folder / "ewok_filtered" / f"{name}.jsonl", [row, row | {"Target1": f"Cy {index}."}])
  for index, name in enumerate(comps.FILES):
    rows = [{"prefix_acceptable": f"A {noun}", "prefix_unacceptable": "A stone"} for noun in NOUNS[: 1 + index % 2]]
    lines(folder / "comps" / f"{name}.jsonl", [row | {"property_phrase": "can bark."} for row in rows])
  for name in entity_tracking.FILES:
    rows = [
      {"input_prefix": f"Box {i} contains", "options": [" the key.", " the pen and the cup.", " a hat."], "numops": i}
      for i in range(2)
    ]
    lines(folder / "entity_tracking" / f"{name}.jsonl", rows)
  for name, ends in (("wug_adj_nominalization", ("ity", "ness")), ("wug_past_tense", ("ed", "t"))):
    rows = [
      {"sentences": "\t".join(f"They {word}{end}." for end in ends), "ratio": ratio}
      for word, ratio in (("wug", 0.2), ("tralb", 0.9), ("glim", 0.55))
    ]
    lines(folder / name / f"{name}.jsonl", rows)
  return folder


def lama(folder: pathlib.Path) -> pathlib.Path:
  """Writes LAMA's folder data with relations of two facts; answers have one character, and some have several."""
  relations = [{"relation": "P1", "template": "[X] is by [Y] ."}, {"relation": "P2", "template": "[Y] has [X]"}]
  lines(folder / "relations.jsonl", [*relations, {"relation": "P9", "template": "[X] [Y]"}])
  for name in ("P1", "P2"):
    facts = [("Rome", "a"), ("Oslo", "b"), ("Rome", "a"), ("Bonn", "several")]
    rows = [{"sub_label": subject, "obj_label": answer, "predicate_id": name} for subject, answer in facts]
    lines(folder / "TREx" / f"{name}.jsonl", rows)
  yes, no = {"judgment": "yes"}, {"judgment": "no"}
  for name in ("place_of_birth", "date_of_birth", "place_of_death"):
    rows = [{"sub_label": "Ann", "obj_label": "c", "judgments": [yes, yes, no]}]
    rows.append({"sub_label": "Bob", "obj_label": "d", "judgments": [no, no, yes]})
    lines(folder / "Google_RE" / f"{name}_test.jsonl", rows)
  sentences = [{"masked_sentences": ["A dog has [MASK] ."], "obj_label": "e"}]
  sentences.append({"masked_sentences": [f"{'very ' * 101}[MASK]"], "obj_label": "f"})
  lines(folder / "ConceptNet" / "test.jsonl", [row | {"pred": "HasA"} for row in sentences])
  lines(folder / "Squad" / "test.jsonl", sentences)
  return folder
