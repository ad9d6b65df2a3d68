"""Diagonal of the Fisher information: the sensitivity of the examples' likelihood to each parameter."""

from collections.abc import Callable
from typing import Any, NamedTuple

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import UserError, losses, sharding
from t2t.configuration.schema import Config
from t2t.models.architecture import Batch
from t2t.param_tree import Params

# Losses with terms that are, unnormalized, negative log-likelihoods.
_LIKELIHOODS = ("cross_entropy", "heads", "tokens_and_heads")


class Sums(NamedTuple):
  """Accumulated sums.

  Attributes:
    squares: nested dict of float32, squared gradients of single examples' log-likelihoods.
    examples: float32 [], their number.
  """

  squares: Params
  examples: jax.Array

  @property
  def mean(self) -> Params:
    """The diagonal: E[(d log p / d theta)**2]."""
    return jax.tree.map(lambda x: x / self.examples, self.squares)


def likelihood(config: Config) -> losses.Loss:
  """Returns the loss of a run without the regularizers that training adds.

  Raises:
    UserError: the loss is not a likelihood.
  """
  name = config.train.loss or "cross_entropy"
  if name in losses.LOSSES and name not in _LIKELIHOODS:
    raise UserError(
      f"config.train.loss={name} is not a likelihood, but Fisher information requires a likelihood. Give one of "
      f"{', '.join(_LIKELIHOODS)}."
    )
  loss = losses.make(config.with_(train={"z_loss": 0.0, "label_smoothing": 0.0, "microbatches": 1}))
  return losses.without_auxiliary(loss)


def make_step(
  graphdef: nnx.GraphDef, loss: losses.Loss, shardings: Params
) -> Callable[[Sums, Params, Batch, jax.Array | int], Sums]:
  """Compiles (sums, parameters, batch, number of its rows that count) -> sums; the memory of the old sums is reused.

  The step loops over rows, one row at a time per copy of the parameters. `jax.vmap` over rows would hold one gradient
  of the whole model per row; the loop holds one gradient beside the sums, sharded as the parameters. Devices of the
  axis fsdp share one row's gradient but not its activations: all but one compute padding. If the model fits, copies
  (`config.mesh.data`) are therefore faster.

  Args:
    graphdef: structure of the model.
    loss: see `likelihood`.
    shardings: of the parameters; nested dict.
  """

  def of_row(params: Params, row: Batch, key: jax.Array) -> tuple[Params, jax.Array]:
    """Returns the squared gradients of one example with [length] features, and whether the row has an example."""
    del key  # nothing is random
    # Rows of zeros have no example, as in padded held-out batches.
    batch = {name: jnp.pad(x[None], ((0, sharding.num_shards("batch") - 1), (0, 0))) for name, x in row.items()}
    weights = loss.weights(batch)

    def log_likelihood(params: Params) -> jax.Array:
      ones = jax.tree.map(jnp.ones_like, weights)
      terms, _ = loss(nnx.merge(graphdef, params), batch, ones, key=None, train=False)
      total: Any = sum(terms.values())
      return -total

    squares = jax.tree.map(lambda x: jnp.square(x.astype(jnp.float32)), jax.grad(log_likelihood)(params))
    return squares, jnp.any(jnp.stack(list(weights.values())) > 0).astype(jnp.float32)

  def step(sums: Sums, params: Params, batch: Batch, count: jax.Array) -> Sums:
    copies = sharding.num_copies()
    copy_shardings = jax.tree.map(sharding.of_each_copy, shardings)
    # Each copy processes one row at a time; every device has all rows, which are small beside a gradient.
    turns = {name: _in_turns(x, copies) for name, x in batch.items()}
    counts = (jnp.arange(next(iter(batch.values())).shape[0]) < count).astype(jnp.float32).reshape(-1, copies)
    keys = jax.random.split(jax.random.key(0), copies)

    def body(added: Sums, turn: tuple[Batch, jax.Array]) -> tuple[Sums, None]:
      rows, is_asked = turn
      squares, is_there = sharding.by_copy(of_row)(params, rows, keys)
      number = is_asked * is_there
      plus = lambda x, y: x + y * number.reshape(-1, *[1] * (y.ndim - 1))
      squares = jax.lax.with_sharding_constraint(jax.tree.map(plus, added.squares, squares), copy_shardings)
      return Sums(squares, added.examples + jnp.sum(number)), None

    zeros = jax.tree.map(lambda x: jnp.zeros((copies, *x.shape), jnp.float32), sums.squares)
    start = Sums(jax.lax.with_sharding_constraint(zeros, copy_shardings), jnp.zeros(()))
    added, _ = jax.lax.scan(body, start, (turns, counts))
    squares = jax.tree.map(lambda x, y: x + jnp.sum(y, axis=0), sums.squares, added.squares)
    return Sums(squares, sums.examples + added.examples)

  replicated: Any = sharding.replicated(jax.tree.leaves(shardings)[0].mesh)
  placed = Sums(shardings, replicated)
  return jax.jit(step, donate_argnums=0, out_shardings=placed)


def _in_turns(x: jax.Array, copies: int) -> jax.Array:
  """Reshapes [rows, length] to [rows / copies, copies, length]."""
  return sharding.shard(x.reshape(-1, copies, *x.shape[1:]), None, "copies", *[None] * (x.ndim - 1))


def zeros(params: Params, shardings: Params) -> Sums:
  """Returns zero sums for a model with these parameters, sharded alike."""
  everywhere: Any = sharding.replicated(jax.tree.leaves(shardings)[0].mesh)
  make = lambda: Sums(jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), params), jnp.zeros(()))
  return jax.jit(make, out_shardings=Sums(shardings, everywhere))()
