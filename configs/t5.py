"""Original T5 (Raffel et al. 2020): ReLU, logits from the embedding.

  t2t train --config t5_base --workdir gs://BUCKET/t5_base

Sizes: small 60.5 M, base 223 M, large 738 M, xl (3B) 2.85 B, xxl (11B) 11.3 B parameters. 2**19 steps of 128 x 512 is
the paper's baseline, 34 B tokens, with a dropout of 0.1 (section 3.1.1); T5 1.1 has none.
"""

from ml_collections import ConfigDict

from t2t.configs import default
from t2t.models import presets

SIZES = presets.T5_SIZES


def get_config(size: str = "small") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = default.get_config()
  config.model.update(presets.t5_1_0(size))
  config.model.dropout_rate = 0.1
  config.data.mixture = "c4_span_corruption"
  config.data.task_modules = ("t2t.tasks.c4",)
  config.train.steps = 524_288
  config.train.batch_size = 128
  config.model.remat = {"small": "none", "base": "minimal", "large": "minimal", "xl": "full", "xxl": "full"}[size]
  return config
