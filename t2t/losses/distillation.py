"""Distillation: settings of teachers (`config.distillation`), and the loss of class labels that one wrote (PET)."""

from collections.abc import Mapping, Sequence
import dataclasses

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from t2t import UserError
from t2t.configuration.schema import Config, InitSource
from t2t.configuration.section_keys import Texts
from t2t.losses import head_losses, transfer_terms
from t2t.losses.head_losses import HeadLoss, HeadLosses, HeadTargets
from t2t.losses.protocol import Baseline
from t2t.models import heads
from t2t.models.config import DTYPES
from t2t.models.head_config import HeadConfig

POSITIONS = ("predicted", "all")
TAILS = ("renormalized", "bucket")
RELATIONS = ("query", "key", "value")


@dataclasses.dataclass(frozen=True)
class DistillationConfig:
  """Settings of distillation, config.distillation; docs/distillation.md describes the terms.

  Default weights are those of plain soft and hard targets (Hinton et al. 2015).
  """

  temperature: float = 2.0  # of the teacher's and the student's softmax; Schick & Schuetze 2021 (PET), section 4
  teacher: Texts = ()  # checkpoints of frozen teachers, of t2t, Hugging Face or T5X; several: the mean of their logits
  logits: Texts = ()  # in place of teacher: folders that `t2t infer --logits` wrote, with logits of the run's rows
  tail: str = "renormalized"  # of the K largest logits: renormalized, or bucket: the rest of the tokens is one class
  dtype: str = "bfloat16"  # dtype in which teachers compute and are stored: bfloat16 or float32
  soft_weight: float = 1.0  # soft targets: T**2 times the KL divergence from the teachers' distribution; 0: off
  soft_positions: str = "predicted"  # tokens with soft targets: predicted, or all (DistilBERT)
  hard_weight: float = 1.0  # factor of the loss of the data; 0: off
  layers: Texts = ("uniform",)  # layers compared: uniform, skip, last, final; 1,3 (teacher's layers); 0:1,1:3 (pairs)
  hidden_weight: float = 0.0  # squared error of the layers' hidden states, projected if the widths differ
  hidden_loss: str = "mse"  # hidden states are compared as they are: mse; or with mean 0 and variance 1: normalized
  mean_weight: float = 0.0  # normalized: squared error of the means of hidden states (MobileBERT)
  variance_weight: float = 0.0  # normalized: absolute error of the variances of hidden states (MobileBERT)
  embedding_weight: float = 0.0  # squared error of the embedded tokens, projected if the widths differ (TinyBERT)
  cosine_weight: float = 0.0  # 1 - cosine of the last hidden states, projected if the widths differ (DistilBERT)
  attention_weight: float = 0.0  # distance of the layers' attention
  attention_loss: str = "scores"  # squared error of scores or probabilities, or kl divergence of probabilities
  relation_weight: float = 0.0  # KL divergence of the layers' self-attention relations (MiniLM)
  relations: Texts = ("value",)  # relations compared: query, key, value
  relation_heads: int = 0  # relation heads into which all heads are split (MiniLM v2); 0: the models' own heads
  models: Texts = ()  # set by t2t: the models of the teachers
  written: str = ""  # set by t2t: the settings of the logits

  @property
  def names(self) -> Texts:
    """Lists the names of the teachers in config.init.others, which are their paths in the trained module."""
    return tuple(f"teacher_{number}" if number > 1 else "teacher" for number in range(1, len(self.teacher) + 1))

  @property
  def init_sources(self) -> dict[str, InitSource]:
    """Returns entries of config.init.others for the teachers."""
    return {
      name: InitSource(path, rename=(f".={name}",), frozen=True, dtype=self.dtype)
      for name, path in zip(self.names, self.teacher, strict=True)
    }

  def check(self) -> None:
    """Checks ranges and choices.

    Raises:
      UserError: with the key and valid values.
    """
    where = "config.distillation"
    if not 0.0 < self.temperature < float("inf"):
      raise UserError(f"{where}.temperature={self.temperature}: must be above 0")
    for key, known in (
      ("dtype", DTYPES),
      ("soft_positions", POSITIONS),
      ("tail", TAILS),
      ("hidden_loss", ("mse", "normalized")),
      ("attention_loss", transfer_terms.ATTENTION_LOSSES),
    ):
      value = getattr(self, key)
      if value not in known:
        raise UserError(f"{where}.{key}={value}: unknown value. Known values: {', '.join(known)}")
    weights = {name: value for name, value in dataclasses.asdict(self).items() if name.endswith("_weight")}
    for name, value in weights.items():
      if not 0.0 <= value < float("inf"):
        raise UserError(f"{where}.{name}={value}: must be at least 0")
    if not any(value for name, value in weights.items() if name != "hard_weight"):
      raise UserError(
        f"{where}: all weights of the teacher's terms are 0, so the teacher has no effect. Set "
        f"{where}.soft_weight=1.0, or leave out {where}.teacher."
      )
    for name in ("mean_weight", "variance_weight"):
      if weights[name] and self.hidden_loss != "normalized":
        raise UserError(
          f"{where}.{name}={weights[name]} needs {where}.hidden_loss=normalized, not {self.hidden_loss}. Set one of "
          "the two keys."
        )
    for name in self.relations:
      if name not in RELATIONS:
        raise UserError(f"{where}.relations={name}: unknown value. Known values: {', '.join(RELATIONS)}")
    if self.relation_weight and not self.relations:
      raise UserError(
        f"{where}.relation_weight={self.relation_weight}, but {where}.relations is empty. Give some of "
        f"{', '.join(RELATIONS)}."
      )
    if self.relation_heads < 0:
      raise UserError(f"{where}.relation_heads={self.relation_heads}: must be at least 0")


