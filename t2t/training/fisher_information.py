"""The diagonal of the Fisher information: how much the likelihood of examples depends on each parameter."""

from collections.abc import Callable
from typing import Any, NamedTuple

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import UserError, losses, sharding
from t2t.configuration.schema import Config
from t2t.models.architecture import Batch
from t2t.param_tree import Params

# Losses whose terms, each by itself and not divided by its weight, are minus the logarithm of a likelihood.
_LIKELIHOODS = ("cross_entropy", "heads", "tokens_and_heads")


class Sums(NamedTuple):
  """What has been added up.

  squares: nested dict of float32, of the squared gradients of single examples' log-likelihoods.
  examples: float32 [], how many.
  """

  squares: Params
  examples: jax.Array

  @property
  def mean(self) -> Params:
    """The diagonal: E[(d log p / d theta)**2]."""
    return jax.tree.map(lambda x: x / self.examples, self.squares)


def likelihood(config: Config) -> losses.Loss:
  """The loss of a run, without what training adds to the likelihood.

  Raises:
    UserError: it is none.
  """
  name = config.train.loss or "cross_entropy"
  if name in losses.LOSSES and name not in _LIKELIHOODS:
    raise UserError(
      f"config.train.loss={name}: gives an example no likelihood, of which Fisher information is; these do:"
      f" {', '.join(_LIKELIHOODS)}"
    )
  loss = losses.make(config.with_(train={"z_loss": 0.0, "label_smoothing": 0.0, "microbatches": 1}))
  return losses.without_auxiliary(loss)


def make_step(
  graphdef: nnx.GraphDef, loss: losses.Loss, shardings: Params
) -> Callable[[Sums, Params, Batch, jax.Array | int], Sums]:
  """The compiled (sums, parameters, batch, how many of its rows count) -> sums; the old sums' memory is reused.

  The rows of a batch are gone through one after another, where parameters are copied as many at a time as there are
  copies: `jax.vmap` over rows would hold as many gradients of the whole model as there are rows, and this holds one
  beside the sums, in the parameters' shards.  Devices of the axis fsdp share a row's gradient and not its activations:
  all but one compute padding, so that what a pass wants is copies, `config.mesh.data`, where the model fits.

  Args:
    graphdef: structure of the model.
    loss: see `likelihood`.
    shardings: of the parameters; nested dict.
  """

  def of_row(params: Params, row: Batch, key: jax.Array) -> tuple[Params, jax.Array]:
    """Squared gradients of one example, [length] each of whose features is; and whether there is one in the row."""
    del key  # nothing is drawn
    # A row of zeros is no example, as in held-out batches that are filled up.
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
    # Of each copy one row at a time, in order; all have all rows, which are small beside a gradient.
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
  """[rows, length] -> [rows / copies, copies, length]."""
  return sharding.shard(x.reshape(-1, copies, *x.shape[1:]), None, "copies", *[None] * (x.ndim - 1))


def zeros(params: Params, shardings: Params) -> Sums:
  """Nothing, added up: the sums of a model of these parameters, in their shards."""
  everywhere: Any = sharding.replicated(jax.tree.leaves(shardings)[0].mesh)
  make = lambda: Sums(jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), params), jnp.zeros(()))
  return jax.jit(make, out_shardings=Sums(shardings, everywhere))()
