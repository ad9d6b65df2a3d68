"""ByT5 (Xue et al. 2022): bytes instead of subwords, a deep encoder, a shallow decoder, long spans.

  t2t train --config byt5_small --workdir gs://BUCKET/byt5_small --config.data.files='gs://BUCKET/corpus/*.jsonl.gz'

Sizes: small 300 M, base 582 M, large 1.23 B, xl 3.74 B, xxl 12.9 B parameters; 2**20 steps of 1,024 x 1,024/189 bytes.
No vocabulary file is needed.
"""

from ml_collections import ConfigDict

from t2t.configs import default
from t2t.models import presets

SIZES = presets.T5_SIZES


def get_config(size: str = "small") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = default.get_config()
  config.model.update(presets.byt5(size))
  config.model.remat = {"small": "minimal", "base": "minimal", "large": "full", "xl": "full", "xxl": "full"}[size]
  config.data.vocabulary = "bytes"
  config.data.extra_ids = 0  # as published, sentinels use the last byte ids, from 258 down
  config.data.mean_noise_span_length = 20.0  # bytes
  config.data.inputs_length = 1_024
  config.data.targets_length = 189
  config.train.steps = 1_048_576
  config.train.batch_size = 1_024
  return config
