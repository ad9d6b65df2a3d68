"""XLM (Conneau & Lample 2019): masked language modelling on 15 languages, and on sentences with their translations.

  t2t train --config xlm_15 --workdir gs://BUCKET/xlm --config.data.vocabulary=gs://BUCKET/vocab \
    --config.data.sources.en.files='gs://BUCKET/wiki/en/*.jsonl.gz' \
    --config.data.sources.sw.files='gs://BUCKET/wiki/sw/*.jsonl.gz' \
    --config.data.sources.en_sw.files='gs://BUCKET/opus/en-sw/*.tsv' \
    --config.data.sources.en_sw.objective=translation_lm

Give the sources: text of each language (MLM), and pairs of texts for two languages (TLM; docs/sources.md has their
formats). Sources without a rate are sampled by their sizes to the power of 0.5, as published. 249 M parameters; 95,000
tokens, 256 positions, 64 sequences on each of 64 GPUs and a rate of 1e-4 are the paper's. The number of steps is not
published. A second segment marks the second text of a pair, whereas XLM has a vector for each language. Published, XNLI
on average over 15 languages, fine-tuned on English: 71.5 with MLM, 75.1 with MLM and TLM.

xlm_100 has the shape of the model for 100 languages, MLM alone: 571 M parameters, 200,000 tokens.
"""

from ml_collections import ConfigDict

from t2t.configs import bert
from t2t.models import presets

SIZES = presets.XLM_SIZES


def get_config(size: str = "15") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = bert.get_config("large")
  config.stages = ()
  config.model.update(presets.xlm(size))
  config.model.vocab_size = {"15": 95_104, "100": 200_064}[size]  # rounded up to a multiple of 128 for the mesh
  config.model.remat = {"15": "minimal", "100": "full"}[size]
  config.data.mixture = ""  # given by the user
  config.data.task_modules = ()
  config.data.alpha = 0.5
  config.data.inputs_length = 256
  config.data.targets_length = 256
  config.train.batch_size = 4_096
  config.train.steps = 400_000
  config.optimizer.schedule = "inverse_sqrt"
  config.optimizer.warmup_steps = 30_000
  config.optimizer.weight_decay = 0.0
  return config
