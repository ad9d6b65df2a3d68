"""NeoBERT (Le Breton et al. 2025): a deep encoder of BERT base's width, with Llama's parts.

  t2t train --config neobert_base --workdir gs://BUCKET/neobert \
    --config.data.files='gs://BUCKET/refinedweb/*.parquet' --config.data.vocabulary=gs://BUCKET/vocab.txt

245 M parameters, of which 23 M are untied logits. A fifth of the tokens is masked, all by [MASK]. Three phases of 2 M
tokens a step: 900,000 steps of 1,024 tokens, in which the rate falls as a cosine to a tenth; 100,000 steps at this
rate; and 50,000 steps of 4,096 tokens, for which the authors select long texts ("data.files" of the stage). Published:
GLUE 89.0, MTEB 51.3.

From the paper: all of the above, AdamW with its constants, clipping and warm-up. From the released code: two thirds of
3,072 features in the feed-forward layers, and a bias of the logits. Guess: the initial weights are normal with
deviation 0.02, not uniform between -0.02 and 0.02.
"""

from ml_collections import ConfigDict

from t2t.configs import default
from t2t.models import llama_encoders

SIZES = llama_encoders.NEOBERT_SIZES


def get_config(size: str = "base") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = default.get_config()
  config.model.update(llama_encoders.neobert(size))
  config.model.remat = "minimal"
  config.data.objective = "masked_lm"
  config.data.noise_density, config.data.mask_rate, config.data.random_rate = 0.2, 1.0, 0.0
  config.data.inputs_length = 1_024
  config.data.extra_ids = 0
  rows, peak = 2_048, 6e-4
  flat = {"optimizer.schedule": "constant", "optimizer.learning_rate": 0.1 * peak, "optimizer.warmup_steps": 0}
  long = {"data.inputs_length": 4_096, "train.batch_size": rows // 4}
  config.stages = (
    {"name": "cosine", "fraction": 90 / 105, "optimizer.schedule": "cosine", "optimizer.end_lr_fraction": 0.1},
    {"name": "flat", "fraction": 10 / 105, **flat},
    {"name": "long", "fraction": 5 / 105, **flat, **long},
  )
  config.train.steps = 1_050_000
  config.train.batch_size = rows
  config.train.z_loss = 0.0
  config.optimizer.name = "adamw"
  config.optimizer.learning_rate = peak
  config.optimizer.schedule = "cosine"
  config.optimizer.warmup_ratio = 2_000 / 900_000  # of the first phase
  config.optimizer.scale_by_parameter = False
  config.optimizer.weight_decay = 0.1
  config.optimizer.b2 = 0.95
  config.optimizer.clip_norm = 1.0
  return config
