"""From text files and seqio tasks to batches: sources, vocabularies, objectives and the resumable pipeline."""

import contextlib
import os


@contextlib.contextmanager
def quiet_stderr():
  """Drops what C++ code writes to standard error; Python's exceptions come through."""
  kept = os.dup(2)
  nowhere = os.open(os.devnull, os.O_WRONLY)
  try:
    os.dup2(nowhere, 2)
    yield
  finally:
    os.dup2(kept, 2)
    os.close(kept)
    os.close(nowhere)


# TensorFlow only reads text here: left alone it would take the memory of the accelerators that JAX computes on.  That
# it has found no GPU, it says in several lines that no setting turns off.
with quiet_stderr():
  import tensorflow as tf

  tf.config.set_visible_devices([], "GPU")
