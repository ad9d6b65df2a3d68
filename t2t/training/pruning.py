"""Gradual pruning: transforms of `config.optimizer.param_groups` with the schedule of `config.pruning`.

Parameters of the train state are masked, so that every checkpoint contains the model as it is evaluated.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from t2t.configuration.pruning_config import PruningConfig
from t2t.configuration.schema import Config
from t2t.training.param_transforms import by_layer, largest


@dataclasses.dataclass(frozen=True)
class SparsitySchedule:
  """Rise of the sparsity of a parameter, or of the threshold of its scores.

  final: value from step `keys.end` on.
  keys: `config.pruning`, resolved.
  """

  final: float
  keys: PruningConfig

  def at(self, step: jax.Array) -> jax.Array:
    """Returns the value after the masks' last change, float32 []; 0 before the first one.

    Source: Zhu & Gupta 2017, equation 1.
    """
    keys = self.keys
    changed = (step - keys.start) // keys.every * keys.every
    left = 1.0 - jnp.clip(changed / (keys.end - keys.start), 0.0, 1.0)
    value = self.final + (min(keys.initial, self.final) - self.final) * left**3
    value = jnp.where(step >= keys.end, self.final, value)
    return jnp.where(step < keys.start, 0.0, value)

  def num_zeros(self, size: int, step: jax.Array) -> jax.Array:
    """Returns the zeros among `size` weights, int32 []; exact at the end, where float32 would round large numbers."""
    rising = jnp.round(self.at(step) * size).astype(jnp.int32)
    return jnp.minimum(jnp.where(step >= self.keys.end, round(self.final * size), rising), size - 1)

  def changes(self, step: jax.Array) -> jax.Array:
    """Returns whether masks of scores change in this step, bool []."""
    keys = self.keys
    due = ((step - keys.start) % keys.every == 0) | (step == keys.end)
    return (step >= keys.start) & due


class _Scheduled:
  """Base of transforms with a schedule and a final sparsity."""

  wanted = "the final fraction of each matrix that is zero, at least 0 and below 1"
  mask_key: ClassVar[tuple[str, ...]] = ()

  @staticmethod
  def read(text: str) -> float:
    value = float(text)
    if not 0.0 <= value < 1.0:
      raise ValueError
    return value

  @staticmethod
  def configured(setting: float, config: Config) -> SparsitySchedule:
    keys: Any = config.sections["pruning"] if "pruning" in config.sections else PruningConfig()
    return SparsitySchedule(setting, keys.resolved(config.train.steps))


class Magnitude(_Scheduled):
  """Sets the smallest magnitudes of each layer's matrix to zero, more of them from step to step; zeros stay zero.

  Source: Zhu & Gupta 2017.
  """

  @staticmethod
  def init(setting: SparsitySchedule, path: str, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.ones_like(x), x

  @staticmethod
  def forward(setting: SparsitySchedule, value: jax.Array, x: jax.Array) -> jax.Array:
    return x * value

  @staticmethod
  def gradient(
    setting: SparsitySchedule, path: str, value: jax.Array, x: jax.Array, grad: jax.Array, step: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    mask = by_layer(path, value)
    num_zeros = setting.num_zeros(mask.shape[1], step)
    # Compared with the mask, so that a step whose update was skipped does not lose its share.
    due = num_zeros > jnp.sum(mask[0] == 0)
    # Zeros have the smallest magnitudes, so they stay zeros; -1 also holds weights that are zero by chance.
    magnitude = jnp.where(mask > 0, by_layer(path, jnp.abs(x)), -1.0)
    mask = jax.lax.cond(due, lambda: largest(magnitude, num_zeros).astype(mask.dtype), lambda: mask)
    value = mask.reshape(value.shape)
    return value, grad * value

  @staticmethod
  def update(setting: SparsitySchedule, value: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return value, x * value


class Movement(_Scheduled):
  """Keeps the weights of each layer's matrix with the largest scores, which training moves away from zero.

  The gradient of a score is that of the masked weight times the weight (a straight-through estimator), and Adam trains
  the scores as in the released code. A weight that is masked can return with its value, which the state keeps in
  "rest". Source: movement pruning, hard top-v (Sanh et al. 2020, section 4).
  """

  mask_key = ("mask",)

  @classmethod
  def init(cls, setting: SparsitySchedule, path: str, x: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
    zeros = lambda: jnp.zeros(x.shape, jnp.float32)
    value = {"scores": zeros(), "mean": zeros(), "square": zeros(), "rest": jnp.zeros_like(x)}
    return value | {"mask": jnp.ones(x.shape, bool)}, x

  @staticmethod
  def forward(setting: SparsitySchedule, value: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    # The gradient is dense, because scores of masked weights need it.
    return x + jax.lax.stop_gradient(jnp.where(value["mask"], x, 0) - x)

  @classmethod
  def gradient(
    cls,
    setting: SparsitySchedule,
    path: str,
    value: dict[str, jax.Array],
    x: jax.Array,
    grad: jax.Array,
    step: jax.Array,
  ) -> tuple[dict[str, jax.Array], jax.Array]:
    of_scores = grad.astype(jnp.float32) * (x + value["rest"]) + cls.penalty(setting, value["scores"], step)
    value = value | _adam(value, of_scores, step, setting.keys.score_rate)
    scores = by_layer(path, value["scores"])
    mask = jax.lax.cond(
      setting.changes(step),
      lambda: cls.kept(setting, scores, step).reshape(x.shape),
      lambda: value["mask"],
    )
    return value | {"mask": mask}, jnp.where(mask, grad, 0)

  @staticmethod
  def update(
    setting: SparsitySchedule, value: dict[str, jax.Array], x: jax.Array
  ) -> tuple[dict[str, jax.Array], jax.Array]:
    # A weight is in `x` or in the rest; the other is zero, except for what a decay has changed.
    whole = x + value["rest"]
    return value | {"rest": jnp.where(value["mask"], 0, whole)}, jnp.where(value["mask"], whole, 0)

  @staticmethod
  def penalty(setting: SparsitySchedule, scores: jax.Array, step: jax.Array) -> jax.Array | float:
    """Returns the gradient of a penalty on the scores."""
    del setting, scores, step
    return 0.0

  @staticmethod
  def kept(setting: SparsitySchedule, scores: jax.Array, step: jax.Array) -> jax.Array:
    """Returns the new mask, bool [layers, size]."""
    return largest(scores, setting.num_zeros(scores.shape[1], step))


class SoftMovement(Movement):
  """Keeps the weights with sigmoid(score) above a threshold, which rises as the sparsity of the other rules does.

  A penalty on the mean of sigmoid(score) lowers scores; it determines the sparsity, which differs by layer. Source:
  soft movement pruning (Sanh et al. 2020, section 4.2).
  """

  wanted = "the final threshold of sigmoid(score), above 0 and below 1"

  @staticmethod
  def read(text: str) -> float:
    value = float(text)
    if not 0.0 < value < 1.0:
      raise ValueError
    return value

  @staticmethod
  def penalty(setting: SparsitySchedule, scores: jax.Array, step: jax.Array) -> jax.Array:
    share = jax.nn.sigmoid(scores)
    strength = setting.keys.penalty * setting.at(step) / setting.final
    return strength * share * (1.0 - share) / scores.size

  @staticmethod
  def kept(setting: SparsitySchedule, scores: jax.Array, step: jax.Array) -> jax.Array:
    return jax.nn.sigmoid(scores) > setting.at(step)


def _adam(value: dict[str, jax.Array], grad: jax.Array, step: jax.Array, rate: float) -> dict[str, jax.Array]:
  """Returns scores and moments after a step of Adam with its usual constants (Kingma & Ba 2015)."""
  count = step.astype(jnp.float32) + 1.0
  mean, square = 0.9 * value["mean"] + 0.1 * grad, 0.999 * value["square"] + 0.001 * jnp.square(grad)
  rise = (mean / (1.0 - 0.9**count)) / (jnp.sqrt(square / (1.0 - 0.999**count)) + 1e-8)
  return {"scores": value["scores"] - rate * rise, "mean": mean, "square": square}
