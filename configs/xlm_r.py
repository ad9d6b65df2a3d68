"""XLM-R (Conneau et al. 2020): a RoBERTa on 100 languages, with small languages sampled more often.

  t2t train --config xlm_r_base --workdir gs://BUCKET/xlm_r --config.data.vocabulary=gs://BUCKET/xlm-roberta \
    --config.data.sources.en.files='gs://BUCKET/cc100/en/*.jsonl.gz' \
    --config.data.sources.sw.files='gs://BUCKET/cc100/sw/*.jsonl.gz'

Give a source for each language, as in CC-100; sources are sampled by their sizes to the power of 0.3. The vocabulary is
the folder with tokenizer.json. Sizes: base 278 M, large 560 M parameters, 192 M and 256 M of them rows for 250,002
tokens. 1.5 million steps of 8,192 sequences, as published; the rates are RoBERTa's, because XLM-R's are unknown.
Published, XNLI on average over 15 languages: base 76.2 fine-tuned on English, large 80.9, and 83.6 on all translations.
"""

from ml_collections import ConfigDict

from t2t.configs import roberta
from t2t.models import presets

SIZES = presets.BERT_SIZES


def get_config(size: str = "base") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = roberta.get_config(size)
  config.model.update(presets.xlm_r(size))
  config.model.vocab_size = 250_112  # rounded up to a multiple of 128 for the mesh
  config.data.mixture = ""  # given by the user
  config.data.task_modules = ()
  config.data.alpha = 0.3
  config.train.steps = 1_500_000
  return config
