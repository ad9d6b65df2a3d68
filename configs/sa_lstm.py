"""SA-LSTM (Dai & Le 2015): an LSTM reads a text, and writes it again; its weights initialize a classifier.

  t2t train --config sa_lstm --workdir runs/sa_lstm --config.data.mixture='' \\
    --config.data.files='reviews/*.txt' --config.data.vocabulary=VOCABULARY
  t2t train --config finetune --config.init.checkpoint=runs/sa_lstm --workdir runs/classifier \\
    --config.train.loss=heads --config.data.files=reviews.tsv --config.data.labels=auto

1,024 units, words of 512 features, and texts of at most 400 tokens are as published; the learning rate is not
published. LM-LSTM is the same model with --config.data.objective=causal_lm (and --config.data.mixture='' or
wikipedia_causal_lm). Published, error in percent on IMDb: 7.24 with the auto-encoder, 7.64 with the language model,
13.50 without pre-training.
"""

from ml_collections import ConfigDict

from t2t.configs import default
from t2t.contrib.recurrent import presets


def get_config() -> ConfigDict:
  """Returns the config."""
  config = default.get_config()
  config.model.update(presets.sa_lstm())
  config.data.mixture = "wikipedia_sequence_autoencoder"
  config.data.objective = "sequence_autoencoder"  # for the user's own files
  config.data.task_modules = ("t2t.tasks.wikipedia",)
  config.data.inputs_length = config.data.targets_length = 400
  config.train.steps = 100_000
  config.train.batch_size = 128
  config.train.z_loss = 0.0
  config.optimizer.name = "adamw"
  config.optimizer.learning_rate = 5e-4
  config.optimizer.schedule = "constant"
  config.optimizer.scale_by_parameter = False
  config.optimizer.clip_norm = 1.0
  return config
