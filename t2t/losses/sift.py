"""SiFT, scale-invariant fine-tuning (He et al. 2021, section 4): losses of heads, and their stability under noise.

A second forward pass reads embeddings with a perturbation that changes the predictions most, see `layers.perturbed`.
The term is the divergence of both predictions. It is virtual adversarial training, as in SMART (Jiang et al. 2020), on
normalized embeddings. Source of the details: github.com/microsoft/DeBERTa, DeBERTa/sift/sift.py.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import UserError, sharding
from t2t.configuration.schema import Config
from t2t.losses.head_losses import HeadLosses, asked_of, divergence, head_units
from t2t.losses.protocol import Weights
from t2t.metrics import Outputs, WeightedSum
from t2t.models import transformer
from t2t.models.architecture import Batch
from t2t.models.config import TransformerConfig


@dataclasses.dataclass(frozen=True)
class SiftConfig:
  """Settings of SiFT: `config.sift`. Defaults are those of the authors' scripts for MNLI (experiments/glue/mnli.sh)."""

  weight: float = 5.0  # factor of the divergence
  init_perturbation: float = 1e-2  # standard deviation of the random perturbation, cut off at twice this value
  step_size: float = 1e-4  # largest change of a token's perturbation in a step of gradient ascent
  steps: int = 1  # steps of gradient ascent


@dataclasses.dataclass(frozen=True)
class Sift(HeadLosses):
  """Losses of heads, plus a term NAME_divergence per head: predictions of clean and of perturbed embeddings.

  Three forward passes have their own dropout: the clean pass, the search for the perturbation, and the perturbed pass.
  As in the authors' code, embeddings get no gradient from the perturbed pass, and each prediction is a constant target
  of the other. Evaluation has no perturbation.

  Metrics: those of the losses of heads; in training also NAME_divergence.
  """

  settings: SiftConfig = SiftConfig()

  @classmethod
  def from_config(cls, run: Config) -> "Sift":
    """Builds the loss of a run.

    Raises:
      UserError: no head of the model can be trained, or a setting is out of range.
    """
    base = HeadLosses.from_config(run)
    settings: SiftConfig = run.sift or SiftConfig()
    for key in ("init_perturbation", "step_size", "steps"):
      if not getattr(settings, key) >= 0:
        raise UserError(f"config.sift.{key}={getattr(settings, key)}: must be at least 0")
    if not settings.weight > 0.0:
      raise UserError(
        f"config.sift.weight={settings.weight}: must be above 0. For no divergence, set --config.train.loss=heads."
      )
    return cls(base.config, base.tokens, base.auxiliary, settings=settings)

  def __call__(
    self, module: transformer.Transformer, batch: Batch, weights: Weights, *, key: jax.Array | None, train: bool
  ) -> tuple[dict[str, jax.Array], Outputs]:
    if not train:
      return super().__call__(module, batch, weights, key=key, train=False)
    assert key is not None
    clean_key, search_key, perturbed_key = jax.random.split(key, 3)
    outputs, logits = self.predict(module, batch, dropout_key=clean_key)
    terms, metrics = self.of_logits(module, outputs, logits, batch, weights, train=True)
    perturbed = {**batch, **self.perturbation(module, batch, logits, key=search_key)}
    divergences = self._divergences(module, batch, perturbed, logits, dropout_key=perturbed_key)
    of_heads: dict[str, WeightedSum] = {}
    for number, head in self._asked:
      total, units = divergences[head.name], jnp.sum(head_units(head, asked_of(batch, number)))
      terms[f"{head.name}_divergence"] = self.settings.weight * total / jnp.maximum(weights[head.name], 1e-8)
      of_heads[f"{head.name}_divergence"] = WeightedSum(total, units)
    return terms, {**metrics, **of_heads}

  def perturbation(
    self, module: transformer.Transformer, batch: Batch, logits: Mapping[str, jax.Array], *, key: jax.Array
  ) -> dict[str, jax.Array]:
    """Returns a perturbation that increases the divergence of predictions from `logits`, as a feature of the batch.

    It starts as normally distributed noise, cut off at two standard deviations. Each step of gradient ascent divides a
    token's gradient by the largest absolute value of its components. The result has no gradient.

    Args:
      module: the model.
      batch: model features.
      logits: predictions of the batch, by head.
      key: random key of noise and dropout.

    Returns:
      The feature SIDE_perturbation, float32 [batch, length, width].
    """
    settings, feature = self.settings, f"{module.architecture.answers}_perturbation"
    noise_key, *dropout_keys = jax.random.split(key, 1 + settings.steps)
    shape = (*batch[f"{module.architecture.answers}_input_tokens"].shape, module.input_embed.added_width)
    noise = jnp.clip(jax.random.normal(noise_key, shape), -2.0, 2.0)
    # Constant parameters: the search is not differentiated again, which kernels with their own gradient cannot be.
    graphdef, params = nnx.split(module, graph=False)
    constant: Any = nnx.merge(graphdef, jax.lax.stop_gradient(params))
    targets = jax.lax.stop_gradient(dict(logits))

    def total(delta: jax.Array, dropout_key: jax.Array) -> jax.Array:
      of_heads = self._divergences(constant, batch, {**batch, feature: delta}, targets, dropout_key=dropout_key)
      return sum(of_heads.values(), jnp.zeros(()))

    delta = sharding.shard(settings.init_perturbation * noise, "batch", "length", "embed")
    for dropout_key in dropout_keys:
      gradient = jax.grad(total)(delta, dropout_key)
      largest = jnp.max(jnp.abs(gradient), axis=-1, keepdims=True)
      # Tokens without a gradient, such as padding, keep their noise; 1e-6 as in the authors' code.
      delta += settings.step_size * gradient / (largest + 1e-6)
    return {feature: jax.lax.stop_gradient(delta)}

  def _divergences(
    self,
    module: transformer.Transformer,
    batch: Batch,
    perturbed: Batch,
    logits: Mapping[str, jax.Array],
    *,
    dropout_key: jax.Array,
  ) -> dict[str, jax.Array]:
    """Returns `divergence` of the predictions of perturbed features from `logits`, by head."""
    others = self.predict(module, perturbed, dropout_key=dropout_key)[1]
    return {
      head.name: divergence(head, logits[head.name], others[head.name], asked_of(batch, number))
      for number, head in self._asked
    }

  def flops(self, config: TransformerConfig, *, batch_size: int, lengths: Mapping[str, int], predicted: float) -> float:
    """Returns the FLOPs of a training step.

    The perturbed pass costs as much as the clean pass. A search step has no gradients of parameters: two thirds.
    """
    once = super().flops(config, batch_size=batch_size, lengths=lengths, predicted=predicted)
    return once * (2.0 + 2.0 * self.settings.steps / 3.0)
