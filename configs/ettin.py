"""Ettin (Weller et al. 2025): pairs of encoder and decoder that differ only in attention mask and objective.

  t2t train --config ettin_encoder_150m --workdir gs://BUCKET/ettin_encoder \
    --config.data.files='gs://BUCKET/text/*.jsonl.gz' --config.data.vocabulary=gs://BUCKET/tokenizer.json
  t2t train --config ettin_decoder_150m --workdir gs://BUCKET/ettin_decoder \
    --config.data.files='gs://BUCKET/text/*.jsonl.gz' --config.data.vocabulary=gs://BUCKET/tokenizer.json

ModernBERT's architecture in six sizes, 17m to 1b; encoders mask 30 % of the tokens, decoders are causal. Three phases
on texts of their own ("data.files" of a stage; the authors published all three): 1.7 T tokens in sequences of 1,024 at
a constant rate, after a ramp of the batch; 250 B in sequences of 8,192 with another rotary base, while the rate falls
to a half; and 50 B with a mask rate of 15 %, while it falls to a fiftieth. Both falls have the shape 1 - sqrt.

From the released configs: everything above, StableAdamW, and for each size the peak rate, warm-up, weight decay and
tokens of the ramp; 1b has a third of the tokens in the last two phases. Their weight decay is not multiplied by the
rate's peak, so it is divided by the peak here. The paper and the data cards give 100 B tokens for the last phase.
Guesses: the ramp begins at a sixteenth of the batch, in four stages; 4,608 x 1,024 tokens also in the last two phases,
where the authors' 4,608 texts of at most 7,999 tokens do not fill their rows. Published: GLUE 88.9 (encoder 150m) and
90.8 (400m); mean of the decoders' tasks 46.2 (150m) and 59.0 (1b).
"""

from ml_collections import ConfigDict

from t2t.configs import default
from t2t.models import presets

SIZES = presets.ETTIN_SIZES
_ROWS, _SHORT, _LONG = 4_608, 1_024, 8_192
_TOKENS = _ROWS * _SHORT  # per batch, after the ramp
# Peak rate, weight decay, tokens of the rate's warm-up, tokens of the ramp.
_BY_SIZE = {
  "17m": (3e-3, 3e-4, 4e9, 125e9),
  "32m": (3e-3, 3e-4, 4e9, 100e9),
  "68m": (3e-3, 3e-4, 3e9, 75e9),
  "150m": (8e-4, 1e-5, 3e9, 50e9),
  "400m": (5e-4, 1e-5, 2e9, 10e9),
  "1b": (5e-4, 5e-5, 2e9, 3e9),
}


def _ramp(tokens: float, changes: dict[str, object]) -> list[tuple[str, float, dict[str, object]]]:
  """Returns four stages with as many tokens each, and rows that grow linearly over the tokens."""
  stages = []
  for number in range(4):
    share = 1 / 16 + 15 / 16 * (number + 0.5) / 4  # at the middle of the stage
    rows = round(_ROWS * share / 64) * 64
    stages.append((f"ramp_{number + 1}", tokens / 4 / (rows * _SHORT), changes | {"train.batch_size": rows}))
  return stages


def _steps_of(tokens: float, phases: list[tuple[str, float, dict[str, object]]]) -> float:
  """Returns the number of steps after which a run has read so many tokens, in its phases of short sequences."""
  total = 0.0
  for _, steps, changes in phases:
    in_step = changes.get("train.batch_size", _ROWS) * _SHORT
    if tokens <= steps * in_step:
      return total + tokens / in_step
    total, tokens = total + steps, tokens - steps * in_step
  return total


def get_config(size: str = "encoder_150m") -> ConfigDict:
  """Returns the config for one of SIZES."""
  side, _, width = size.partition("_")
  peak, weight_decay, warmup, ramp = _BY_SIZE[width]
  late = 1 / 3 if width == "1b" else 1.0  # share of the tokens of the last two phases
  config = default.get_config()
  config.model.update(presets.ettin(size))
  config.model.remat = "minimal"
  config.data.extra_ids = 0
  length = "inputs_length" if side == "encoder" else "targets_length"
  config.data[length] = _LONG
  if side == "encoder":
    config.data.objective, config.data.noise_density = "masked_lm", 0.3
  else:
    config.data.objective, config.data.inputs_length = "causal_lm", 1  # a decoder has only targets
  short = {f"data.{length}": _SHORT, "model.rotary_base": 10_000.0}
  falling = {"optimizer.schedule": "wsd", "optimizer.decay_fraction": 1.0, "optimizer.decay_shape": "1-sqrt"}
  falling |= {"train.batch_size": _ROWS * _SHORT // _LONG, "optimizer.warmup_steps": 0}
  decay = {"data.noise_density": 0.15} if side == "encoder" else {}
  phases = [  # name, steps, changes
    *_ramp(ramp, short),
    ("short", (1.7e12 - ramp) / _TOKENS, short),
    ("long", late * 250e9 / _TOKENS, falling | {"optimizer.learning_rate": peak, "optimizer.end_lr_fraction": 0.5}),
    (
      "decay",
      late * 50e9 / _TOKENS,
      falling | decay | {"optimizer.learning_rate": peak / 2, "optimizer.end_lr_fraction": 0.04},
    ),
  ]
  steps = sum(steps for _, steps, _ in phases)
  config.stages = tuple({"name": name, "fraction": part / steps, **changes} for name, part, changes in phases)
  config.train.steps = round(steps)
  config.train.batch_size = _ROWS
  config.train.z_loss = 0.0
  config.optimizer.name = "stable_adamw"
  config.optimizer.learning_rate = peak
  config.optimizer.schedule = "constant"
  config.optimizer.warmup_ratio = _steps_of(warmup, phases) / steps
  config.optimizer.scale_by_parameter = False
  config.optimizer.weight_decay = weight_decay / peak
  config.optimizer.b2 = 0.98
  config.optimizer.epsilon = 1e-6
  return config
