"""GPT-2 (Radford et al. 2019): a causal language model with 1,024 tokens.

  t2t train --config gpt2_small --workdir gs://BUCKET/gpt2 --config.data.vocabulary=gs://BUCKET/gpt2

The vocabulary is the folder with encoder.json and vocab.bpe. Sizes: small 124 M, medium 355 M, large 774 M, xl 1.56 B
parameters. The text is C4, and the schedule that of current reproductions: 600,000 steps of half a million tokens.
"""

from ml_collections import ConfigDict

from t2t.configs import default
from t2t.models import presets

SIZES = presets.GPT2_SIZES


def get_config(size: str = "small") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = default.get_config()
  config.model.update(presets.gpt2(size))
  config.model.vocab_size = 50_304  # rounded up to a multiple of 128 for the mesh
  config.model.remat = {"small": "none", "medium": "minimal", "large": "minimal", "xl": "full"}[size]
  config.data.mixture = "c4_causal_lm"
  config.data.objective = "causal_lm"  # for the user's own files
  config.data.task_modules = ("t2t.tasks.c4",)
  config.data.targets_length = 1_024
  config.data.extra_ids = 0
  config.train.steps = 600_000
  config.train.batch_size = 512
  config.train.z_loss = 0.0
  config.optimizer.name = "adamw"
  config.optimizer.learning_rate = {"small": 6e-4, "medium": 3e-4, "large": 2.5e-4, "xl": 2e-4}[size]
  config.optimizer.schedule = "cosine"
  config.optimizer.warmup_steps = 2_000
  config.optimizer.end_lr_fraction = 0.1
  config.optimizer.scale_by_parameter = False
  config.optimizer.weight_decay = 0.1
  config.optimizer.b2 = 0.95
  config.optimizer.clip_norm = 1.0
  return config
