"""LaBSE (Feng et al. 2022): sentences of many languages in one space, each nearest to its translation by a margin.

  t2t train --config labse_base --workdir gs://BUCKET/labse_base --config.init.checkpoint=gs://BUCKET/RUN \
    --config.data.vocabulary=gs://BUCKET/vocab.txt

It begins with a masked language model; --config.init.checkpoint=bert-base-multilingual-cased and
--config.init.use_model_config=True take mBERT's shape and vocabulary.  BERT's shape, rows for 501,153 pieces, the
vector of [CLS], cosines, the margin and
both directions as published; its formula has no temperature, and SimCSE's is kept.  The pairs are those of WMT out of
English, where LaBSE has 109 languages; those of your own files are sources with neighbouring texts, or registered
tasks.  Published: 83.7 % of Tatoeba's sentences find their translation, on average over 112 languages.
"""

from ml_collections import ConfigDict

from t2t.configs import bert, simcse

SIZES = ("base",)


def get_config(size: str = "base") -> ConfigDict:
  """The recipe for one of SIZES."""
  config = bert.get_config(size)
  config.stages = ()
  config.model.vocab_size = 501_248  # rows up to a multiple of 128, for the mesh to divide
  config.data.mixture = "wmt_en_de_pairs,wmt_en_fr_pairs,wmt_en_ro_pairs"
  config.data.task_modules = ("t2t.tasks.translation",)
  config.data.objective = "neighbouring_sentences"  # of files of one's own
  config.data.inputs_length = 256  # both texts
  config.train.batch_size = 4_096  # each pair is told from all others
  config.train.steps = 50_000
  return simcse.with_pairs(config, margin=0.3, symmetric=True)
