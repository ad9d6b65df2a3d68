"""T5 1.1 (Shazeer 2020): gated GELU, untied logits, pre-trained on C4 alone, without dropout.

  t2t train --config t5_1_1_base --workdir gs://BUCKET/t5_1_1_base

Sizes: small 77 M, base 248 M, large 783 M, xl 2.85 B, xxl 11.1 B parameters. 65,536 steps of 128 x 512/114 is the
schedule of the published held-out loss of base: 1.942 nats per target token on C4. The released checkpoints saw 2**20
steps of 2,048 sequences.

Your own text: --config.data.files=GLOB --config.data.vocabulary=MODEL. Two steps on a laptop: add
--config.train.steps=2 --config.train.batch_size=8.
"""

from ml_collections import ConfigDict

from t2t.configs import default
from t2t.models import presets

SIZES = presets.T5_SIZES


def get_config(size: str = "small") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = default.get_config()
  config.model.update(presets.t5_1_1(size))
  config.data.mixture = "c4_span_corruption"
  config.data.task_modules = ("t2t.tasks.c4",)
  config.train.steps = 65_536
  config.train.batch_size = 128
  # Activations of the larger sizes do not fit beside their parameters: only matmuls are kept, or nothing.
  config.model.remat = {"small": "none", "base": "minimal", "large": "minimal", "xl": "full", "xxl": "full"}[size]
  return config
