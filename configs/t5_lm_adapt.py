"""LM adaptation of T5 (Lester et al. 2021): 100,000 steps of prefix LM, after which it goes on with what it is given.

  t2t train --config t5_lm_adapt --config.init.checkpoint=gs://BUCKET/t5_1_1_xl --workdir gs://BUCKET/t5_1_1_xl_lm

A model that was trained by span corruption writes sentinels; adapted, it is what prompts are tuned for (config.prompt).
The model and its vocabulary are the checkpoint's.  Batches and the rate, which stays, are those of the released
checkpoints "lm100k"; half of each text is given and the other half asked, 512 tokens each at most.
In one run with the pre-training it is a last stage: {"steps": 100_000, "data.mixture": "c4_prefix_lm",
"data.targets_length": 512, "optimizer.schedule": "constant", "optimizer.learning_rate": 1e-3}.
"""

from ml_collections import ConfigDict

from t2t.configs import t5_1_1


def get_config() -> ConfigDict:
  """The recipe."""
  config = t5_1_1.get_config("small")
  config.init.use_model_config = True
  config.data.mixture = "c4_prefix_lm"
  config.data.objective = "prefix_lm"  # of files of one's own
  config.data.targets_length = 512
  config.train.steps = 100_000
  config.train.batch_size = 128
  config.optimizer.schedule = "constant"
  config.optimizer.learning_rate = 1e-3
  config.optimizer.warmup_steps = 0
  return config
