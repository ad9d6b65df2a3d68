"""Accuracy against trained parameters: adapters, LoRA, prefixes, prompts, BitFit, (IA)3, heads alone, or all."""

from collections.abc import Sequence
import dataclasses
import math
from typing import Any

from t2t.reports import seed_scores
from t2t.studies import claims, figures, picture, results, suite
from t2t.studies.definition import LOWER, Arm, Column, Scale, Setting, Study

# Arm -> keys. The numbers are ranks, bottlenecks or lengths.
ARMS: dict[str, dict[str, Any]] = {
  "all parameters": {},
  "heads alone": suite.ONLY_HEADS,
  "BitFit": {"bitfit.also_train": ""},
  "(IA)3": {"ia3.targets": "attention/key,attention/value,mlp/down"},
  "prompt 16": {"prompt.length": 16},
  "prefix 16": {"prefix.length": 16, "prefix.hidden": 0, "prefix.sides": "encoder"},
  "LoRA 1": {"lora.rank": 1},
  "LoRA 8": {"lora.rank": 8},
  "Pfeiffer 8": {"pfeiffer.bottleneck": 8},
  "Houlsby 2": {"houlsby.bottleneck": 2},
  "Houlsby 8": {"houlsby.bottleneck": 8},
  "Houlsby 32": {"houlsby.bottleneck": 32},
}


def arms(setting: Setting) -> list[Arm]:
  """Returns an arm for each method, all from one pre-trained encoder."""
  text = suite.text_stages(setting)
  # BitFit trains biases, which a ModernBERT does not have. All seeds share the encoder, as in the paper.
  pretrain = dataclasses.replace(suite.encoder(setting, {"model.biases": True}), seed=0)
  tune = lambda keys: suite.finetunings(setting, suite.ENCODER, start=pretrain.name, keys=keys)
  # Methods with few parameters need higher rates.
  return [Arm(name, [*text, pretrain, *tune(keys)]) for name, keys in ARMS.items()]


def columns(setting: Setting) -> list[Column]:
  """Returns the columns of the suite at the arm's better rate, this rate, and the trained parameters."""
  trained = Column("trained", figures.parameters("finetune1", trained=True), LOWER)
  return [*suite.columns_at_best(setting, suite.ENCODER), trained]


def draw(rows: Sequence[results.StudyRow], column_names: Sequence[str]) -> bytes:
  """Returns a PNG: the mean score of each arm, with its 95 % interval, against its number of trained parameters."""
  del column_names
  import matplotlib.figure

  figure = matplotlib.figure.Figure(figsize=(7.2, 4.2), dpi=110, layout="constrained")
  axis: Any = figure.subplots()
  for index, arm in enumerate(results.arms(rows)):
    scores, trained = (list(results.by_seed(rows, arm, name).values()) for name in ("mean", "trained"))
    if not scores or not trained:
      continue
    mean, margin = seed_scores.mean_and_margin(scores)
    error = 0.0 if math.isnan(margin) else margin
    axis.errorbar([trained[0]], [mean], yerr=[error], marker="o", markersize=4, capsize=3, color=f"C{index % 10}")
    axis.annotate(arm, (trained[0], mean), xytext=(5, 4), textcoords="offset points", fontsize=7)
  axis.set_xscale("log")
  axis.margins(x=0.15)
  axis.set_xlabel("trained parameters, heads included", fontsize=8)
  axis.set_ylabel("mean score (%), 95 % interval", fontsize=8)
  picture.set_style(axis)
  axis.set_title("Accuracy against trained parameters", fontsize=9)
  return seed_scores.png(figure)


STUDY = Study(
  title="Accuracy against trained parameters",
  question="How many parameters must fine-tuning train: all of them, or small adapters?",
  paper="Houlsby et al. 2019, Parameter-Efficient Transfer Learning for NLP, table 1 and figure 1",
  claim=(
    "Adapters in BERT large score 80.0 on GLUE, and fine-tuning of all parameters scores 80.4. Adapters train 3.6 % of "
    "the parameters for each task. Training only the top layers with so few parameters scores lower."
  ),
  rule=claims.all_of(
    claims.within("Houlsby 8", of="all parameters", column="mean", margin=3.0),
    claims.higher("Houlsby 8", than="heads alone", column="mean"),
  ),
  arms=arms,
  columns=columns,
  draw=draw,
  scales={
    "toy": Scale(
      "two CPU cores",
      100,
      "A tiny encoder with biases, 2 layers of width 64, pre-trained once for 1,000 steps of 32 x 64 tokens of the "
      "documentation; 300 steps of fine-tuning on three tasks together, at the better of two learning rates.",
    ),
    "small": Scale("one H200", 900, "BERT base, 30,000 steps; GLUE, 20,000 steps, at the better of two rates."),
    "base": Scale("eight H200", 2_500, "BERT base, 125,000 steps; GLUE, 60,000 steps, at the better of two rates."),
  },
  caveats=(
    "a tiny model that has read little text may need larger changes than a large one. One adapter serves all tasks "
    "here, and the paper trains one for each. The heads alone stand for the top layers. The margin of 3 points is "
    "wider than the paper's difference. The better of two rates is chosen on the held-out examples, for every arm."
  ),
)
