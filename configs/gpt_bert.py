"""GPT-BERT (Charpentier & Samuel 2024): one decoder that fills masks like BERT and continues text like GPT.

  t2t vocab train --size 8192 --input 'text/*.txt' --output runs/pieces
  t2t train --config gpt_bert_small --workdir runs/gpt_bert --config.data.vocabulary=runs/pieces/spiece.model \
    --config.data.sources.masked.files='text/*.txt' --config.data.sources.causal.files='text/*.txt'

Both sources read the same files. One row in sixteen is causal and predicts every token. The others are bidirectional,
and the state before each masked token predicts it. Each kind has its own mean in the loss (rows_by_kind), with the
share of the rows as factor, and its own metrics: causal_loss and masked_loss. <extra_id_0> is the mask of a vocabulary
without one. A smaller batch, at a constant mask rate: --config.stages='()' --config.train.batch_size=256.

Sizes: small 28 M and base 112 M parameters (the paper's 30 M and 119 M), for ten and a hundred million words.

From the released code: batches of 32,768 x 128 tokens, which grow linearly from a quarter; 256 tokens after 70 % and
512 after 90 % of the steps, with as many tokens in a batch; a mask rate that falls linearly from 30 % to 15 %; LAMB,
its rate, warm-up and cooldown; z-loss; and the exponential average of the weights, which is evaluated. Ten stages
approximate both lines: a stage has the values of its middle.

Other than the released code: single tokens are masked, not spans of one to three; the average of the weights shortens
in the first steps; positions and layers, see `presets.gpt_bert`. Published, small on ten million words: BLiMP 81.2, its
supplement 69.4, EWoK 54.6, GLUE 76.5; base on a hundred: 86.1, 76.8, 58.4 and 81.5.
"""

from ml_collections import ConfigDict

from t2t.configs import default
from t2t.models import presets

SIZES = presets.GPT_BERT_SIZES
_ROWS, _LENGTH = 32_768, 128
_MULTIPLE = 256  # of the rows, so that meshes and microbatches divide them
_COOLDOWN = 0.016  # of the steps


def with_both(config: ConfigDict, *, causal: float) -> ConfigDict:
  """Adds a share of causal rows, with all other rows bidirectional, on the user's files, and their loss."""
  config.data.sources = ConfigDict(
    {
      "causal": {"objective": "next_token", "share": causal},
      "masked": {"objective": "masked_next_token", "share": 1.0 - causal, "noise_density": 0.2},
    }
  )
  config.train.loss = "rows_by_kind"
  config.train.term_weights = ConfigDict({"causal": causal, "masked": 1.0 - causal})
  return config


def _stages(learning_rate: float) -> tuple[dict[str, object], ...]:
  """Returns ten stages of growing batches and falling mask rates, and the cooldown of the learning rate."""
  stages: list[dict[str, object]] = []
  for tenth in range(10):
    middle = (tenth + 0.5) / 10
    length = _LENGTH * (1 if tenth < 7 else 2 if tenth < 9 else 4)
    rows = _ROWS * _LENGTH // length * (0.25 + 0.75 * middle)
    changes = {"data.targets_length": length, "train.batch_size": round(rows / _MULTIPLE) * _MULTIPLE}
    changes["data.sources.masked.noise_density"] = round(0.3 - 0.15 * middle, 4)
    stages.append({"name": f"tenth_{tenth + 1}", "fraction": 0.1, **changes})
  stages[-1]["fraction"] = 0.1 - _COOLDOWN
  # The cosine ends at a tenth of the peak, and the cooldown at 0.
  rate = {"optimizer.schedule": "linear", "optimizer.learning_rate": 0.1 * learning_rate, "optimizer.warmup_steps": 0}
  cooldown = {"name": "cooldown", "fraction": _COOLDOWN, **rate, "optimizer.end_lr_fraction": 0.0}
  return (*stages, stages[-1] | cooldown)


def get_config(size: str = "small") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = default.get_config()
  config.model.update(presets.gpt_bert(size))
  config.model.remat = "minimal"
  config.model.vocab_size += 128  # <extra_id_0>, rounded up to a multiple of 128
  config.data.extra_ids = 1
  config.data.targets_length = _LENGTH
  config.train.steps = {"small": 7_812, "base": 15_625}[size]
  config.train.batch_size = _ROWS
  config.optimizer.name = "lamb"
  config.optimizer.learning_rate = {"small": 1.41e-2, "base": 1e-2}[size]
  config.optimizer.schedule = "cosine"
  config.optimizer.warmup_ratio = 0.016
  config.optimizer.end_lr_fraction = 0.1
  config.optimizer.scale_by_parameter = False
  config.optimizer.weight_decay = 0.1
  config.optimizer.b2 = 0.98
  config.optimizer.clip_norm = 2.0
  config.optimizer.average = "ema"
  config.optimizer.average_decay = 0.999
  config.eval.average = True
  config.eval.batch_size = 1_024
  config.eval.every = config.checkpoint.save_interval_steps = 125  # the steps of the shortest stage
  config.stages = _stages(config.optimizer.learning_rate)
  return with_both(config, causal=1 / 16)
