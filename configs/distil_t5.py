"""A T5 1.1 base of half the layers, trained by soft targets of the whole model (as Shleifer & Rush 2020 with BART).

  t2t train --config distil_t5 --workdir gs://BUCKET/distil_t5 --config.distillation.teacher=gs://BUCKET/t5_1_1_base

Encoder and decoder begin as every other layer of the teacher. Soft targets are the teacher's distributions of each
target token. For a fine-tuned teacher, give its task: --config.data.mixture=TASK.
"""

from ml_collections import ConfigDict

from t2t.configs import distilbert, t5_1_1


def get_config() -> ConfigDict:
  """Returns the config."""
  config = t5_1_1.get_config("base")
  config.model.num_encoder_layers = config.model.num_decoder_layers = 6
  config.init.layers = ("0", "2", "4", "6", "8", "11")
  return distilbert.with_terms(config, temperature=2.0, soft_weight=0.8, hard_weight=0.2)
