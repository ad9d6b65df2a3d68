"""Catastrophic forgetting: an old task while a new one is learned, with EWC, L2-SP, replay, LoRA and without remedy."""

import os
import pathlib
from typing import Any

from etils import epath

from t2t.studies import claims, figures
from t2t.studies.definition import LOWER, ActionStage, Arm, Column, Curve, Folders, Scale, Setting, Study, TrainStage

OLD, NEW = "colour", "shape"
# Relative, so that commands of a page hold in any checkout.
TASKS = os.path.relpath(pathlib.Path(__file__).resolve().parent.parent / "two_questions.py")
_EXAMPLES = 1_024  # for the Fisher information
_EVERY = 50  # steps between evaluations

# Both runs: a T5 of 0.2 million parameters at scale toy, and a plain AdamW.
_COMMON = {
  "model.vocab_size": 384,
  "model.dropout_rate": 0.0,
  "data.extra_ids": 0,
  "data.vocabulary": "bytes",
  "data.task_modules": TASKS,
  "data.inputs_length": 32,
  "data.targets_length": 8,
  "train.batch_size": 64,
  "train.label_smoothing": 0.1,
  "optimizer.name": "adamw",
  "optimizer.schedule": "constant",
  "optimizer.warmup_steps": 0,
  "optimizer.scale_by_parameter": False,
  "optimizer.clip_norm": 1.0,
  "eval.batches": 2,
  "eval.batch_size": 256,
  "eval.num_logged_samples": 0,
  "checkpoint.max_to_keep": 1,
}
_TOY = {
  "model.embed_dim": 64,
  "model.num_heads": 4,
  "model.head_dim": 16,
  "model.mlp_dim": 128,
  "model.num_encoder_layers": 2,
  "model.num_decoder_layers": 1,
}

# Arm -> mixture of its training examples, and further keys. The anchors were chosen on seed 0 at scale toy.
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
  "no remedy": (f"{NEW}_alone", {}),
  "EWC": (f"{NEW}_alone", {"optimizer.fisher": "{fisher}/out", "optimizer.param_groups": ".: anchor=300"}),
  "L2-SP": (f"{NEW}_alone", {"optimizer.param_groups": ".: anchor=20"}),
  "replay": (f"{NEW}_with_{OLD}", {}),
  "LoRA": (f"{NEW}_alone", {"lora.rank": 8, "lora.targets": "attention/,mlp/"}),
}


def arms(setting: Setting) -> list[Arm]:
  """Returns an arm for each remedy; the old task is trained once for each seed."""
  steps = setting.sized(toy=300, small=1_000, base=3_000)
  size = _TOY if setting.scale == "toy" else {}
  rate = setting.sized(toy=0.003, small=0.001, base=0.0003)
  config = setting.config or setting.sized(toy="t5_1_1_small", small="t5_1_1_small", base="t5_1_1_base")
  every = _EVERY * steps // 300
  budget = {"train.steps": steps, "eval.every": every, "checkpoint.save_interval_steps": steps}
  common = {**_COMMON, **size, **budget, "optimizer.learning_rate": rate}
  old = TrainStage("old", config, {**common, "data.mixture": f"{OLD}_alone"})
  fisher = ActionStage("fisher", _estimate_fisher, reads=("old",))
  return [
    Arm(
      name,
      [
        old,
        *([fisher] if "optimizer.fisher" in keys else []),
        TrainStage("new", config, {**common, "data.mixture": mixture, **keys}, start="old"),
      ],
    )
    for name, (mixture, keys) in ARMS.items()
  ]


def _estimate_fisher(workdir: epath.Path, workdirs: Folders, seed: int) -> None:
  from t2t.commands import fisher

  arguments = [str(workdirs["old"]), "--output", str(workdir / "out"), "--examples", str(_EXAMPLES)]
  if not (workdir / "out").exists():
    fisher.main([*arguments, "--seed", str(seed), "--task_modules", TASKS])


def _accuracy(stage: str, task: str) -> Any:
  """Returns the curve of a task: a mixture without its training examples evaluates TASK_held_out."""
  curves = [figures.curve(stage, f"eval/{name}/accuracy") for name in (task, f"{task}_held_out")]
  return lambda folders: curves[0](folders) or curves[1](folders)


def _last(stage: str, task: str) -> Any:
  def value(folders: Folders) -> float | None:
    values = _accuracy(stage, task)(folders)
    return values[max(values)] if values else None

  return value


def columns(setting: Setting) -> list[Column]:
  """Returns the old task before and after the new one, what was forgotten, the new task, and the mean of both."""
  del setting
  before, after, new = (
    Column("old before", _last("old", OLD)),
    Column("old after", _last("new", OLD)),
    Column("new", _last("new", NEW)),
  )

  def forgotten(folders: Folders) -> float | None:
    values = before.value(folders), after.value(folders)
    return None if values[0] is None or values[1] is None else values[0] - values[1]

  return [before, after, Column("forgotten", forgotten, LOWER), new, figures.mean_of("mean", [after, new])]


def curves(setting: Setting) -> list[Curve]:
  """Returns the accuracies of both tasks during the new one; step 0 is the end of the old one."""
  del setting

  def during(task: str) -> Any:
    def values(folders: Folders) -> dict[int, float]:
      before = _last("old", task)(folders)
      return {**({} if before is None else {0: before}), **_accuracy("new", task)(folders)}

    return values

  x = "steps on the new task"
  return [Curve("old task, accuracy (%)", during(OLD), x), Curve("new task, accuracy (%)", during(NEW), x)]


STUDY = Study(
  title="Catastrophic forgetting",
  question="How much of an old task does a model forget while it learns a new one, and what keeps it?",
  paper=(
    "Kirkpatrick et al. 2017, Overcoming catastrophic forgetting in neural networks, figure 2; Li et al. 2018, "
    "Explicit Inductive Bias for Transfer Learning with Convolutional Networks (L2-SP)"
  ),
  claim=(
    "After plain training on a new task, a network is worse at the old one. A penalty weighted by the Fisher "
    "information (EWC) keeps the old task, and still allows the new one to be learned. A uniform penalty (L2) gives a "
    "worse compromise of both tasks."
  ),
  rule=claims.all_of(
    claims.higher("EWC", than="no remedy", column="old after"),
    claims.higher("EWC", than="no remedy", column="mean"),
    claims.within("EWC", of="no remedy", column="new", margin=5.0),
    claims.higher("EWC", than="L2-SP", column="mean"),
  ),
  arms=arms,
  columns=columns,
  curves=curves,
  scales={
    "toy": Scale(
      "two CPU cores",
      10,
      "A T5 of 0.2 million parameters learns one question about a line of letters in 300 steps, and then another about "
      "the same letters in 300 steps. Chance is 25 %. The anchors of EWC and L2-SP were chosen once on seed 0.",
    ),
    "small": Scale("one H200", 30, "T5 1.1 small, 1,000 steps of each question."),
    "base": Scale("one H200", 120, "T5 1.1 base, 3,000 steps of each question."),
  },
  caveats=(
    "the tasks share inputs and answers, so their gradients may conflict more than those of the paper's permuted "
    "images. The strengths of both penalties were chosen on seed 0, which is also a seed of the table, and other "
    "strengths trade one task for the other. EWC is part of the gradient that AdamW rescales, and L2-SP is a decoupled "
    "decay, so they differ in more than their weights. Each task has 256 held-out examples."
  ),
)
