"""RemBERT (Chung et al. 2021): a BERT on 110 languages with a narrow input and a wide output embedding.

  t2t train --config rembert_base --workdir gs://BUCKET/rembert --config.data.vocabulary=gs://BUCKET/rembert.model \
    --config.data.sources.en.files='gs://BUCKET/mc4/en/*.jsonl.gz' \
    --config.data.sources.sw.files='gs://BUCKET/mc4/sw/*.jsonl.gz'

Give a source for each language, as in mC4 and Wikipedia; sources are sampled by their sizes to the power of 0.7, which
is mBERT's. 993 M parameters, 417 M of them in the output embedding for 250,300 tokens, which fine-tuning drops. 1.76
million steps of 2,048 sequences of 512 tokens, as published; the rates are BERT's. Published, XNLI on average over 15
languages, fine-tuned on English: 80.8.
"""

from ml_collections import ConfigDict

from t2t.configs import bert
from t2t.models import bert_variants

SIZES = bert_variants.REMBERT_SIZES


def get_config(size: str = "base") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = bert.get_config()
  config.model.update(bert_variants.rembert(size))
  config.model.vocab_size = 250_368  # rounded up to a multiple of 128 for the mesh
  config.model.remat = "minimal"
  config.data.mixture = ""  # given by the user
  config.data.task_modules = ()
  config.data.alpha = 0.7
  config.stages = ()
  config.train.steps = 1_760_000
  config.train.batch_size = 2_048
  return config
