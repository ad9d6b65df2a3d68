"""Losses of heads after every layer, for early exit: a weighted mean over the layers.

Sources: Zhou et al. 2020 (PABEE), equation 2; Xin et al. 2020 (DeeBERT), equation 3, with a frozen body.
"""

from collections.abc import Mapping
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from t2t import UserError
from t2t.configuration.schema import Config
from t2t.configuration.section_keys import key
from t2t.losses.head_losses import HeadLosses, asked_of
from t2t.losses.protocol import Weights
from t2t.metrics import Outputs, WeightedSum
from t2t.models import exit_heads, layers, transformer
from t2t.models.architecture import Batch
from t2t.models.auxiliary import Hidden
from t2t.models.head_config import HeadConfig

_EXITS = "{}_exits"  # logits and the term of a head's exits, by the head's name


@dataclasses.dataclass(frozen=True)
class EarlyExitConfig:
  """Settings of the loss of exits: `config.early_exit`."""

  layer_weights: str = key(
    "linear",
    "weights of the layers' losses: linear (proportional to the number of the layer, PABEE) or uniform (DeeBERT)",
    choices=("linear", "uniform"),
  )


def layer_weights(name: str, num_layers: int) -> np.ndarray:
  """Returns the weight of each layer, float64 [layers], with sum 1.

  In:  "linear", 3
  Out: [1/6, 2/6, 3/6]
  """
  weights = np.arange(1.0, num_layers + 1) if name == "linear" else np.ones(num_layers)
  return weights / weights.sum()


@dataclasses.dataclass(frozen=True)
class EarlyExit(HeadLosses):
  """Losses of heads, averaged over the layers by `layer_weights`.

  The term NAME is the weighted loss of the last layer, and NAME_exits those of the others. The metrics loss and
  accuracy are those of the last layer. With several layers NAME_exit_3_accuracy is that of the third.
  """

  settings: EarlyExitConfig = EarlyExitConfig()

  @classmethod
  def from_config(cls, run: Config) -> "EarlyExit":
    """Builds the loss of a run.

    Raises:
      UserError: the model has no exits, or no head can be trained.
    """
    if not run.model.exits:
      raise UserError(
        "config.train.loss=early_exit trains heads after every layer, but config.model.exits=False. Give "
        "--config.model.exits=True."
      )
    base = HeadLosses.from_config(run)
    return cls(base.config, base.tokens, base.auxiliary, settings=run.early_exit or EarlyExitConfig())

  def _weights(self) -> np.ndarray:
    return layer_weights(self.settings.layer_weights, self.config.num_encoder_layers)

  def predict(
    self, module: transformer.Transformer, batch: Batch, *, dropout_key: jax.Array | None
  ) -> tuple[Hidden, dict[str, jax.Array]]:
    """Returns the states of every layer, logits of the last by head, and those of all exits by `_EXITS`."""
    number_of_heads = len(self.config.heads)
    body_key, *keys = layers.split_key(dropout_key, 1 + 2 * number_of_heads)
    outputs = module.hidden_states(batch, every_layer=True, dropout_key=body_key)
    logits = self._head_logits(module, outputs, batch, keys)
    for number, head in self._with_exits:
      exits = module.heads[head.name].exits
      logits[_EXITS.format(head.name)] = exits.logits(outputs.x, batch, dropout_key=keys[number_of_heads + number])
    return outputs, logits

  @property
  def _with_exits(self) -> list[tuple[int, HeadConfig]]:
    return [(number, head) for number, head in self._asked if head.kind in exit_heads.KINDS]

  def of_logits(
    self,
    module: transformer.Transformer,
    outputs: Hidden,
    logits: Mapping[str, jax.Array],
    batch: Batch,
    weights: Weights,
    *,
    train: bool,
  ) -> tuple[dict[str, jax.Array], Outputs]:
    terms, metrics = super().of_logits(module, outputs, logits, batch, weights, train=train)
    of_layers, of_exits = self._weights(), dict[str, WeightedSum]()
    for number, head in self._with_exits:
      head_targets = asked_of(batch, number)
      units = jnp.sum(self.units(head, head_targets))

      def measure(exit_logits: jax.Array, head=head, head_targets=head_targets) -> tuple[jax.Array, jax.Array]:
        measured = self.measure(head, exit_logits, head_targets, module.heads[head.name])
        return jnp.sum(measured.loss), jnp.sum(measured.right)

      losses, right = jax.vmap(measure)(logits[_EXITS.format(head.name)])
      total = jnp.sum(jnp.asarray(of_layers[:-1], jnp.float32) * losses)
      terms[head.name] = float(of_layers[-1]) * terms[head.name]
      terms[_EXITS.format(head.name)] = total / jnp.maximum(weights[head.name], 1e-8)
      for index in range(len(of_layers) - 1):
        of_exits[f"{head.name}_exit_{index + 1}_accuracy"] = WeightedSum(right[index], units)
    return terms, {**metrics, **of_exits}
