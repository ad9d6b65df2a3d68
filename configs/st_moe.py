"""ST-MoE (Zoph et al. 2022): T5 1.1 with experts in every fourth layer, of which two compute each token.

  t2t train --config st_moe_32b --workdir gs://BUCKET/st_moe_32b --config.mesh.expert=64

Sizes: large 4.0 B, 32b 265 B parameters. Published are 4.1 B and 269 B: a layer with experts has a second, dense MLP
after them, which is left out here. Left out are also the multiplicative bias of experts, small initial weights, and
the random choice of whether a second expert is used. Routers have a z-loss, and slots for 1.25 times the mean number
of tokens; with twice the mean in evaluation, as published: --config.model.moe_capacity_factor=2.0. The pre-training is
that of switch_large_128. Source of the shapes: flaxformer's st_moe_32b.gin and tokens_choose_base.gin.
"""

from ml_collections import ConfigDict

from t2t.configs import switch
from t2t.models import presets

SIZES = presets.ST_MOE_SIZES


def get_config(size: str = "large") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = switch.get_config("large_128")
  config.model.update(presets.st_moe(size))
  config.model.remat = {"large": "minimal", "32b": "full"}[size]
  return config
