"""ALBERT (Lan et al. 2020): a BERT whose layers are one layer, with an embedding of 128 features.

  t2t train --config albert_base --workdir gs://BUCKET/albert_base --config.data.vocabulary=gs://BUCKET/spiece.model

11.8 M parameters.  125,000 steps of 4,096 sequences of 512 tokens by LAMB, as published: n-grams of one to three words
are masked, and the model says of two texts which comes first.
"""

from ml_collections import ConfigDict

from t2t.configs import default
from t2t.models import sizes

SIZES = ("base",)


def get_config(size: str = "base") -> ConfigDict:
  """The recipe for one of SIZES."""
  config = default.get_config()
  config.model.update(sizes.albert(size))
  config.model.vocab_size = 30_080  # rows up to a multiple of 128, for the mesh to divide
  config.model.remat = "minimal"
  config.model.heads = (
    {"name": "sop", "num_classes": 2, "labels": ("in order", "swapped"), "reads": "first", "dropout_rate": 0.0},
  )
  config.data.mixture = "wikipedia_ngram_masked_lm_sop"
  config.data.objective = "ngram_masked_lm_sop"  # of files of one's own
  config.data.task_modules = ("t2t.tasks.wikipedia",)
  config.data.inputs_length = 512
  config.data.extra_ids = 0
  config.train.steps = 125_000
  config.train.batch_size = 4_096
  config.train.loss = "tokens_and_heads"
  config.train.z_loss = 0.0
  config.optimizer.name = "lamb"
  config.optimizer.learning_rate = 1.76e-3
  config.optimizer.schedule = "linear"
  config.optimizer.warmup_steps = 3_125
  config.optimizer.scale_by_parameter = False
  config.optimizer.weight_decay = 0.01
  config.optimizer.epsilon = 1e-6
  config.optimizer.clip_norm = 1.0
  return config
