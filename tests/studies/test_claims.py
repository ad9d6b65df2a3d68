"""Rules of studies, and the statistics that decide them."""

import math

from etils import epath
import numpy as np
import pytest
from scipy import stats

from t2t.studies import claims, results


def rows_of(**values):
  """Returns rows of arms with their values by seed, in the column "score"."""
  common = dict(study="s", scale="toy", definition="d", curves={}, stages=[], setting={}, t2t="", devices="", ended="")
  row = lambda arm, seed, x: results.StudyRow(
    arm=arm, seed=seed, status=results.FINISHED, figures={"score": x}, **common
  )
  return [row(arm, seed, x) for arm, of_arm in values.items() for seed, x in enumerate(of_arm)]


def test_a_difference_is_paired_by_seed():
  """Equals scipy's paired t test, over the seeds that both arms have."""
  first, second = [60.0, 70.0, 80.0, 71.0], [55.0, 66.0, 74.0]
  paired = results.difference(rows_of(a=first, b=second), "a", "b", "score")
  test = stats.ttest_rel(first[:3], second)
  assert (paired.seeds, paired.mean) == (3, 5.0)
  assert paired.p == pytest.approx(test.pvalue)
  assert paired.margin == pytest.approx(test.confidence_interval(0.95).high - 5.0)


@pytest.mark.parametrize(
  ("first", "second", "word"),
  [
    ([3.0, 4.0, 5.0], [1.0, 2.1, 2.9], claims.AGREE),
    ([1.0, 2.1, 2.9], [3.0, 4.0, 5.0], claims.DISAGREE),
    ([1.0, 5.0, 2.0], [2.0, 1.0, 2.5], claims.UNDECIDED),
    ([9.0], [1.0], claims.UNDECIDED),
    ([2.0, 2.0], [2.0, 2.0], claims.UNDECIDED),
    ([], [1.0, 2.0], claims.UNDECIDED),
  ],
)
def test_higher_and_lower_are_mirrored(first, second, word):
  rows = rows_of(a=first, b=second)
  assert claims.higher("a", than="b", column="score").decide(rows).word == word
  assert claims.lower("b", than="a", column="score").decide(rows).word == word


def test_equivalence_needs_the_whole_interval():
  rows = rows_of(a=[1.0, 2.0, 3.0], b=[1.1, 1.9, 3.0], far=[9.0, 9.9, 11.0])
  rule = lambda arm, margin: claims.within(arm, of="b", column="score", margin=margin).decide(rows).word
  assert [rule("a", 0.5), rule("a", 0.1), rule("far", 0.5)] == [claims.AGREE, claims.UNDECIDED, claims.DISAGREE]


def test_an_order_is_tested_by_page():
  """The predicted order agrees and its reverse disagrees; equal arms are undecided."""
  noise = np.random.default_rng(0).normal(size=(4, 3))
  rows = rows_of(**{arm: list(10.0 * i + noise[i]) for i, arm in enumerate("dcba")})
  assert claims.order("a", "b", "c", "d", column="score").decide(rows).word == claims.AGREE
  assert claims.order("d", "c", "b", "a", column="score").decide(rows).word == claims.DISAGREE
  assert claims.order("d", "c", "b", "a", column="score", lower_is_better=True).decide(rows).word == claims.AGREE
  assert claims.order("b", "d", "a", "c", column="score").decide(rows).word == claims.UNDECIDED
  p = stats.page_trend_test(
    np.array([[row.figures["score"] for row in rows if row.seed == s] for s in range(3)])
  ).pvalue
  assert results.order_p(rows, "dcba", "score")[1] == pytest.approx(p)
  assert math.isnan(results.order_p(rows_of(a=[1.0], b=[2.0], c=[3.0]), "abc", "score")[1])


def test_all_rules_must_agree():
  rows = rows_of(a=[3.0, 4.0, 5.0], b=[1.0, 2.1, 2.9], c=[1.0, 2.0, 3.1])
  right, wrong, open_ = (claims.higher(x, than=y, column="score") for x, y in (("a", "b"), ("b", "a"), ("b", "c")))
  words = [claims.all_of(*rules).decide(rows).word for rules in ((right, right), (right, open_), (right, wrong, open_))]
  assert words == [claims.AGREE, claims.UNDECIDED, claims.DISAGREE]


def test_rows_are_saved_exactly(tmp_path):
  rows = rows_of(a=[0.1, math.nan], b=[None])
  results.write(epath.Path(tmp_path / "rows.jsonl"), rows)
  saved = results.read(epath.Path(tmp_path / "rows.jsonl"))
  assert [row.figures["score"] for row in saved] == [0.1, None, None]
  assert saved[0] == rows[0]


def test_a_wide_table_has_parts():
  """No line has more than 80 columns, and every column is shown once."""
  names = [f"column {i}" for i in range(12)]
  rows = [
    results.StudyRow(**{**row.__dict__, "figures": dict.fromkeys(names, row.figures["score"])})
    for row in rows_of(**{"a long name of an arm with more than thirty letters": [1.0, 2.0], "b": [123456.0]})
  ]
  lines = results.table(rows, names)
  assert all(len(line) <= 80 for line in lines)
  assert sum(line.count("column") for line in lines) == 12 and "123k" in "\n".join(lines)
