"""Longformer (Beltagy et al. 2020): RoBERTa for 4,096 tokens, in time and memory linear in the length.

  t2t train --config longformer_base --config.init.checkpoint=roberta-base --workdir gs://BUCKET/longformer_base

Each token attends to 256 tokens on each side, and the first token to all. Sizes: base 149 M, large 435 M parameters.
Training continues RoBERTa, as published: its positions are repeated eight times, and global tokens begin with the
projections of all tokens. 65,000 steps of 64 sequences; the authors' long documents are replaced by C4, and their decay
by the third power of the remaining steps by a linear one. For questions set --config.model.global_tokens=question, so
that all tokens of the question are global.
"""

from ml_collections import ConfigDict

from t2t.configs import default
from t2t.models import presets

SIZES = presets.BERT_SIZES
_OWN = "encoder/layers/self_attention"


def get_config(size: str = "base") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = default.get_config()
  config.model.update(presets.longformer(size))
  config.model.global_tokens = "first"
  config.model.vocab_size = 50_304  # rounded up to a multiple of 128 for the mesh
  config.model.remat = {"base": "minimal", "large": "full"}[size]
  config.data.mixture = "c4_masked_lm"
  config.data.objective = "masked_lm"  # for the user's own files
  config.data.task_modules = ("t2t.tasks.c4",)
  config.data.inputs_length = 4_096
  config.data.extra_ids = 0
  config.init.tile = ("embed/positions",)
  config.init.resize = ("^embed/table$", "^head/bias$")
  parts = [f"{kind}{end}" for kind in ("query", "key", "value") for end in ("", "_bias")]
  config.init.rename = (".", *(f"{_OWN}/{part}={_OWN}/global_{part}" for part in parts))
  config.train.steps = 65_000
  config.train.batch_size = 64
  config.train.z_loss = 0.0
  config.optimizer.name = "adamw"
  config.optimizer.learning_rate = 3e-5
  config.optimizer.schedule = "linear"
  config.optimizer.warmup_steps = 500
  config.optimizer.scale_by_parameter = False
  config.optimizer.weight_decay = 0.01
  config.optimizer.b2 = 0.98
  config.optimizer.epsilon = 1e-6
  return config
