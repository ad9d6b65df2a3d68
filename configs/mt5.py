"""mT5 (Xue et al. 2021): T5 1.1 with 250,112 embedding rows, for many languages.

  t2t train --config mt5_base --workdir gs://BUCKET/mt5_base --config.data.vocabulary=gs://BUCKET/mt5.model \
    --config.data.sources.en.files='gs://BUCKET/mc4/en/*.jsonl.gz' \
    --config.data.sources.sw.files='gs://BUCKET/mc4/sw/*.jsonl.gz'

Sizes: small 300 M, base 582 M, large 1.23 B, xl 3.74 B, xxl 12.9 B parameters; 2**20 steps of 1,024 x 1,024/229. Give
your own text and a SentencePiece model: mT5's (250,000 tokens) or one from `t2t vocab train`. Sources are sampled by
their sizes to the power of 0.3. Published, XNLI on average over 15 languages, fine-tuned on English: small 67.5, base
75.4, large 81.1, xl 82.9, xxl 85.0.
"""

from ml_collections import ConfigDict

from t2t.configs import default
from t2t.models import presets

SIZES = presets.T5_SIZES


def get_config(size: str = "small") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = default.get_config()
  config.model.update(presets.mt5(size))
  config.model.remat = {"small": "minimal", "base": "minimal", "large": "full", "xl": "full", "xxl": "full"}[size]
  config.data.alpha = 0.3
  config.data.inputs_length = 1_024
  config.data.targets_length = 229
  config.train.steps = 1_048_576
  config.train.batch_size = 1_024
  return config
