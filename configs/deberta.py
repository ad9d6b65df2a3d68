"""DeBERTa (He et al. 2021): masked language modelling with disentangled attention and an enhanced mask decoder.

  t2t train --config deberta_base --workdir gs://BUCKET/deberta_base --config.data.vocabulary=gs://BUCKET/roberta

The vocabulary is RoBERTa's, a folder with vocab.json and merges.txt. Sizes: base 140 M, large 407 M, xlarge 760 M
parameters. A million steps of 2,048 sequences of 512 tokens with masked spans of up to three tokens, as published for
base and large (table 8), here on C4. Published on MNLI: 88.8, 91.1 and 91.5.
"""

from ml_collections import ConfigDict

from t2t.configs import roberta
from t2t.models import bert_variants

SIZES = bert_variants.DEBERTA_SIZES


def get_config(size: str = "base") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = roberta.get_config("base")
  vocab_size = config.model.vocab_size
  config.model.update(bert_variants.deberta(size))
  config.model.vocab_size = vocab_size
  config.model.remat = "full"
  config.data.mixture = "c4_ngram_masked_lm"
  config.data.objective = "ngram_masked_lm"  # for the user's own files
  config.train.steps = 1_000_000
  config.train.batch_size = 2_048
  config.optimizer.learning_rate = 2e-4
  config.optimizer.warmup_steps = 10_000
  config.optimizer.b2 = 0.999
  config.optimizer.clip_norm = 1.0
  return config
