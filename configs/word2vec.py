"""word2vec (Mikolov et al. 2013): skip-gram and CBOW with negative sampling, 300 dimensions.

  t2t vocab train --type word --input 'text/*.txt' --size 200000 --output words
  t2t train --config word2vec_skip_gram --workdir runs/word2vec --config.data.files='text/*.txt' \
    --config.data.vocabulary=words --config.data.inputs_length=128

As published: windows of 1 to 5, 5 negatives from the counts to the power 0.75, words of at least 5 occurrences, and
frequent words dropped at random with threshold 1e-5. word2vec.c updates after each pair; here a step has 64 rows of 128
words, and Adam replaces its rate of 0.025, which falls to 0. `embed_dim`, steps and the rate are to be adapted to the
text: an epoch of a billion words after subsampling is about 60,000 steps.
"""

from typing import Any

from ml_collections import ConfigDict

from t2t.configs import default

SIZES = ("skip_gram", "cbow")


def fields() -> dict[str, Any]:
  """Returns the fields of an encoder without layers."""
  no_layers = dict(num_heads=1, head_dim=1, mlp_dim=1, num_encoder_layers=1, num_decoder_layers=0, dropout_rate=0.0)
  return no_layers | dict(
    architecture="encoder_only",
    block="none",
    embed_dim=300,
    positions="none",
    post_norm=True,  # no norm after the layers
    vocabulary_head=False,
    dtype="float32",
    init_scale=0.001,  # word2vec.c: uniform within half of 1 / embed_dim
  )


def with_negatives(config: ConfigDict, size: str) -> ConfigDict:
  """Sets the objective of a size, its loss, and plain Adam."""
  config.data.objective = size
  config.data.extra_ids = 0
  config.train.loss = "negative_sampling"
  with config.unlocked():
    config.negative_sampling = ConfigDict({"negatives": 5, "power": 0.75, "cbow": size == "cbow"})
  config.train.z_loss = 0.0
  config.optimizer.name = "adamw"
  config.optimizer.scale_by_parameter = False
  config.optimizer.weight_decay = 0.0
  config.optimizer.schedule = "linear"
  return config


def get_config(size: str = "skip_gram") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = default.get_config()
  config.model.update(fields() | {"vocab_size": 200_064})
  config.data.inputs_length = config.data.targets_length = 128
  config.data.pack = True  # windows end with a document
  config.train.steps = 60_000
  config.train.batch_size = 64
  config.optimizer.learning_rate = 1e-3
  config.optimizer.warmup_ratio = 0.01
  return with_negatives(config, size)
