"""Architectures and objectives of text-to-text models (Raffel et al. 2020, table 2)."""

from typing import Any

from t2t.studies import claims, suite
from t2t.studies.definition import Arm, Column, Scale, Setting, Study

# Row of the table -> fields of the encoder-decoder's model; "half" halves its layers.
ROWS: dict[str, dict[str, Any]] = {
  "encoder-decoder": {},
  "shared": {"model.share_stacks": True},
  "half depth": {"half": True},
  "language model": {"model.architecture": "decoder_only", "model.num_encoder_layers": 0},
  "prefix LM": {
    "model.architecture": "decoder_only",
    "model.num_encoder_layers": 0,
    "model.bidirectional_prefix": True,
  },
}
_OBJECTIVES = ("denoising", "LM")
_POSITIONS = 64  # of a row of pre-training: inputs and targets together


def _objective(row: str, objective: str) -> tuple[str, dict[str, Any]]:
  """Returns objective and lengths; 50 positions of text have 17 targets at 15 % in spans of three tokens."""
  if objective == "denoising":
    return "span_corruption", {"data.inputs_length": 50, "data.targets_length": 14}
  if row == "language model":
    return "causal_lm", {"data.inputs_length": 1, "data.targets_length": _POSITIONS}
  return "prefix_lm", {"data.inputs_length": _POSITIONS // 2, "data.targets_length": _POSITIONS // 2}


def _arm(setting: Setting, row: str, objective: str) -> Arm:
  name, lengths = _objective(row, objective)
  if setting.scale != "toy":
    lengths = {key: length * 8 for key, length in lengths.items()}
  keys = {key: value for key, value in ROWS[row].items() if key != "half"}
  if "half" in ROWS[row]:
    layers = suite.LAYERS[setting.scale] // 2
    keys |= {"model.num_encoder_layers": layers, "model.num_decoder_layers": layers}
  pretrain = suite.encoder_decoder(setting, {**keys, **lengths}, objective=name)
  finetune = suite.finetuning(setting, str(keys.get("model.architecture", "encoder_decoder")), start=pretrain.name)
  return Arm(f"{row}: {objective}", [*suite.text_stages(setting), pretrain, finetune])


def arms(setting: Setting) -> list[Arm]:
  """Returns an arm for each row and objective."""
  return [_arm(setting, row, objective) for objective in _OBJECTIVES for row in ROWS]


def columns(setting: Setting) -> list[Column]:
  """Returns the columns of the suite, and the held-out loss, which is comparable within an objective."""
  return [*suite.columns(setting, ""), suite.held_out_loss()]


_ORDER = ("encoder-decoder", "shared", "prefix LM", "half depth", "language model")

STUDY = Study(
  title="Architectures and objectives",
  question="Which architecture and objective of a text-to-text model does best after fine-tuning?",
  paper="Raffel et al. 2020, T5, table 2",
  claim=(
    "With denoising, the scores on GLUE are: encoder-decoder 83.28, with shared parameters 82.81, prefix LM 81.82, "
    "encoder-decoder of half the depth 80.88, language model 74.70. An encoder-decoder scores higher after denoising "
    "than after language modelling: 83.28 against 79.56."
  ),
  rule=claims.all_of(
    claims.order(*(f"{row}: denoising" for row in _ORDER), column="mean"),
    claims.higher("encoder-decoder: denoising", than="encoder-decoder: LM", column="mean"),
  ),
  arms=arms,
  columns=columns,
  scales={
    "toy": Scale(
      "two CPU cores",
      70,
      "A tiny T5 1.1, 2 and 2 layers of width 64, 1,000 steps of 32 rows with 64 positions of the documentation; 300 "
      "steps of fine-tuning on four tasks.",
    ),
    "small": Scale("one H200", 1_500, "T5 1.1 small, 30,000 steps; GLUE, 20,000 steps."),
    "base": Scale("eight H200", 4_000, "T5 1.1 base, 125,000 steps; GLUE, 60,000 steps."),
  },
  caveats=(
    "the paper pre-trains 2**19 steps of 65,536 tokens; these models have far fewer steps, and may not write answers "
    "yet. A tiny encoder-decoder may still ignore its encoder when a decoder alone already reads its inputs."
  ),
)
