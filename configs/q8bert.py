r"""Q8BERT (Zafrir et al. 2019): fine-tuning an encoder with int8 weights and activations.

  t2t train --config q8bert_glue --config.init.checkpoint=gs://BUCKET/bert_base --workdir gs://BUCKET/q8_glue
  t2t train --config q8bert --config.init.checkpoint=runs/bert --config.data.files=reviews.tsv \
    --config.data.labels=auto --workdir runs/q8_reviews
  t2t convert runs/q8_reviews --to int8 runs/q8_reviews_int8

The recipes of configs/finetune.py, with config.model.fake_quantization=int8: training and evaluation round the weights
and inputs of the layers' products and the token embedding. The ranges of activations are moving averages. Published:
at most 1 % below BERT base on seven of the eight tasks of GLUE and on SQuAD, in a quarter of the size.
"""

from ml_collections import ConfigDict

from t2t.configs import finetune

SIZES = (None, "glue", "squad", "docs_package")
for_architecture = finetune.for_architecture


def get_config(mixture: str | None = None) -> ConfigDict:
  """Returns the config for one of SIZES; None: for a user's table."""
  config = finetune.get_config(mixture)
  config.model.fake_quantization = "int8"
  # A checkpoint without quantization has no ranges.
  config.init.reinit = ("/ranges/",)
  return config
