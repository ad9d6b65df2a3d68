"""UL2 (Tay et al. 2023): an encoder-decoder trained on a mixture of seven denoisers, each with a mode token.

  t2t train --config ul2_base --workdir gs://BUCKET/ul2_base

T5 1.1's shapes with SwiGLU, and 20b (19.6 B parameters) as published. 512 tokens on both sides.
"""

from ml_collections import ConfigDict

from t2t.configs import t5_1_1
from t2t.models import presets

SIZES = presets.UL2_SIZES


def get_config(size: str = "base") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = t5_1_1.get_config("xxl" if size == "20b" else size)
  config.model.update(presets.ul2(size))
  config.data.mixture = "c4_ul2"
  config.data.objective = "ul2"  # for the user's own files
  config.data.inputs_length = 512
  config.data.targets_length = 512
  return config
