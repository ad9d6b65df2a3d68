"""Distillation of classes: the cross-entropy with a teacher's softened distribution (Hinton et al. 2015; PET)."""

from collections.abc import Mapping, Sequence
import dataclasses

import jax
import jax.numpy as jnp

from t2t import UserError
from t2t.configuration.schema import Config
from t2t.losses import head_losses
from t2t.losses.head_losses import HeadLoss, HeadLosses, HeadTargets
from t2t.losses.protocol import Baseline
from t2t.models import heads
from t2t.models.config import HeadConfig


@dataclasses.dataclass(frozen=True)
class DistillationConfig:
  """Settings of the distillation of classes, config.distillation."""

  temperature: float = 2.0  # of the teacher's and the student's softmax; Schick & Schuetze 2021 (PET), section 4


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
        "with logits, such as `t2t pet` writes."
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
    loss = self._divergence(jax.nn.log_softmax(logits / self.temperature), teacher)
    right = jnp.argmax(logits, axis=-1) == jnp.argmax(teacher, axis=-1)
    return HeadLoss(jnp.where(at > 0, loss, 0.0), at * right)

  def _divergence(self, log_p: jax.Array, teacher: jax.Array) -> jax.Array:
    log_q = jax.nn.log_softmax(teacher / self.temperature)
    return self.temperature**2 * jnp.sum(jnp.exp(log_q) * (log_q - log_p), axis=-1)

  def baseline(self, head: HeadConfig, batch_targets: Sequence[HeadTargets]) -> jax.Array:
    """Returns the loss of the teacher's mean distribution."""
    total, number, rows = jnp.zeros(head.num_classes), 0.0, []
    for head_targets in batch_targets:
      at, teacher = self.units(head, head_targets)[..., None], teacher_logits(head_targets, head.num_classes)
      teacher = jnp.where(at > 0, teacher, 0.0)
      total += jnp.sum(at * jax.nn.softmax(teacher / self.temperature), axis=(0, 1))
      number += jnp.sum(at)
      rows.append((at[..., 0], teacher))
    log_p = jnp.log(total / jnp.maximum(number, 1.0))
    return sum(jnp.sum(at * self._divergence(log_p, teacher)) for at, teacher in rows) / jnp.maximum(number, 1.0)

  def chance(self, values: Mapping[str, float], *, batch_size: int, vocab_size: int) -> Mapping[str, Baseline]:
    del values, batch_size, vocab_size
    return {}
