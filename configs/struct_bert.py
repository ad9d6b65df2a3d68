"""StructBERT (Wang et al. 2020): a BERT that finds the order of words and of sentences again.

  t2t train --config struct_bert_base --workdir gs://BUCKET/structbert --config.data.vocabulary=gs://BUCKET/vocab.txt

Besides masked tokens it predicts those of one trigram in twenty, whose tokens are shuffled; and of two texts whether
the second follows, comes before, or is of another document, a third each.  Optimizer and batch are BERT's.
"""

from ml_collections import ConfigDict

from t2t.configs import bert

SIZES = bert.SIZES


def get_config(size: str = "base") -> ConfigDict:
  """The recipe for one of SIZES."""
  config = bert.get_config(size)
  config.stages = ()
  config.data.mixture = "wikipedia_struct_bert"
  config.data.objective = "struct_bert"  # of files of one's own
  config.train.loss = "tokens_and_heads"
  labels = ("next", "previous", "random")
  config.model.heads = (
    {"name": "structure", "num_classes": 3, "labels": labels, "reads": "first", "dropout_rate": 0.0},
  )
  return config
