"""Data from text files and seqio tasks to batches: sources, vocabularies, objectives and the resumable pipeline."""

from collections.abc import Iterator
import contextlib
import sys
from typing import Any

from t2t.runtime import data_packages, imports, quiet


@contextlib.contextmanager
def _configured() -> Iterator[None]:
  """Imports TensorFlow, which only reads text here, without lines in the log and without the memory of accelerators.

  Unconfigured it would take the memory of the accelerators that JAX uses. It prints several lines about a missing GPU
  that no setting turns off. It imports Keras, which would import these packages for classes that t2t does not use: a
  third of the import time.
  """
  with quiet.stderr(), imports.without("sklearn", "matplotlib"):
    yield
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  it loads Keras

    tf.config.set_visible_devices([], "GPU")


@contextlib.contextmanager
def _registered() -> Iterator[None]:
  yield
  from t2t.data import vocabulary_classes

  vocabulary_classes.register(sys.modules["seqio"])


# Both packages are imported on first use, because predictions and training on arrays need neither.
data_packages.around_import("tensorflow", _configured)
data_packages.around_import("seqio", _registered)

# Earlier names of modules that users' tasks import.
_RENAMED = {
  "answers": "postprocessors",
  "reading_formats": "qa_preprocessors",
  "text_formats": "preprocessors",
}


def __getattr__(name: str) -> Any:
  if name == "tf":
    import tensorflow

    return tensorflow
  if name not in _RENAMED:
    raise AttributeError(f"module 't2t.data' has no attribute {name!r}")
  return imports.renamed_module(f"t2t.data.{name}", f"t2t.data.{_RENAMED[name]}")
