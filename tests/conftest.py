"""Runs all tests on eight CPU devices, so that meshes can be tested on any machine."""

import collections
from collections.abc import Iterator
import gc
import os
import pathlib
import sys
import tempfile

import folders
import hypothesis
import jax
from jax.experimental.compilation_cache import compilation_cache
import pytest
import toy

from t2t.models import stack
from t2t.runtime import hosts

# Test modules may import each other by name, because pytest requires unique names in tests/.
sys.path.extend(
  sorted(
    {str(path.parent) for path in folders.TESTS.rglob("test_*.py") if path.parent.name != "parity"}
    - {str(folders.TESTS)}
  )
)

# Programs of tests run for milliseconds, and optimising them takes five times longer than compiling without. Parallel
# compilation of their parts costs up to a third more CPU time, while the workers keep the cores busy anyway.
FASTER_COMPILES = (
  "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_parallel_codegen_split_count=1"
)
# On busy cores, eight devices may take longer than 40 s to meet; XLA would then end the process.
PATIENCE = ""
if jax.__version_info__ < (0, 11):  # XLA, from 0.12, ends at an unknown flag
  FASTER_COMPILES += " --xla_cpu_use_fusion_emitters=false"
  PATIENCE = " --xla_cpu_collective_call_terminate_timeout_seconds=600"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FASTER_COMPILES}{PATIENCE}".strip()
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
hosts.start_enough_cpu_threads()
jax.config.update("jax_default_matmul_precision", "highest")

# Examples have no time limit.
hypothesis.settings.register_profile("t2t", deadline=None)
hypothesis.settings.load_profile("t2t")

# These tests run commands that train and read the same small models, or continue a run. A program cache shared by all
# workers saves a sixth of the first tests' CPU time, and half of a run that repeats another. Other tests rarely compile
# a program twice, and writing the cache costs more than it saves.
_COMPILE_ONCE = (
  "test_adapt",
  "test_adapter_export",
  "test_adapter_restore",
  "test_adapter_routing",
  "test_array_batches",
  "test_bucket",
  "test_callbacks",
  "test_carried_state",
  "test_classification",
  "test_continuous_saves",
  "test_docs_corpus",
  "test_electra",
  "test_embed",
  "test_evaluate",
  "test_finetune_table",
  "test_hub_pins",
  "test_infer",
  "test_init_sources",
  "test_loaded_model",
  "test_nan_policy",
  "test_pretrained",
  "test_profiling",
  "test_prompted",
  "test_saved",
  "test_served_commands",
  "test_session_clock",
  "test_stages",
  "test_state_collections",
  "test_stores",
  "test_suites_run",
  "test_sweep",
  "test_train",
  "test_vectors",
  "test_vocab_checkpoint",
  "test_warm_start",
)
jax.config.update("jax_enable_compilation_cache", False)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

# Resident bytes of a worker above which it clears compiled programs between two modules.
_MOST_MEMORY = 3e9


def pytest_configure(config: pytest.Config) -> None:
  """Creates a new folder for programs in each test run, so that none is older than its compiler."""
  if not hasattr(config, "workerinput"):
    folder = tempfile.TemporaryDirectory(prefix="t2t_programs_")
    config.add_cleanup(folder.cleanup)
    os.environ["T2T_TEST_PROGRAMS"] = folder.name  # read by the workers
  jax.config.update("jax_compilation_cache_dir", os.environ["T2T_TEST_PROGRAMS"])
  if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
    _read_data_as_it_is_written()
  # A worker accumulates millions of objects, which garbage collection would scan during tracing.
  gc.freeze()
  gc.set_threshold(50_000, 20, 100)


def _read_data_as_it_is_written() -> None:
  """Disables optimisation of tf.data functions, which takes a third of the CPU time of pipeline tests.

  TensorFlow reads this setting until its first operation, which test modules run. Commands in separate processes use
  the users' setting.
  """
  from t2t import data  # loads TensorFlow without unused parts

  data.tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


@pytest.fixture(autouse=True, scope="module")
def no_global_seed() -> Iterator[None]:
  """Resets TensorFlow's global seed, which would otherwise shuffle the data of later tests in the process."""
  yield
  if "tensorflow" in sys.modules:
    assert sys.modules["tensorflow"].compat.v1.get_seed(None) == (None, None)


@pytest.fixture(autouse=True, scope="module")
def programs_are_given_back() -> Iterator[None]:
  """Clears compiled programs between modules; a worker would otherwise hold 9 GB after the slow tests."""
  yield
  pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1]) if sys.platform == "linux" else 0
  if pages * os.sysconf("SC_PAGE_SIZE") > _MOST_MEMORY:
    jax.clear_caches()
    gc.collect()


@pytest.fixture(autouse=True, scope="module")
def compile_once(request: pytest.FixtureRequest) -> None:
  """Caches programs of modules that compile the same ones."""
  jax.config.update("jax_enable_compilation_cache", request.module.__name__ in _COMPILE_ONCE)
  compilation_cache.reset_cache()  # otherwise JAX keeps its first setting


@pytest.fixture(autouse=True, scope="module")
def one_layer_is_compiled(request: pytest.FixtureRequest) -> Iterator[None]:
  """Scans over layers as on accelerators; unrolled toy layers take a third longer to compile and save nothing."""
  with pytest.MonkeyPatch.context() as patch:
    if request.module.__name__ not in ("test_plan", "test_stack"):  # these test users' programs
      patch.setattr(stack, "unrolled", lambda *_: 1)
    yield


def _is_of_another_kind(item: pytest.Item) -> bool:
  """Returns True for tests of a kind of model beyond the representatives."""
  params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
  return params.get("kind") in toy.KINDS and params["kind"] not in toy.REPRESENTATIVES


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
  """Leaves each test one mark, `exhaustive` before `slow`, so that no test runs in two tiers."""
  numbers: collections.Counter[str] = collections.Counter()
  tiers = []
  for item in items:
    function = item.nodeid.partition("[")[0]
    first = item.get_closest_marker("exhaustive_from")
    is_later = first is not None and numbers[function] >= first.args[0]
    numbers[function] += 1
    if is_later or _is_of_another_kind(item) or item.get_closest_marker("exhaustive"):
      tiers.append("exhaustive")
    else:
      tiers.append("slow" if item.get_closest_marker("slow") else None)
  for item, tier in zip(items, tiers, strict=True):
    for node in item.listchain():  # a mark of a whole file belongs to the module
      node.own_markers[:] = [mark for mark in node.own_markers if mark.name not in ("slow", "exhaustive")]
    if tier:
      item.add_marker(tier)
