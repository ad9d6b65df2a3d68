"""Generated minimal pairs: distinct, balanced, in BLiMP's format, and the same for a seed."""

import collections
import importlib.util

import folders
import pytest

from t2t import UserError
from t2t.evaluation.suites import registry

# The package has a module of the same name.
_SPEC = importlib.util.spec_from_file_location("pair_templates", folders.ROOT / "benchmarks" / "minimal_pairs.py")
minimal_pairs = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(minimal_pairs)


def test_pairs_differ_in_one_place(tmp_path):
  minimal_pairs.main([f"--output={tmp_path}", "--pairs=60"])
  items = registry.read("pairs", str(tmp_path))
  assert collections.Counter(item.groups[0] for item in items) == dict.fromkeys(minimal_pairs.PARADIGMS, 60)
  for item in items:
    good, bad = (option.continuation.split() for option in item.options)
    assert len(good) == len(bad) and good != bad and good[0] == "The" and good[-1].endswith(".")
    places = [i for i, (a, b) in enumerate(zip(good, bad, strict=True)) if a != b]
    assert len(places) == (2 if item.groups == ("adjective_order",) else 1)
  assert len({item.options for item in items}) == len(items)


def test_pairs_depend_on_the_seed_alone():
  first, again, other = (minimal_pairs.pairs("auxiliary_agreement", 20, seed) for seed in (0, 0, 1))
  assert first == again and first != other
  with pytest.raises(UserError, match="--pairs 100000: irregular_participle has only"):
    minimal_pairs.pairs("irregular_participle", 100_000, 0)


def test_the_good_sentence_agrees():
  """Some pairs by their templates; the number alternates."""
  first, second = minimal_pairs.pairs("reflexive_number", 2, 0)
  assert "himself" in first["sentence_good"] and "themselves" in first["sentence_bad"]
  assert "themselves" in second["sentence_good"] and "himself" in second["sentence_bad"]
  (row, _) = minimal_pairs.pairs("irregular_participle", 2, 0)
  participles = {participle for _, participle in minimal_pairs._IRREGULAR}
  assert set(row["sentence_good"].split()) & participles and not set(row["sentence_bad"].split()) & participles
