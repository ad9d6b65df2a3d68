"""BERT as published (Devlin et al. 2019): masked language modelling, and whether the second text follows the first.

  t2t train --config bert_nsp_base --workdir gs://BUCKET/bert_nsp --config.data.vocabulary=gs://BUCKET/vocab.txt

bert_* is the same without the second task, as in RoBERTa.  Half of the second texts are of another document; the class
is read off [CLS] through the pooler, and each of the two losses is a mean of its own.
"""

from ml_collections import ConfigDict

from t2t.configs import bert

SIZES = bert.SIZES


def get_config(size: str = "base") -> ConfigDict:
  """The recipe for one of SIZES."""
  config = bert.get_config(size)
  config.data.mixture = "wikipedia_masked_lm_nsp"
  config.data.objective = "masked_lm_nsp"  # of files of one's own
  config.train.loss = "tokens_and_heads"
  config.model.heads = (
    {"name": "nsp", "num_classes": 2, "labels": ("next", "random"), "reads": "first", "dropout_rate": 0.0},
  )
  return config
