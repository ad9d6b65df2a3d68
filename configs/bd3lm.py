"""BD3-LM (Arriola et al. 2025): block diffusion with MDLM's size, vocabulary and length.

  t2t train --config mdlm_small --config.train.steps=850_000 --workdir gs://BUCKET/mdlm ...
  t2t train --config bd3lm_small_4 --config.init.checkpoint=gs://BUCKET/mdlm --workdir gs://BUCKET/bd3lm ...

Both with --config.data.vocabulary=gs://BUCKET/gpt2, see mdlm_small. Sizes: blocks of 4, 8 or 16 tokens, each 162 M
parameters, of which 77 M are the two embeddings. From the paper: 850,000 steps with one block for the whole row, then
150,000 steps with small blocks; rows of 1,024 tokens, batches of 512, GPT-2's tokens. Assumed from MDLM: optimizer,
rate, warm-up and the average of weights. The text here is C4, not OpenWebText. Left out: noise levels clipped to a
range that is searched for, which reduces the variance of gradients; and layers that read the time. Published on
OpenWebText: perplexity at most 20.73, 21.68 and 22.27 with blocks of 4, 8 and 16.
"""

from ml_collections import ConfigDict

from t2t.configs import mdlm

SIZES = ("small_4", "small_8", "small_16")


def get_config(size: str = "small_4") -> ConfigDict:
  """Returns the config for one of SIZES: a size of MDLM, and the length of a block."""
  name, _, block_length = size.rpartition("_")
  config = mdlm.get_config(name)
  config.model.block_length = int(block_length)
  config.train.steps = 150_000
  return config
