"""LaBSE (Feng et al. 2022): sentences of many languages in one space, each closest to its translation by a margin.

  t2t train --config labse_base --workdir gs://BUCKET/labse_base --config.init.checkpoint=gs://BUCKET/RUN \
    --config.data.vocabulary=gs://BUCKET/vocab.txt

Training starts from a masked language model; --config.init.checkpoint=bert-base-multilingual-cased with
--config.init.use_model_config=True takes mBERT's shape and vocabulary. BERT's shape, rows for 501,153 tokens, the
vector of [CLS], cosines, the margin and both directions are as published; the formula has no temperature, and SimCSE's
is kept. The pairs are WMT's from English, whereas LaBSE has 109 languages. Pairs of your own files are sources with
neighbouring texts, or registered tasks. Published: 83.7 % of Tatoeba's sentences find their translation, on average
over 112 languages.
"""

from ml_collections import ConfigDict

from t2t.configs import bert, simcse

SIZES = ("base",)


def get_config(size: str = "base") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = bert.get_config(size)
  config.stages = ()
  config.model.vocab_size = 501_248  # rounded up to a multiple of 128 for the mesh
  config.data.mixture = "wmt_en_de_pairs,wmt_en_fr_pairs,wmt_en_ro_pairs"
  config.data.task_modules = ("t2t.tasks.translation",)
  config.data.objective = "neighbouring_sentences"  # for the user's own files
  config.data.inputs_length = 256  # both texts together
  config.train.batch_size = 4_096  # each pair is compared with all others
  config.train.steps = 50_000
  return simcse.with_pairs(config, margin=0.3, symmetric=True)
