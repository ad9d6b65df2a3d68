"""Training losses, one file per loss; `make` builds the loss of a config."""

from collections.abc import Mapping
import dataclasses
from typing import Any

from t2t import UserError, did_you_mean
from t2t.configuration.schema import Config
from t2t.losses.auxiliary_terms import AuxiliaryTerms
from t2t.losses.cross_entropy import (
  CrossEntropy,
  CrossEntropyConfig,
  mean_over_targets,
  share_of_weights,
  token_cross_entropy,
  token_sums,
  unigram,
  unigram_loss,
)
from t2t.losses.protocol import Baseline, LogitsFn, Loss, Weights
from t2t.runtime.lazy_table import LazyTable, load

__all__ = [
  "LOSSES",
  "SECTIONS",
  "Baseline",
  "CrossEntropy",
  "CrossEntropyConfig",
  "LogitsFn",
  "Loss",
  "Weights",
  "answered_by_heads",
  "answered_by_heads_alone",
  "compares_texts",
  "has_teacher",
  "is_likelihood",
  "make",
  "mean_over_targets",
  "part_of",
  "share_of_weights",
  "trains_tokens",
  "token_cross_entropy",
  "token_sums",
  "unigram",
  "unigram_loss",
  "without_auxiliary",
]


@dataclasses.dataclass(frozen=True)
class LossRow:
  """Facts about a loss that are needed before its file is imported.

  path: import path of its `Loss` class.
  section: import path of the record of its optional config section, config.NAME; "": no settings of its own.
  answered_by_heads: whether its batches have labels for heads.
  beside_tokens: whether batches with labels for heads also have tokens to predict.
  derives_tokens: whether the loss also predicts the tokens that the batches contain as inputs.
  compares_texts: whether its batches have pairs of texts.
  """

  path: str
  section: str = ""
  answered_by_heads: bool = False
  beside_tokens: bool = False
  derives_tokens: bool = False
  compares_texts: bool = False


# config.train.loss -> loss; its file is imported on first use.
_ROWS = {
  "adapet": LossRow("t2t.losses.adapet:Adapet", section="t2t.losses.adapet:AdapetConfig", answered_by_heads=True),
  "bilm": LossRow("t2t.contrib.recurrent.bilm:BiLm"),
  "contrastive": LossRow(
    "t2t.losses.contrastive:Contrastive", section="t2t.losses.contrastive:ContrastiveConfig", compares_texts=True
  ),
  "cross_entropy": LossRow("t2t.losses.cross_entropy:CrossEntropy"),
  "diffusion": LossRow("t2t.losses.diffusion:Diffusion", section="t2t.losses.diffusion:DiffusionConfig"),
  "distillation": LossRow(
    "t2t.losses.distillation:Distillation", section="t2t.losses.distillation:DistillationConfig", answered_by_heads=True
  ),
  "early_exit": LossRow(
    "t2t.losses.exit_losses:EarlyExit", section="t2t.losses.exit_losses:EarlyExitConfig", answered_by_heads=True
  ),
  "electra": LossRow("t2t.losses.electra:Electra", section="t2t.losses.electra:ElectraConfig"),
  "glove": LossRow("t2t.contrib.static.glove:GloVe", section="t2t.contrib.static.glove:GloVeConfig"),
  "heads": LossRow("t2t.losses.head_losses:HeadLosses", answered_by_heads=True),
  "heads_and_lm": LossRow("t2t.losses.heads_and_lm:HeadsAndLm", answered_by_heads=True, derives_tokens=True),
  "heads_and_mlm": LossRow("t2t.losses.heads_and_mlm:HeadsAndMlm", answered_by_heads=True),
  "multi_token": LossRow("t2t.losses.multi_token:MultiToken", section="t2t.losses.multi_token:MultiTokenConfig"),
  "negative_sampling": LossRow(
    "t2t.contrib.static.negative_sampling:NegativeSampling",
    section="t2t.contrib.static.negative_sampling:NegativeSamplingConfig",
  ),
  "rows_by_kind": LossRow("t2t.losses.rows_by_kind:RowsByKind"),
  "sift": LossRow("t2t.losses.sift:Sift", section="t2t.losses.sift:SiftConfig", answered_by_heads=True),
  "skip_thought": LossRow("t2t.contrib.recurrent.skip_thought:SkipThought", compares_texts=True),
  "tokens_and_heads": LossRow("t2t.losses.head_losses:HeadLosses", answered_by_heads=True, beside_tokens=True),
}
LOSSES: LazyTable[type[Loss]] = LazyTable({name: row.path for name, row in _ROWS.items()})

SECTIONS = {name: row.section for name, row in _ROWS.items() if row.section}  # config section -> its record


def answered_by_heads(name: str) -> bool:
  """Returns True if batches of the loss have labels for heads."""
  return name in _ROWS and _ROWS[name].answered_by_heads


def answered_by_heads_alone(name: str) -> bool:
  """Returns True if batches of the loss have labels for heads, and no tokens to predict."""
  return answered_by_heads(name) and not _ROWS[name].beside_tokens


def trains_tokens(name: str) -> bool:
  """Returns True if the model learns to predict tokens, possibly besides its heads."""
  return not answered_by_heads_alone(name) or _ROWS[name].derives_tokens


def compares_texts(name: str) -> bool:
  """Returns True if batches of the loss have pairs of texts."""
  return name in _ROWS and _ROWS[name].compares_texts


def without_auxiliary(loss: Loss) -> Loss:
  """Returns the loss without the auxiliary terms of layers."""
  return dataclasses.replace(loss, auxiliary=AuxiliaryTerms())


def is_likelihood(run: Config) -> bool:
  """Returns True if the metric "loss" is the negative log-likelihood of a target token, or an upper bound of it."""
  return run.train.loss == "diffusion" or (run.train.loss == "cross_entropy" and run.model.kind.is_generative)


def has_teacher(run: Config) -> bool:
  """Returns True if a run has teachers, config.distillation.teacher, or logits that one wrote."""
  return run.distillation is not None and bool(run.distillation.teacher or run.distillation.logits)


def part_of(saved: Mapping[str, object]) -> str:
  """Returns `Loss.part` of a saved config, {section: {key: value}}."""
  sections: Any = saved
  if sections.get("distillation", {}).get("teacher"):
    return "student"  # teacher_student.PART
  name = str(sections.get("train", {}).get("loss", "cross_entropy"))  # the only loss before losses had names
  return LOSSES[name].part if name in LOSSES else ""


def make(run: Config) -> Loss:
  """Builds the loss that a config names.

  Raises:
    UserError: the name is unknown, or the loss does not support microbatches.
  """
  name = run.train.loss or "cross_entropy"
  if name not in LOSSES:
    raise UserError(
      f"config.train.loss={name}: unknown loss. Known values: {', '.join(LOSSES)}{did_you_mean(name, LOSSES)}"
    )
  loss = LOSSES[name].from_config(run)
  if has_teacher(run):
    # Few runs have teachers.
    path = "logits_student:LogitsLoss" if run.distillation.logits else "teacher_student:TeacherLoss"
    loss = load(f"t2t.losses.{path}").wrapping(loss, run)
  if run.train.microbatches > 1 and not loss.supports_microbatching:
    raise UserError(
      f"config.train.microbatches={run.train.microbatches}: the loss {name} compares all rows of a batch, so a "
      "batch cannot be split. Set config.train.microbatches=1, and lower config.train.batch_size until a batch "
      "fits in memory."
    )
  return loss
