"""Universal Transformer (Dehghani et al. 2019): an encoder-decoder that repeats one layer, for translation.

  t2t train --config universal_transformer_base --workdir gs://BUCKET/universal_base \\
    --config.data.vocabulary=gs://BUCKET/wmt_en_de.model

Sizes as in tensor2tensor: base 63 M, big 185 M parameters, with six steps on each side. The adaptive sizes have up to
twelve steps: each position halts by itself (adaptive computation time), and the mean number of steps is a term of the
loss. Published for base: newstest2014 BLEU 28.9. The rates and batches are those of tensor2tensor's transformer_base:
the paper has no table of them.

The task wmt_en_de puts T5's words before a source. Own text: --config.data.files=GLOB --config.data.translation=FIELD.
"""

from ml_collections import ConfigDict

from t2t.configs import transformer
from t2t.models import presets

SIZES = presets.UNIVERSAL_SIZES


def get_config(size: str = "base") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = transformer.get_config("base")
  config.model.update(presets.universal_transformer(size))
  config.optimizer.learning_rate = transformer.peak_rate(config.model.embed_dim)
  return config
