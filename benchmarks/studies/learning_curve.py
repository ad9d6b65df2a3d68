"""Score against the number of labels: fine-tuning of a pre-trained model, and the same model from scratch."""

from collections.abc import Sequence
import dataclasses
import functools

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

# Begin of the names of arms -> task. The words of a text decide its topic, and only their order decides the other task.
_DOCS = {"topic": "docs_package", "order": "docs_order"}
_GLUE = {"SST-2": "glue_sst2", "MNLI": "glue_mnli"}


def _tasks(setting: Setting) -> dict[str, str]:
  return _DOCS if suite.is_docs(setting) else _GLUE


def _stage(task: str, labels: int) -> str:
  return f"{task}_{labels}"


def _arm(name: str, start: str) -> str:
  return f"{name} {start}"


def arms(setting: Setting) -> list[Arm]:
  """Returns two arms for each task, with a stage for each number of labels."""
  text = suite.text_stages(setting)
  pretrain = dataclasses.replace(suite.encoder(setting), seed=0)
  return [
    Arm(
      _arm(name, start),
      [*text, pretrain, *(_finetuning(setting, task, labels, keys) for labels in _LABELS[setting.scale])],
    )
    for name, task in _tasks(setting).items()
    for start, keys in ((PRETRAINED, {}), (SCRATCH, {"init.parameters": False}))
  ]


def _finetuning(setting: Setting, task: str, labels: int, keys: dict[str, bool]) -> TrainStage:
  """Returns the stage with so many labels, drawn by the seed of the run and balanced over classes."""
  docs = suite.is_docs(setting)
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
  if docs:
    size = {"data.inputs_length": 64, "data.targets_length": 4}
  else:
    size = {"data.benchmark_dirs.glue": setting.data, "data.inputs_length": 128, "train.batch_size": 32}
    size |= {"train.epochs": 0.0, "optimizer.learning_rate": 3e-5}
  return TrainStage(
    _stage(task, labels),
    "finetune_docs_package" if docs else "finetune_glue",
    {**subset, **size, **budget, **keys},
    start="pretrain",
  )


def columns(setting: Setting) -> list[Column]:
  """Returns the score at each number of labels."""
  return [
    Column(_column(labels), functools.partial(_score, list(_tasks(setting).values()), labels))
    for labels in _LABELS[setting.scale]
  ]


def _score(tasks: Sequence[str], labels: int, folders: Folders) -> float | None:
  """Returns the accuracy of the arm's task, the only one with a stage."""
  scores = (figures.metric(_stage(task, labels), f"eval/{task}/accuracy")(folders) for task in tasks)
  return next((score for score in scores if score is not None), None)


def _column(labels: int) -> str:
  return f"{labels} labels"


def curves(setting: Setting) -> list[Curve]:
  """Returns the scores of an arm against the number of labels."""

  def values(folders: Folders) -> dict[int, float]:
    tasks = list(_tasks(setting).values())
    scores = {labels: _score(tasks, labels, folders) for labels in _LABELS[setting.scale]}
    return {labels: score for labels, score in scores.items() if score is not None}

  return [Curve("held-out score (%)", values, "training labels", log_x=True)]


_TIE = 2.0  # points below the score from scratch that still count as a match


def _match(name: str) -> ClaimRule:
  """Returns the rule that few labels and pre-training score at least as high as ten times the labels from scratch."""
  few, many = f"{_arm(name, PRETRAINED)} with {_FEW} labels", f"{_arm(name, SCRATCH)} with {_MANY:,}"

  def decide(rows: Sequence[StudyRow]) -> Verdict:
    high = results.by_seed(rows, _arm(name, PRETRAINED), _column(_FEW))
    low = results.by_seed(rows, _arm(name, SCRATCH), _column(_MANY))
    deltas = [high[seed] - low[seed] for seed in high if seed in low]
    if len(deltas) < 2:
      return Verdict(UNDECIDED, f"The rule needs two seeds of both arms; there are {len(deltas)}.")
    mean, margin = seed_scores.mean_and_margin(deltas)
    first, last = mean - margin, mean + margin
    because = (
      f"{few} minus {many}: {results.number(mean)} "
      f"({results.number(first)} to {results.number(last)}; {len(deltas)} seeds)."
    )
    return Verdict(AGREE if first > -_TIE else DISAGREE if last < -_TIE else UNDECIDED, because)

  return ClaimRule("", decide)


def _decide(rows: Sequence[StudyRow]) -> Verdict:
  """Decides both rules for each task of the rows."""
  known = results.arms(rows)
  names = [name for name in (*_DOCS, *_GLUE) if {_arm(name, PRETRAINED), _arm(name, SCRATCH)} & set(known)]
  rules: list[ClaimRule] = []
  for name in names:
    above = claims.higher(_arm(name, PRETRAINED), than=_arm(name, SCRATCH), column=_column(_FEW))
    rules += [_match(name), above]
  return claims.all_of(*rules).decide(rows)


_COMBINED = "Both rules for each of two tasks. All of these agree: agree; any disagrees: disagree; otherwise undecided."
_PARTS = (
  f"Score of {PRETRAINED} with {_FEW} labels minus that of {SCRATCH} with {_MANY:,} labels, paired by seed. Agree: its "
  f"95 % interval lies above -{_TIE:g}. Disagree: below. Undecided: it includes -{_TIE:g}.",
  f"Agree: with {_FEW} labels {PRETRAINED} is above {SCRATCH}, paired by seed, and the 95 % interval of the difference "
  "excludes 0. Disagree: the interval is on the other side of 0. Undecided: it includes 0.",
)
_RULE = ClaimRule(f"{_COMBINED} (1) {_PARTS[0]} (2) {_PARTS[1]}", _decide, (_COMBINED, *_PARTS))

STUDY = Study(
  title="Few labels suffice",
  question="How many labels does fine-tuning need, and how many more does training from scratch?",
  paper="Howard & Ruder 2018, Universal Language Model Fine-tuning for Text Classification, section 5 and figure 3",
  claim=(
    "With 100 labels, a pre-trained model matches training from scratch with 10 times as many labels on IMDb, and with "
    "20 times as many on AG. With 100 labels for both, it scores higher than training from scratch."
  ),
  rule=_RULE,
  arms=arms,
  columns=columns,
  curves=curves,
  scales={
    "toy": Scale(
      "two CPU cores",
      25,
      "A tiny encoder, 2 layers of width 64, pre-trained once for 1,000 steps of 32 x 64 tokens of the "
      "documentation; 200 steps of 16 examples with every number of labels. Topic is the package of a docstring out of "
      "nine; order is whether its inner words are shuffled.",
    ),
    "small": Scale(
      "one H200", 120, "BERT base, 30,000 steps; SST-2 and MNLI, 2,000 steps with every number of labels."
    ),
    "base": Scale(
      "eight H200", 400, "BERT base, 125,000 steps; SST-2 and MNLI, 2,000 steps with every number of labels."
    ),
  },
  caveats=(
    "the topic follows from a few words, which two million tokens of pre-training teach no better than the labels. "
    "From scratch the order of words stays at chance after 200 steps of 16 examples, with any number of labels. The "
    "parts about the order therefore compare with chance. A label of the order is a sentence, which gives two "
    "examples. The paper pre-trains on a hundred million words and then on the task's own text. `t2t curve` draws the "
    "curve of any task."
  ),
)
