"""Names of the package: a class name means one thing, and a local name is a noun of the domain."""

import ast
import collections
from collections.abc import Iterator
import functools
import pathlib

import pytest

import t2t

PACKAGE = pathlib.Path(t2t.__file__).parent
# Words that fit any value; a noun describes it.
VAGUE = ("found", "each", "own", "asked", "told", "place")
MOST_OF_EACH = 30


@functools.cache
def trees() -> dict[str, ast.Module]:
  """Returns path below the package -> parsed source."""
  return {str(path.relative_to(PACKAGE)): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def assigned(tree: ast.AST) -> Iterator[str]:
  """Yields every name that a variable, parameter, function, class or import gets."""
  for node in ast.walk(tree):
    match node:
      case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
        yield name
      case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
        yield name
      case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
        yield name
      case ast.alias(name=name, asname=alias):
        yield alias or name.partition(".")[0]


def test_every_binding_is_seen():
  source = "import a.b\ndef c(d, *e, f=1):\n  g = lambda h: h\n  with x as i: pass\nclass j: pass\n[k for k in l]\n"
  assert sorted(assigned(ast.parse(source))) == list("acdefghijk")


def test_a_class_name_means_one_thing():
  places = collections.defaultdict(list)
  for path, tree in trees().items():
    for node in ast.walk(tree):
      if isinstance(node, ast.ClassDef):
        places[node.name].append(f"{path}:{node.lineno}")
  twice = {name: paths for name, paths in places.items() if len(paths) > 1}
  assert not twice, "\n".join(f"{name}: {', '.join(paths)}" for name, paths in sorted(twice.items()))


@pytest.mark.parametrize("word", VAGUE)
def test_vague_names_are_rare(word):
  counts = {path: sum(name == word for name in assigned(tree)) for path, tree in trees().items()}
  counts = {path: count for path, count in counts.items() if count}
  assert sum(counts.values()) <= MOST_OF_EACH, f"give these a noun of the domain: {counts}"
