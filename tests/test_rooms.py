"""Layers of packages: each package imports from lower ones, without cycles."""

import ast
import functools
import graphlib
import pathlib

import folders
import pytest

ROOT = folders.ROOT

# From the lowest: a module imports from its own package and from earlier ones, in functions, too.
FLOORS = (
  "runtime",
  "storage",
  "accelerators",
  "metrics",
  "param_tree",
  "sharding",
  "models",
  "contrib.recurrent.presets",
  "feature_spec",
  "configuration.section_keys",
  "configuration.schema",
  "configuration.renamed_keys",
  "configs",
  "configuration.foreign_names",
  "configuration",
  "losses",
  "data.vocabulary_classes",
  "data.docs_corpus",
  "data.shard_order",
  "data.continuous_rows",
  "data.t5_package",
  "data.registry",
  "data.postprocessors",
  "evaluation.task_metrics",
  "data.vocabularies",
  "data.special_tokens",
  "data.qa_preprocessors",
  "data.preprocessors",
  "data.untruncated_lengths",
  "data.templates",
  "data.objectives",
  "data.sources",
  "data.languages",
  "data.file_task",
  "data.task_resolution",
  "data.task_prefixes",
  "data.feature_converters",
  "data.default_features",
  "data.mixture",
  "data.raw_text",
  "data.head_examples",
  "data.tables",
  "data.example_windows",
  "data.position_migration",
  "data.determinism",
  "data.batch_iterator",
  "data.stage_iterator",
  "data.offline_cache",
  "data.beam_caching",
  "data.train_subset",
  "data.label_files",
  "data.run_sources",
  "data.token_task",
  "data.task_ids",
  "data.fingerprint",
  "data.first_examples",
  "data.pipeline",
  "data.validation",
  "data.train_data",
  "data.preview",
  "tasks",
  "training",
  "convert",
  "checkpoints",
  "inference",
  "serving",
  "evaluation",
  "api",
  "api.loaded_model",
  "integrations",
  "training.stage_program",
  "training.remembered_data",
  "reports",
  "training.callbacks.first_batches",
  "training.callbacks.run_report",
  "training.callbacks.samples",
  "training.callbacks.summary",
  "training.setup",
  "training.train",
  "data.batch_checks",
  "data.array_batches",
  "api.training_run",
  "training.replay_step",
  "training.estimate_fisher",
  "training.unit_importance",
  "planning",
  "studies.results",
  "studies.claims",
  "studies",
  "contrib",
  "commands",
  "__main__",
  "commands.completion",
  "launch",
)


@functools.cache
def modules() -> dict[str, pathlib.Path]:
  """Returns name without the prefix t2t -> file; a package has its own name."""
  found = {}
  for folder, prefix in (("t2t", ""), ("configs", "configs"), ("tasks", "tasks"), ("launch", "launch")):
    for path in sorted((ROOT / folder).rglob("*.py")):
      parts = [prefix, *path.relative_to(ROOT / folder).with_suffix("").parts]
      found[".".join(part for part in parts if part and part != "__init__")] = path
  return found


def imports(name: str) -> set[str]:
  """Returns the modules of t2t that a module imports anywhere, without t2t itself."""
  found = set()
  for node in ast.walk(ast.parse(modules()[name].read_text())):
    if isinstance(node, ast.Import):
      found |= {alias.name.removeprefix("t2t.") for alias in node.names if alias.name.startswith("t2t.")}
    elif isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "t2t":
      module = node.module.removeprefix("t2t").removeprefix(".")
      for alias in node.names:
        inner = f"{module}.{alias.name}".removeprefix(".")
        found.add(inner if inner in modules() else module)
  return found - {"", name}


def floor(name: str) -> int:
  rooms = [room for room in FLOORS if name == room or name.startswith(f"{room}.")]
  return FLOORS.index(max(rooms, key=len)) if rooms else -1


NAMES = [name for name in modules() if name not in ("", "data")]  # "data" itself only keeps TensorFlow off the GPUs


def test_the_rooms_are_found():
  """A rule over no files would always hold."""
  assert "data.train_data" in imports("training.stage_program")  # imported in a function
  assert floor("data.vocabularies.reserved_ids") == FLOORS.index("data.vocabularies")
  assert len(NAMES) > 100


@pytest.mark.parametrize("name", NAMES)
def test_each_module_has_a_room_and_imports_from_those_below(name):
  assert floor(name) >= 0, f"{name}: which floor is it on?"
  above = [other for other in imports(name) if floor(other) > floor(name)]
  assert not above, f"{name} imports {above} from above"


@pytest.mark.slow
def test_no_import_comes_round():
  """Cycles of modules, including imports in functions and for type checkers."""
  list(graphlib.TopologicalSorter({name: imports(name) for name in NAMES}).static_order())


@pytest.mark.parametrize("room", FLOORS)
def test_each_room_is_there(room):
  assert any(name == room or name.startswith(f"{room}.") for name in modules())
