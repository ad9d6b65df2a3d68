"""Switch Transformer (Fedus et al. 2022): T5 with many experts in every other layer, of which one computes each token.

  t2t train --config switch_base_128 --workdir gs://BUCKET/switch_base_128 --config.mesh.expert=16

Sizes: base_8 to base_256 0.6 to 14.7 B parameters, large_128 26.3 B, xxl_128 395 B, c_2048 1.57 T (experts in every
layer). 550,000 steps of 2**20 tokens of C4, as published (section 4.1). Tokens beyond 1.25 times the mean of an expert
are dropped.
"""

from ml_collections import ConfigDict

from t2t.configs import t5_1_1
from t2t.models import presets

SIZES = presets.SWITCH_SIZES


def get_config(size: str = "base_128") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = t5_1_1.get_config("base")
  config.model.update(presets.switch(size))
  config.model.remat = "minimal" if size.startswith(("base", "large")) else "full"
  config.train.steps = 550_000
  config.train.batch_size = 2_048
  return config
