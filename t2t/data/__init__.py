"""From text files and seqio tasks to batches: sources, vocabularies, objectives and the resumable pipeline."""

from t2t.runtime import quiet

# TensorFlow only reads text here: left alone it would take the memory of the accelerators that JAX computes on.  That
# it has found no GPU, it says in several lines that no setting turns off.
with quiet.stderr():
  import tensorflow as tf

  tf.config.set_visible_devices([], "GPU")
