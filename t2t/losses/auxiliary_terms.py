"""Terms that layers return, in a loss: each with its coefficient and a weight of the whole batch."""

from collections.abc import Mapping
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from t2t.configuration.schema import Config
from t2t.metrics import Outputs, WeightedSum
from t2t.models import adapters as adapters_lib
from t2t.models.architecture import Batch, real_positions
from t2t.models.auxiliary import CARRIED, Auxiliary, Term
from t2t.models.config import TransformerConfig


@dataclasses.dataclass(frozen=True)
class AuxiliaryTerms:
  """The terms of a model's layers, beside a loss's own.

  model: shape of the model; None: what its layers return is left out.
  sides: its stacks that the loss runs.
  prompt: positions of a learned prompt, in front of the text of the first side.
  prefix: of the terms' names, where a loss runs several models.
  """

  model: TransformerConfig | None = None
  sides: tuple[str, ...] = ()
  prompt: int = 0
  prefix: str = ""

  @classmethod
  def from_config(cls, run: Config, *, only_states: bool) -> "AuxiliaryTerms":
    """Makes the terms of a run.

    Args:
      run: its config.
      only_states: whether the loss runs `ModelProtocol.hidden_states` and not `hidden`.
    """
    kind = run.model.kind
    sides = (kind.answers,) if only_states else kind.sides
    return cls(run.model, sides, adapters_lib.positions(run.adapters, computed=True))

  @property
  def rows(self) -> Mapping[str, Term]:
    """Returns the terms of the layers, by name."""
    return {} if self.model is None else self.model.feed_forward_class.terms(self.model)

  def weights(self, batch: Batch) -> dict[str, jax.Array]:
    """The weight of each term, over all layers; see `Loss.weights`."""
    rows = self.rows
    if not rows:
      return {}
    assert self.model is not None
    real = {side: self._real(batch, side) for side in self.sides}
    layers = {"encoder": self.model.num_encoder_layers, "decoder": self.model.num_decoder_layers}
    term_weights: dict[str, Any] = {
      self.prefix + name: sum(layers[side] * term.weight(real[side]) for side in self.sides)
      for name, term in rows.items()
    }
    return term_weights

  def _real(self, batch: Batch, side: str) -> jax.Array:
    assert self.model is not None
    prompt = self.prompt if side == self.model.kind.answers else 0
    return jnp.pad(real_positions(batch, side), [(0, 0), (prompt, 0)], constant_values=True)

  def joined(
    self,
    terms: dict[str, jax.Array],
    metrics: Outputs,
    aux: Auxiliary,
    batch: Batch,
    weights: Mapping[str, jax.Array],
  ) -> tuple[dict[str, jax.Array], Outputs]:
    """A loss's own terms and metrics, with those of its layers.

    Args:
      terms, metrics: its own.
      aux: what the model returned.
      batch: model features, of a part of a batch.
      weights: of the whole batch.

    Raises:
      ValueError: layers return other terms than their class declares, or one with the name of a loss's own.
    """
    rows = self.rows
    if self.model is not None and set(rows) != set(aux.terms):
      raise ValueError(
        f"config.model.feed_forward={self.model.feed_forward}: its layers return the terms {sorted(aux.terms)}, but"
        f" `terms` of its class declares {sorted(rows)}"
      )
    term_weights = self.weights(batch)
    added = {self.prefix + name: (term, aux.terms[name]) for name, term in rows.items()}
    if taken := set(added) & (set(terms) | set(metrics)):
      raise ValueError(f"the auxiliary term {min(taken)!r} has the name of a term or metric of the loss; rename it")
    scaled_terms = {
      name: term.coefficient * total / jnp.maximum(weights[name], 1e-8)
      for name, (term, total) in added.items()
      if term.coefficient
    }
    layer_metrics = {name: WeightedSum(total, term_weights[name]) for name, (_, total) in added.items()}
    carried_names = [name for name in batch if name.startswith(CARRIED)]
    states = {name: aux.states[name.removeprefix(CARRIED)] for name in carried_names}
    carried = {name: jnp.moveaxis(x, 0, 1) for name, x in states.items()}
    return terms | scaled_terms, {**metrics, **layer_metrics, **carried}
