"""Multilingual BERT (Devlin et al. 2019, google-research/bert, multilingual.md): one BERT of 104 languages' Wikipedias.

  t2t train --config mbert_base --workdir gs://BUCKET/mbert --config.data.vocabulary=gs://BUCKET/vocab.txt \
    --config.data.sources.en.files='gs://BUCKET/wiki/en/*.jsonl.gz' \
    --config.data.sources.sw.files='gs://BUCKET/wiki/sw/*.jsonl.gz'

Bring a source for each language: each is drawn as often as its size to the power of 0.7, and masked and asked about
neighbours as bert_nsp_*, as published.  179 M parameters, 92 M of them rows for the 119,547 pieces of the cased
vocabulary.  Published, XNLI by the uncased model, fine-tuned on English: en 81.4, zh 63.8, es 74.3, de 70.5, ar 62.1,
ur 58.3.
"""

from ml_collections import ConfigDict

from t2t.configs import bert_nsp

SIZES = ("base",)


def get_config(size: str = "base") -> ConfigDict:
  """The recipe for one of SIZES."""
  config = bert_nsp.get_config(size)
  config.model.vocab_size = 119_552  # rows up to a multiple of 128, for the mesh to divide
  config.data.mixture = ""  # the user's sources
  config.data.task_modules = ()
  config.data.alpha = 0.7
  return config
