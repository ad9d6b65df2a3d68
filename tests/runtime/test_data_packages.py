"""Packages of the extra `data`: imported on first use, set up whoever imports them, and named if they are missing."""

import contextlib
import importlib
import sys

import pytest

from t2t import UserError
from t2t.runtime import data_packages


@pytest.fixture
def package(tmp_path, monkeypatch):
  """Returns the name of a package that has not been imported, with the attribute `value` and a resource."""
  name = f"set_up_{tmp_path.name}"
  (tmp_path / name).mkdir()
  (tmp_path / name / "__init__.py").write_text("value = 3\n")
  (tmp_path / name / "text.txt").write_text("resource")
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
  yield name
  sys.modules.pop(name, None)


def test_a_module_is_imported_with_its_first_attribute(package):
  module = data_packages.lazy_module(package)
  assert package not in sys.modules
  assert module.value == 3 and package in sys.modules


def test_a_package_is_set_up_once_whoever_imports_it(package):
  """Looking for the package does not import it, and its resources are found as before."""
  events = []

  @contextlib.contextmanager
  def around():
    events.append("before")
    yield
    events.append(sys.modules[package].value)

  data_packages.around_import(package, around)
  assert importlib.util.find_spec(package) is not None and not events
  for _ in range(2):
    module = importlib.import_module(package)
  assert events == ["before", 3]
  assert module.__spec__.loader is module.__loader__
  assert (importlib.resources.files(package) / "text.txt").read_text() == "resource"
  data_packages.around_import(package, around)
  assert events == ["before", 3, "before", 3]


def test_a_missing_package_is_named_with_its_remedy(monkeypatch):
  monkeypatch.setitem(sys.modules, "tensorflow_text", None)
  error = r"^tensorflow-text is not installed, .* `pip install -e '\.\[data\]'`, on Python 3.11 to 3.13\."
  with pytest.raises(UserError, match=error) as caught, data_packages.says_what_is_missing():
    importlib.import_module("tensorflow_text")
  assert isinstance(caught.value, ImportError) and caught.value.exit_code == 2
  with pytest.raises(UserError, match=error):
    _ = data_packages.lazy_module("tensorflow_text").SentencepieceTokenizer


def test_buckets_need_tensorflow():
  """The error of etils, which reads buckets through TensorFlow, has the same remedy."""
  with pytest.raises(UserError, match="^tensorflow is not installed"), data_packages.says_what_is_missing():
    raise ImportError("Please install gcsfs to access Google Storage")


def test_other_missing_modules_stay_errors():
  with pytest.raises(ModuleNotFoundError, match="nowhere_at_all"), data_packages.says_what_is_missing():
    importlib.import_module("nowhere_at_all")


def test_attributes_are_those_of_the_modules():
  attribute = data_packages.lazy_attributes("t2t.runtime", {"nbytes": "amounts"})
  from t2t.runtime import amounts

  assert attribute("nbytes") is amounts.nbytes and attribute("amounts") is amounts
  with pytest.raises(AttributeError, match="module 't2t.runtime' has no attribute 'nothing'"):
    attribute("nothing")
