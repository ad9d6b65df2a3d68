"""Globs over names of objects: they match as on a disk, and brackets as in fnmatch."""

import fnmatch
import glob
import os

import hypothesis
from hypothesis import strategies as st
import pytest

from t2t.storage import globs

NAMES = ["a", "b.c", "d/a", "d/-1", "d/.h", "d/e/a", ".h/a", "1", "2", "d/3", "d/e/]", "d/[", "aa", "d/^"]
PARTS = [
  "*",
  "?",
  "[a-c]",
  "[!a-c]",
  "[0-2]*",
  "[!0-2]",
  "[^a]",
  "[]]",
  "[c-a]",
  "[\\]",
  "[[]",
  "a",
  "d",
  "e",
  ".h",
  ".*",
]
PARTS += ["**", "a*", "*a", "**a", "{a,b}", "[a-", "+", "[--0]1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("names")
  for name in NAMES:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
  return folder


@hypothesis.settings(deadline=None)
@hypothesis.given(parts=st.lists(st.sampled_from(PARTS), min_size=1, max_size=3))
def test_local_rules_are_those_of_a_disk(folder, parts):
  """`**` matches files, too, if it is the last name."""
  pattern = "/".join(parts)
  found = glob.glob(pattern, root_dir=folder, recursive=True)
  # glob writes a slash after a file that `**` is not within.
  expected = {name for name in found if os.path.isfile(folder / name) and not name.endswith("/")}
  expression = globs.compiled(pattern, like_local=True)
  assert {name for name in NAMES if expression.fullmatch(name)} == expected


@hypothesis.given(part=st.sampled_from(PARTS), name=st.sampled_from(NAMES))
def test_store_rules_within_a_folder_are_those_of_fnmatch(part, name):
  """No wildcard but `**` matches a slash."""
  hypothesis.assume("**" not in part and "{" not in part)
  matches = globs.compiled(part, like_local=False).fullmatch(name) is not None
  assert matches == (fnmatch.fnmatchcase(name, part) and "/" not in name)


@pytest.mark.parametrize(
  ("pattern", "names"),
  [
    ("d/{a,-1}", ["d/a", "d/-1"]),
    ("d/**", ["d/a", "d/-1", "d/.h", "d/e/a", "d/3", "d/e/]", "d/[", "d/^"]),
    ("**/a", ["a", "d/a", "d/e/a", ".h/a"]),
    ("d**a", ["d/a", "d/e/a"]),
    ("d[!x]a", []),
    ("d/[0-9]", ["d/3"]),
  ],
)
def test_store_rules_across_folders(pattern, names):
  expression = globs.compiled(pattern, like_local=False)
  assert [name for name in NAMES if expression.fullmatch(name)] == names
