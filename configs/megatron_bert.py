"""Megatron-LM's BERT (Shoeybi et al. 2020): a pre-norm BERT, which benefits from more layers.

  t2t train --config megatron_bert_3_9b --workdir gs://BUCKET/megatron_bert \
    --config.data.vocabulary=gs://BUCKET/vocab.txt

Sizes: 336m 335 M, 1_3b 1.28 B, 3_9b 3.86 B parameters. Two million steps of 1,024 sequences, one and a half million for
3_9b. N-grams of whole words are masked, and the model predicts which of two texts comes first, as in ALBERT; here on
English Wikipedia. Published (dev sets, median of five; RACE test): MNLI 89.7, 90.9 and 91.4, SQuAD 2.0 F1 88.1, 90.2
and 91.2, RACE 83.0, 87.3 and 89.5, and 90.9 with an ensemble of 3_9b.
"""

from ml_collections import ConfigDict

from t2t.configs import albert, bert
from t2t.models import presets

SIZES = presets.MEGATRON_BERT_SIZES


def get_config(size: str = "3_9b") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = albert.with_order(bert.get_config("large"))
  config.stages = ()
  config.model.update(presets.megatron_bert(size) | {"heads": config.model.heads})
  config.model.vocab_size = 30_592  # rounded up to a multiple of 128 for the mesh
  config.model.remat = {"336m": "minimal"}.get(size, "full")
  config.train.steps = {"3_9b": 1_500_000}.get(size, 2_000_000)
  config.train.batch_size = 1_024
  return config
