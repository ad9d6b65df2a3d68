"""UniLM (Dong et al. 2019): one encoder that reads masked text in both directions, in one, or as source and target.

  t2t train --config unilm_large --workdir gs://BUCKET/unilm_large --config.data.vocabulary=gs://BUCKET/vocab.txt

The objective unilm draws the direction of each example: both, source to target, left to right or right to left. Sizes:
base 108 M, large 334 M parameters; large is published, with BERT large's cased vocabulary and weights:

  --config.init.checkpoint=hf://google-bert/bert-large-cased --config.init.resize=^embed/segments

770,000 steps of 330 sequences of 512 tokens, as published, on English Wikipedia. The next-sentence task of
bidirectional examples is left out (Liu et al. 2019, section 4.2), and text is cut at any token.
"""

from ml_collections import ConfigDict

from t2t.configs import default
from t2t.models import presets

SIZES = presets.BERT_SIZES


def get_config(size: str = "base") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = default.get_config()
  config.model.update(presets.unilm(size))
  config.model.vocab_size = 29_056  # rounded up to a multiple of 128 for the mesh
  config.model.remat = {"base": "none", "large": "minimal"}[size]
  config.data.mixture = "wikipedia_unilm"
  config.data.objective = "unilm"  # for the user's own files
  config.data.task_modules = ("t2t.tasks.wikipedia",)
  config.data.inputs_length = 512
  config.data.extra_ids = 0
  config.train.steps = 770_000
  config.train.batch_size = 330
  config.train.z_loss = 0.0
  config.optimizer.name = "adamw"
  config.optimizer.learning_rate = 3e-5
  config.optimizer.schedule = "linear"
  config.optimizer.warmup_steps = 40_000
  config.optimizer.scale_by_parameter = False
  config.optimizer.weight_decay = 0.01
  config.optimizer.epsilon = 1e-6
  config.optimizer.clip_norm = 1.0
  return config
