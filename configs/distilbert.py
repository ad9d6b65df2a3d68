"""DistilBERT (Sanh et al. 2019): a BERT of six layers, trained by soft targets of BERT base.

  t2t train --config distilbert --workdir gs://BUCKET/distilbert --config.data.vocabulary=gs://BUCKET/vocab.txt \
    --config.distillation.teacher=gs://BUCKET/bert_base

66 M parameters. The student begins as six of the teacher's layers, without segment types and pooler. Weights,
temperature and layers are the published code's: 5 for soft targets of all tokens, 2 for masked tokens, 1 for the cosine
of the last states. Batches of 4,096, as published, on English Wikipedia; 6,300 steps are three passes over the
published 3.3 billion words. Published: GLUE 77.0, where BERT base has 79.5. docs/distillation.md describes all terms.
"""

from ml_collections import ConfigDict

from t2t.configs import bert

LAYERS = ("0", "2", "4", "7", "9", "11")  # of twelve; extract_distilbert.py of the published code


def with_terms(config: ConfigDict, **settings: object) -> ConfigDict:
  """Adds settings of distillation, which apply once config.distillation.teacher is given."""
  with config.unlocked():
    config.distillation = ConfigDict(settings)
  return config


def get_config() -> ConfigDict:
  """Returns the config."""
  config = bert.get_config("base")
  config.stages = ()
  config.model.num_encoder_layers = len(LAYERS)
  config.model.segment_types = 0
  config.init.layers = LAYERS
  config.init.rename = ("embed/table", "embed/positions", "embed/norm", "encoder", "head")  # without segments
  config.init.resize = ("embed/table", "head/bias")  # a teacher may have other rows without a token
  config.train.steps = 6_300
  config.train.batch_size = 4_096
  config.train.microbatches = 16
  config.optimizer.learning_rate = 5e-4
  config.optimizer.warmup_ratio = 0.05
  config.optimizer.weight_decay = 0.0
  config.optimizer.clip_norm = 5.0
  return with_terms(config, temperature=2.0, soft_weight=5.0, soft_positions="all", hard_weight=2.0, cosine_weight=1.0)
