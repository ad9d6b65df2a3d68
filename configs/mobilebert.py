"""MobileBERT (Sun et al. 2020): a BERT of 24 narrow layers, with masked language modelling alone.

  t2t train --config mobilebert_base --workdir gs://BUCKET/mobilebert --config.data.vocabulary=gs://BUCKET/vocab.txt

Sizes: base 24.6 M parameters, tiny 15.5 M, without the output embedding of 11.7 M that fine-tuning drops; 25.3 M and
15.1 M in the paper. Batches and steps are BERT's. The published models were distilled from a larger teacher, layer by
layer, as mobilebert_distilled does. Published: GLUE 77.7, SQuAD 1.1 F1 90.0; tiny: GLUE 75.8.
"""

from ml_collections import ConfigDict

from t2t.configs import bert
from t2t.models import bert_variants

SIZES = bert_variants.MOBILEBERT_SIZES


def get_config(size: str = "base") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = bert.get_config()
  config.model.update(bert_variants.mobilebert(size))
  config.model.vocab_size = 30_592  # rounded up to a multiple of 128 for the mesh
  return config
