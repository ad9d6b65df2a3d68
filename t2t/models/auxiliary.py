"""Auxiliary outputs of layers: sums that become terms of every loss, and states."""

from collections.abc import Callable, Iterable, Mapping
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp


def number_of_positions(segments: jax.Array) -> jax.Array:
  """Returns the number of positions, int [batch, length], with a token, as float32 []."""
  return jnp.sum((segments > 0).astype(jnp.float32))


@dataclasses.dataclass(frozen=True)
class Term:
  """An auxiliary term that layers return; its name is also the metric's.

  coefficient: factor in the loss; 0.0: a metric only.
  weight: segments, int [batch, length], 0 at padding, -> float32 [], the weight of one layer's sum. Weights of the
    parts of a batch must add up to the weight of the batch.
  per_layer: whether each layer returns a sum; otherwise each stack returns one.
  """

  coefficient: float
  weight: Callable[[jax.Array], jax.Array] = number_of_positions
  per_layer: bool = True


@dataclasses.dataclass(frozen=True)
class Carried:
  """A state that each layer returns in one step and receives in the next; see `FeedForward.carried`.

  shape: shape per row of the batch, without the axes of rows and layers.
  dtype: dtype of the array in the train state.
  evaluated: whether held-out batches carry it as well, from zeros; otherwise evaluation carries nothing.
  """

  shape: tuple[int, ...]
  dtype: str = "float32"
  evaluated: bool = False


CARRIED = "carried/"  # prefix of features with such states: carried/decoder/NAME, [rows, layers, ...]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Auxiliary:
  """Outputs of layers besides their activations.

  terms: name -> float32 [], a sum over real positions; for a stack or a model the sum over all layers.
  states: name -> array; for a stack with a leading axis "layers", for a model by stack, "encoder/NAME".
  """

  terms: Mapping[str, jax.Array] = dataclasses.field(default_factory=dict)
  states: Mapping[str, jax.Array] = dataclasses.field(default_factory=dict)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Hidden:
  """Activations, [..., embed], and auxiliary outputs of the layers."""

  x: jax.Array
  aux: Auxiliary = dataclasses.field(default_factory=Auxiliary)


def hidden_of(output: jax.Array | Hidden) -> Hidden:
  """Wraps the output of a layer, which may be just activations, as `Hidden`.

  Raises:
    ValueError: a term is not a scalar (raised during tracing).
  """
  if not isinstance(output, Hidden):
    return Hidden(output)
  for name, total in output.aux.terms.items():
    if jnp.shape(total):
      raise ValueError(
        f"the auxiliary term {name!r} has the shape {jnp.shape(total)}. Return the sum of the term, a scalar."
      )
  terms = {name: jnp.asarray(total, jnp.float32) for name, total in output.aux.terms.items()}
  return Hidden(output.x, Auxiliary(terms, output.aux.states))


def of_layers(stacked: Auxiliary | tuple[Auxiliary, ...]) -> Auxiliary:
  """Combines the outputs of a stack's layers, stacked by a scan or in a tuple."""
  if isinstance(stacked, tuple):  # layers may have different terms
    states = jax.tree.map(lambda *values: jnp.stack(values), *(dict(aux.states) for aux in stacked))
    return Auxiliary(_added(stacked), states)
  return Auxiliary({name: jnp.sum(total) for name, total in stacked.terms.items()}, stacked.states)


def with_outputs(aux: Auxiliary, added: Auxiliary) -> Auxiliary:
  """Returns outputs of a stack's layers with the outputs of the stack itself."""
  return Auxiliary({**aux.terms, **added.terms}, {**aux.states, **added.states})


def _added(parts: Iterable[Auxiliary]) -> dict[str, jax.Array]:
  """Returns the sum of each term over the parts with the term."""
  sums: dict[str, jax.Array] = {}
  for aux in parts:
    for name, total in aux.terms.items():
      sums[name] = sums[name] + total if name in sums else total
  return sums


def of_stacks(**stacks: Auxiliary) -> Auxiliary:
  """Combines the outputs of a model's stacks, given by side: terms are added, states keep separate names."""
  states: dict[str, Any] = {f"{side}/{name}": x for side, aux in stacks.items() for name, x in aux.states.items()}
  return Auxiliary(_added(stacks.values()), states)
