"""Megatron-LM's GPT-2 (Shoeybi et al. 2020): a GPT-2 for 8 GPUs that each hold a part of every layer.

  t2t train --config megatron_gpt_8_3b --workdir gs://BUCKET/megatron --config.data.vocabulary=gs://BUCKET/gpt2 \
    --config.mesh.tensor=8

Sizes: 355m 356 M, 2_5b 2.49 B, 8_3b 8.32 B parameters. 300,000 steps of 512 sequences of 1,024 tokens, rates, decay and
dropout as published, here on C4. Published, perplexity of WikiText-103 and accuracy on LAMBADA: 355m 19.31 and 45.18,
2_5b 12.76 and 61.73, 8_3b 10.81 and 66.51. Matrices at the end of a branch have the same initial scale as all others;
Megatron's are smaller by sqrt(2 layers).
"""

from ml_collections import ConfigDict

from t2t.configs import gpt2
from t2t.models import presets

SIZES = presets.MEGATRON_GPT_SIZES


def get_config(size: str = "8_3b") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = gpt2.get_config("small")
  config.model.update(presets.megatron_gpt(size))
  config.model.remat = {"355m": "minimal"}.get(size, "full")
  config.train.steps = 300_000
  config.optimizer.learning_rate = 1.5e-4
  config.optimizer.warmup_steps = 3_000
  config.optimizer.end_lr_fraction = 1 / 15  # 1e-5
  config.optimizer.weight_decay = 0.01
  config.optimizer.b2 = 0.999
  return config
