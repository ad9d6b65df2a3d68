"""T5 1.1 with current components: rotary positions, grouped queries, SwiGLU, normalized queries and keys; span
corruption.

  t2t train --config modern_t5_base --workdir gs://BUCKET/modern_t5_base

Sizes: small 71 M, base 216 M, large 670 M, xl 2.40 B, xxl 9.3 B parameters. AdamW with a cosine schedule, which gave
nanoT5 a lower loss than Adafactor.
"""

from ml_collections import ConfigDict

from t2t.configs import t5_1_1
from t2t.models import presets

SIZES = presets.T5_SIZES


def get_config(size: str = "base") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = t5_1_1.get_config(size)
  config.model.update(presets.modern_t5(size))
  config.optimizer.name = "adamw"
  config.optimizer.learning_rate = {"small": 2e-3, "base": 1e-3, "large": 6e-4, "xl": 3e-4, "xxl": 2e-4}[size]
  config.optimizer.schedule = "cosine"
  config.optimizer.warmup_steps = 2_000
  config.optimizer.end_lr_fraction = 0.1
  config.optimizer.scale_by_parameter = False
  config.optimizer.weight_decay = 0.1
  config.optimizer.b2 = 0.95
  config.optimizer.clip_norm = 1.0
  return config
