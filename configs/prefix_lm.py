"""Prefix language model (Raffel et al. 2020, section 3.2): one stack with bidirectional inputs and generated targets.

  t2t train --config prefix_lm_base --workdir gs://BUCKET/prefix_lm_base

The shapes of T5 1.1 without the encoder: small 52 M, base 134 M, large 374 M, xl 1.29 B, xxl 4.9 B parameters. The
objective is span corruption, which T5's comparison found better than language modelling. For prefix language modelling
give --config.data.mixture=c4_prefix_lm --config.data.inputs_length=512 --config.data.targets_length=512.
"""

from ml_collections import ConfigDict

from t2t.configs import t5_1_1
from t2t.models import presets

SIZES = presets.T5_SIZES


def get_config(size: str = "base") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = t5_1_1.get_config(size)
  config.model.update(presets.prefix_lm(size))
  return config
