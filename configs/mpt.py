"""MPT (MosaicML 2023): a causal language model with ALiBi positions, a bias that falls with the distance.

  t2t train --config mpt_7b --workdir gs://BUCKET/mpt_7b --config.data.vocabulary=gs://BUCKET/gpt_neox

Sizes: 7b 6.65 B, 30b 30.0 B parameters. 2,048 tokens per sequence, four million per step and one trillion in all, as
published. The text is C4, and the optimizer AdamW with GPT-3's rates; MosaicML used Lion.
"""

from ml_collections import ConfigDict

from t2t.configs import default
from t2t.models import presets

SIZES = presets.MPT_SIZES


def get_config(size: str = "7b") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = default.get_config()
  config.model.update(presets.mpt(size))
  config.model.remat = "full"
  config.data.mixture = "c4_causal_lm"
  config.data.objective = "causal_lm"  # for the user's own files
  config.data.task_modules = ("t2t.tasks.c4",)
  config.data.targets_length = 2_048
  config.data.extra_ids = 0
  config.train.steps = 238_000
  config.train.batch_size = 2_048
  config.train.z_loss = 0.0
  config.optimizer.name = "adamw"
  config.optimizer.learning_rate = {"7b": 1.2e-4, "30b": 1e-4}[size]
  config.optimizer.schedule = "cosine"
  config.optimizer.warmup_steps = 2_000
  config.optimizer.end_lr_fraction = 0.1
  config.optimizer.scale_by_parameter = False
  config.optimizer.weight_decay = 0.1
  config.optimizer.b2 = 0.95
  config.optimizer.clip_norm = 1.0
  return config
