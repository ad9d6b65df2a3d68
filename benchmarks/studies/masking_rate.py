"""Masking rate and replacement of masked language models (Wettig et al. 2023)."""

from typing import Any

from t2t.studies import claims, suite
from t2t.studies.definition import Arm, Column, Scale, Setting, Study

_ALL_MASKS = {"data.mask_rate": 1.0, "data.random_rate": 0.0}

# Arm -> keys. Rates are compared with [MASK] alone, and replacements at 15 %: masks/random/kept.
ARMS: dict[str, dict[str, Any]] = {
  "mask 5 %": {"data.noise_density": 0.05, **_ALL_MASKS},
  "mask 15 %": {"data.noise_density": 0.15, **_ALL_MASKS},
  "mask 30 %": {"data.noise_density": 0.3, **_ALL_MASKS},
  "mask 40 %": {"data.noise_density": 0.4, **_ALL_MASKS},
  "mask 60 %": {"data.noise_density": 0.6, **_ALL_MASKS},
  "15 % 80/10/10": {"data.noise_density": 0.15},
  "15 % 80/0/20": {"data.noise_density": 0.15, "data.mask_rate": 0.8, "data.random_rate": 0.0},
  "15 % 80/20/0": {"data.noise_density": 0.15, "data.mask_rate": 0.8, "data.random_rate": 0.2},
}


def arms(setting: Setting) -> list[Arm]:
  """Returns an arm for each rate and replacement."""
  text = suite.text_stages(setting)
  finetune = suite.finetuning(setting, suite.ENCODER, start="pretrain")
  return [Arm(name, [*text, suite.encoder(setting, keys), finetune]) for name, keys in ARMS.items()]


def columns(setting: Setting) -> list[Column]:
  """Returns the columns of the suite, and the held-out loss, which depends on the rate."""
  return [*suite.columns(setting, suite.ENCODER), suite.held_out_loss()]


STUDY = Study(
  title="Masking rate",
  question="How many of the tokens should a masked language model mask, and by what should it replace them?",
  paper="Wettig et al. 2023, Should You Mask 15% in Masked Language Modeling?, abstract",
  claim=(
    "Masking 40 % of the tokens outperforms 15 % for models of the size of BERT large on GLUE and SQuAD. The "
    "replacements at 15 % are for comparison, and the rule does not test them."
  ),
  rule=claims.higher("mask 40 %", than="mask 15 %", column="mean"),
  arms=arms,
  columns=columns,
  scales={
    "toy": Scale(
      "two CPU cores",
      45,
      "A tiny encoder, 2 layers of width 64, 1,000 steps of 32 x 64 tokens of the documentation; 300 steps "
      "of fine-tuning on three tasks.",
    ),
    "small": Scale("one H200", 600, "BERT base, 30,000 steps; GLUE, 20,000 steps."),
    "base": Scale("eight H200", 1_500, "BERT base, 125,000 steps; GLUE, 60,000 steps."),
  },
  caveats=(
    "according to the paper larger models need a higher rate, and these models are far smaller than BERT large. Tasks "
    "of a few hundred held-out examples have wide intervals."
  ),
)
