"""Short sequences first, as BERT's pre-training: 90 % of the steps on short sequences, the rest on long ones."""

from typing import Any

from t2t.studies import claims, figures, suite
from t2t.studies.definition import LOWER, Arm, Column, Curve, Scale, Setting, Study

_SHORT_FRACTION = 0.9
_TOY_STEPS = 1_000


def arms(setting: Setting) -> list[Arm]:
  """Returns short first, long sequences alone with equal steps and with equal FLOPs, and short sequences alone."""
  text = suite.text_stages(setting)
  # Long inputs, because the question is what short sequences cost on them.
  inputs = {"data.inputs_length": 200} if suite.is_docs(setting) else {}
  finetune = suite.finetuning(setting, suite.ENCODER, start="pretrain", keys=inputs)
  short, long = setting.sized(toy=(64, 256), small=(128, 512), base=(128, 512))
  steps = setting.sized(toy=_TOY_STEPS, small=30_000, base=125_000)
  equal_flops = round(steps * (_SHORT_FRACTION * short / long + 1.0 - _SHORT_FRACTION))
  stages = ({"name": "short", "fraction": _SHORT_FRACTION, "data.inputs_length": short}, {"name": "long"})
  keys: dict[str, dict[str, Any]] = {
    "short first": {"train.steps": steps, "stages": stages},
    "long (equal steps)": {"train.steps": steps, "stages": ()},
    "long (equal FLOPs)": {"train.steps": equal_flops, "stages": ()},
    "short alone": {"train.steps": steps, "stages": (), "data.inputs_length": short},
  }
  size = {"data.inputs_length": long, "model.positions": "learned", "model.attention_init_bias": 0.0}
  size |= {"model.max_length": long}
  if setting.scale == "toy":
    size |= {"train.batch_size": 16, "data.targets_length": long}
  made = []
  for name, changed in keys.items():
    wanted = {**size, **changed}
    total = wanted["train.steps"]
    every = {"eval.every": max(1, total // 10), "checkpoint.save_interval_steps": total}
    made.append(Arm(name, [*text, suite.encoder(setting, {**wanted, **every}), finetune]))
  return made


def columns(setting: Setting) -> list[Column]:
  """Returns the columns of the suite, and the held-out loss on the sequences of the run's last stage."""
  return [*suite.columns(setting, suite.ENCODER), suite.held_out_loss(better=LOWER)]


def curves(setting: Setting) -> list[Curve]:
  """Returns the held-out loss against the step; a stage evaluates on its own length."""
  del setting
  return [Curve("held-out loss of pre-training", figures.curve("pretrain", "eval/loss"))]


STUDY = Study(
  title="Short sequences first",
  question="Does pre-training on short sequences first save compute without a loss of quality?",
  paper="Devlin et al. 2019, BERT, appendix A.2",
  claim=(
    "BERT trains 90 % of the steps on sequences of 128 tokens, because longer ones are disproportionately expensive. "
    "The rest have 512 tokens, to learn the position embeddings. The paper gives no ablation. Its choice is right if "
    "equal compute on long sequences alone gives a worse model, and if the long steps at the end are of use."
  ),
  rule=claims.all_of(
    claims.higher("short first", than="long (equal FLOPs)", column="mean"),
    claims.lower("short first", than="long (equal FLOPs)", column="loss"),
    claims.higher("short first", than="short alone", column="mean"),
  ),
  arms=arms,
  columns=columns,
  curves=curves,
  scales={
    "toy": Scale(
      "two CPU cores",
      40,
      f"A tiny encoder with learned positions, 2 layers of width 64; {_TOY_STEPS:,} steps of 16 sequences of 64 or "
      "256 tokens of the documentation (325 steps at equal FLOPs, counted by tokens); 300 steps of fine-tuning on "
      "three tasks with up to 200 tokens.",
    ),
    "small": Scale("one H200", 500, "BERT base, 30,000 steps of 128 or 512 tokens; GLUE, 20,000 steps."),
    "base": Scale("eight H200", 1_200, "BERT base, 125,000 steps of 128 or 512 tokens; GLUE, 60,000 steps."),
  },
  caveats=(
    "the loss is that of an arm's last length, so short alone is not compared in it. The order of words is at chance, "
    "50, after so few tokens. The texts of the tasks are short, so that long sequences matter little for them. Batches "
    "have as many sequences in both stages, so that the arm of equal steps reads four times the tokens of short "
    "sequences. A tiny model spends little of its compute on attention, so that FLOPs are counted by tokens."
  ),
)
