"""CoVe (McCann et al. 2017): the encoder of an attentional LSTM translation model gives vectors of words in context.

  t2t train --config cove --workdir runs/cove --config.data.mixture='' \\
    --config.data.files=en-de.tsv --config.data.vocabulary=VOCABULARY
  t2t train --config finetune --config.init.checkpoint=runs/cove --workdir runs/classifier \\
    --config.train.loss=heads --config.train.freeze='^(?!heads/)' --config.data.files=reviews.tsv \\
    --config.data.labels=auto

Two layers of 300 units in each direction, words of 300 features, dropout and the learning rate are as published. There
the rate is halved in each epoch after the held-out perplexity has risen, and word vectors are GloVe's, fixed; here they
are trained. A head with layers="mix" reads the word vectors and both layers. Published, with GloVe and n-grams: SST-2
accuracy 90.3, IMDb 91.8, SQuAD F1 79.9.
"""

from ml_collections import ConfigDict

from t2t.configs import default
from t2t.contrib.recurrent import presets


def get_config() -> ConfigDict:
  """Returns the config."""
  config = default.get_config()
  config.model.update(presets.cove())
  config.data.mixture = "wmt_en_de"
  config.data.objective = "translation"  # for the user's own files
  config.data.task_modules = ("t2t.tasks.translation",)
  config.data.vocabulary = ""
  config.data.extra_ids = 0
  config.data.inputs_length = config.data.targets_length = 64
  config.train.steps = 500_000
  config.train.batch_size = 64
  config.train.z_loss = 0.0
  config.optimizer.name = "sgd"
  config.optimizer.learning_rate = 1.0
  config.optimizer.schedule = "constant"
  config.optimizer.scale_by_parameter = False
  config.optimizer.clip_norm = 5.0
  return config
