"""Auxiliary terms of layers, added to a loss, each with a coefficient and the weight of the whole batch."""

from collections.abc import Mapping
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from t2t.configuration.schema import Config
from t2t.metrics import Outputs, WeightedSum
from t2t.models import adapters as adapters_lib
from t2t.models.architecture import Batch, segments_of
from t2t.models.auxiliary import CARRIED, Auxiliary, Term
from t2t.models.config import RECURRENCES, TransformerConfig


@dataclasses.dataclass(frozen=True)
class AuxiliaryTerms:
  """The auxiliary terms of a model's layers, added to the terms of a loss.

  model: shape of the model; None: auxiliary terms are ignored.
  sides: stacks of the model that the loss runs.
  prompt: positions of a learned prompt before the text of the first side.
  prefix: prefix of the terms' names, for a loss that runs several models.
  """

  model: TransformerConfig | None = None
  sides: tuple[str, ...] = ()
  prompt: int = 0
  prefix: str = ""

  @classmethod
  def from_config(cls, run: Config, *, only_states: bool) -> "AuxiliaryTerms":
    """Builds the terms of a run.

    Args:
      run: config of the run.
      only_states: whether the loss calls `ModelProtocol.hidden_states` instead of `hidden`.
    """
    kind = run.model.kind
    sides = (kind.answers,) if only_states else kind.sides
    return cls(run.model, sides, adapters_lib.positions(run.adapters, computed=True))

  @property
  def rows(self) -> Mapping[str, Term]:
    if self.model is None:
      return {}
    terms = self.model.feed_forward_class.terms(self.model)
    row = self.model.recurrence_row
    return {**terms, **RECURRENCES[row].terms(self.model)} if row else terms

  def weights(self, batch: Batch) -> dict[str, jax.Array]:
    """Returns the weight of each term, over all layers; see `Loss.weights`."""
    rows = self.rows
    if not rows:
      return {}
    assert self.model is not None
    prompts = {side: self.prompt if side == self.model.kind.answers else 0 for side in self.sides}
    padded = lambda side: jnp.pad(segments_of(batch, side), [(0, 0), (prompts[side], 0)], constant_values=1)
    texts = {side: padded(side) for side in self.sides}
    pattern = self.model.feed_forward_pattern
    share = pattern.count(self.model.feed_forward) / len(pattern)  # of the layers, those with the terms
    layers = {"encoder": share * self.model.num_encoder_layers, "decoder": share * self.model.num_decoder_layers}
    term_weights: dict[str, Any] = {
      self.prefix + name: sum((layers[side] if term.per_layer else 1) * term.weight(texts[side]) for side in self.sides)
      for name, term in rows.items()
    }
    return term_weights

  def joined(
    self,
    terms: dict[str, jax.Array],
    metrics: Outputs,
    aux: Auxiliary,
    batch: Batch,
    weights: Mapping[str, jax.Array],
  ) -> tuple[dict[str, jax.Array], Outputs]:
    """Adds terms and metrics of the layers to those of a loss.

    Args:
      terms, metrics: terms and metrics of the loss.
      aux: auxiliary outputs of the model.
      batch: model features of the batch or of one microbatch.
      weights: weights of the whole batch.

    Raises:
      ValueError: layers return undeclared terms, or a term with a name that the loss uses.
    """
    rows = self.rows
    if self.model is not None and set(rows) != set(aux.terms):
      raise ValueError(
        f"config.model.feed_forward={self.model.feed_forward}: the layers return the terms {sorted(aux.terms)}, "
        f"but `terms` of their class declares {sorted(rows)}. Correct `terms`."
      )
    term_weights = self.weights(batch)
    added = {self.prefix + name: (term, aux.terms[name]) for name, term in rows.items()}
    if taken := set(added) & (set(terms) | set(metrics)):
      raise ValueError(
        f"the auxiliary term {min(taken)!r} has the name of a term or metric of the loss. Rename this term."
      )
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
