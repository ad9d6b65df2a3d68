"""StructBERT (Wang et al. 2020): a BERT that restores the order of words and of sentences.

  t2t train --config struct_bert_base --workdir gs://BUCKET/structbert --config.data.vocabulary=gs://BUCKET/vocab.txt

Besides masked tokens it predicts the tokens of one trigram in twenty, which are shuffled. It also predicts whether the
second of two texts is the next, the previous, or from another document, a third each. Optimizer and batch are BERT's.
"""

from ml_collections import ConfigDict

from t2t.configs import bert

SIZES = bert.SIZES


def get_config(size: str = "base") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = bert.get_config(size)
  config.stages = ()
  config.data.mixture = "wikipedia_struct_bert"
  config.data.objective = "struct_bert"  # for the user's own files
  config.train.loss = "tokens_and_heads"
  labels = ("next", "previous", "random")
  config.model.heads = (
    {"name": "structure", "num_classes": 3, "labels": labels, "reads": "first", "dropout_rate": 0.0},
  )
  return config
