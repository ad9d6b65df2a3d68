"""XLM (Conneau & Lample 2019): masked language modelling of 15 languages, and of sentences beside their translations.

  t2t train --config xlm_15 --workdir gs://BUCKET/xlm --config.data.vocabulary=gs://BUCKET/vocab \
    --config.data.sources.en.files='gs://BUCKET/wiki/en/*.jsonl.gz' \
    --config.data.sources.sw.files='gs://BUCKET/wiki/sw/*.jsonl.gz' \
    --config.data.sources.en_sw.files='gs://BUCKET/opus/en-sw/*.tsv' \
    --config.data.sources.en_sw.objective=translation_lm

Bring the sources: text of each language (MLM), and pairs of texts for each two (TLM; docs/sources.md says how they may
lie).  Sources without a rate are drawn as often as their size to the power of 0.5, as published.  249 M parameters;
95,000 pieces, 256 tokens, 64 sequences on each of 64 GPUs and a rate of 1e-4 are the paper's; how many steps it took is
not published.  A second segment tells the second text of a pair, where XLM has a vector for each of its languages.
Published, XNLI on average over 15 languages, fine-tuned on English: 71.5 by MLM, 75.1 by MLM and TLM.

xlm_100 is the shape of the model of 100 languages, MLM alone: 571 M parameters, 200,000 pieces.
"""

from ml_collections import ConfigDict

from t2t.configs import bert
from t2t.models import presets

SIZES = presets.XLM_SIZES


def get_config(size: str = "15") -> ConfigDict:
  """The recipe for one of SIZES."""
  config = bert.get_config("large")
  config.stages = ()
  config.model.update(presets.xlm(size))
  config.model.vocab_size = {"15": 95_104, "100": 200_064}[size]  # up to a multiple of 128, for the mesh to divide
  config.model.remat = {"15": "minimal", "100": "full"}[size]
  config.data.mixture = ""  # the user's sources
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