def check_teacher(config: ConfigDict) -> None:
  """Refuses settings of distillation without a teacher or its labels, which would have no effect; and both.

  Args:
    config: a complete config with the section config.distillation.

  Raises:
    UserError: names the key.
  """
  settings = config.distillation
  teacher, logits = settings.get("teacher"), settings.get("logits")
  if teacher and logits:
    raise UserError(
      f"config.distillation.teacher={','.join(teacher)} and config.distillation.logits={','.join(logits)}: a run "
      "learns from a teacher, or from logits that a teacher wrote. Leave out one of the two keys."
    )
  if config.train.loss != "distillation" and not (teacher or logits):
    raise UserError(
      "config.distillation.teacher is missing: the config sets config.distillation, which has no effect without a "
      "teacher. Give --config.distillation.teacher=PATH, a checkpoint of t2t, Hugging Face or T5X."
    )


def teacher_logits(head_targets: HeadTargets, classes: int) -> jax.Array:
  """Returns the teacher's logits of the example that starts at each position, float32 [batch, length, classes].

  In:  targets with the bits of 0.5, -0.5, for an example of two classes at positions 0 and 1
  Out: [0.5, -0.5] at position 0
  """
  bits = head_losses.scores_of(head_targets.targets)
  padded = jnp.pad(bits, [(0, 0), (0, classes - 1)])
  return jnp.stack([padded[:, i : i + bits.shape[1]] for i in range(classes)], axis=-1)


@dataclasses.dataclass(frozen=True)
class Distillation(HeadLosses):
  """Terms of class heads: T**2 KL(softmax(teacher / T), softmax(student / T)), a mean over examples.

  The labels are those of config.data.train_labels. The factor T**2 keeps the size of the gradient (Hinton et al. 2015).
  """

  temperature: float = 2.0

  @classmethod
  def from_config(cls, run: Config) -> "Distillation":
    """Builds the loss of a run.

    Raises:
      UserError: the run has no labels of a teacher, or a head does not predict classes.
    """
    if not run.data.train_labels:
      raise UserError(
        "config.train.loss=distillation learns a teacher's labels, but config.data.train_labels is empty. Give a file "
        "with logits, such as `t2t pet` writes; or a teacher's checkpoint, --config.distillation.teacher=PATH."
      )
    base = HeadLosses.from_config(run)
    for _, head in base._asked:
      if head.kind != "class":
        raise UserError(
          f"config.train.loss=distillation: the head {head.name} has kind={head.kind!r}, but a teacher labels classes. "
          "Give a task whose head is of kind 'class', without config.data.templates."
        )
    settings: DistillationConfig = run.distillation or DistillationConfig()
    if not 0.0 < settings.temperature < float("inf"):
      raise UserError(f"config.distillation.temperature={settings.temperature}: must be above 0")
    return cls(base.config, None, base.auxiliary, temperature=settings.temperature)

  def units(self, head: HeadConfig, head_targets: HeadTargets) -> jax.Array:
    return head_losses.starts_group(head_targets).astype(jnp.float32)

  def measure(self, head: HeadConfig, logits: jax.Array, head_targets: HeadTargets, module: heads.Head) -> HeadLoss:
    del module
    at, teacher = self.units(head, head_targets), teacher_logits(head_targets, logits.shape[-1])
    loss = transfer_terms.soft_targets(logits, teacher, self.temperature)
    right = jnp.argmax(logits, axis=-1) == jnp.argmax(teacher, axis=-1)
    return HeadLoss(jnp.where(at > 0, loss, 0.0), at * right)

  def baseline(self, head: HeadConfig, batch_targets: Sequence[HeadTargets]) -> jax.Array:
    """Returns the loss of the teacher's mean distribution."""
    total, number, rows = jnp.zeros(head.num_classes), 0.0, []
    for head_targets in batch_targets:
      at, teacher = self.units(head, head_targets)[..., None], teacher_logits(head_targets, head.num_classes)
      teacher = jnp.where(at > 0, teacher, 0.0)
      total += jnp.sum(at * jax.nn.softmax(teacher / self.temperature), axis=(0, 1))
      number += jnp.sum(at)
      rows.append((at[..., 0], teacher))
    constant = self.temperature * jnp.log(total / jnp.maximum(number, 1.0))
    loss = lambda teacher: transfer_terms.soft_targets(constant, teacher, self.temperature)
    return sum(jnp.sum(at * loss(teacher)) for at, teacher in rows) / jnp.maximum(number, 1.0)

  def chance(self, values: Mapping[str, float], *, batch_size: int, vocab_size: int) -> Mapping[str, Baseline]:
    del values, batch_size, vocab_size
    return {}
