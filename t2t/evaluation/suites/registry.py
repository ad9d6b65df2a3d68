"""Table of suites."""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

from t2t import UserError, did_you_mean
from t2t.evaluation.suites import ewok
from t2t.runtime.lazy_table import load

_PACKAGE = "t2t.evaluation.suites"
_OPTIONS, _TEXT, _CLOZE = "scoring:OptionSuite", "texts:TextSuite", "cloze:ClozeSuite"


@dataclasses.dataclass(frozen=True)
class Suite:
  """A suite: its reader, and what is measured on its items.

  read: "module:function" of (path, where) -> items; uses no model.
  measure: "module:class" of the items, see `scoring.Prepared`.
  files: the files that it reads, for `--help`.
  contrasts: see `scoring.OptionSuite`.
  babylm: its folders in BabyLM's full and fast evaluation data, "" for none; empty: not a part of BabyLM.
  """

  read: str
  measure: str
  files: str
  contrasts: Mapping[str, Sequence[Sequence[int]]] = dataclasses.field(default_factory=dict)
  babylm: tuple[str, ...] = ()


SUITES: dict[str, Suite] = {
  "pairs": Suite("minimal_pairs:own", _OPTIONS, "your JSON lines with sentence_good, sentence_bad"),
  "blimp": Suite(
    "minimal_pairs:blimp", _OPTIONS, "BLiMP: folder of its 67 files", babylm=("blimp_filtered", "blimp_fast")
  ),
  "supplement": Suite(
    "minimal_pairs:supplement",
    _OPTIONS,
    "BabyLM's supplement: folder of 5 files",
    babylm=("supplement_filtered", "supplement_fast"),
  ),
  "ewok": Suite(
    "ewok:read",
    _OPTIONS,
    "EWoK: folder of 11 domains",
    contrasts=ewok.CONTRASTS,
    babylm=("ewok_filtered", "ewok_fast"),
  ),
  "comps": Suite("comps:read", _OPTIONS, "COMPS: folder of 4 files", babylm=("comps", "")),
  "entity_tracking": Suite(
    "entity_tracking:read",
    _OPTIONS,
    "entity tracking: folder of 3 files",
    babylm=("entity_tracking", "entity_tracking_fast"),
  ),
  "wug_adjectives": Suite(
    "wug:adjectives", _OPTIONS, "wug_adj_nominalization.jsonl", babylm=("wug_adj_nominalization",) * 2
  ),
  "wug_past_tense": Suite("wug:past_tense", _OPTIONS, "wug_past_tense.jsonl", babylm=("wug_past_tense",) * 2),
  "text": Suite("texts:plain", _TEXT, "perplexity of a .txt file, or of .jsonl with a field text"),
  "ptb": Suite("texts:ptb", _TEXT, "perplexity of Penn Treebank: ptb.test.txt"),
  "wikitext": Suite("texts:wikitext", _TEXT, "perplexity of WikiText: wiki.test.tokens or wiki.test.raw"),
  "cloze": Suite("cloze:own", _CLOZE, "your JSON lines with masked_sentences, obj_label"),
  "lama_trex": Suite("cloze:trex", _CLOZE, "LAMA's folder data: relations.jsonl and TREx"),
  "lama_google_re": Suite("cloze:google_re", _CLOZE, "LAMA's folder data: Google_RE"),
  "lama_conceptnet": Suite("cloze:conceptnet", _CLOZE, "LAMA's folder data: ConceptNet"),
  "lama_squad": Suite("cloze:squad", _CLOZE, "LAMA's folder data: Squad"),
}
BABYLM = tuple(name for name, suite in SUITES.items() if suite.babylm)


def choose(name: str, *, where: str) -> Suite:
  """Returns a suite.

  Raises:
    UserError: the name is unknown.
  """
  if name not in SUITES:
    raise UserError(f"{where}{name}: no such suite{did_you_mean(name, SUITES) or '.'} Suites: {', '.join(SUITES)}")
  return SUITES[name]


def is_text(name: str) -> bool:
  """Returns whether a suite measures the perplexity of a text."""
  return SUITES[name].measure == _TEXT


def read(name: str, path: str) -> Any:
  """Returns the items of a suite.

  Raises:
    UserError: the path, or a file of the suite, is missing or damaged.
  """
  return load(f"{_PACKAGE}.{choose(name, where='').read}")(path, f"{name}=")


def prepare(name: str, items: Any, scoring: Any, **options: Any) -> Any:
  """Returns a suite with its items encoded for a model; see `scoring.Prepared`."""
  suite = SUITES[name]
  return load(f"{_PACKAGE}.{suite.measure}")(name, items, scoring, contrasts=suite.contrasts, **options)
