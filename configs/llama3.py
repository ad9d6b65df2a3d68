"""Llama 3 (Llama team 2024): Llama 2 with grouped queries, a vocabulary of 128,256 and 8,192 tokens per sequence.

  t2t train --config llama3_8b --workdir gs://BUCKET/llama3_8b --config.data.vocabulary=gs://BUCKET/tokenizer.json

8.03 B parameters.
"""

from ml_collections import ConfigDict

from t2t.configs import llama2
from t2t.models import presets

SIZES = presets.LLAMA3_SIZES


def get_config(size: str = "8b") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = llama2.get_config()
  config.model.update(presets.llama3(size))
  config.data.vocabulary = ""
  config.data.targets_length = 8_192
  config.optimizer.warmup_steps = 8_000
  return config
