"""RedLLM (Zhang et al. 2025): an encoder-decoder in which the positions of the targets continue those of the inputs.

  t2t train --config red_llm_base --workdir gs://BUCKET/red_llm_base

The parts of modern_t5 with rotary cross-attention, as many heads of keys and values as of queries, and one embedding
for inputs, targets and logits. The objective is a prefix language model, as published. The sizes are T5 1.1's, because
the shapes of the paper's models, 150 M to 8 B parameters, are not included here: small 61 M, base 223 M, large 750 M,
xl 2.78 B, xxl 11.0 B parameters. Norms of values and of the output of attention, and RedPajama, are left out.
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
  config.data.inputs_length = 512
  config.data.targets_length = 512
  return config
