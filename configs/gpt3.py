"""GPT-3 (Brown et al. 2020): a causal language model with 2,048 tokens and banded attention in every other layer.

  t2t train --config gpt3_13b --workdir gs://BUCKET/gpt3 --config.data.vocabulary=gs://BUCKET/gpt2

The vocabulary is GPT-2's, the folder with encoder.json and vocab.bpe. Sizes: small 125 M, medium 356 M, large 760 M, xl
1.32 B, 2_7b 2.65 B, 6_7b 6.66 B, 13b 12.9 B, 175b 174.6 B parameters; the paper has 125 M, 350 M, 760 M, 1.3 B, 2.7 B,
6.7 B, 13.0 B and 175.0 B. 300 billion tokens, batches of 0.5 to 3.2 million and rates as published, here on C4. The
batch is constant, whereas GPT-3's grew over 4 to 12 billion tokens. The rate reaches its tenth with the last token,
GPT-3's after 260 billion. The width of the bands is not published.

Published, 175b: SuperGLUE 71.8 with 32 examples, LAMBADA 76.2 with none and 86.4 with a few, TriviaQA 71.2 with 64.
`t2t eval --config superglue --shots 32` measures the first.
"""

from ml_collections import ConfigDict

from t2t.configs import gpt2
from t2t.models import presets

SIZES = presets.GPT3_SIZES

# size -> (sequences per step: 0.5, 1, 2 and 3.2 million tokens; learning rate), table 2.1
_TRAINING = {
  "small": (256, 6e-4),
  "medium": (256, 3e-4),
  "large": (256, 2.5e-4),
  "xl": (512, 2e-4),
  "2_7b": (512, 1.6e-4),
  "6_7b": (1_024, 1.2e-4),
  "13b": (1_024, 1e-4),
  "175b": (1_536, 6e-5),
}


def get_config(size: str = "small") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = gpt2.get_config("small")
  config.model.update(presets.gpt3(size))
  config.model.vocab_size = 50_304  # rounded up to a multiple of 128 for the mesh
  config.model.remat = {"small": "none", "medium": "minimal", "large": "minimal"}.get(size, "full")
  config.data.targets_length = 2_048
  config.train.batch_size, config.optimizer.learning_rate = _TRAINING[size]
  tokens = config.train.batch_size * config.data.targets_length
  config.train.steps = round(300e9 / tokens)
  config.optimizer.warmup_steps = round(375e6 / tokens)
  return config
