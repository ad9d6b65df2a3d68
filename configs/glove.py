"""GloVe (Pennington et al. 2014): weighted least squares on co-occurrence counts, 300 dimensions.

  t2t vocab train --type word --input 'text/*.txt' --size 400000 --output words
  t2t vocab pairs --vocabulary words --input 'text/*.txt' --output counts
  t2t train --config glove --workdir runs/glove --config.data.files='counts/pairs-*.txt' \
    --config.data.vocabulary=words

As published: symmetric windows of 10 words with weight 1 / distance, x_max 100, alpha 0.75, AdaGrad at 0.05, and sums
of both tables as the vectors. GloVe updates after each pair; a step here has 64 rows of 128 pairs, and the sums of
squares begin at 0. Published: 50 to 100 passes over the counts, so that `train.steps` depends on their number.
"""

from ml_collections import ConfigDict

from t2t.configs import default, word2vec


def get_config() -> ConfigDict:
  """Returns the config."""
  config = default.get_config()
  config.model.update(word2vec.fields() | {"vocab_size": 400_128})
  config.data.objective = "glove"
  config.data.extra_ids = 0
  config.data.inputs_length = config.data.targets_length = 128
  config.train.loss = "glove"
  with config.unlocked():
    config.glove = ConfigDict({"x_max": 100.0, "alpha": 0.75})
  config.train.steps = 1_000_000
  config.train.batch_size = 64
  config.train.z_loss = 0.0
  config.optimizer.name = "adagrad"
  config.optimizer.learning_rate = 0.05
  config.optimizer.scale_by_parameter = False
  config.optimizer.schedule = "constant"
  config.optimizer.warmup_ratio = 0.0
  config.optimizer.warmup_steps = 0
  config.optimizer.weight_decay = 0.0
  return config
