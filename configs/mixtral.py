"""Mixtral (Jiang et al. 2024): a Llama with eight experts in each layer, of which two compute each token.

  t2t train --config mixtral_8x7b --workdir gs://BUCKET/mixtral_8x7b \
    --config.mesh.data=2 --config.mesh.fsdp=64 --config.train.batch_size=512

Sizes: 8x7b 46.7 B parameters, 12.9 B active, 8x22b 140.6 B, 39.2 B active. The published models were trained on 32,768
tokens per sequence; --config.data.targets_length=32768 sets this length. The data and the schedule of the pre-training
are not published: these are Llama 2's, with 4,096 tokens per sequence.
"""

from ml_collections import ConfigDict

from t2t.configs import llama2
from t2t.models import presets

SIZES = presets.MIXTRAL_SIZES


def get_config(size: str = "8x7b") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = llama2.get_config()
  config.model.update(presets.mixtral(size))
  config.model.remat = "full"
  return config
