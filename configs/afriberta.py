"""AfriBERTa (Ogueji et al. 2021): XLM-R's objective on 11 African languages with less than 1 GB of text in all.

  t2t vocab train --type sentencepiece --size 70000 --input 'text/*.txt' --output runs/vocabulary
  t2t train --config afriberta_small --workdir gs://BUCKET/afriberta \
    --config.data.vocabulary=runs/vocabulary/spiece.model --config.data.extra_ids=1 \
    --config.data.sources.ha.files='text/ha.txt' --config.data.sources.yo.files='text/yo.txt'

Give a source for each language; sources are sampled by their sizes to the power of 0.3. <extra_id_0> is the mask of a
vocabulary without one. Sizes: small 83 M, base 112 M, large 126 M parameters, with 4, 8 and 10 layers and 54 M of them
rows for 70,006 tokens. The authors count 97 M for small, which four layers do not reach. 460,000 steps of at most 512
tokens and a rate of 1e-4 after a warm-up of 40,000, as published. Published, F1 on MasakhaNER: about 79 with small and
81 with large.
"""

from ml_collections import ConfigDict

from t2t.configs import roberta
from t2t.models import presets

SIZES = presets.AFRIBERTA_SIZES


def get_config(size: str = "small") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = roberta.get_config("base")
  config.model.update(presets.afriberta(size))
  config.model.vocab_size = 70_016  # rounded up to a multiple of 128 for the mesh
  config.data.mixture = ""  # given by the user
  config.data.task_modules = ()
  config.data.alpha = 0.3
  config.train.steps = 460_000
  config.train.batch_size = 256
  config.optimizer.learning_rate = 1e-4
  config.optimizer.warmup_steps = 40_000
  config.optimizer.b2 = 0.999
  return config
