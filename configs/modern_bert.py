"""ModernBERT (Warner et al. 2024): a BERT with rotary positions, GeGLU, and local attention in two of three layers.

  t2t train --config modern_bert_base --workdir gs://BUCKET/modern_bert \
    --config.data.vocabulary=gs://BUCKET/tokenizer.json

Sizes: base 149 M, large 395 M parameters. 30 % of the tokens are masked. Three phases (section 2.2.2): 1.7 T tokens in
sequences of 1,024 at a constant rate; 250 B in sequences of 8,192 at a lower rate, with another rotary base in the
global layers; 50 B with a 1 - sqrt decay, for which the authors had better text ("data.mixture" of the stage). Left
out: smaller batches for the first 50 B tokens (large 10 B), and large's lower rate of 5e-5 after 900 B tokens of the
first phase. Published: GLUE 88.4 (base) and 90.4 (large).
"""

from ml_collections import ConfigDict

from t2t.configs import default
from t2t.models import presets

SIZES = presets.MODERN_BERT_SIZES
# Of StableAdamW in Composer, which multiplies it with the rate relative to the peak of the phase. t2t multiplies with
# the rate, so that the later phases decay less here.
_DECAY = 1e-5


def get_config(size: str = "base") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = default.get_config()
  config.model.update(presets.modern_bert(size))
  config.model.remat = "minimal"
  config.data.mixture = "c4_masked_lm_30"
  config.data.objective = "masked_lm"  # for the user's own files
  config.data.noise_density = 0.3
  config.data.task_modules = ("t2t.tasks.c4",)
  config.data.inputs_length = 8_192
  config.data.extra_ids = 0
  rows = {"base": 4_608, "large": 4_928}[size]
  late = {"train.batch_size": rows // 8, "optimizer.warmup_steps": 0}
  peak = {"base": 8e-4, "large": 5e-4}[size]
  late["optimizer.learning_rate"] = {"base": 3e-4, "large": 5e-5}[size]
  decay = {"optimizer.schedule": "wsd", "optimizer.decay_fraction": 1.0, "optimizer.decay_shape": "1-sqrt"}
  tokens = rows * 1_024  # per batch, in each phase
  config.stages = (
    {"name": "short", "data.inputs_length": 1_024, "model.rotary_base": 10_000.0},
    {"name": "long", "steps": round(250e9 / tokens), **late},
    {"name": "decay", "steps": round(50e9 / tokens), **late, **decay, "optimizer.end_lr_fraction": 0.0},
  )
  config.train.steps = round(2e12 / tokens)
  config.train.batch_size = rows
  config.train.z_loss = 0.0
  config.optimizer.name = "stable_adamw"
  config.optimizer.learning_rate = peak
  config.optimizer.schedule = "constant"
  config.optimizer.warmup_steps = round({"base": 3e9, "large": 2e9}[size] / tokens)
  config.optimizer.scale_by_parameter = False
  config.optimizer.weight_decay = _DECAY / peak
  config.optimizer.b2 = 0.98
  config.optimizer.epsilon = 1e-6
  return config
