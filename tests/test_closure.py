"""Module-level imports of each command, and the files from `t2t train` to attention.

`python -m pytest -s tests/test_closure.py` prints the table.
"""

import ast
import functools
import pathlib

import pytest
import test_rooms

from t2t import __main__ as command
from t2t.training import callbacks

# Files and lines that a command may import. An increase is a decision: move code that few runs need behind a table.
MOST = {
  "train": (162, 31_500),
  "plan": (98, 20_100),
  "eval": (182, 39_300),
  "infer": (141, 29_700),
}


def always_used():
  """Returns the modules of callbacks of every run, which a table names."""
  rows = {**callbacks.CALLBACKS.rows, **callbacks.LAST.rows}
  return [rows[name].partition(":")[0].removeprefix("t2t.") for name in rows if name not in callbacks.OPTIONAL]


@functools.cache
def imported(name: str) -> frozenset[str]:
  """Returns the modules that importing a module imports: its statements outside of functions, and its packages."""
  found = set()

  def visit(statements):
    for node in statements:
      is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
      if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or is_for_types:
        continue
      if isinstance(node, ast.Import):
        found.update(alias.name.removeprefix("t2t.") for alias in node.names if alias.name.startswith("t2t."))
      elif isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "t2t":
        module = node.module.removeprefix("t2t").removeprefix(".")
        names = [f"{module}.{alias.name}".removeprefix(".") for alias in node.names]
        found.update(name if name in test_rooms.modules() else module for name in names)
      for block in ("body", "orelse", "handlers", "finalbody"):
        visit(getattr(node, block, ()))

  visit(ast.parse(test_rooms.modules()[name].read_text()).body)
  packages = {".".join(each.split(".")[:end]) for each in found for end in range(1, each.count(".") + 1)}
  return frozenset(each for each in found | packages if each in test_rooms.modules())


def closure(*names: str) -> set[str]:
  found, waiting = set(), ["", *names]
  while waiting:
    name = waiting.pop()
    if name not in found:
      found.add(name)
      waiting.extend(imported(name))
  return found


def of_command(name: str) -> set[str]:
  module = command.SUBCOMMANDS[name][0].removeprefix("t2t.")
  doors = ("data.train_data", *always_used()) if name == "train" else ()
  return closure("__main__", module, *doors)


def size(names: set[str]) -> tuple[int, int]:
  return len(names), sum(len(test_rooms.modules()[name].read_text().splitlines()) for name in names)


@pytest.mark.parametrize("name", command.SUBCOMMANDS)
def test_commands_import_what_they_need(name):
  files, lines = size(of_command(name))
  print(f"\nt2t {name:<12}{files:>5} files{lines:>8,} lines")
  most_files, most_lines = MOST.get(name, (200, 36_000))
  assert files <= most_files and lines <= most_lines


OPTIONAL = (
  *(
    "convert",
    "planning",
    "reports.comparison",
    "launch",
    "serving",
    "evaluation.evaluate",
    "training.estimate_fisher",
    "training.unit_importance",
  ),
  *("data.tables", "data.head_examples", "data.mixture", "data.languages", "data.task_ids", "data.offline_cache"),
  *("data.sources.bitext", "data.sources.benchmark_files", "data.vocabularies.subwords", "data.vocabularies.training"),
)


@pytest.mark.parametrize("package", OPTIONAL)
def test_training_imports_no_optional_package(package):
  assert any(name == package or name.startswith(f"{package}.") for name in test_rooms.modules())
  inside = [name for name in of_command("train") if name == package or name.startswith(f"{package}.")]
  assert not inside


def test_a_corpus_is_read_by_few_files():
  found = {name for name in closure("data.train_data") if name.split(".")[0] == "data"}
  files, lines = size(found)
  print(f"\ndata of a run {files:>7} files{lines:>8,} lines")
  assert files <= 36 and lines <= 9_400


# From the command to the attention: each file names and calls the next.
PATH = (
  ("commands/train.py", "train("),
  ("training/train.py", "run.train_step("),
  ("training/train_step.py", "loss("),
  ("losses/cross_entropy.py", "module"),
  ("models/transformer.py", "stack"),
  ("models/stack.py", "attention"),
  ("models/attention.py", "class Attention"),
)


def test_the_path_to_attention_is_short():
  """A reader who opens these files in order sees the loop, the gradient and the model."""
  for file, text in PATH:
    assert text.lower() in (pathlib.Path(test_rooms.ROOT) / "t2t" / file).read_text().lower(), file
  assert "jax.value_and_grad(" in (test_rooms.ROOT / "t2t" / "training" / "train_step.py").read_text()
  loop = ast.parse((test_rooms.ROOT / "t2t" / "training" / "train.py").read_text())
  (function,) = [node for node in loop.body if isinstance(node, ast.FunctionDef) and node.name == "train"]
  assert function.end_lineno - function.lineno < 110
  names = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
  assert len(names) <= 30
