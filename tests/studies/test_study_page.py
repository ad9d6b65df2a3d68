"""Pages of studies: the commands and the parts of rules."""

import re
import shlex

from hypothesis import given
from hypothesis import strategies as st

from t2t.studies import claims, page, results

_ARGUMENTS = st.lists(
  st.sampled_from(["--config.a.b=1", "--config.c.d=x y", "--config.e.f={old}", "--config.g.h="]), unique=True
)


@given(st.lists(st.tuples(st.sampled_from(["tiny", "tiny_bert"]), _ARGUMENTS), min_size=1, max_size=5))
def test_each_command_can_be_read_from_the_page(runs):
  """The common keys of a config and the further keys of a stage are the stage's arguments."""
  common = dict(study="s", scale="toy", definition="d", curves={}, figures={}, setting={}, t2t="", devices="", ended="")
  rows = []
  for number, (config, arguments) in enumerate(runs):
    stage = {"name": f"stage{number}", "digest": str(number), "config": config, "arguments": arguments}
    rows.append(results.StudyRow(arm=f"arm{number}", seed=0, status=results.FINISHED, stages=[stage], **common))
  text = "\n".join(page._commands(rows, 0))
  shared, further, config = {}, {}, ""
  for block in re.split(r"\n(?=    t2t|- )", text):
    if block.startswith("- "):
      name, keys = re.fullmatch(r"- (stage\d), arm\d: `(.*)`\s*", block, re.DOTALL).groups()
      further[name] = shlex.split(keys)
    else:
      _, _, _, config, *keys = shlex.split(block.replace("\\\n", " "))
      shared[config] = keys
  for number, (config, arguments) in enumerate(runs):
    assert sorted(shared[config] + further.get(f"stage{number}", [])) == sorted(arguments)


def test_parts_of_a_rule_are_numbered():
  """In the rule and in its verdict; the text for digests stays one paragraph."""
  rule = claims.all_of(claims.higher("a", than="b", column="x"), claims.lower("a", than="b", column="y"))
  lines = page._numbered(rule.parts, rule.text)
  assert [line[:10] for line in lines if re.match(r"\d\. ", line)] == ["1. Agree: ", "2. Agree: "]
  verdict = rule.decide([])
  assert verdict.parts[0] == "Parts of the rule: 2 undecided." and len(verdict.parts) == 3
  assert "(1) Agree" in rule.text and page._numbered((), "one") == ["one"]


def test_versions_of_several_commits_are_joined():
  """Rows of several commits differ in one part; an installed wheel has no commit."""
  of = lambda commit: f"t2t 0.1.0, commit {commit}, Python 3.12.1, jax 0.11.0"
  assert page._versions([of("a")]) == of("a")
  assert page._versions([of("a"), of("b+")]) == of("a and b+")
  assert page._versions([of("a"), "t2t 0.1.0, Python 3.12.1, jax 0.11.0"]).count("; ") == 1
