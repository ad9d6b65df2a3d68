"""MobileBERT as published (Sun et al. 2020): transfer of the teacher's layers one after another, then its soft targets.

  t2t train --config mobilebert_distilled_transfer --workdir gs://BUCKET/transfer \
    --config.data.vocabulary=gs://BUCKET/vocab.txt --config.distillation.teacher=gs://BUCKET/ib_bert
  t2t train --config mobilebert_distilled_pretraining --workdir gs://BUCKET/mobilebert \
    --config.data.vocabulary=gs://BUCKET/vocab.txt --config.distillation.teacher=gs://BUCKET/ib_bert \
    --config.init.checkpoint=gs://BUCKET/transfer

`transfer` has 24 stages of 10,000 steps, one for each layer: normalized states with factor 100, their means 5,000 and
variances 5, attention 1. Factors are those of the published code. Layers below the stage's go on training at a tenth of
the rate, as in the published code; embeddings with the first layer. There is no weight decay, which LAMB would apply to
layers without a gradient.
`pretraining` has 500,000 steps of masked tokens, half soft and half hard targets, at temperature 1. The published
teacher is an IB-BERT of width 512; states of other widths are projected.
"""

from ml_collections import ConfigDict

from t2t.configs import distilbert, mobilebert

SIZES = ("transfer", "pretraining")
_FACTORS = dict(hidden_weight=100.0, mean_weight=5_000.0, variance_weight=5.0, attention_weight=1.0)


def get_config(stage: str = "transfer") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = mobilebert.get_config("base")
  config.stages = ()
  config.train.batch_size = 2_048
  config.train.microbatches = 8
  config.optimizer.name = "lamb"
  config.optimizer.learning_rate = 1.5e-3
  if stage == "pretraining":
    config.train.steps = 500_000
    return distilbert.with_terms(config, temperature=1.0, soft_weight=0.5, hard_weight=0.5)
  number = config.model.num_encoder_layers
  config.train.steps = 10_000 * number
  config.optimizer.schedule = "constant"
  config.optimizer.warmup_steps = 0
  config.optimizer.weight_decay = 0.0
  config.optimizer.param_groups = (".: settle_every=10000",)
  terms = dict(
    hidden_loss="normalized", attention_loss="kl", soft_weight=0.0, hard_weight=0.0, layers=("0:0",), **_FACTORS
  )
  of_layer = lambda layer: {"name": f"layer_{layer}", "steps": 10_000, "distillation.layers": (f"{layer}:{layer}",)}
  config.stages = tuple(map(of_layer, range(number)))
  return distilbert.with_terms(config, **terms)
