"""Causal, then masked LM against masked LM alone at equal steps (Gisserot-Boukhlef et al. 2025)."""

from t2t.studies import claims, suite
from t2t.studies.definition import Arm, Column, Scale, Setting, Study, TrainStage

# Arm -> fraction of the steps with causal LM.
ARMS = {"MLM": 0.0, "25 % CLM, MLM": 0.25, "50 % CLM, MLM": 0.5, "75 % CLM, MLM": 0.75}
ARMS = {name.replace(",", " then"): fraction for name, fraction in ARMS.items()}
_DECODER_TO_ENCODER = "embed,head,decoder=encoder"


def _steps(setting: Setting) -> int:
  return setting.sized(toy=suite.TOY_STEPS, small=30_000, base=40_000)


def _causal(setting: Setting, fraction: float) -> TrainStage:
  # The head of masked LM is trained from the first step on.
  keys = {**suite.as_decoder(setting), "model.logits_transform": True}
  keys |= suite.budget(round(fraction * _steps(setting)))
  return suite.encoder(setting, keys, objective="causal_lm", name="causal")


def arms(setting: Setting) -> list[Arm]:
  """Returns an arm for each fraction; the second phase continues the first one's parameters with a new schedule."""
  finetune = suite.finetuning(setting, suite.ENCODER, start="pretrain")
  made = []
  for name, fraction in ARMS.items():
    keys = {"data.noise_density": 0.4, **suite.budget(_steps(setting) - round(fraction * _steps(setting)))}
    first = [_causal(setting, fraction)] if fraction else []
    if first:
      keys |= {"init.checkpoint": "{causal}", "init.rename": _DECODER_TO_ENCODER}
    made.append(Arm(name, [*suite.text_stages(setting), *first, suite.encoder(setting, keys), finetune]))
  return made


def columns(setting: Setting) -> list[Column]:
  """Returns the columns of the suite, and the held-out loss of masked LM."""
  return [*suite.columns(setting, suite.ENCODER), suite.held_out_loss()]


STUDY = Study(
  title="Causal, then masked LM",
  question="Is an encoder better if part of its steps of pre-training are causal LM before masked LM?",
  paper="Gisserot-Boukhlef et al. 2025, Should We Still Pretrain Encoders with Masked Language Modeling?, abstract",
  claim=(
    "Under a fixed budget of training, causal LM followed by masked LM does better on downstream tasks than masked LM "
    "alone."
  ),
  rule=claims.higher("50 % CLM then MLM", than="MLM", column="mean"),
  arms=arms,
  columns=columns,
  scales={
    "toy": Scale(
      "two CPU cores",
      30,
      "A tiny encoder, 2 layers of width 64, 1,000 steps of 32 x 64 tokens of the documentation, 40 % masked; 300 "
      "steps of fine-tuning on three tasks.",
    ),
    "small": Scale("one H200", 400, "BERT base, 30,000 steps, 40 % masked; GLUE, 20,000 steps."),
    "base": Scale("eight H200", 700, "BERT base, 40,000 steps, 40 % masked; GLUE, 60,000 steps."),
  },
  caveats=(
    "each phase has its own schedule of the learning rate. The paper's models have 210 million to one billion "
    "parameters; tiny models read two million tokens. The rule compares half of the steps only."
  ),
)
