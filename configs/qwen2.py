"""Qwen 2 and 2.5 (Yang et al. 2024; Qwen team 2025): Llama 3's parts, with biases of queries, keys and values.

  t2t train --config qwen2_7b --workdir gs://BUCKET/qwen2_7b --config.data.vocabulary=gs://BUCKET/tokenizer.json

Sizes: 0_5b 494 M, 1_5b 1.54 B, 3b 3.09 B, 7b 7.62 B, 14b 14.8 B, 32b 32.8 B, 72b 72.7 B parameters; 3b, 14b and 32b
are of Qwen 2.5. The first three sizes tie the logits. 4,096 tokens per sequence, as published; batch and learning rate
are Llama 3's, because the papers give none. For 131,072 tokens the authors use YaRN: --config.model.rotary_scaling=yarn
--config.model.rotary_scaling_factor=4.0 --config.model.rotary_scaling_original_length=32768.
"""

from ml_collections import ConfigDict

from t2t.configs import llama3
from t2t.models import presets

SIZES = presets.QWEN2_SIZES


def get_config(size: str = "7b") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = llama3.get_config()
  config.model.update(presets.qwen2(size))
  config.data.targets_length = 4_096
  return config
