"""Sentence tasks beside masked tokens: next sentence, sentence order, or none (Liu et al. 2019; Lan et al. 2020)."""

from collections.abc import Sequence
from typing import Any

from t2t.studies import claims, figures, results, suite
from t2t.studies.claims import AGREE, DISAGREE, UNDECIDED, ClaimRule, Verdict
from t2t.studies.definition import NEITHER, Arm, Column, Scale, Setting, Study
from t2t.studies.results import StudyRow

ALONE, NEXT, ORDER = "MLM", "MLM + NSP", "MLM + SOP"
PAIRS = "MLM on pairs"  # input of NSP without its loss: only the format differs from `ALONE`
SHORT = "MLM + NSP short"


def _with_head(objective: str, name: str, labels: tuple[str, str]) -> dict[str, Any]:
  head = {"name": name, "num_classes": 2, "labels": labels, "reads": "first", "dropout_rate": 0.0}
  return {"data.objective": objective, "train.loss": "tokens_and_heads", "model.heads": (head,)}


_NSP = _with_head("masked_lm_nsp", "nsp", ("next", "random"))
ARMS: dict[str, dict[str, Any]] = {
  ALONE: {},
  PAIRS: {**_NSP, "train.term_weights.nsp": 0.0},
  NEXT: _NSP,
  ORDER: _with_head("masked_lm_sop", "sop", ("in order", "swapped")),
  SHORT: _NSP,
}


def arms(setting: Setting) -> list[Arm]:
  """Returns an arm for each sentence task."""
  text = suite.text_stages(setting)
  finetune = suite.finetuning(setting, suite.ENCODER, start="pretrain")
  common = {"model.segment_types": 2}  # as BERT; also without pairs, so that all arms have the same parameters
  # Half of the length in twice as many rows: a pair has few sentences, like the pairs of single ones of Liu et al.
  length, rows = setting.sized(toy=(32, 64), small=(64, 512), base=(64, 512))
  short = {"data.inputs_length": length, "data.targets_length": length, "train.batch_size": rows}
  if setting.scale != "toy":
    common |= {"data.inputs_length": 2 * length, "data.targets_length": 2 * length, "train.batch_size": rows // 2}
    common |= {"stages": ()}  # of bert_base, which has two lengths
  of_arm = lambda name: {**common, **ARMS[name], **(short if name == SHORT else {})}
  return [Arm(name, [*text, suite.encoder(setting, of_arm(name)), finetune]) for name in ARMS]


def columns(setting: Setting) -> list[Column]:
  """Returns the columns of the suite, and held-out accuracies of pre-training, which depend on its task."""
  accuracies = {"MLM accuracy": "accuracy", "NSP accuracy": "nsp_accuracy", "SOP accuracy": "sop_accuracy"}
  own = [Column(name, figures.metric("pretrain", f"eval/{metric}"), NEITHER) for name, metric in accuracies.items()]
  return [*suite.columns(setting, suite.ENCODER), *own]


def not_lower(arm: str, *, than: str, column: str, margin: float) -> ClaimRule:
  """Returns the rule that an arm is not lower than another by more than a margin, with differences paired by seed."""

  def decide(rows: Sequence[StudyRow]) -> Verdict:
    paired = results.difference(rows, arm, than, column)
    if paired.seeds < 2:
      return Verdict(UNDECIDED, f"{column} of {arm} and {than} has {paired.seeds} common seeds; an interval needs two.")
    low, high = paired.mean - paired.margin, paired.mean + paired.margin
    because = f"{column}: {arm} minus {than} is {low:.3g} to {high:.3g} ({paired.seeds} seeds)."
    return Verdict(AGREE if low > -margin else DISAGREE if high < -margin else UNDECIDED, because)

  text = (
    f"Agree: the 95 % interval of the difference of {column}, {arm} minus {than}, paired by seed, lies above "
    f"-{margin:g}. Disagree: it lies below. Undecided: it includes -{margin:g}."
  )
  return ClaimRule(text, decide)


STUDY = Study(
  title="Sentence tasks",
  question="Does a sentence task beside masked tokens help downstream, and which one?",
  paper="Liu et al. 2019, RoBERTa, table 2; Lan et al. 2020, ALBERT, table 5; Devlin et al. 2019, BERT, table 5",
  claim=(
    "RoBERTa: full sentences without NSP are as good or slightly better than pairs of segments with NSP (MNLI 84.7 "
    "and 84.0). Pairs of single sentences are worse than pairs of segments (82.9). ALBERT: the mean of five tasks is "
    "79.0 without a sentence task, 79.2 with NSP and 80.1 with SOP. BERT had reported the contrary of NSP: MNLI 84.4 "
    "with it and 83.9 without, QNLI 88.4 and 84.9."
  ),
  rule=claims.all_of(
    not_lower(ALONE, than=NEXT, column="mean", margin=1.0),
    claims.higher(ORDER, than=NEXT, column="mean"),
    claims.higher(NEXT, than=SHORT, column="mean"),
  ),
  arms=arms,
  columns=columns,
  scales={
    "toy": Scale(
      "two CPU cores",
      30,
      "A tiny encoder with segment types, 2 layers of width 64, 1,000 steps of 32 x 64 tokens of the installed "
      "documentation (short: 64 x 32); 300 steps of fine-tuning on three tasks.",
    ),
    "small": Scale(
      "one H200", 400, "BERT base, 30,000 steps of 256 x 128 tokens (short: 512 x 64); GLUE, 20,000 steps."
    ),
    "base": Scale(
      "eight H200", 1_000, "BERT base, 125,000 steps of 256 x 128 tokens (short: 512 x 64); GLUE, 60,000 steps."
    ),
  },
  caveats=(
    "accuracy shows whether a sentence task was learned, with chance at 0.5. At scale toy NSP is not learned, so it "
    "can neither help nor harm; SOP is learned in part. The short arm stands for pairs of single sentences: half of "
    "the length at equal tokens per step. The papers have up to 512 tokens."
  ),
)
