"""ModernBERT (Warner et al. 2024): a BERT with rotary positions, GeGLU and a window in two of three layers.

  t2t train --config modern_bert_base --workdir gs://BUCKET/modern_bert \
    --config.data.vocabulary=gs://BUCKET/tokenizer.json

Sizes: base 149 M, large 395 M parameters.  The first phase, 1,024 tokens a sequence; 30 % of the tokens are masked.
"""

from ml_collections import ConfigDict

from t2t.configs import default
from t2t.models import sizes

SIZES = sizes.MODERN_BERT_SIZES


def get_config(size: str = "base") -> ConfigDict:
  """The recipe for one of SIZES."""
  config = default.get_config()
  config.model.update(sizes.modern_bert(size))
  config.model.remat = "minimal"
  config.data.mixture = "c4_masked_lm_30"
  config.data.objective = "masked_lm"  # of files of one's own
  config.data.noise_density = 0.3
  config.data.task_modules = ("t2t.tasks.c4",)
  config.data.inputs_length = 1_024
  config.data.extra_ids = 0
  config.train.steps = 364_000
  config.train.batch_size = {"base": 4_608, "large": 4_928}[size]
  config.train.z_loss = 0.0
  config.optimizer.name = "adamw"
  config.optimizer.learning_rate = {"base": 8e-4, "large": 5e-4}[size]
  config.optimizer.schedule = "inverse_sqrt"
  config.optimizer.warmup_steps = 1_000
  config.optimizer.scale_by_parameter = False
  config.optimizer.weight_decay = 1e-5
  config.optimizer.b2 = 0.98
  config.optimizer.epsilon = 1e-6
  return config
