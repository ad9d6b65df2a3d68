"""DeBERTa version 2 (He et al. 2021, section 5.3): a larger vocabulary, a convolution, and distances in buckets.

  t2t train --config deberta_v2_xlarge --workdir gs://BUCKET/deberta --config.data.vocabulary=gs://BUCKET/spm.model

The vocabulary is a SentencePiece model of 128,000 tokens. Sizes: xlarge 900 M, xxlarge 1.5 B parameters. The training
is that of deberta_base, with the rate of the model with 1.5 B parameters. Published, xxlarge: SuperGLUE 89.9.
"""

from ml_collections import ConfigDict

from t2t.configs import deberta
from t2t.models import bert_variants

SIZES = bert_variants.DEBERTA_V2_SIZES


def get_config(size: str = "xlarge") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = deberta.get_config("base")
  config.model.update(bert_variants.deberta_v2(size))
  config.model.vocab_size = 128_128  # rounded up to a multiple of 128 for the mesh
  config.optimizer.learning_rate = 1.5e-4
  return config
