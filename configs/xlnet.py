"""XLNet (Yang et al. 2019): tokens predicted in a random order, with a memory of the rows before.

  t2t train --config xlnet_base --workdir gs://BUCKET/xlnet --config.data.vocabulary=gs://BUCKET/spiece.model

Sizes: base 117 M, large 360 M parameters. As published for large: 500,000 steps of 8,192 sequences of 512 tokens, of
which 85 are predicted, and a memory of 384 positions (table 7 and the released command). Rows overlap by 256 tokens,
whose states are reused. The authors' rows have two segments. Half of these rows hold the text in reverse order, with
negated distances, so that the memory is of the text after a row (bi_data). Here all rows run from left to right.
Published for large: MNLI 89.8, SQuAD 2.0 exact match 86.12.
"""

from ml_collections import ConfigDict

from t2t.configs import default
from t2t.models import bert_variants

SIZES = bert_variants.XLNET_SIZES


def get_config(size: str = "base") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = default.get_config()
  config.model.update(bert_variants.xlnet(size))
  config.model.memory_length = 384
  config.model.memory_reuse = 256
  config.model.remat = {"base": "none", "large": "minimal"}[size]
  config.data.mixture = "wikipedia_overlapping_permuted_lm"
  config.data.objective = "overlapping_permuted_lm"  # for the user's own files
  config.data.task_modules = ("t2t.tasks.wikipedia",)
  config.data.continuous_rows = True
  config.data.inputs_length = 512
  config.data.targets_length = 512
  config.data.extra_ids = 0
  config.train.steps = 500_000
  config.train.batch_size = 8_192
  config.train.z_loss = 0.0
  config.optimizer.name = "adamw"
  config.optimizer.learning_rate = 4e-4
  config.optimizer.schedule = "linear"
  config.optimizer.warmup_steps = 40_000
  config.optimizer.scale_by_parameter = False
  config.optimizer.weight_decay = 0.01
  config.optimizer.epsilon = 1e-6
  config.optimizer.clip_norm = 1.0
  return config
