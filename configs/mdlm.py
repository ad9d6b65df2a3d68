"""MDLM (Sahoo et al. 2024): masked diffusion with GPT-2's size, vocabulary and length.

  t2t train --config mdlm_small --workdir gs://BUCKET/mdlm --config.data.vocabulary=gs://BUCKET/gpt2

The vocabulary is GPT-2's folder with encoder.json and vocab.bpe, and <extra_id_0> is the mask. Size: small 162 M
parameters, of which 77 M are the two embeddings. As published for OpenWebText: 1,000,000 steps of 512 sequences of
1,024 tokens at a constant rate, and an exponential average of the weights. The text here is C4. Left out: the layers
that read the time, which the published model does not use, and levels spread over a batch. Published: perplexity at
most 23.21.
"""

from ml_collections import ConfigDict

from t2t.configs import default
from t2t.models import diffusion_presets

SIZES = diffusion_presets.MDLM_SIZES


def get_config(size: str = "small") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = default.get_config()
  config.model.update(diffusion_presets.mdlm(size))
  config.model.vocab_size = 50_304  # rounded up to a multiple of 128 for the mesh
  config.model.remat = "minimal"
  config.data.mixture = "c4_masked_diffusion"
  config.data.objective = "masked_diffusion"  # for the user's own files
  config.data.task_modules = ("t2t.tasks.c4",)
  config.data.inputs_length = config.data.targets_length = 1_024
  config.data.extra_ids = 1
  config.train.loss = "diffusion"
  config.train.steps = 1_000_000
  config.train.batch_size = 512
  config.train.z_loss = 0.0
  config.optimizer.name = "adamw"
  config.optimizer.learning_rate = 3e-4
  config.optimizer.schedule = "constant"
  config.optimizer.warmup_steps = 2_500
  config.optimizer.scale_by_parameter = False
  config.optimizer.clip_norm = 1.0
  config.optimizer.average = "ema"
  config.optimizer.average_decay = 0.9999
  config.eval.average = True
  return config
