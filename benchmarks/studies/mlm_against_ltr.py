"""Masked LM against left to right by steps of pre-training (Devlin et al. 2019, figure 5)."""

from typing import Any

from t2t.studies import claims, figures, suite
from t2t.studies.definition import HIGHER, NEITHER, Arm, Column, Curve, Scale, Setting, Study, TrainStage

# Checkpoints that are fine-tuned, as fractions of the steps of pre-training; 0: random parameters.
_FRACTIONS = (0.0, 0.25, 0.5, 1.0)
# Metrics of the tasks; packages follow from single words, without pre-training.
_DOCS = {"order": "eval/docs_order/accuracy", "tag F1": "eval/docs_punctuation/f1"}
_GLUE = {"MNLI": "eval/glue_mnli/accuracy"}


def _steps(setting: Setting) -> int:
  return setting.sized(toy=1_000, small=30_000, base=1_000_000)


def _points(setting: Setting) -> dict[int, str]:
  """Returns step of the checkpoint -> stage that fine-tunes it."""
  return {round(fraction * _steps(setting)): f"finetune_{fraction:.0%}".rstrip("%") for fraction in _FRACTIONS}


def _metrics(setting: Setting) -> dict[str, str]:
  return _DOCS if suite.is_docs(setting) else _GLUE


def _finetuning(setting: Setting, step: int, name: str) -> TrainStage:
  steps = setting.sized(toy=300, small=10_000, base=36_000)
  keys: dict[str, Any] = {
    "data.mixture": ",".join(metric.split("/")[1] for metric in _metrics(setting).values()),
    "train.loss": "heads",
    "train.epochs": 0.0,
    "train.steps": steps,
    "eval.every": steps,
    "eval.num_logged_samples": 0,
    "checkpoint.save_interval_steps": steps,
    "init.checkpoint": f"{{pretrain}}/checkpoints/{step or _steps(setting)}",
    "init.parameters": step > 0,
  }
  if suite.is_docs(setting):
    keys |= {"data.inputs_length": 64, "data.targets_length": 8, "data.num_streams": 1, "train.log_every": 10}
    keys |= {"data.max_train_examples": 1_000, "data.subset_seed": "{seed}", "train.batch_size": 32}
  else:
    keys |= {"data.benchmark_dirs.glue": setting.data, "data.inputs_length": 128, "optimizer.learning_rate": 3e-5}
  return TrainStage(name, "finetune_docs_package" if suite.is_docs(setting) else "finetune_glue", keys)


def arms(setting: Setting) -> list[Arm]:
  """Returns an arm for each objective: the same layers, with attention to both sides or to the left."""
  every = {"checkpoint.save_interval_steps": _steps(setting) // 4, "checkpoint.max_to_keep": 8}
  every |= {"train.steps": _steps(setting), "eval.every": _steps(setting) // 4}
  finetunings = [_finetuning(setting, step, name) for step, name in _points(setting).items()]
  pretrainings = {
    "masked LM": suite.encoder(setting, {"data.noise_density": 0.15, **every}),
    "left to right": suite.encoder(setting, {**suite.as_decoder(setting), **every}, objective="causal_lm"),
  }
  return [Arm(name, [*suite.text_stages(setting), stage, *finetunings]) for name, stage in pretrainings.items()]


def columns(setting: Setting) -> list[Column]:
  """Returns the mean over the tasks after fine-tuning each checkpoint, the last one in the column "end"."""
  last = _steps(setting)
  made = []
  for step, stage in _points(setting).items():
    of_tasks = [Column(name, figures.metric(stage, metric)) for name, metric in _metrics(setting).items()]
    name, better = ("end", HIGHER) if step == last else (f"step {step}", NEITHER)
    made.append(figures.mean_of(name, of_tasks, better=better))
  return made


STUDY = Study(
  title="Masked LM against left to right",
  question="Does a bidirectional masked language model overtake a left-to-right one, and after how many steps?",
  paper="Devlin et al. 2019, BERT, appendix C.1, figure 5",
  claim=(
    "Masked LM predicts 15 % of the tokens, and converges slightly slower than a left-to-right model. In accuracy on "
    "MNLI it is above the left-to-right model almost immediately, and remains above it until the end. The rule tests "
    "the end, and the curves show the steps before."
  ),
  rule=claims.higher("masked LM", than="left to right", column="end"),
  arms=arms,
  columns=columns,
  curves=lambda setting: [
    Curve(name, figures.over_stages(_points(setting), metric)) for name, metric in _metrics(setting).items()
  ],
  scales={
    "toy": Scale(
      "two CPU cores",
      35,
      "A tiny encoder, 2 layers of width 64, 1,000 steps of 32 x 64 tokens of the installed documentation; 300 "
      "steps of fine-tuning on two tasks, order of words as classes and punctuation as tags.",
    ),
    "small": Scale("one H200", 240, "BERT base, 30,000 steps; MNLI, 10,000 steps."),
    "base": Scale("eight H200", 6_000, "BERT base, 1,000,000 steps; MNLI, 36,000 steps."),
  },
  caveats=(
    "the paper pre-trains a million steps. The tiny models read two million tokens, of which masked LM predicts "
    "300,000. The punctuation of a word depends on the words that follow, which a left-to-right model does not read."
  ),
)
