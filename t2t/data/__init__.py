"""Data from text files and seqio tasks to batches: sources, vocabularies, objectives and the resumable pipeline."""

from typing import Any

from t2t.runtime import imports, quiet

# TensorFlow only reads text here. Unconfigured it would take the memory of the accelerators that JAX uses. It prints
# several lines about a missing GPU that no setting turns off. It imports Keras, which would import these packages for
# classes that t2t does not use: a third of the import time.
with quiet.stderr(), imports.without("sklearn", "matplotlib"):
  import tensorflow as tf
  import tensorflow_text  # noqa: F401  it loads Keras

  tf.config.set_visible_devices([], "GPU")

# Earlier names of modules that users' tasks import.
_RENAMED = {
  "answers": "postprocessors",
  "reading_formats": "qa_preprocessors",
  "text_formats": "preprocessors",
}


def __getattr__(name: str) -> Any:
  if name not in _RENAMED:
    raise AttributeError(f"module 't2t.data' has no attribute {name!r}")
  return imports.renamed_module(f"t2t.data.{name}", f"t2t.data.{_RENAMED[name]}")
