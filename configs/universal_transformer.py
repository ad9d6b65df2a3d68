"""Universal Transformer (Dehghani et al. 2019): an encoder-decoder that repeats one layer, for translation.

  t2t train --config universal_transformer_base --workdir gs://BUCKET/universal_base \\
    --config.data.vocabulary=gs://BUCKET/wmt_en_de.model

Sizes as in tensor2tensor: base 63 M, big 185 M parameters, with six steps on each side. The adaptive sizes have up to
twelve steps: each position halts by itself (adaptive computation time), and the mean number of steps is a term of the
loss. Published for base: newstest2014 BLEU 28.9. The rates and batches are those of tensor2tensor's transformer_base:
the paper has no table of them.

The task wmt_en_de puts T5's words before a source. Own text: --config.data.files=GLOB --config.data.translation=FIELD.
"""

from ml_collections import ConfigDict

from t2t.configs import default
from t2t.models import presets

SIZES = presets.UNIVERSAL_SIZES


def get_config(size: str = "base") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = default.get_config()
  config.model.update(presets.universal_transformer(size))
  config.data.mixture = "wmt_en_de"
  config.data.objective = "translation"  # for the user's own files
  config.data.task_modules = ("t2t.tasks.translation",)
  config.data.vocabulary = ""
  config.data.extra_ids = 0
  config.data.inputs_length = 256
  config.data.targets_length = 256
  config.data.pack = True
  config.train.steps = 100_000
  config.train.batch_size = 96
  config.train.label_smoothing = 0.1
  config.train.z_loss = 0.0
  config.optimizer.name = "adamw"
  config.optimizer.schedule = "inverse_sqrt"
  config.optimizer.warmup_steps = 4_000
  config.optimizer.learning_rate = (config.model.embed_dim * 4_000) ** -0.5
  config.optimizer.scale_by_parameter = False
  config.optimizer.weight_decay = 0.0
  config.optimizer.b2 = 0.98
  config.optimizer.epsilon = 1e-9
  return config
