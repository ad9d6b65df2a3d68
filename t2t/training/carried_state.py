"""Carried state: activations that the train state keeps per row from one step to the next."""

from collections.abc import Mapping
import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from t2t import UserError
from t2t.configuration.schema import Config
from t2t.models import layer_memory
from t2t.models.auxiliary import CARRIED, Carried
from t2t.models.config import TransformerConfig
from t2t.training.state_collections import Flat


@dataclasses.dataclass(frozen=True)
class CarriedState:
  """State collection of values that layers carry: "carried/SIDE/NAME" -> [rows, layers, ...], zeros at step 0.

  Row i of a batch receives the state that row i of the previous batch left; the data decides whether its text continues
  there. Held-out batches begin with states of zeros and carry those that are `Carried.evaluated`. Decoding carries
  nothing.
  """

  model: TransformerConfig
  rows: int
  by_row: ClassVar[bool] = True

  @classmethod
  def from_config(cls, config: Config) -> "CarriedState":
    layer_memory.check(config.model)
    if config.model.memory_length and config.adapters:
      raise UserError(
        f"config.{next(iter(config.adapters))} cannot be used with config.model.memory_length="
        f"{config.model.memory_length}. Set config.model.memory_length=0, or leave the adapter out."
      )
    if config.train.loss not in ("", "cross_entropy"):
      model = config.model
      key = f"memory_length={model.memory_length}" if model.memory_length else f"feed_forward={model.feed_forward}"
      raise UserError(
        f"config.model.{key} carries states from step to step, but config.train.loss={config.train.loss} does not "
        "return them. Give config.train.loss=cross_entropy."
      )
    return cls(config.model, config.train.batch_size)

  def init(self, params: Flat) -> tuple[dict[str, jax.Array], Flat]:
    return self._zeros(self.rows, layer_memory.carried(self.model)), params

  def evaluation_features(self, num_rows: int) -> Flat:
    """Returns the states before the first held-out batch."""
    states = layer_memory.carried(self.model)
    return self._zeros(num_rows, {name: state for name, state in states.items() if state.evaluated})

  def _zeros(self, num_rows: int, states: Mapping[str, Carried]) -> dict[str, jax.Array]:
    layers = {"encoder": self.model.num_encoder_layers, "decoder": self.model.num_decoder_layers}
    return {
      f"{CARRIED}{side}/{name}": jnp.zeros((num_rows, layers[side], *state.shape), state.dtype)
      for name, state in states.items()
      for side in self.model.kind.sides
    }

  def forward(self, value: Flat, params: Flat) -> Flat:
    return params

  def update(self, value: Flat, params: Flat, step: jax.Array) -> tuple[Flat, Flat]:
    return value, params

  def evaluated(self, value: Flat, params: Flat) -> Flat:
    return params
