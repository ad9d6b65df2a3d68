"""Replaced token detection against masked language modelling at equal FLOPs (Clark et al. 2020)."""

import functools
from typing import Any

from t2t.studies import claims, figures, suite
from t2t.studies.definition import NEITHER, Arm, Column, Folders, Scale, Setting, Study, TrainStage

BERT, ELECTRA, MASKED_ONLY = "BERT", "ELECTRA", "ELECTRA 15 %"

_DETECTOR = ({"name": "replaced", "kind": "detector", "num_classes": 1},)
# Arm -> keys beside those of the generator (section 3.4 of the paper), and part of the FLOPs.
ARMS: dict[str, tuple[dict[str, Any], float]] = {
  BERT: ({}, 1.0),
  ELECTRA: ({"electra.predicts": "replaced", "electra.positions": "all"}, 1.0),
  MASKED_ONLY: ({"electra.predicts": "replaced", "electra.positions": "masked"}, 1.0),
  "replace MLM": ({"electra.predicts": "tokens", "electra.positions": "masked"}, 1.0),
  "all-tokens MLM": ({"electra.predicts": "tokens", "electra.positions": "all"}, 1.0),
  "BERT 1/4": ({}, 0.25),
  "ELECTRA 1/4": ({"electra.predicts": "replaced", "electra.positions": "all"}, 0.25),
}
# The loss of tokens is as large as the generator's; only the loss of detection is small, and weighted by 50.
_TOKEN_WEIGHT, _DETECTION_WEIGHT = 1.0, 50.0


def keys_of(setting: Setting, name: str) -> tuple[str, dict[str, Any]]:
  """Returns config and keys of an arm, without its steps."""
  of_arm, _ = ARMS[name]
  if setting.scale == "toy":
    config = setting.config or "tiny_modern_bert"
    size = {**suite.TOY_MODEL, "model.num_encoder_layers": 2, "data.inputs_length": 64, "data.targets_length": 64}
    size = {} if setting.config else {**size, "train.batch_size": 32}
    generator = {"embed_dim": 32, "num_heads": 2, "mlp_dim": 96, "num_layers": 2}
  else:
    config, size = setting.config or setting.sized(small="electra_small", base="electra_base"), {}
    generator = setting.sized(
      small={"embed_dim": 64, "num_heads": 1, "mlp_dim": 256, "num_layers": 12},
      base={"embed_dim": 256, "num_heads": 4, "mlp_dim": 1_024, "num_layers": 12},
    )
  keys = {**suite.text_keys(setting), "data.objective": "masked_lm", **size}
  if not of_arm:
    return config, {**keys, "train.loss": "cross_entropy", "model.heads": ()}
  detects = of_arm["electra.predicts"] == "replaced"
  loss = {"train.loss": "electra", "model.heads": _DETECTOR if detects else ()}
  loss |= {f"electra.{key}": value for key, value in generator.items()}
  loss |= {"electra.discriminator_weight": _DETECTION_WEIGHT if detects else _TOKEN_WEIGHT}
  return config, {**keys, **loss, **of_arm}


@functools.cache
def step_flops(setting: Setting, name: str) -> float:
  """Returns the FLOPs of a training step of an arm, the generator's among them, without the user's overrides."""
  from t2t.commands import options
  from t2t.configuration.loading import records
  from t2t.training import recipe

  config, keys = keys_of(setting, name)
  # The text is not read: vocabulary and files of the toy scale do not exist yet.
  arguments = [f"--config.{key}={value}" for key, value in keys.items() if "{text}" not in str(value)]
  parsed = options.parse(options.config_parser("t2t study", ""), ["--config", config, *arguments])[1]
  run = records(parsed)
  return recipe.make(run).flops(predicted=recipe.share_predicted(run))


def pretraining(setting: Setting, name: str) -> TrainStage:
  """Returns the stage of an arm, with as many steps as cost its part of the FLOPs of ELECTRA's training."""
  config, keys = keys_of(setting, name)
  budget = setting.sized(toy=suite.TOY_STEPS, small=100_000, base=100_000) * step_flops(setting, ELECTRA)
  steps = max(1, round(ARMS[name][1] * budget / step_flops(setting, name)))
  return TrainStage("pretrain", config, {**keys, **suite.budget(steps), "optimizer.warmup_ratio": 0.1})


def arms(setting: Setting) -> list[Arm]:
  """Returns an arm for each objective and budget."""
  text = suite.text_stages(setting)
  finetune = suite.finetuning(setting, suite.ENCODER, start="pretrain")
  return [Arm(name, [*text, pretraining(setting, name), finetune]) for name in ARMS]


def _gigaflops(folders: Folders) -> float | None:
  flops = figures.of_stage(folders["pretrain"])["flops"]
  return flops / 1e9 if flops else None


def columns(setting: Setting) -> list[Column]:
  """Returns the columns of the suite, and the FLOPs of pre-training that the run has recorded."""
  return [*suite.columns(setting, suite.ENCODER), Column("GFLOP", _gigaflops, NEITHER)]


STUDY = Study(
  title="Replaced token detection",
  question="Does an encoder learn more from detecting replaced tokens than from masked ones, at equal FLOPs?",
  paper="Clark et al. 2020, ELECTRA, tables 1 and 5",
  claim=(
    "The mean score on GLUE is 85.0 with ELECTRA, 84.3 with all-tokens MLM, 82.4 with ELECTRA 15 %, 82.4 with replace "
    "MLM, 82.2 with BERT. Most of the gain comes from learning from all tokens. With equal FLOPs, ELECTRA small scores "
    "79.9 and BERT small 75.1."
  ),
  rule=claims.all_of(
    claims.higher(ELECTRA, than=BERT, column="mean"),
    claims.higher(ELECTRA, than=MASKED_ONLY, column="mean"),
  ),
  arms=arms,
  columns=columns,
  scales={
    "toy": Scale(
      "two CPU cores",
      50,
      "A tiny encoder, 2 layers of width 64, with a generator of half the width; the FLOPs of 1,000 steps of "
      "ELECTRA with 32 x 64 tokens of the installed documentation; 300 steps of fine-tuning on three tasks.",
    ),
    "small": Scale("one H200", 900, "ELECTRA small, the FLOPs of 100,000 of its steps; GLUE, 20,000 steps."),
    "base": Scale("eight H200", 2_000, "ELECTRA base, the FLOPs of 100,000 of its steps; GLUE, 60,000 steps."),
  },
  caveats=(
    "a discriminator needs a good generator, which a short training may not give. The generator here has half of the "
    "width at scale toy. The paper's all-tokens MLM has a copy mechanism, and this one has none. The weights of the "
    "losses, 50 for detection and 1 for tokens, are not tuned."
  ),
)
