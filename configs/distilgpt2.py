"""DistilGPT-2 (Sanh et al. 2019): a GPT-2 of six layers, trained by soft targets of GPT-2 small.

  t2t train --config distilgpt2 --workdir gs://BUCKET/distilgpt2 --config.data.vocabulary=gs://BUCKET/gpt2 \
    --config.distillation.teacher=gs://BUCKET/gpt2_small

82 M parameters. The student begins as six of the teacher's layers. Weights and temperature are DistilBERT's. The
published model read OpenWebText once; here 18,000 steps read 9.4 billion tokens of C4.
"""

from ml_collections import ConfigDict

from t2t.configs import distilbert, gpt2


def get_config() -> ConfigDict:
  """Returns the config."""
  config = gpt2.get_config("small")
  config.model.num_decoder_layers = len(distilbert.LAYERS)
  config.init.layers = distilbert.LAYERS
  config.init.resize = ("embed/table",)  # a teacher may have other rows without a token
  config.train.steps = 18_000
  return distilbert.with_terms(config, temperature=2.0, soft_weight=5.0, hard_weight=2.0, cosine_weight=1.0)
