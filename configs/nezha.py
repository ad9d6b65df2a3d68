"""NEZHA (Wei et al. 2019): a Chinese BERT with functional relative positions, whole-word masking and LAMB.

  t2t train --config nezha_base --workdir gs://BUCKET/nezha --config.data.vocabulary=gs://BUCKET/vocab.txt

The vocabulary is BERT's for Chinese. Sizes: base 102 M, large 325 M parameters. A million steps of 128 tokens with
BERT's batches; the text is yours, split into words by spaces. The published runs had batches of 5,120.
"""

from ml_collections import ConfigDict

from t2t.configs import bert
from t2t.models import bert_variants

SIZES = bert_variants.NEZHA_SIZES


def get_config(size: str = "base") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = bert.get_config(size)
  config.model.update(bert_variants.nezha(size))
  config.model.vocab_size = 21_248  # 21,128 rounded up to a multiple of 128 for the mesh
  config.data.mixture = ""
  config.data.objective = "whole_word_masked_lm"
  config.data.task_modules = ()
  config.data.inputs_length = 128
  config.stages = ()
  config.train.batch_size = 1_024
  config.optimizer.name = "lamb"
  config.optimizer.learning_rate = 1.8e-4
  return config
