"""Transformer (Vaswani et al. 2017): the original encoder-decoder, for translation from English to German.

  t2t train --config transformer_base --workdir gs://BUCKET/transformer_base \\
    --config.data.vocabulary=gs://BUCKET/wmt_en_de.model

Sizes: base 63 M, big 214 M parameters, which the paper rounds to 65 M and 213 M. Sinusoidal positions, post-norm, one
scaled embedding for source, target and logits, label smoothing 0.1. The learning rate is the paper's: linear for 4,000
steps, then by the inverse square root, at most (embed_dim * 4,000)^-0.5. 100,000 steps of about 25,000 tokens on each
side, big 300,000. Published: newstest2014 BLEU 27.3, big 28.4, with the average of the last five checkpoints, big 20
(config.optimizer.average=lawa).

The vocabulary has 37,000 tokens of both languages, which `t2t vocab train` makes. The task wmt_en_de puts T5's words
before a source. Own text: --config.data.files=GLOB --config.data.translation=FIELD.
"""

from ml_collections import ConfigDict

from t2t.configs import default
from t2t.models import presets

SIZES = presets.TRANSFORMER_SIZES
_WARMUP_STEPS = 4_000


def peak_rate(embed_dim: int) -> float:
  """Returns the learning rate at the end of warm-up (Vaswani et al. 2017, section 5.3)."""
  return (embed_dim * _WARMUP_STEPS) ** -0.5


def get_config(size: str = "base") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = default.get_config()
  config.model.update(presets.transformer(size))
  config.model.vocab_size = 37_120  # rounded up to a multiple of 128 for the mesh
  config.data.mixture = "wmt_en_de"
  config.data.objective = "translation"  # for the user's own files
  config.data.task_modules = ("t2t.tasks.translation",)
  config.data.vocabulary = ""
  config.data.extra_ids = 0
  config.data.inputs_length = 256
  config.data.targets_length = 256
  config.data.pack = True
  config.train.steps = {"base": 100_000, "big": 300_000}[size]
  config.train.batch_size = 96
  config.train.label_smoothing = 0.1
  config.train.z_loss = 0.0
  config.optimizer.name = "adamw"
  config.optimizer.schedule = "inverse_sqrt"
  config.optimizer.warmup_steps = _WARMUP_STEPS
  config.optimizer.learning_rate = peak_rate(config.model.embed_dim)
  config.optimizer.scale_by_parameter = False
  config.optimizer.weight_decay = 0.0
  config.optimizer.b2 = 0.98
  config.optimizer.epsilon = 1e-9
  return config
