"""Unsupervised SimCSE (Gao et al. 2021): matches a sentence with itself under another dropout mask, against the batch.

  t2t train --config simcse_base --config.init.checkpoint=bert-base-uncased --workdir gs://BUCKET/simcse_base

Model and vocabulary come from the checkpoint, and the head starts from its pooler if it has one. Temperature, batches,
rates, and a million sentences of at most 32 tokens, each seen once, are as published. The sentences are those of
English Wikipedia in their order, with at least four tokens.

quick_thought_* compares neighbouring sentences, labse_base translations.
"""

from ml_collections import ConfigDict

from t2t.configs import bert

SIZES = ("base", "large")


def with_pairs(config: ConfigDict, **changed) -> ConfigDict:
  """Adds SimCSE's loss with changes, and a head that makes a vector of the first token."""
  config.train.loss = "contrastive"
  config.model.heads = ({"name": "text", "kind": "vector", "num_classes": 0},)
  with config.unlocked():
    config.contrastive = ConfigDict(dict(similarity="cosine", temperature=0.05, margin=0.0, symmetric=False))
    config.contrastive.update(changed)
  return config


def get_config(size: str = "base") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = bert.get_config(size)
  config.stages = ()
  config.init.use_model_config = True
  config.data.mixture = "wikipedia_same_text_twice"
  config.data.objective = "same_text_twice"  # for the user's own files
  config.data.inputs_length = 64  # both texts together
  config.train.batch_size = 64
  config.train.steps = 15_625
  config.optimizer.learning_rate = {"base": 3e-5, "large": 1e-5}[size]
  config.optimizer.warmup_steps = 0
  config.optimizer.weight_decay = 0.0
  config.eval.every = config.checkpoint.save_interval_steps = 1_000
  return with_pairs(config)
