"""LM adaptation of T5 (Lester et al. 2021): 100,000 steps of prefix LM, after which the model continues its input.

  t2t train --config t5_lm_adapt --config.init.checkpoint=gs://BUCKET/t5_1_1_xl --workdir gs://BUCKET/t5_1_1_xl_lm

A model trained with span corruption generates sentinels. The adapted model is the base of prompt tuning
(config.prompt). Model and vocabulary come from the checkpoint. Batches and the constant rate are those of the released
checkpoints "lm100k". Half of each text is the input and half the target, at most 512 tokens each. In one run with the
pre-training it is a last stage: {"steps": 100_000, "data.mixture": "c4_prefix_lm", "data.targets_length": 512,
"optimizer.schedule": "constant", "optimizer.learning_rate": 1e-3}.
"""

from ml_collections import ConfigDict

from t2t.configs import t5_1_1


def get_config() -> ConfigDict:
  """Returns the config."""
  config = t5_1_1.get_config("small")
  config.init.use_model_config = True
  config.data.mixture = "c4_prefix_lm"
  config.data.objective = "prefix_lm"  # for the user's own files
  config.data.targets_length = 512
  config.train.steps = 100_000
  config.train.batch_size = 128
  config.optimizer.schedule = "constant"
  config.optimizer.learning_rate = 1e-3
  config.optimizer.warmup_steps = 0
  return config
