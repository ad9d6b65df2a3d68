"""ALBERT (Lan et al. 2020): a BERT with one shared layer and an embedding of 128 features.

  t2t train --config albert_base --workdir gs://BUCKET/albert_base --config.data.vocabulary=gs://BUCKET/spiece.model

Sizes: base 11.2 M, large 16.8 M, xlarge 54.8 M, xxlarge 206 M parameters, without the pooler, which has the square of
the model's width. 125,000 steps of 4,096 sequences of 512 tokens with LAMB, as published: n-grams of one to three words
are masked, and the model predicts which of two texts comes first. Published, version 2 on MNLI: 84.6, 86.5, 87.9, 90.6,
and on average over five tasks 82.3, 85.7, 87.9, 90.9; version 2 saw more text, for 3 to 10 million steps.
"""

from ml_collections import ConfigDict

from t2t.configs import default
from t2t.models import presets

SIZES = presets.ALBERT_SIZES


def with_order(config: ConfigDict) -> ConfigDict:
  """Adds masked n-grams, and a head that predicts which of two texts comes first."""
  config.data.mixture = "wikipedia_ngram_masked_lm_sop"
  config.data.objective = "ngram_masked_lm_sop"  # for the user's own files
  config.train.loss = "tokens_and_heads"
  config.model.heads = (
    {"name": "sop", "num_classes": 2, "labels": ("in order", "swapped"), "reads": "first", "dropout_rate": 0.0},
  )
  return config


def get_config(size: str = "base") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = default.get_config()
  config.model.update(presets.albert(size))
  config.model.vocab_size = 30_080  # rounded up to a multiple of 128 for the mesh
  config.model.remat = {"base": "minimal", "large": "minimal"}.get(size, "full")
  config.data.task_modules = ("t2t.tasks.wikipedia",)
  config.data.inputs_length = 512
  config.data.extra_ids = 0
  config.train.steps = 125_000
  config.train.batch_size = 4_096
  config.train.z_loss = 0.0
  config.optimizer.name = "lamb"
  config.optimizer.learning_rate = 1.76e-3
  config.optimizer.schedule = "linear"
  config.optimizer.warmup_steps = 3_125
  config.optimizer.scale_by_parameter = False
  config.optimizer.weight_decay = 0.01
  config.optimizer.epsilon = 1e-6
  config.optimizer.clip_norm = 1.0
  return with_order(config)
