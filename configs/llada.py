"""LLaDA (Nie et al. 2025): masked diffusion with Llama's layers and bidirectional attention.

  t2t train --config llada_8b --workdir gs://BUCKET/llada_8b --config.data.vocabulary=gs://BUCKET/tokenizer.json \
    --config.data.files='gs://BUCKET/text/*.txt'

Size: 8b 8.02 B parameters, 4,096 tokens per sequence. As published (section 2.2 and appendix B): 2.3 trillion tokens in
batches of 1,280 sequences, 4e-4 for 1.2 trillion, 1e-4 for 0.8, and a decay to 1e-5 in the last 0.3. There 1 % of the
sequences have a random length, and t is at least 0.001; here every sequence is full, and t is uniform on (0, 1].
Fine-tuning on answers: --config.data.objective=answer_diffusion. Published: MMLU 65.9, GSM8K 70.7.
"""

from ml_collections import ConfigDict

from t2t.configs import default
from t2t.models import diffusion_presets

SIZES = diffusion_presets.LLADA_SIZES


def get_config(size: str = "8b") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = default.get_config()
  config.model.update(diffusion_presets.llada(size))
  config.model.remat = "full"
  config.data.mixture = "c4_masked_diffusion"
  config.data.objective = "masked_diffusion"  # for the user's own files
  config.data.task_modules = ("t2t.tasks.c4",)
  config.data.inputs_length = config.data.targets_length = 4_096
  config.train.loss = "diffusion"
  config.train.batch_size = 1_280
  config.train.z_loss = 0.0
  tokens = config.train.batch_size * config.data.inputs_length
  late = {"optimizer.learning_rate": 1e-4, "optimizer.warmup_steps": 0}
  decay = {"optimizer.schedule": "wsd", "optimizer.decay_fraction": 1.0, "optimizer.end_lr_fraction": 0.1}
  config.stages = (
    {"name": "high"},
    {"name": "low", "steps": round(0.8e12 / tokens), **late},
    {"name": "decay", "steps": round(0.3e12 / tokens), **late, **decay},
  )
  config.train.steps = round(2.3e12 / tokens)
  config.optimizer.name = "adamw"
  config.optimizer.learning_rate = 4e-4
  config.optimizer.schedule = "constant"
  config.optimizer.warmup_steps = 2_000
  config.optimizer.scale_by_parameter = False
  config.optimizer.weight_decay = 0.1
  config.optimizer.b2 = 0.95
  config.optimizer.clip_norm = 1.0
  return config
