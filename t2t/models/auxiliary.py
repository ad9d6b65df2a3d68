"""Auxiliary outputs of layers: sums that become terms of every loss, and states."""

from collections.abc import Callable, Mapping
import dataclasses
import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp


def number_of_positions(real: jax.Array) -> jax.Array:
  """float32 []: how many of the positions, bool [batch, length], hold a token."""
  return jnp.sum(real.astype(jnp.float32))


@dataclasses.dataclass(frozen=True)
class Term:
  """A term that layers of a kind return; its name is that of the metric, too.

  coefficient: its factor in the loss; 0.0: it is a metric alone.
  weight: real positions, bool [batch, length], -> float32 [], the weight of one layer's sum.  The weights of the parts
    of a batch must add up to that of the batch.
  """

  coefficient: float
  weight: Callable[[jax.Array], jax.Array] = number_of_positions


@dataclasses.dataclass(frozen=True)
class Carried:
  """A state that each layer returns in one step and is given in the next; see `FeedForward.carried`.

  shape: of a row of the batch, without the axes of rows and layers.
  dtype: of the array that the train state keeps.
  """

  shape: tuple[int, ...]
  dtype: str = "float32"


CARRIED = "carried/"  # begins the names of features that have such states: carried/decoder/NAME, [rows, layers, ...]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Auxiliary:
  """What layers return beside their activations.

  terms: name -> float32 [], a sum over real positions; of a stack or a model the sum over all layers.
  states: name -> array; of a stack with a leading axis "layers", of a model by stack, "encoder/NAME".
  """

  terms: Mapping[str, jax.Array] = dataclasses.field(default_factory=dict)
  states: Mapping[str, jax.Array] = dataclasses.field(default_factory=dict)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Hidden:
  """Activations, [..., embed], and what the layers that made them return beside."""

  x: jax.Array
  aux: Auxiliary = dataclasses.field(default_factory=Auxiliary)


def hidden_of(output: jax.Array | Hidden) -> Hidden:
  """The output of a layer, which may be its activations alone.

  Raises:
    ValueError: a term is no scalar; while it is traced.
  """
  if not isinstance(output, Hidden):
    return Hidden(output)
  for name, total in output.aux.terms.items():
    if jnp.shape(total):
      raise ValueError(f"the auxiliary term {name!r} has the shape {jnp.shape(total)}; return its sum, a scalar")
  terms = {name: jnp.asarray(total, jnp.float32) for name, total in output.aux.terms.items()}
  return Hidden(output.x, Auxiliary(terms, output.aux.states))


def of_layers(stacked: Auxiliary | tuple[Auxiliary, ...]) -> Auxiliary:
  """The outputs of a stack from those of its layers, which a scan has stacked, or which are in a tuple."""
  if isinstance(stacked, tuple):
    stacked = jax.tree.map(lambda *values: jnp.stack(values), *stacked)
  return Auxiliary({name: jnp.sum(total) for name, total in stacked.terms.items()}, stacked.states)


def of_stacks(**stacks: Auxiliary) -> Auxiliary:
  """The outputs of a model from those of its stacks, by their sides: terms are added, states stand side by side."""
  names = dict.fromkeys(name for aux in stacks.values() for name in aux.terms)
  total = lambda name: functools.reduce(operator.add, (aux.terms[name] for aux in stacks.values() if name in aux.terms))
  states: dict[str, Any] = {f"{side}/{name}": x for side, aux in stacks.items() for name, x in aux.states.items()}
  return Auxiliary({name: total(name) for name in names}, states)
