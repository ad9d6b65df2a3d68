"""Quick-Thought (Logeswaran & Lee 2018) with a BERT: which sentence follows, told from those of the whole batch.

  t2t train --config quick_thought_base --workdir gs://BUCKET/quick_thought --config.data.vocabulary=gs://BUCKET/vocab.txt

Vectors are compared by dot products, without a temperature, as published, where two GRUs read the sentences and the one
before is looked for as well.  Steps, batches and rates are BERT's; --config.init.checkpoint begins with a trained one.
"""

from ml_collections import ConfigDict

from t2t.configs import bert, simcse

SIZES = bert.SIZES


def get_config(size: str = "base") -> ConfigDict:
  """The recipe for one of SIZES."""
  config = bert.get_config(size)
  config.stages = ()
  config.data.mixture = "wikipedia_neighbouring_sentences"
  config.data.objective = "neighbouring_sentences"  # of files of one's own
  config.data.inputs_length = 128  # both texts
  return simcse.with_pairs(config, similarity="dot", temperature=1.0)
