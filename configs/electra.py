"""ELECTRA (Clark et al. 2020): a small generator replaces tokens, and the model predicts which were replaced.

  t2t train --config electra_small --workdir gs://BUCKET/electra_small --config.data.vocabulary=gs://BUCKET/vocab.txt

Sizes: small 14 M, base 110 M, large 335 M parameters, without the generator. Steps, batches, rates and the share of
masked tokens are as published, on English Wikipedia. Published on GLUE's test set: 77.4, 82.7 and 85.2.

A tenth of the predicted tokens stays and a tenth becomes another token, as for BERT; the published code keeps 15 %.
"""

from ml_collections import ConfigDict

from t2t.configs import bert
from t2t.models import presets

SIZES = presets.ELECTRA_SIZES

# size -> (sequences, length, steps, learning rate, task; large masks a quarter of the tokens)
_TRAINING = {
  "small": (128, 128, 1_000_000, 5e-4, "wikipedia_masked_lm"),
  "base": (256, 512, 766_000, 2e-4, "wikipedia_masked_lm"),
  "large": (2_048, 512, 400_000, 2e-4, "wikipedia_masked_lm_25"),
}
# size -> width, heads, feed-forward width, layers of the generator
_GENERATORS = {"small": (64, 1, 256, 12), "base": (256, 4, 1_024, 12), "large": (256, 4, 1_024, 24)}


def with_generator(config: ConfigDict, embed_dim: int, num_heads: int, mlp_dim: int, num_layers: int) -> ConfigDict:
  """Adds ELECTRA's loss and a generator of this size."""
  config.train.loss = "electra"
  with config.unlocked():
    config.electra = ConfigDict(dict(embed_dim=embed_dim, num_heads=num_heads, mlp_dim=mlp_dim, num_layers=num_layers))
    config.electra.update(generator_weight=1.0, discriminator_weight=50.0, share_embeddings=True)
    config.electra.update(predicts="replaced", positions="all", mask_decoder=False)
  return config


def get_config(size: str = "small") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = bert.get_config("large" if size == "large" else "base")
  config.stages = ()
  vocab_size = config.model.vocab_size
  config.model.update(presets.electra(size))
  config.model.vocab_size = vocab_size
  config.train.batch_size, length, config.train.steps, rate, config.data.mixture = _TRAINING[size]
  config.data.inputs_length = config.data.targets_length = length
  config.optimizer.learning_rate = rate
  return with_generator(config, *_GENERATORS[size])
