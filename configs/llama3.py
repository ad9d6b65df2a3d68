"""Llama 3, 3.1 and 3.2 (Llama team 2024): Llama 2 with grouped queries and a vocabulary of 128,256.

  t2t train --config llama3_8b --workdir gs://BUCKET/llama3_8b --config.data.vocabulary=gs://BUCKET/tokenizer.json

Sizes: 8b 8.03 B, 70b 70.6 B parameters. Sizes of Llama 3.1 are 1_8b, 1_70b and 1_405b (405.9 B), of Llama 3.2 2_1b
(1.24 B) and 2_3b (3.21 B): their rotary positions are scaled to 131,072 tokens. 8,192 tokens per sequence, which is the
length of most of the pre-training of every version. The learning rates are published (table 3): 3e-4 for 8b, 1.5e-4
for 70b, 8e-5 for 405b, which falls to a hundredth in 1.2 million steps (section 3.4.1). Sizes of Llama 3.2 have 8b's.
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
  config.train.steps = 1_200_000
  config.optimizer.learning_rate = {"70b": 1.5e-4, "1_70b": 1.5e-4, "1_405b": 8e-5}.get(size, 3e-4)
  config.optimizer.warmup_steps = 8_000
  config.optimizer.end_lr_fraction = 0.01
  return config
