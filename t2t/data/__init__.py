"""From text files and seqio tasks to batches: sources, vocabularies, objectives and the resumable pipeline."""

from typing import Any

from t2t.runtime import imports, quiet

# TensorFlow only reads text here: left alone it would take the memory of the accelerators that JAX computes on.  That
# it has found no GPU, it says in several lines that no setting turns off.  With it comes Keras, which would load these
# for classes that nobody uses here: a third of the time that all this takes.
with quiet.stderr(), imports.without("sklearn", "matplotlib"):
  import tensorflow as tf
  import tensorflow_text  # noqa: F401  it loads Keras

  tf.config.set_visible_devices([], "GPU")

# Modules that tasks of users import, by their earlier names.
_RENAMED = {
  "answers": "postprocessors",
  "reading_formats": "qa_preprocessors",
  "text_formats": "preprocessors",
}


def __getattr__(name: str) -> Any:
  if name not in _RENAMED:
    raise AttributeError(f"module 't2t.data' has no attribute {name!r}")
  return imports.renamed_module(f"t2t.data.{name}", f"t2t.data.{_RENAMED[name]}")
