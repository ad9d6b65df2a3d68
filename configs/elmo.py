"""ELMo (Peters et al. 2018): two language models, left to right and right to left, whose layers a head mixes.

  t2t train --config elmo --workdir runs/elmo --config.data.mixture='' --config.data.files=text.txt \\
    --config.data.vocabulary=VOCABULARY

Layers and character CNN have the released sizes: 4,096 units and 512 features in each direction, 93.6 M parameters
without the logits. Characters are the bytes of a token's text. The release reads words, for which `t2t vocab train
--type word` makes a vocabulary. Published: ten epochs of the 1B Word Benchmark, mean perplexity 39.7 of both directions
with the whole vocabulary.
"""

from ml_collections import ConfigDict

from t2t.configs import default
from t2t.contrib.recurrent import presets


def get_config() -> ConfigDict:
  """Returns the config."""
  config = default.get_config()
  config.model.update(presets.elmo())
  config.data.mixture = "wikipedia_masked_lm"
  config.data.objective = "masked_lm"  # the loss reads the targets, which are whole texts
  config.data.task_modules = ("t2t.tasks.wikipedia",)
  config.data.inputs_length = config.data.targets_length = 128
  config.train.loss = "bilm"
  config.train.steps = 1_000_000
  config.train.batch_size = 128
  config.train.z_loss = 0.0
  config.optimizer.name = "adamw"
  config.optimizer.learning_rate = 5e-4
  config.optimizer.schedule = "cosine"
  config.optimizer.warmup_steps = 1_000
  config.optimizer.scale_by_parameter = False
  config.optimizer.clip_norm = 10.0
  return config
