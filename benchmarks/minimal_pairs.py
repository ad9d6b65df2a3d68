"""Minimal pairs from templates and a small lexicon, as files in BLiMP's format.

  python benchmarks/minimal_pairs.py --output runs/pairs
  t2t suites --checkpoint runs/gpt --workdir runs/gpt_pairs pairs=runs/pairs

Each of the eight files has pairs of one paradigm of English agreement or word form. Words are frequent in Wikipedia, so
that a model trained on a few million words has seen most of them. The pairs are not those of BLiMP, and accuracies on
both sets cannot be compared.
"""

import argparse
from collections.abc import Callable, Sequence
import json
import pathlib
import random
import sys

from t2t import UserError
from t2t.runtime import numeric

# Singular and plural.
_PEOPLE = (
  *(("king", "kings"), ("player", "players"), ("writer", "writers"), ("soldier", "soldiers"), ("student", "students")),
  *(("artist", "artists"), ("man", "men"), ("woman", "women"), ("child", "children"), ("friend", "friends")),
  *(("doctor", "doctors"), ("teacher", "teachers"), ("actor", "actors"), ("leader", "leaders"), ("singer", "singers")),
)
_THINGS = (
  *(("city", "cities"), ("river", "rivers"), ("book", "books"), ("church", "churches"), ("song", "songs")),
  *(("house", "houses"), ("game", "games"), ("town", "towns"), ("school", "schools"), ("island", "islands")),
  *(("building", "buildings"), ("story", "stories"), ("bridge", "bridges"), ("castle", "castles")),
)
# Third person singular and plural.
_VERBS = (("lives", "live"), ("works", "work"), ("plays", "play"), ("sings", "sing"), ("writes", "write"))
_TRANSITIVE = ("saw", "found", "described", "visited", "knew", "liked", "remembered")
_ADJECTIVES = ("old", "young", "famous", "new", "small", "great", "important", "other", "good")
_PLACES = ("in the city", "near the river", "at the school", "on the island", "in this country")
# Past and participle.
_IRREGULAR = (
  *(("took", "taken"), ("knew", "known"), ("gave", "given"), ("saw", "seen"), ("chose", "chosen"), ("broke", "broken")),
  *(("began", "begun"), ("drew", "drawn"), ("forgot", "forgotten"), ("stole", "stolen")),
)
_BE, _HAVE = ("was", "were"), ("has", "have")

Pair = tuple[str, str]  # good and bad sentence


def _sentence(*parts: str) -> str:
  text = " ".join(part for part in parts if part)
  return f"{text[0].upper()}{text[1:]}."


def _pair(number: int, *parts: str | tuple[str, str]) -> Pair:
  """Returns the sentence with the form `number` of the one part that has two, and with its other form."""
  of = lambda n: _sentence(*(part if isinstance(part, str) else part[n] for part in parts))
  return of(number), of(1 - number)


def _simple(choose: random.Random, number: int) -> Pair:
  adjective = choose.choice((*_ADJECTIVES, ""))
  return _pair(number, "the", adjective, choose.choice(_PEOPLE)[number], choose.choice(_VERBS), choose.choice(_PLACES))


def _distractor(choose: random.Random, number: int) -> Pair:
  between = f"{choose.choice(('near', 'from', 'behind'))} the {choose.choice(_THINGS)[1 - number]}"
  return _pair(number, "the", choose.choice(_PEOPLE)[number], between, choose.choice(_VERBS), choose.choice(_PLACES))


def _auxiliary(choose: random.Random, number: int) -> Pair:
  state = (_BE, f"very {choose.choice(_ADJECTIVES)}")
  possession = (_HAVE, f"{choose.choice(('two', 'three', 'many'))} {choose.choice(_THINGS)[1]}")
  return _pair(number, "the", choose.choice(_PEOPLE)[number], *choose.choice((state, possession)))


def _determiner(choose: random.Random, number: int, *, adjectives: Sequence[str] = ("",)) -> Pair:
  subject, verb = choose.choice(choose.choice(_PEOPLE)), choose.choice(_TRANSITIVE)
  determiner = choose.choice((("this", "these"), ("that", "those")))[number]
  return _pair(number, "the", subject, verb, determiner, choose.choice(adjectives), choose.choice(_THINGS))


