"""Public signatures of the packages that `make types` covers have exact types, without Any."""

import ast
from collections.abc import Iterator
import tomllib

from folders import ROOT
import pytest

PATTERNS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pyrefly"]["project-includes"]
FILES = {str(path.relative_to(ROOT)): path for pattern in PATTERNS for path in sorted(ROOT.glob(pattern))}
# Without type parameters these imply Any.
GENERIC = {
  *("dict", "list", "tuple", "set", "frozenset", "type", "Callable", "Collection", "Generator", "Iterable", "Iterator"),
  *("LazyTable", "Mapping", "MutableMapping", "Sequence"),
}
# File, name -> reason for an inexact type; at most 10.
EXCEPTIONS = {
  ("t2t/models/config.py", "TransformerConfig.text_decoder"): "decoders are on a floor above",
  ("t2t/models/config.py", "TransformerConfig.position_scheme"): "schemes import the config, and no import comes round",
  ("t2t/models/config.py", "TransformerConfig.block_class"): "layers import the config as well",
  ("t2t/models/config.py", "TransformerConfig.feed_forward_class"): "feed-forward layers import the config as well",
  ("t2t/models/config.py", "TransformerConfig.attention_class"): "attentions import the config as well",
  ("t2t/checkpoints/pretrained.py", "trained_tasks"): "a seqio task, and seqio is imported where data is read",
  ("t2t/training/run.py", "Run.programs"): "programs of stages are on a floor above",
  ("t2t/training/run.py", "Run.program"): "programs of stages are on a floor above",
  ("t2t/training/run.py", "Run.checkpoints"): "checkpoints are on a floor above",
  ("t2t/training/run.py", "Run.lock"): "checkpoints are on a floor above",
}


def inexact(annotation: ast.expr | None) -> str:
  """Returns the inexact part of an annotation; "" if it is exact."""
  if annotation is None:
    return "no annotation"
  if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
    annotation = ast.parse(annotation.value, mode="eval").body
  nodes = list(ast.walk(annotation))
  with_parameters = {id(node.value) for node in nodes if isinstance(node, ast.Subscript)}
  for node in nodes:
    name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
    if name == "Any":
      return "Any"
    if name in GENERIC and id(node) not in with_parameters:
      return f"{name} without parameters"
  return ""


def annotations(function: ast.FunctionDef, *, is_method: bool) -> Iterator[ast.expr | None]:
  """Yields the annotations of a function's parameters and of its result."""
  arguments = function.args
  is_static = any(ast.unparse(decorator) == "staticmethod" for decorator in function.decorator_list)
  own = [*arguments.posonlyargs, *arguments.args]
  yield from (each.annotation for each in own[1 if is_method and not is_static else 0 :])
  yield from (each.annotation for each in arguments.kwonlyargs)
  yield from (each.annotation for each in (arguments.vararg, arguments.kwarg) if each is not None)
  if function.name != "__init__":
    yield function.returns


def is_public(name: str) -> bool:
  return not name.startswith("_") or name in ("__init__", "__call__")


def found_in(body: list[ast.stmt], *, owner: str = "") -> Iterator[tuple[str, str]]:
  """Yields name and fault of each inexact public function, method, field and alias."""
  for node in body:
    if isinstance(node, ast.ClassDef) and is_public(node.name):
      yield from found_in(node.body, owner=f"{owner}{node.name}.")
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_public(node.name):
      for fault in filter(None, map(inexact, annotations(node, is_method=bool(owner)))):
        yield f"{owner}{node.name}", fault
    elif owner and isinstance(node, ast.AnnAssign) and is_public(ast.unparse(node.target)):
      if fault := inexact(node.annotation):
        yield f"{owner}{ast.unparse(node.target)}", fault
    elif not owner and isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript | ast.BinOp | ast.Name):
      name = ast.unparse(node.targets[0])
      if is_public(name) and name[0].isupper() and not name.isupper() and (fault := inexact(node.value)):
        yield name, fault


@pytest.mark.parametrize("name", FILES)
def test_public_signatures_are_exact(name):
  found = [x for x in found_in(ast.parse(FILES[name].read_text()).body) if (name, x[0]) not in EXCEPTIONS]
  assert not found, f"{name}: give an exact type in place of {found}"


def test_exceptions_are_few_and_needed():
  found = {(name, x) for name, path in FILES.items() for x, _ in found_in(ast.parse(path.read_text()).body)}
  assert set(EXCEPTIONS) == found
  assert len(EXCEPTIONS) <= 10


@pytest.mark.parametrize(
  "source",
  [
    "def f(x): return x",
    "def f(x: int): return x",
    "def f(x: dict) -> int: ...",
    "def f(*x: Any) -> int: ...",
    "class A:\n  x: 'Mapping[str, Any]'",
    "class A:\n  def __call__(self, x) -> int: ...",
    "Rows = dict[str, Any]",
    "Rows = dict",
  ],
)
def test_inexact_types_are_found(source):
  assert list(found_in(ast.parse(source).body))


def test_exact_and_private_types_are_not():
  source = "Rows = dict[str, int]\nclass A:\n  x: 'Rows'\n  def f(self, x: int) -> 'A': ...\ndef _f(x): ..."
  assert not list(found_in(ast.parse(source).body))
