"""Turing-NLG (Rosset 2020, Microsoft Research): a GPT-2 with 78 layers and 17.2 B parameters.

  t2t train --config turing_nlg_17b --workdir gs://BUCKET/turing --config.data.vocabulary=gs://BUCKET/gpt2 \
    --config.mesh.tensor=4

300,000 steps of 512 sequences of 1,024 tokens and a rate of 1.5e-4 as published, here on C4, with every layer split
over 4 GPUs. Unpublished settings are Megatron's (megatron_gpt_*). Published: perplexity of WikiText-103 10.21, accuracy
on LAMBADA 67.98.
"""

from ml_collections import ConfigDict

from t2t.configs import megatron_gpt
from t2t.models import presets

SIZES = presets.TURING_NLG_SIZES


def get_config(size: str = "17b") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = megatron_gpt.get_config("8_3b")
  config.model.update(presets.turing_nlg(size))
  config.model.vocab_size = 50_304  # rounded up to a multiple of 128 for the mesh
  config.model.remat = "full"
  config.optimizer.warmup_steps = 3_200
  return config
