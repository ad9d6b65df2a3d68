"""Multilingual BERT (Devlin et al. 2019, google-research/bert, multilingual.md): one BERT on 104 languages' Wikipedias.

  t2t train --config mbert_base --workdir gs://BUCKET/mbert --config.data.vocabulary=gs://BUCKET/vocab.txt \
    --config.data.sources.en.files='gs://BUCKET/wiki/en/*.jsonl.gz' \
    --config.data.sources.sw.files='gs://BUCKET/wiki/sw/*.jsonl.gz'

Give a source for each language; sources are sampled by their sizes to the power of 0.7, with the objective of
bert_nsp_*, as published. 179 M parameters, 92 M of them rows for the 119,547 tokens of the cased vocabulary. Published,
XNLI of the uncased model, fine-tuned on English: en 81.4, zh 63.8, es 74.3, de 70.5, ar 62.1, ur 58.3.
"""

from ml_collections import ConfigDict

from t2t.configs import bert_nsp

SIZES = ("base",)


def get_config(size: str = "base") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = bert_nsp.get_config(size)
  config.model.vocab_size = 119_552  # rounded up to a multiple of 128 for the mesh
  config.data.mixture = ""  # given by the user
  config.data.task_modules = ()
  config.data.alpha = 0.7
  return config
