"""GPT-BERT (Charpentier & Samuel 2024): one decoder that fills in masks as BERT and goes on with text as GPT.

  t2t vocab train --size 8192 --input 'text/*.txt' --output runs/pieces
  t2t train --config gpt_bert_small --workdir runs/gpt_bert --config.data.vocabulary=runs/pieces/spiece.model \
    --config.data.sources.masked.files='text/*.txt' --config.data.sources.causal.files='text/*.txt'

Both sources read the same files: of the rows of a batch one in sixteen is read from left to right, and predicts every
token; the others are read both ways, and the state in front of each hidden token predicts it.  Other shares:
--config.data.sources.causal.share=0.5 --config.data.sources.masked.share=0.5.  <extra_id_0> is the mask of a vocabulary
that has none.

Sizes: small 28 M and base 112 M parameters (theirs 30 M and 119 M), for ten and a hundred million words.  Batches of
32,768 x 128 tokens, steps, LAMB and its rate are those of the released code.  There batches grow from a quarter to
that, spans of up to three tokens are hidden, 30 % of the text at first and 15 % at last, each kind of row has a loss of
its own, and weights are averaged at the end; here 20 % of single tokens are hidden all along, and each token that is
predicted counts alike.  Published, small on ten million words: BLiMP 81.2, its supplement 69.4, EWoK 54.6, GLUE 76.5;
base on a hundred: 86.1, 76.8, 58.4 and 81.5.
"""

from ml_collections import ConfigDict

from t2t.configs import default
from t2t.models import presets

SIZES = presets.GPT_BERT_SIZES


def with_both(config: ConfigDict, *, causal: float) -> ConfigDict:
  """The config with a share of rows that are read from left to right, and the others both ways, on the user's files."""
  config.data.sources = ConfigDict(
    {
      "causal": {"objective": "next_token", "share": causal},
      "masked": {"objective": "masked_next_token", "share": 1.0 - causal, "noise_density": 0.2},
    }
  )
  return config


def get_config(size: str = "small") -> ConfigDict:
  """The recipe for one of SIZES."""
  config = default.get_config()
  config.model.update(presets.gpt_bert(size))
  config.model.remat = "minimal"
  config.model.vocab_size += 128  # <extra_id_0>, and rows up to a multiple of 128
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
