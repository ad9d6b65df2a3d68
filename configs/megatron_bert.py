"""Megatron-LM's BERT (Shoeybi et al. 2020): a BERT whose norms stand before the branches, so that more layers help.

  t2t train --config megatron_bert_3_9b --workdir gs://BUCKET/megatron_bert --config.data.vocabulary=gs://BUCKET/vocab.txt

Sizes: 336m 335 M, 1_3b 1.28 B, 3_9b 3.86 B parameters.  Two million steps of 1,024 sequences, of 3_9b one and a half;
n-grams of whole words are masked, and the model says of two texts which comes first, as ALBERT; here on English
Wikipedia.  Published (dev sets, median of five; RACE test): MNLI 89.7, 90.9 and 91.4, SQuAD 2.0 F1 88.1, 90.2 and 91.2,
RACE 83.0, 87.3 and 89.5, and 90.9 by several of 3_9b together.
"""

from ml_collections import ConfigDict

from t2t.configs import albert, bert
from t2t.models import presets

SIZES = presets.MEGATRON_BERT_SIZES


def get_config(size: str = "3_9b") -> ConfigDict:
  """The recipe for one of SIZES."""
  config = albert.with_order(bert.get_config("large"))
  config.stages = ()
  config.model.update(presets.megatron_bert(size) | {"heads": config.model.heads})
  config.model.vocab_size = 30_592  # rows up to a multiple of 128, for the mesh to divide
  config.model.remat = {"336m": "minimal"}.get(size, "full")
  config.train.steps = {"3_9b": 1_500_000}.get(size, 2_000_000)
  config.train.batch_size = 1_024
  return config
