"""A tiny T5 1.1 on English that is already on this machine: the documentation of Python and its packages.

t2t train --config tiny --workdir runs/tiny
"""

from ml_collections import ConfigDict
from t2t.configs import default


def get_config() -> ConfigDict:
  """The recipe."""
  config = default.get_config()
  config.model.update(
    vocab_size=4_224,  # 4,096 pieces and 100 sentinels, up to a multiple of 128
    embed_dim=192,
    num_heads=6,
    head_dim=32,
    mlp_dim=512,
    num_encoder_layers=4,
    num_decoder_layers=4,
    dtype="float32",  # a CPU has no faster type
  )
  config.data.mixture = "docs_span_corruption"
  config.data.task_modules = ("t2t.tasks.docs",)
  config.data.inputs_length = 128
  config.data.targets_length = 34
  config.data.num_streams = 2
  config.train.steps = 600
  config.train.batch_size = 32
  config.optimizer.name = "adamw"
  config.optimizer.learning_rate = 0.02
  config.optimizer.schedule = "cosine"
  config.optimizer.warmup_steps = 50
  config.optimizer.clip_norm = 1.0
  config.eval.every = 200
  config.checkpoint.every = 200
  return config
