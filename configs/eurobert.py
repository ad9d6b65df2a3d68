"""EuroBERT (Boizard et al. 2025): Llama's parts in an encoder for European languages, mathematics and code.

  t2t train --config eurobert_210m --workdir gs://BUCKET/eurobert \
    --config.data.files='gs://BUCKET/text/*.jsonl.gz' --config.data.vocabulary=gs://BUCKET/tokenizer.json

Sizes with untied logits: 210m 310 M, 610m 756 M, 2_1b 2.40 B parameters; the names count one embedding. Two phases:
4.8 T tokens in sequences of 2,048 with half of the tokens masked, at a constant rate after a warm-up; and 200 B in
sequences of 8,192 with another rotary base and a tenth of the tokens masked, while the rate falls as a cosine to 0. The
authors change the text in the second phase: give "data.files" of the stage.

From the paper: objective, mask rates, lengths, tokens, schedule and rate. From the released code: the shapes and the
rotary base of 10,000 in the first phase. Guesses: batches of 4 M tokens, the constants of AdamW, clipping, and BERT's
replacement of masked tokens (80 % masks, 10 % random tokens). The authors' text is not included.
"""

from ml_collections import ConfigDict

from t2t.configs import default
from t2t.models import llama_encoders

SIZES = llama_encoders.EUROBERT_SIZES


def get_config(size: str = "210m") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = default.get_config()
  config.model.update(llama_encoders.eurobert(size))
  config.model.remat = "minimal"
  config.data.objective = "masked_lm"
  config.data.noise_density = 0.5
  config.data.inputs_length = 8_192
  config.data.extra_ids = 0
  rows = 2_048
  annealing = {"train.batch_size": rows // 4, "data.noise_density": 0.1, "optimizer.schedule": "cosine"}
  annealing |= {"optimizer.warmup_steps": 0, "optimizer.end_lr_fraction": 0.0}
  config.stages = (
    {"name": "pretraining", "fraction": 0.96, "data.inputs_length": 2_048, "model.rotary_base": 10_000.0},
    {"name": "annealing", "fraction": 0.04, **annealing},
  )
  config.train.steps = round(5e12 / (rows * 2_048))
  config.train.batch_size = rows
  config.train.z_loss = 0.0
  config.optimizer.name = "adamw"
  config.optimizer.learning_rate = 1e-4
  config.optimizer.schedule = "constant"
  config.optimizer.warmup_ratio = 2_000 / config.train.steps
  config.optimizer.scale_by_parameter = False
  config.optimizer.weight_decay = 0.1
  config.optimizer.b2 = 0.95
  config.optimizer.epsilon = 1e-5
  config.optimizer.clip_norm = 1.0
  return config
