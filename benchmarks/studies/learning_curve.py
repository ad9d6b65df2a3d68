"""Score against the number of labels: fine-tuning of a pre-trained model, and the same model from scratch."""

from collections.abc import Sequence
import dataclasses
import math

from t2t.reports import seed_scores
from t2t.studies import claims, figures, results, suite
from t2t.studies.claims import AGREE, DISAGREE, UNDECIDED, ClaimRule, Verdict
from t2t.studies.definition import Arm, Column, Curve, Folders, Scale, Setting, Study, TrainStage
from t2t.studies.results import StudyRow

# Numbers of labels; the rule compares 100 with ten times as many.
_LABELS = {"toy": (30, 100, 300, 1_000, 3_000), "small": (30, 100, 300, 1_000, 3_000, 10_000)}
_LABELS["base"] = _LABELS["small"]
_FEW, _MANY = 100, 1_000
PRETRAINED, SCRATCH = "pre-trained", "from scratch"


def _stage(labels: int) -> str:
  return f"labels_{labels}"


def _task(setting: Setting) -> tuple[str, str, str]:
  """Returns config, task and metric."""
  if suite.is_docs(setting):
    return "finetune_docs_package", "docs_package", "accuracy"
  return "finetune_glue", "glue_sst2", "accuracy"


def arms(setting: Setting) -> list[Arm]:
  """Returns both arms, with a stage for each number of labels."""
  text = suite.text_stages(setting)
  pretrain = dataclasses.replace(suite.encoder(setting), seed=0)
  return [
    Arm(name, [*text, pretrain, *(_finetuning(setting, labels, keys) for labels in _LABELS[setting.scale])])
    for name, keys in ((PRETRAINED, {}), (SCRATCH, {"init.parameters": False}))
  ]


def _finetuning(setting: Setting, labels: int, keys: dict[str, bool]) -> TrainStage:
  """Returns the stage with so many labels, drawn by the seed of the run and balanced over classes."""
  config, task, _ = _task(setting)
  steps = setting.sized(toy=200, small=2_000, base=2_000)
  subset = {"data.mixture": task, "data.max_train_examples": labels, "data.subset_seed": "{seed}"}
  budget = {
    "data.num_streams": 1,  # a subset may have fewer examples than streams
    "train.steps": steps,
    "train.log_every": 10,
    "eval.every": steps,
    "eval.num_logged_samples": 0,
    "checkpoint.save_interval_steps": steps,
    "checkpoint.max_to_keep": 1,
  }
  if suite.is_docs(setting):
    size = {"data.inputs_length": 64, "data.targets_length": 4}
  else:
    size = {"data.benchmark_dirs.glue": setting.data, "data.inputs_length": 128, "train.batch_size": 32}
    size |= {"train.epochs": 0.0, "optimizer.learning_rate": 3e-5}
  return TrainStage(_stage(labels), config, {**subset, **size, **budget, **keys}, start="pretrain")


def columns(setting: Setting) -> list[Column]:
  """Returns the score at each number of labels."""
  _, task, metric = _task(setting)
  return [
    Column(_column(labels), figures.metric(_stage(labels), f"eval/{task}/{metric}"))
    for labels in _LABELS[setting.scale]
  ]


def _column(labels: int) -> str:
  return f"{labels} labels"


def curves(setting: Setting) -> list[Curve]:
  """Returns the scores of an arm against the number of labels."""

  def values(folders: Folders) -> dict[int, float]:
    scores = {
      labels: column.value(folders) for labels, column in zip(_LABELS[setting.scale], columns(setting), strict=True)
    }
    return {labels: score for labels, score in scores.items() if score is not None}

  return [Curve("held-out score (%)", values, "training labels", log_x=True)]


def _matches(rows: Sequence[StudyRow]) -> Verdict:
  """Decides whether few labels and pre-training score at least as high as ten times the labels from scratch."""
  few, many = results.by_seed(rows, PRETRAINED, _column(_FEW)), results.by_seed(rows, SCRATCH, _column(_MANY))
  deltas = [few[seed] - many[seed] for seed in few if seed in many]
  if len(deltas) < 2:
    return Verdict(UNDECIDED, f"The rule needs two seeds of both arms; there are {len(deltas)}.")
  mean, margin = seed_scores.mean_and_margin(deltas)
  low, high = mean - margin, mean + margin
  because = (
    f"{PRETRAINED} with {_FEW} labels minus {SCRATCH} with {_MANY:,}: {results.number(mean)} "
    f"({results.number(low)} to {results.number(high)}; {len(deltas)} seeds)."
  )
  assert not math.isnan(margin)
  return Verdict(AGREE if low > -_TIE else DISAGREE if high < -_TIE else UNDECIDED, because)


_TIE = 2.0  # points below the score from scratch that still count as a match


STUDY = Study(
  title="Few labels suffice",
  question="How many labels does fine-tuning need, and how many more does training from scratch?",
  paper="Howard & Ruder 2018, Universal Language Model Fine-tuning for Text Classification, section 5 and figure 3",
  claim=(
    "With 100 labels, a pre-trained model matches training from scratch with 10 times as many labels on IMDb, and with "
    "20 times as many on AG. With 100 labels for both, it scores higher than training from scratch."
  ),
  rule=claims.all_of(
    ClaimRule(
      f"Score of {PRETRAINED} with {_FEW} labels minus that of {SCRATCH} with {_MANY:,} labels, paired by seed. Agree: "
      f"its 95 % interval lies above -{_TIE:g}. Disagree: below. Undecided: it includes -{_TIE:g}.",
      _matches,
    ),
    claims.higher(PRETRAINED, than=SCRATCH, column=_column(_FEW)),
  ),
  arms=arms,
  columns=columns,
  curves=curves,
  scales={
    "toy": Scale(
      "two CPU cores",
      12,
      "A tiny encoder, 2 layers of width 64, pre-trained once for 1,000 steps of 32 x 64 tokens of the "
      "documentation; the package of a docstring out of nine, 200 steps of 16 examples with every number of labels.",
    ),
    "small": Scale("one H200", 120, "BERT base, 30,000 steps; SST-2, 2,000 steps with every number of labels."),
    "base": Scale("eight H200", 400, "BERT base, 125,000 steps; SST-2, 2,000 steps with every number of labels."),
  },
  caveats=(
    "names of packages are easy words, so that few labels may suffice from scratch, too. The paper pre-trains on a "
    "hundred million words and then on the task's own text. `t2t curve` draws the curve of any task."
  ),
)
