"""Turing-NLG (Rosset 2020, Microsoft Research): a GPT-2 of 78 layers and 17.2 B parameters.

  t2t train --config turing_nlg_17b --workdir gs://BUCKET/turing --config.data.vocabulary=gs://BUCKET/gpt2 \
    --config.mesh.tensor=4

300,000 steps of 512 sequences of 1,024 tokens and a rate of 1.5e-4 as published, here of C4; 4 GPUs had a part of every
layer.  What was not published is Megatron's (megatron_gpt_*).  Published: perplexity of WikiText-103 10.21, accuracy on
LAMBADA 67.98.
"""

from ml_collections import ConfigDict

from t2t.configs import megatron_gpt
from t2t.models import presets

SIZES = presets.TURING_NLG_SIZES


def get_config(size: str = "17b") -> ConfigDict:
  """The recipe for one of SIZES."""
  config = megatron_gpt.get_config("8_3b")
  config.model.update(presets.turing_nlg(size))
  config.model.vocab_size = 50_304  # rows up to a multiple of 128, for the mesh to divide
  config.model.remat = "full"
  config.optimizer.warmup_steps = 3_200
  return config
