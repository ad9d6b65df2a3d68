"""Transformer-XL (Dai et al. 2019): a language model with a memory of the rows before.

  t2t train --config transformer_xl_enwik8_base --workdir gs://BUCKET/transformer_xl --config.data.mixture='' \
    --config.data.files=gs://BUCKET/enwik8.txt --config.data.vocabulary=bytes

Sizes of the released scripts: wt103_base and wt103_large for words, enwik8_base and enwik8_large for bytes. Published:
WikiText-103 perplexity 24.0 and 18.3, enwik8 1.06 and 0.99 bits per character, measured with a longer memory than in
training. Evaluation carries the memory of training over consecutive rows; `t2t eval --config.eval.method=loss` also
takes a longer one. The authors' softmax over words is adaptive: rare words are in clusters, in wt103_large with smaller
embeddings. t2t has one softmax over all words, so wt103_large has 520 M parameters instead of 257 M. The others have as
many as published: 151 M, 41 M and 277 M.
"""

from ml_collections import ConfigDict

from t2t.configs import default
from t2t.models import presets

SIZES = presets.TRANSFORMER_XL_SIZES

# Length, batch, steps and warm-up steps of the released scripts.
_SCRIPTS = {
  "wt103_base": (150, 60, 200_000, 0),
  "wt103_large": (384, 128, 4_000_000, 16_000),
  "enwik8_base": (512, 22, 400_000, 0),
  "enwik8_large": (768, 64, 400_000, 4_000),
}


def get_config(size: str = "enwik8_base") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = default.get_config()
  config.model.update(presets.transformer_xl(size))
  length, batch_size, steps, warmup_steps = _SCRIPTS[size]
  config.model.remat = "minimal" if size.endswith("large") else "none"
  config.data.mixture = "wikipedia_causal_lm"
  config.data.objective = "causal_lm"  # for the user's own files
  config.data.task_modules = ("t2t.tasks.wikipedia",)
  config.data.continuous_rows = True
  config.data.targets_length = length
  config.data.extra_ids = 0
  config.train.steps = steps
  config.train.batch_size = batch_size
  config.train.z_loss = 0.0
  config.optimizer.name = "adamw"
  config.optimizer.learning_rate = 2.5e-4
  config.optimizer.schedule = "cosine"
  config.optimizer.warmup_steps = warmup_steps
  config.optimizer.scale_by_parameter = False
  config.optimizer.weight_decay = 0.0
  config.optimizer.clip_norm = 0.25
  return config
