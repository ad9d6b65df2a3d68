"""Ettin (Weller et al. 2025): pairs of encoder and decoder that differ only in attention mask and objective.

  t2t train --config ettin_encoder_150m --workdir gs://BUCKET/ettin_encoder \
    --config.data.vocabulary=gs://BUCKET/tokenizer.json
  t2t train --config ettin_decoder_150m --workdir gs://BUCKET/ettin_decoder \
    --config.data.vocabulary=gs://BUCKET/tokenizer.json

ModernBERT's architecture in six sizes, 17m to 1b; encoders mask 30 % of the tokens, decoders are causal. Three phases:
1.7 T tokens in sequences of 1,024; 250 B in sequences of 8,192 with another rotary base; and 100 B with a decaying
rate, for which the authors had better text ("data.mixture" of the stage). Batches and rates are those of ModernBERT
base for every size. The smaller masking rate of the last phase is left out. Published: GLUE 88.9 (encoder 150m) and
90.8 (400m); mean of the decoders' tasks 46.2 (150m) and 59.0 (1b).
"""

from ml_collections import ConfigDict

from t2t.configs import modern_bert
from t2t.models import presets

SIZES = presets.ETTIN_SIZES


def get_config(size: str = "encoder_150m") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = modern_bert.get_config("base")
  config.model.update(presets.ettin(size))
  config.model.remat = "minimal"
  if size.startswith("decoder"):
    config.data.mixture, config.data.objective, config.data.noise_density = "c4_causal_lm", "causal_lm", 0.0
    # A decoder has only targets.
    lengths = {"data.inputs_length": 1, "data.targets_length": 1_024}
    config.data.inputs_length, config.data.targets_length = 1, 8_192
  else:
    lengths = {"data.inputs_length": 1_024}
  short, long, decay = config.stages
  short = {key: value for key, value in short.items() if not key.startswith("data.")} | lengths
  tokens = 1_024 * config.train.batch_size
  config.stages = (short, long, decay | {"steps": round(100e9 / tokens)})
  config.train.steps = round(2.05e12 / tokens)
  return config
