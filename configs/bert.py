"""BERT (Devlin et al. 2019): bidirectional masked language modelling, without the next-sentence task.

  t2t train --config bert_base --workdir gs://BUCKET/bert_base --config.data.vocabulary=gs://BUCKET/vocab.txt

Sizes: base 110 M, large 336 M parameters. A million steps of 131,072 tokens on English Wikipedia, as published: 1,024
sequences of 128 for 90 % of the steps, then 256 of 512 (appendix A.2; the batch of the short sequences is from the
authors' slides). With --config.stages='()' all batches are 256 of 512. RoBERTa found no benefit in the next-sentence
task (Liu et al. 2019, section 4.2).
"""

from ml_collections import ConfigDict

from t2t.configs import default
from t2t.models import presets

SIZES = presets.BERT_SIZES


def get_config(size: str = "base") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = default.get_config()
  config.model.update(presets.bert(size))
  config.model.vocab_size = 30_592  # rounded up to a multiple of 128 for the mesh
  config.model.remat = {"base": "none", "large": "minimal"}[size]
  config.data.mixture = "wikipedia_masked_lm"
  config.data.objective = "masked_lm"  # for the user's own files
  config.data.task_modules = ("t2t.tasks.wikipedia",)
  config.data.inputs_length = 512
  config.data.extra_ids = 0
  config.stages = (
    {"name": "short", "fraction": 0.9, "data.inputs_length": 128, "train.batch_size": 1_024},
    {"name": "long"},
  )
  config.train.steps = 1_000_000
  config.train.batch_size = 256
  config.train.z_loss = 0.0
  config.optimizer.name = "adamw"
  config.optimizer.learning_rate = 1e-4
  config.optimizer.schedule = "linear"
  config.optimizer.warmup_steps = 10_000
  config.optimizer.scale_by_parameter = False
  config.optimizer.weight_decay = 0.01
  config.optimizer.epsilon = 1e-6
  config.optimizer.clip_norm = 1.0
  return config
