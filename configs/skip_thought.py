"""Skip-Thought (Kiros et al. 2015), uni-skip: a GRU whose last state predicts the next and the previous sentence.

  t2t train --config skip_thought --workdir runs/skip_thought --config.data.mixture='' \\
    --config.data.files='books/*.txt' --config.data.vocabulary=VOCABULARY
  t2t embed --checkpoint runs/skip_thought --pool last --input sentences.txt --output vectors.npy

Words of 620 features, 2,400 units, and batches of 128 sentences with clipping at norm 10 are as published; a run is one
pass of the authors' 74 million sentences. The learning rate is not published. `t2t infer` writes the next sentence.
Published, a linear model on the vectors: SICK relatedness r 0.8477, MSRP accuracy 73.0 (with differences and products
of two vectors).
"""

from ml_collections import ConfigDict

from t2t.configs import default
from t2t.contrib.recurrent import presets


def get_config() -> ConfigDict:
  """Returns the config."""
  config = default.get_config()
  config.model.update(presets.skip_thought())
  config.data.mixture = "wikipedia_neighbouring_sentences"
  config.data.objective = "neighbouring_sentences"  # for the user's own files
  config.data.task_modules = ("t2t.tasks.wikipedia",)
  config.data.inputs_length = 64  # both sentences together
  config.data.targets_length = 32  # for generation
  config.train.loss = "skip_thought"
  config.train.steps = 580_000
  config.train.batch_size = 128
  config.train.z_loss = 0.0
  config.optimizer.name = "adamw"
  config.optimizer.learning_rate = 2e-4
  config.optimizer.schedule = "constant"
  config.optimizer.scale_by_parameter = False
  config.optimizer.clip_norm = 10.0
  return config
