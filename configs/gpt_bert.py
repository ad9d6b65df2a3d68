"""GPT-BERT (Charpentier & Samuel 2024): one decoder that fills masks like BERT and continues text like GPT.

  t2t vocab train --size 8192 --input 'text/*.txt' --output runs/pieces
  t2t train --config gpt_bert_small --workdir runs/gpt_bert --config.data.vocabulary=runs/pieces/spiece.model \
    --config.data.sources.masked.files='text/*.txt' --config.data.sources.causal.files='text/*.txt'

Both sources read the same files. One row in sixteen is causal and predicts every token. The others are bidirectional,
and the state before each masked token predicts it. Other shares: --config.data.sources.causal.share=0.5
--config.data.sources.masked.share=0.5. <extra_id_0> is the mask of a vocabulary without one.

Sizes: small 28 M and base 112 M parameters (the paper's 30 M and 119 M), for ten and a hundred million words. Batches
of 32,768 x 128 tokens, steps, LAMB and its rate are those of the released code. There batches grow from a quarter,
spans of up to three tokens are masked, 30 % of the text at first and 15 % at last, each kind of row has its own loss,
and weights are averaged at the end. Here 20 % of single tokens are masked throughout, and all predicted tokens have
equal weight. Published, small on ten million words: BLiMP 81.2, its supplement 69.4, EWoK 54.6, GLUE 76.5; base on a
hundred: 86.1, 76.8, 58.4 and 81.5.
"""

from ml_collections import ConfigDict

from t2t.configs import default
from t2t.models import presets

SIZES = presets.GPT_BERT_SIZES


def with_both(config: ConfigDict, *, causal: float) -> ConfigDict:
  """Adds a share of causal rows, with all other rows bidirectional, on the user's files."""
  config.data.sources = ConfigDict(
    {
      "causal": {"objective": "next_token", "share": causal},
      "masked": {"objective": "masked_next_token", "share": 1.0 - causal, "noise_density": 0.2},
    }
  )
  return config


def get_config(size: str = "small") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = default.get_config()
  config.model.update(presets.gpt_bert(size))
  config.model.remat = "minimal"
  config.model.vocab_size += 128  # <extra_id_0>, rounded up to a multiple of 128
  config.data.extra_ids = 1
  config.data.targets_length = 128
  config.train.steps = {"small": 7_812, "base": 15_625}[size]
  config.train.batch_size = 32_768
  config.optimizer.name = "lamb"
  config.optimizer.learning_rate = {"small": 1.41e-2, "base": 1e-2}[size]
  config.optimizer.schedule = "cosine"
  config.optimizer.warmup_ratio = 0.016
  config.optimizer.end_lr_fraction = 0.1
  config.optimizer.scale_by_parameter = False
  config.optimizer.weight_decay = 0.1
  config.optimizer.b2 = 0.98
  config.optimizer.clip_norm = 2.0
  return with_both(config, causal=1 / 16)
