"""Corruptions of a denoising autoencoder (Lewis et al. 2020)."""

from typing import Any

from t2t.studies import claims, suite
from t2t.studies.definition import Arm, Scale, Setting, Study, TrainStage

# Arm -> objective of the text files. The paper's table 1 has the first five and BART's own pair.
OBJECTIVES = {
  "token masking": "token_masking",
  "token deletion": "token_deletion",
  "text infilling": "text_infilling",
  "sentence permutation": "sentence_permutation",
  "document rotation": "document_rotation",
  "infilling + permutation": "bart",
}
# Each example has one of the five corruptions, with equal shares. Only at scale toy: sources of a mixture have files of
# their own, which the user of a larger scale would name for each.
MIXED = "one of five"


def pretraining(setting: Setting, objective: str) -> TrainStage:
  """Returns the stage that pre-trains an encoder-decoder; "" mixes the five single corruptions."""
  if setting.scale == "toy":
    config = setting.config or "tiny_bart"
    lengths = {"data.inputs_length": 64, "data.targets_length": 64, "train.batch_size": 32}
    sizes = {**suite.TOY_MODEL, "model.num_encoder_layers": 2, "model.num_decoder_layers": 2, **lengths}
    size = {**({} if setting.config else sizes), **suite.budget(suite.TOY_STEPS)}
  else:
    config = setting.config or "bart_base"
    lengths = {"data.inputs_length": 256, "data.targets_length": 256, "train.batch_size": 256}
    size = {**lengths, **suite.budget(setting.sized(small=30_000, base=125_000))}
  text: dict[str, Any] = suite.text_keys(setting)
  if objective:
    return TrainStage("pretrain", config, {**text, "data.objective": objective, **size})
  files = {key.removeprefix("data."): text.pop(key) for key in ("data.files", "data.eval_files")}
  single = [name for name in OBJECTIVES.values() if name != "bart"]
  sources = {f"data.sources.{name}.objective": name for name in single} | {
    f"data.sources.{name}.share": 1 / len(single) for name in single
  }
  sources |= {f"data.sources.{name}.{key}": path for name in single for key, path in files.items()}
  return TrainStage("pretrain", config, {**text, **sources, **size})


def arms(setting: Setting) -> list[Arm]:
  """Returns an arm for each corruption."""
  text = suite.text_stages(setting)
  finetune = suite.finetuning(setting, "", start="pretrain")
  objectives = {**OBJECTIVES, **({MIXED: ""} if setting.scale == "toy" else {})}
  return [Arm(name, [*text, pretraining(setting, objective), finetune]) for name, objective in objectives.items()]


STUDY = Study(
  title="Corruptions of BART",
  question="Which corruption should a denoising autoencoder undo in pre-training?",
  paper="Lewis et al. 2020, BART, table 1",
  claim=(
    "Permuting sentences or rotating documents alone performs poorly against text infilling. F1 on SQuAD 1.1 is 90.8 "
    "with infilling, 85.4 with permutation, 77.2 with rotation. Accuracy on MNLI is 84.0, 81.5 and 75.3. Masking and "
    "deletion of tokens are close to infilling: 90.4 and 84.1."
  ),
  rule=claims.all_of(
    claims.higher("text infilling", than="sentence permutation", column="mean"),
    claims.higher("text infilling", than="document rotation", column="mean"),
  ),
  arms=arms,
  columns=lambda setting: suite.columns(setting, ""),
  scales={
    "toy": Scale(
      "two CPU cores",
      50,
      "A tiny encoder-decoder, 2 + 2 layers of width 64, 1,000 steps of 32 x 64 tokens of the installed documentation; "
      "300 steps of fine-tuning on four tasks, a summary among them.",
    ),
    "small": Scale("one H200", 600, "BART base, 30,000 steps of 256 x 256 tokens; GLUE, 20,000 steps."),
    "base": Scale("eight H200", 1_500, "BART base, 125,000 steps of 256 x 256 tokens; GLUE, 60,000 steps."),
  },
  caveats=(
    "the paper's models read classes from a head, and these write them, which a tiny model may not learn. Texts of 64 "
    "tokens have few sentences, so permutation and rotation change little of them."
  ),
)
