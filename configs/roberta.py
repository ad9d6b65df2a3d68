"""RoBERTa (Liu et al. 2019): BERT's objective with byte-level BPE, full-length text and large batches.

  t2t train --config roberta_base --workdir gs://BUCKET/roberta_base --config.data.vocabulary=gs://BUCKET/roberta

The vocabulary is the folder with vocab.json and merges.txt. Sizes: base 125 M, large 355 M parameters. 500,000 steps of
8,192 sequences of 512 tokens, as published, here on C4.
"""

from ml_collections import ConfigDict

from t2t.configs import default
from t2t.models import presets

SIZES = presets.BERT_SIZES


def get_config(size: str = "base") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = default.get_config()
  config.model.update(presets.roberta(size))
  config.model.vocab_size = 50_304  # rounded up to a multiple of 128 for the mesh
  config.model.remat = {"base": "minimal", "large": "full"}[size]
  config.data.mixture = "c4_masked_lm"
  config.data.objective = "masked_lm"  # for the user's own files
  config.data.task_modules = ("t2t.tasks.c4",)
  config.data.inputs_length = 512
  config.data.extra_ids = 0
  config.train.steps = 500_000
  config.train.batch_size = 8_192
  config.train.z_loss = 0.0
  config.optimizer.name = "adamw"
  config.optimizer.learning_rate = {"base": 6e-4, "large": 4e-4}[size]
  config.optimizer.schedule = "linear"
  config.optimizer.warmup_steps = {"base": 24_000, "large": 30_000}[size]
  config.optimizer.scale_by_parameter = False
  config.optimizer.weight_decay = 0.01
  config.optimizer.b2 = 0.98
  config.optimizer.epsilon = 1e-6
  return config
