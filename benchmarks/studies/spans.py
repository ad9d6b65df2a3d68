"""Corruption of text for an encoder-decoder: targets, rate and length of spans (Raffel et al. 2020)."""

from typing import Any

from t2t.studies import claims, suite
from t2t.studies.definition import Arm, Scale, Setting, Study, TrainStage

# Arm -> objective, rate, and mean length of spans; 0: runs of independently drawn tokens.
WHOLE_TEXT = {"BERT style": ("bert_style", 0.15, 0), "MASS style": ("token_masking", 0.15, 0)}
TARGETS = {"drop tokens": ("drop_tokens", 0.15, 0)}  # table 5, with the arms above and "i.i.d. 15 %"
RATES = {f"i.i.d. {rate} %": ("iid_span_corruption", rate / 100, 0) for rate in (10, 15, 25, 50)}  # table 6
LENGTHS = {f"spans of {length}": ("span_corruption", 0.15, length) for length in (2, 3, 5, 10)}  # table 7


def targets_length(objective: str, rate: float, span: int, *, inputs_length: int) -> int:
  """Returns the target positions that the longest text needs whose corrupted inputs fit.

  In:  "span_corruption", 0.15, 3, inputs_length 512
  Out: 114                                  568 tokens of text, 85 of them in 28 spans, and EOS
  """
  if objective in (name for name, _, _ in WHOLE_TEXT.values()):
    return inputs_length

  def sizes(raw: int) -> tuple[int, int]:
    noise = min(max(round(raw * rate), 1), raw - 1)
    if objective == "drop_tokens":
      return raw - noise + 1, noise + 1
    if span:
      spans = max(round(noise / span), 1)
      return raw - noise + spans + 1, noise + spans + 1
    return raw - noise + min(noise, raw - noise) + 1, noise + min(noise + 1, raw - noise) + 1

  raw = 2
  while sizes(raw + 1)[0] <= inputs_length:
    raw += 1
  return sizes(raw)[1]


def pretraining(setting: Setting, objective: str, rate: float, span: int) -> TrainStage:
  """Returns the stage that pre-trains an encoder-decoder."""
  length = setting.sized(toy=64, small=128, base=128)  # at 128 tokens and 50 % T5's 100 sentinels are enough
  noise: dict[str, Any] = {"data.noise_density": rate} | ({"data.mean_noise_span_length": float(span)} if span else {})
  lengths = {
    "data.inputs_length": length,
    "data.targets_length": targets_length(objective, rate, span, inputs_length=length),
  }
  if setting.scale == "toy":
    config = setting.config or "tiny_t5"
    layers = {**suite.TOY_MODEL, "model.num_encoder_layers": 2, "model.num_decoder_layers": 2, "train.batch_size": 32}
    size = {**({} if setting.config else layers), **suite.budget(suite.TOY_STEPS)}
  else:
    config = setting.config or setting.sized(small="t5_small", base="t5_base")
    size = {"train.batch_size": 512, **suite.budget(setting.sized(small=30_000, base=125_000))}
  keys = {**suite.text_keys(setting), "data.objective": objective, **noise, **lengths, **size}
  return TrainStage("pretrain", config, keys)


def arms(setting: Setting) -> list[Arm]:
  """Returns an arm for each row of tables 5, 6 and 7."""
  text = suite.text_stages(setting)
  finetune = suite.finetuning(setting, "", start="pretrain")
  rows = {**WHOLE_TEXT, **TARGETS, **RATES, **LENGTHS}
  return [Arm(name, [*text, pretraining(setting, *row), finetune]) for name, row in rows.items()]


STUDY = Study(
  title="Targets, rate and span length of T5",
  question="How much of a text should span corruption hide, in how long spans, and what should the decoder write?",
  paper="Raffel et al. 2020, T5, tables 5 to 7",
  claim=(
    "The scores on GLUE differ little. Targets (table 5): BERT style 82.96, MASS style 82.32, replaced spans 83.28, "
    "dropped tokens 84.44. Rates (table 6): 82.82 at 10 %, 83.28 at 15 %, 83.00 at 25 %, 81.27 at 50 %. Mean length "
    "of spans (table 7): 83.28 for independent tokens, 83.54 for 2, 83.49 for 3, 83.40 for 5, 82.85 for 10. The rule "
    "tests two statements: a rate of 50 % is worse than 15 %, and spans of 3 are slightly better than independent "
    "tokens."
  ),
  rule=claims.all_of(
    claims.higher("i.i.d. 15 %", than="i.i.d. 50 %", column="mean"),
    claims.higher("spans of 3", than="i.i.d. 15 %", column="mean"),
  ),
  arms=arms,
  columns=lambda setting: suite.columns(setting, ""),
  scales={
    "toy": Scale(
      "two CPU cores",
      230,
      "A tiny T5, 2 + 2 layers of width 64, 1,000 steps of 32 x 64 input tokens of the installed documentation; "
      "300 steps of fine-tuning on four tasks, a summary among them.",
    ),
    "small": Scale("one H200", 1_600, "T5 small, 30,000 steps of 512 x 128 input tokens; GLUE, 20,000 steps."),
    "base": Scale("eight H200", 2_500, "T5 base, 125,000 steps of 512 x 128 input tokens; GLUE, 60,000 steps."),
  },
  caveats=(
    "all arms have equal steps and inputs, so higher rates and shorter spans train on more targets. The paper's inputs "
    "have 512 tokens, and its differences of a fraction of a point need more seeds and larger tasks than these."
  ),
)
