"""Quick-Thought (Logeswaran & Lee 2018) with a BERT: finds the next sentence among those of the whole batch.

  t2t train --config quick_thought_base --workdir gs://BUCKET/quick_thought \
    --config.data.vocabulary=gs://BUCKET/vocab.txt

Vectors are compared by dot products without a temperature, as published. There two GRUs read the sentences, and the
previous sentence is a target as well. Steps, batches and rates are BERT's; --config.init.checkpoint starts from a
trained model.
"""

from ml_collections import ConfigDict

from t2t.configs import bert, simcse

SIZES = bert.SIZES


def get_config(size: str = "base") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = bert.get_config(size)
  config.stages = ()
  config.data.mixture = "wikipedia_neighbouring_sentences"
  config.data.objective = "neighbouring_sentences"  # for the user's own files
  config.data.inputs_length = 128  # both texts together
  return simcse.with_pairs(config, similarity="dot", temperature=1.0)