def _with_adjective(choose: random.Random, number: int) -> Pair:
  return _determiner(choose, number, adjectives=_ADJECTIVES)


def _reflexive(choose: random.Random, number: int) -> Pair:
  subject = choose.choice((("king", "kings"), ("man", "men"), ("actor", "actors"), ("father", "fathers")))[number]
  pronouns, place = ("himself", "themselves"), choose.choice((*_PLACES, ""))
  return _pair(number, "the", choose.choice((*_ADJECTIVES, "")), subject, choose.choice(_TRANSITIVE), pronouns, place)


def _participle(choose: random.Random, number: int) -> Pair:
  subject, past_and_participle = choose.choice(_PEOPLE)[number], choose.choice(_IRREGULAR)
  thing = choose.choice(choose.choice(_THINGS))
  return _pair(1, "the", subject, _HAVE[number], past_and_participle, "the", thing)


def _order(choose: random.Random, number: int) -> Pair:
  subject, adjective = choose.choice(_PEOPLE)[number], choose.choice(_ADJECTIVES)
  orders = (f"{adjective} {subject}", f"{subject} {adjective}")
  return _pair(0, "the", orders, choose.choice(_VERBS)[number], choose.choice(_PLACES))


# paradigm -> (term of linguistics, field, template)
PARADIGMS: dict[str, tuple[str, str, Callable[[random.Random, int], Pair]]] = {
  "verb_agreement": ("subject_verb_agreement", "morphology", _simple),
  "verb_agreement_distractor": ("subject_verb_agreement", "morphology", _distractor),
  "auxiliary_agreement": ("subject_verb_agreement", "morphology", _auxiliary),
  "determiner_noun": ("determiner_noun_agreement", "morphology", _determiner),
  "determiner_adjective_noun": ("determiner_noun_agreement", "morphology", _with_adjective),
  "reflexive_number": ("anaphor_agreement", "morphology", _reflexive),
  "irregular_participle": ("irregular_forms", "morphology", _participle),
  "adjective_order": ("word_order", "syntax", _order),
}


def pairs(name: str, number: int, seed: int) -> list[dict[str, str]]:
  """Returns distinct pairs of a paradigm, half of them in the singular, in BLiMP's format.

  Raises:
    UserError: the lexicon has fewer pairs.
  """
  term, field, template = PARADIGMS[name]
  choose, found = random.Random(f"{seed}/{name}"), {}
  attempt = last = 0
  while len(found) < number and attempt - last < 1_000 + 10 * len(found):  # then there are hardly any others
    before = len(found)
    found[template(choose, attempt % 2)] = None
    attempt += 1
    last = attempt if len(found) > before else last
  if len(found) < number:
    raise UserError(f"--pairs {number}: {name} has only {len(found)} different pairs. Give a smaller number.")
  rows = [{"sentence_good": good, "sentence_bad": bad} for good, bad in found]
  about = {"field": field, "linguistics_term": term, "UID": name}
  return [row | about | {"pairID": str(index)} for index, row in enumerate(rows)]


def main(argv: Sequence[str]) -> None:
  """Writes the files."""
  parser = argparse.ArgumentParser("python benchmarks/minimal_pairs.py", description=__doc__)
  parser.formatter_class = argparse.RawDescriptionHelpFormatter
  parser.add_argument("--output", type=pathlib.Path, required=True, help="folder of the files")
  parser.add_argument("--pairs", type=numeric.integer(1), default=200, help="of each paradigm; default: 200")
  parser.add_argument("--seed", type=int, default=0)
  options = parser.parse_args(argv)
  options.output.mkdir(parents=True, exist_ok=True)
  for name in PARADIGMS:
    rows = pairs(name, options.pairs, options.seed)
    (options.output / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  print(f"{len(PARADIGMS)} files with {options.pairs:,} pairs each in {options.output}")


if __name__ == "__main__":
  try:
    main(sys.argv[1:])
  except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
