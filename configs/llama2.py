"""Llama 2 (Touvron et al. 2023): a causal language model with rotary positions, RMSNorm and SwiGLU.

  t2t train --config llama2_7b --workdir gs://BUCKET/llama2_7b

Sizes: 1b (TinyLlama's shape) 1.10 B, 7b 6.74 B, 13b 13.0 B parameters. 4,096 tokens per sequence, four million per step
and two trillion in all, as published. The text is C4 with T5's vocabulary, which has the same size.
"""

from ml_collections import ConfigDict

from t2t.configs import default
from t2t.models import presets

SIZES = presets.LLAMA2_SIZES


def get_config(size: str = "7b") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = default.get_config()
  config.model.update(presets.llama2(size))
  config.model.remat = "full"
  config.data.mixture = "c4_causal_lm"
  config.data.objective = "causal_lm"  # for the user's own files
  config.data.task_modules = ("t2t.tasks.c4",)
  config.data.vocabulary = "gs://t5-data/vocabs/cc_all.32000/sentencepiece.model"
  config.data.extra_ids = 0
  config.data.targets_length = 4_096
  config.train.steps = 500_000
  config.train.batch_size = 1_024
  config.optimizer.name = "adamw"
  config.optimizer.learning_rate = 3e-4
  config.optimizer.schedule = "cosine"
  config.optimizer.warmup_steps = 2_000
  config.optimizer.end_lr_fraction = 0.1
  config.optimizer.scale_by_parameter = False
  config.optimizer.weight_decay = 0.1
  config.optimizer.b2 = 0.95
  config.optimizer.epsilon = 1e-5
  config.optimizer.clip_norm = 1.0
  return config
