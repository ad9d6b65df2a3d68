"""BERT as published (Devlin et al. 2019): masked language modelling and next-sentence prediction.

  t2t train --config bert_nsp_base --workdir gs://BUCKET/bert_nsp --config.data.vocabulary=gs://BUCKET/vocab.txt

bert_* is the same without the second task, as in RoBERTa. Half of the second texts come from another document. The
class is predicted from [CLS] through the pooler, and each of the two losses is a separate mean.
"""

from ml_collections import ConfigDict

from t2t.configs import bert

SIZES = bert.SIZES


def get_config(size: str = "base") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = bert.get_config(size)
  config.data.mixture = "wikipedia_masked_lm_nsp"
  config.data.objective = "masked_lm_nsp"  # for the user's own files
  config.train.loss = "tokens_and_heads"
  config.model.heads = (
    {"name": "nsp", "num_classes": 2, "labels": ("next", "random"), "reads": "first", "dropout_rate": 0.0},
  )
  return config
