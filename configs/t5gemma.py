"""T5Gemma (Zhang et al. 2025): an encoder and a decoder of Gemma 2, each with a separate width and embedding.

  t2t train --config t5gemma_2b_2b_ul2 --workdir gs://BUCKET/t5gemma_2b_2b_ul2

Sizes of encoder and decoder: s_s 313 M, b_b 591 M, l_l 1.24 B, ml_ml 2.20 B, xl_xl 3.77 B, 2b_2b 5.60 B, 9b_2b 12.3 B,
9b_9b 20.3 B parameters, each with the objective ul2 or prefixlm. C4, T5's vocabulary and the schedule of modern_t5
replace the published ones. The stacks start at random, and prefixlm has no teacher; `t5gemma_adapt_*` starts from Gemma
2, as published. From the paper and the released models: shapes and objectives; everything else is a guess.
"""

from ml_collections import ConfigDict

from t2t.configs import modern_t5
from t2t.models import presets

_OBJECTIVES = {"ul2": "ul2", "prefixlm": "prefix_lm"}
SIZES = tuple(f"{size}_{objective}" for size in presets.T5GEMMA_SIZES for objective in _OBJECTIVES)
# Size of modern_t5 with about the width of the larger stack.
_LIKE = {"s": "small", "b": "base", "l": "large", "ml": "large", "xl": "xl", "2b": "xl", "9b": "xxl"}


def get_config(size: str = "2b_2b_ul2") -> ConfigDict:
  """Returns the config for one of SIZES."""
  shape, _, objective = size.rpartition("_")
  fields = presets.t5gemma(shape)
  config = modern_t5.get_config(_LIKE[shape.split("_")[0]])
  config.model.update(fields)
  config.data.objective = _OBJECTIVES[objective]  # for the user's own files
  config.data.mixture = f"c4_{_OBJECTIVES[objective]}"
  config.data.inputs_length = 512
  config.data.targets_length = 512
  return config
