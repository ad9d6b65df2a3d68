"""RedLLM (Zhang et al. 2025): an encoder-decoder in which the positions of the targets continue those of the inputs.

  t2t train --config red_llm_base --workdir gs://BUCKET/red_llm_base

The parts of modern_t5 with rotary cross-attention, as many heads of keys and values as of queries, and one embedding
for inputs, targets and logits. Sizes: small 61 M, base 223 M, large 750 M, xl 2.78 B, xxl 11.0 B parameters.

From the paper (arXiv 2510.26622): these parts, prefix language modelling, 1.6 T tokens, and 1,024 inputs with 1,024
targets, as in the paper's decoders of 2,048 tokens. No code is released. Guesses: batches of 2,048 rows, and with them
400,000 steps; AdamW and its rates, those of modern_t5. Other than the paper: T5 1.1's shapes, because those of the
paper's models, 150 M to 8 B parameters, are not included; C4 and T5's vocabulary instead of RedPajama; no norms of
values and of the output of attention.
"""

from ml_collections import ConfigDict

from t2t.configs import modern_t5
from t2t.models import presets

SIZES = presets.T5_SIZES


def get_config(size: str = "base") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = modern_t5.get_config(size)
  config.model.update(presets.red_llm(size))
  config.data.mixture = "c4_prefix_lm"
  config.data.objective = "prefix_lm"  # for the user's own files
  config.data.inputs_length = 1_024
  config.data.targets_length = 1_024
  config.train.steps = 400_000
  config.train.batch_size = 2_048
  return config
