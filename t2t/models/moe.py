"""Mixture of experts: a router sends each token to a few of many MLPs (Shazeer et al. 2017).

Switch routes to one expert (Fedus et al. 2022), ST-MoE (Zoph et al. 2022) and Mixtral (Jiang et al. 2024) to two.
"""

from collections.abc import Callable, Mapping
import functools

from flax import nnx
import jax
from jax.ad_checkpoint import checkpoint_name
import jax.numpy as jnp

from t2t import UserError, sharding
from t2t.models import grouped_product, layers, quantized_matmul
from t2t.models.auxiliary import Auxiliary, Hidden, Term
from t2t.models.config import TransformerConfig
from t2t.models.feed_forward import FeedForward, Mlp

_EXPERT_AXES = {"gate": ("experts", "embed", "mlp"), "up": ("experts", "embed", "mlp")}
_EXPERT_AXES["down"] = ("experts", "mlp", "embed")
# Choices that are counted by one triangular matrix, see `_ranks`.
_BLOCK = 128


class Moe(FeedForward):
  """Router and experts: the sum of the selected experts' outputs, weighted by their gates.

  Experts are MLPs without biases. With a capacity, each expert has that number of slots in each row of the batch.
  Earlier tokens take slots first, so that a token's output does not depend on later tokens. A token without a slot gets
  no update from that expert. Padding takes no slots. Without a capacity no token is dropped, in decoding neither.
  `moe_capacity_factor` grows with padding, so it applies in training only: results do not depend on the row's length.
  """

  reads_real = True

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
    self.config = config
    num_experts, embed, mlp = config.moe_experts, config.embed_dim, config.mlp_dim
    self.dropout_rate = config.dropout_rate if config.broadcast_dropout else 0.0
    # Decoding casts other matrices to the activations' dtype, see `Stack.ready_weights`.
    scale = layers.fan_in_scale(config, embed)
    self.router = layers.param(rngs, (embed, num_experts), ("embed", "routes"), scale=scale)
    self.router.set_metadata(keeps_float32=True)
    shape = (num_experts, embed, mlp)
    self.gate = layers.param(rngs, shape, _EXPERT_AXES["gate"], scale=scale) if config.gated else None
    self.up = layers.param(rngs, shape, _EXPERT_AXES["up"], scale=scale)
    shape = (num_experts, mlp, embed)
    self.down = layers.param(rngs, shape, _EXPERT_AXES["down"], scale=layers.residual_scale(config, mlp))

  def __call__(
    self,
    x: jax.Array,
    dropout_key: jax.Array | None = None,
    *,
    real: jax.Array | None = None,
    is_decoding: bool = False,
  ) -> Hidden:
    """Maps [batch, length, embed] to the same shape, with the terms of `terms`."""
    config = self.config
    jitter_key, mlp_key = layers.split_key(dropout_key, 2)
    logits = self._router_logits(x, jitter_key)
    probabilities = jax.nn.softmax(logits, axis=-1)
    _, choice = jax.lax.top_k(jax.lax.stop_gradient(probabilities), config.moe_experts_per_token)
    # The gradient of `top_k` would add scalars to their places one by one.
    gates = jnp.einsum("ble,blke->blk", probabilities, jax.nn.one_hot(choice, config.moe_experts), precision="highest")
    if config.moe_normalize_gates:
      gates = gates / jnp.sum(gates, axis=-1, keepdims=True)
    # The id after the last expert is no expert.
    routed = choice if real is None else jnp.where(real[..., None], choice, config.moe_experts)
    keep = None
    if self.dropout_rate and mlp_key is not None:  # one mask for all positions of a row, as in a dense MLP
      keep = layers.dropout(jnp.ones((x.shape[0], config.mlp_dim), x.dtype), self.dropout_rate, mlp_key)
    is_limited = not is_decoding and (dropout_key is not None or bool(config.moe_capacity))
    capacity = capacity_of(config, x.shape[1]) if is_limited else 0
    if capacity:
      y, kept = self._in_slots(x, routed, gates, keep, capacity)
    else:
      y, kept = self._dropless(x, routed, gates, keep), routed < config.moe_experts
    return Hidden(y, Auxiliary(_terms(logits, probabilities, choice, kept, real)))

  def _router_logits(self, x: jax.Array, key: jax.Array | None) -> jax.Array:
    """Returns float32 logits [batch, length, experts]; bfloat16 would change the selected experts (Switch, 2.4)."""
    x = x.astype(jnp.float32)
    if key is not None and self.config.moe_jitter:
      jitter = self.config.moe_jitter
      x = x * jax.random.uniform(key, x.shape, minval=1.0 - jitter, maxval=1.0 + jitter)
    with jax.default_matmul_precision("highest"):
      return layers.dense(x, self.router)

  def _weights(self) -> dict[str, jax.Array]:
    weights = {"gate": self.gate, "up": self.up, "down": self.down}
    return {name: weight[...] for name, weight in weights.items() if weight is not None}

  def _in_slots(
    self, x: jax.Array, routed: jax.Array, gates: jax.Array, keep: jax.Array | None, capacity: int
  ) -> tuple[jax.Array, jax.Array]:
    """Runs every expert on its slots, [batch, experts, capacity, embed]; also returns which choices have a slot.

    On a mesh with an expert axis, slots move to the devices of their expert and back, by all-to-all.
    """
    config, (batch, _, embed) = self.config, x.shape
    num_slots = config.moe_experts * capacity
    # Each device assigns and copies its own rows; the compiler would partition these gathers badly.
    per_row = lambda function, *in_axes: _on_rows(function, batch, in_axes)
    assign = functools.partial(_slots_of, num_experts=config.moe_experts, capacity=capacity)
    matrices = ("batch", None, None)
    vectors = ("batch", None)
    slot, chosen = per_row(assign, matrices)(routed)
    rows, scale = per_row(_fill_slots, matrices, matrices, matrices, vectors)(x, gates, slot, chosen)
    rows = rows.reshape(batch, config.moe_experts, capacity, embed)
    scale = scale.reshape(batch, config.moe_experts, capacity, 1)
    scale = scale if keep is None else scale * keep[:, None, None]

    to_experts = lambda rows: sharding.shard(rows, "expert_rows", "experts", None, "embed")
    weights = {name: sharding.gather(w.astype(x.dtype), _EXPERT_AXES[name]) for name, w in self._weights().items()}
    product = lambda rows, name: jnp.einsum("becx,exy->becy", rows, weights[name])
    y = _mlp(config, to_experts(rows), product, scale, ("expert_rows", "experts", None, "mlp"))
    y = sharding.shard(to_experts(y), "batch", None, None, "embed").reshape(batch, num_slots, embed)
    y = per_row(jax.vmap(_from_slots), matrices, matrices, vectors)(y, slot, chosen)
    return y, jnp.swapaxes(slot < num_slots, 1, 2)

  def _dropless(self, x: jax.Array, routed: jax.Array, gates: jax.Array, keep: jax.Array | None) -> jax.Array:
    """Runs tokens sorted by expert through one grouped product per matrix, on each device for the device's experts.

    Devices of the expert axis gather each other's tokens, and reduce-scatter the outputs.
    """
    run = functools.partial(_sorted_by_expert, self.config)
    weights = self._weights()
    if x.shape[0] % sharding.num_shards("batch") or x.shape[1] % sharding.num_shards("length"):
      return run(x, routed, gates, keep, weights, alone=True)  # a few rows in evaluation
    of_tokens = ("batch", "length", None)
    names = tuple(weights)

    def run_device(x, routed, gates, *rest):
      mask = None if keep is None else rest[-1]
      return run(x, routed, gates, mask, dict(zip(names, rest, strict=False)))

    in_axes = (of_tokens, of_tokens, of_tokens, *(sharding.Parameter(_EXPERT_AXES[name]) for name in names))
    arguments = (x, routed, gates, *weights.values())
    if keep is not None:
      in_axes, arguments = (*in_axes, ("batch", "mlp")), (*arguments, keep)
    return sharding.per_device(run_device, in_axes, of_tokens)(*arguments)

  @classmethod
  def pattern(cls, config: TransformerConfig) -> tuple[str, ...]:
    check(config)
    return tuple("moe" if index == config.moe_first else "dense" for index in range(config.moe_every))

  @classmethod
  def terms(cls, config: TransformerConfig) -> Mapping[str, Term]:
    """Returns terms, each a mean over the layers with experts and over positions.

    moe_balance: experts * sum over experts of fraction of tokens * mean probability, 1 if uniform (Switch, section
      2.2), over all tokens of a call.
    moe_router_z: square of the log-sum-exp of the router's logits (ST-MoE, section 3.3).
    moe_dropped: fraction of choices without a slot.
    moe_max_load, moe_min_load: tokens of the most and the least used expert, divided by the mean.
    """
    metrics = ("moe_dropped", "moe_max_load", "moe_min_load")
    losses = {"moe_balance": Term(config.moe_balance_loss), "moe_router_z": Term(config.moe_z_loss)}
    return losses | {name: Term(0.0) for name in metrics}

  @classmethod
  def multiply_adds(cls, config: TransformerConfig) -> float:
    """Returns the mean over the layers of the pattern; of experts, the selected ones count."""
    own = config.embed_dim * config.moe_experts + config.moe_experts_per_token * Mlp.multiply_adds(config)
    return (own + (config.moe_every - 1) * Mlp.multiply_adds(config)) / config.moe_every

  @classmethod
  def idle_parameters(cls, config: TransformerConfig) -> float:
    """Returns the mean over the layers of the pattern."""
    return (config.moe_experts - config.moe_experts_per_token) * Mlp.multiply_adds(config) / config.moe_every

  @classmethod
  def inner_features(cls, config: TransformerConfig) -> float:
    slots = config.moe_experts_per_token * (config.moe_capacity_factor or 1.0)
    return (slots + config.moe_every - 1) * Mlp.inner_features(config) / config.moe_every


def check(config: TransformerConfig) -> None:
  """Checks the settings of the experts.

  Raises:
    UserError: a setting is out of range or has no effect.
  """
  num_experts, num_chosen, every = config.moe_experts, config.moe_experts_per_token, config.moe_every
  if not num_experts:
    raise UserError("config.model.moe_experts=0: feed_forward=moe needs experts. Set for example moe_experts=8.")
  if num_chosen > num_experts:
    raise UserError(
      f"config.model.moe_experts_per_token={num_chosen}: must be at most config.model.moe_experts={num_experts}"
    )
  if config.moe_first >= every:
    raise UserError(f"config.model.moe_first={config.moe_first}: must be below config.model.moe_every={every}")
  for side in config.kind.sides:
    if (depth := getattr(config, f"num_{side}_layers")) % every:
      works = [n for n in range(1, depth + 1) if depth % n == 0]
      raise UserError(
        f"config.model.moe_every={every} does not divide config.model.num_{side}_layers={depth}. Values that work: "
        f"{works}."
      )
  if config.share_layers and every > 1:
    raise UserError(
      f"config.model.share_layers=True: one layer cannot be dense and have experts, as config.model.moe_every={every} "
      "requires. Set config.model.moe_every=1."
    )
  for field in ("moe_capacity_factor", "moe_balance_loss", "moe_z_loss"):
    if getattr(config, field) < 0.0:
      raise UserError(f"config.model.{field}={getattr(config, field)}: must be at least 0 (0: off)")
  if config.moe_capacity and config.moe_capacity_factor:
    raise UserError(
      f"config.model.moe_capacity={config.moe_capacity} and config.model.moe_capacity_factor="
      f"{config.moe_capacity_factor}: both set the capacity. Set one of them to 0."
    )
  if not 0.0 <= config.moe_jitter < 1.0:
    raise UserError(f"config.model.moe_jitter={config.moe_jitter}: must be at least 0 and below 1")
  if config.moe_normalize_gates and num_chosen == 1 < num_experts:
    raise UserError(
      "config.model.moe_normalize_gates=True with config.model.moe_experts_per_token=1: the gate is always 1, so the "
      "router gets no gradient. Set config.model.moe_normalize_gates=False."
    )


def capacity_of(config: TransformerConfig, length: int) -> int:
  """Returns the slots of each expert in a row of `length` positions in training; 0: unlimited.

  Args:
    config: shape of the model.
    length: positions of a row, padding included.
  """
  if config.moe_capacity:
    return min(config.moe_capacity, length)
  tokens = config.moe_capacity_factor * config.moe_experts_per_token * length
  return min(-int(-tokens // config.moe_experts), length)


def _terms(
  logits: jax.Array, probabilities: jax.Array, choice: jax.Array, kept: jax.Array, real: jax.Array | None
) -> dict[str, jax.Array]:
  """Returns the terms of one layer, each a sum over real positions; see `Moe.terms`."""
  num_experts = logits.shape[-1]
  weight = jnp.ones(logits.shape[:2]) if real is None else real.astype(jnp.float32)
  positions = jnp.sum(weight)
  everywhere = jnp.maximum(sharding.sum_of_copies(positions), 1.0)
  mean = lambda x: sharding.sum_of_copies(jnp.einsum("bl,ble->e", weight, x)) / everywhere
  load = mean(jnp.mean(jax.nn.one_hot(choice, num_experts), axis=2))  # sums to 1
  unit = positions * num_experts
  return {
    "moe_balance": unit * jnp.sum(load * mean(probabilities)),
    "moe_router_z": jnp.sum(weight * jnp.square(jax.nn.logsumexp(logits, axis=-1))),
    "moe_dropped": jnp.sum(weight * jnp.mean(1.0 - kept, axis=-1)),
    "moe_max_load": unit * jnp.max(load),
    "moe_min_load": unit * jnp.min(load),
  }


def _mlp(
  config: TransformerConfig,
  rows: jax.Array,
  product: Callable[[jax.Array, str], jax.Array],
  scale: jax.Array,
  axes: tuple[str | None, ...] | None = None,
) -> jax.Array:
  """Computes the MLP of `feed_forward.Mlp` with a product of each row with the matrix of the row's expert.

  Args:
    config: shape of the model.
    rows: [..., embed].
    product: (rows, name of a matrix) -> rows.
    scale: factors of the hidden features: the row's gate, times a dropout mask. The backward pass then needs no
      outputs, unlike with gates of the outputs.
    axes: logical axes of the hidden features; None: not sharded.
  """
  hidden = checkpoint_name(product(rows, "up"), "mlp_up")
  if config.gated:
    gate = checkpoint_name(product(rows, "gate"), "mlp_gate")
    hidden = layers.activate(config.mlp_activation, gate) * hidden
  else:
    hidden = layers.activate(config.mlp_activation, hidden)
  hidden = hidden if axes is None else sharding.shard(hidden, *axes)
  hidden = (hidden * scale).astype(rows.dtype)
  return checkpoint_name(product(hidden, "down"), "mlp_out")


def _sorted_by_expert(
  config: TransformerConfig,
  x: jax.Array,
  routed: jax.Array,
  gates: jax.Array,
  keep: jax.Array | None,
  weights: Mapping[str, jax.Array],
  *,
  alone: bool = False,
) -> jax.Array:
  """Returns the experts' outputs for a device's tokens, [batch, length, embed].

  Args:
    config: shape of the model.
    x, routed, gates, keep: tokens of the device; `routed` is the number of experts for padding.
    weights: the device's parts of the matrices of the device's experts.
    alone: whether the arguments are whole arrays instead of a device's part.
  """
  first = 0
  if not alone:
    first = sharding.shard_index("experts") * weights["up"].shape[0]
    x, routed, gates = (sharding.all_gather(array, "experts") for array in (x, routed, gates))
    keep = None if keep is None else sharding.all_gather(keep, "experts")
  num_experts, num_choices, (batch, length, embed) = weights["up"].shape[0], routed.shape[-1], x.shape
  expert = routed.reshape(-1) - first
  # Tokens of no expert, or of another device's, have no slot.
  expert = jnp.where((expert >= 0) & (expert < num_experts), expert, num_experts)
  rank, sizes = _ranks(expert, num_experts)
  ends = jnp.cumsum(sizes)
  starts = jnp.append(ends - sizes, 0)
  num_slots = expert.size if alone else grouped_product.num_rows(expert.size)
  slot = jnp.where(expert < num_experts, starts[expert] + rank, num_slots).reshape(-1, num_choices).T
  choice = _choice_of_slot(slot, num_slots)
  rows = _to_slots(x.reshape(-1, embed), slot, choice)
  scale = _in_slot_order(gates.reshape(-1, num_choices).T, slot, choice)[:, None]
  scale = scale if keep is None else scale * keep[choice % (batch * length) // length]

  summed_in = quantized_matmul.summed_in(config.gradient_dtype, x.dtype.name)

  def product(rows: jax.Array, name: str) -> jax.Array:
    parts = None if alone else sharding.parameter_parts(_EXPERT_AXES[name])
    return grouped_product.product(rows, weights[name], sizes, parts, summed_in, sharding.platform())

  y = _from_slots(_mlp(config, rows, product, scale), slot, choice).reshape(batch, length, embed)
  return y if alone else sharding.all_sum(sharding.reduce_scatter(y, "experts"), "mlp")


def _on_rows(function: Callable[..., jax.Array], batch: int, in_axes: tuple[tuple[str | None, ...], ...]) -> Callable:
  """Returns `function`, which maps rows of the batch independently, as run by each device on the device's rows."""
  if batch % sharding.num_shards("batch"):
    return function  # a few rows in evaluation
  return sharding.per_device(function, in_axes, ("batch",))


def _slots_of(routed: jax.Array, *, num_experts: int, capacity: int) -> tuple[jax.Array, jax.Array]:
  """Returns the slot of each choice, int [batch, choices, length], expert * capacity + rank, or the number for none;
  and the choice in each slot, see `_choice_of_slot`.
  """
  num_slots = num_experts * capacity

  def of_row(routed):
    expert = routed.reshape(-1)
    rank, _ = _ranks(expert, num_experts)
    has_slot = (rank < capacity) & (expert < num_experts)
    slot = jnp.where(has_slot, expert * capacity + rank, num_slots).reshape(routed.shape).T
    return slot, _choice_of_slot(slot, num_slots)

  return jax.vmap(of_row)(routed)


def _fill_slots(x: jax.Array, gates: jax.Array, slot: jax.Array, choice: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns the token and the gate of each slot, [batch, slots, embed] and [batch, slots]; zeros in empty slots."""
  of_row = lambda x, gates, slot, choice: (_to_slots(x, slot, choice), _in_slot_order(gates.T, slot, choice))
  return jax.vmap(of_row)(x, gates, slot, choice)


def _ranks(expert: jax.Array, num_experts: int) -> tuple[jax.Array, jax.Array]:
  """Returns how many earlier choices have the same expert, int [choices], and the choices of each expert.

  Triangular matrices count within blocks: TPUs sort slowly, and libtpu compiles a sort slowly. Counts are exact,
  because a block's are small and the others are integers.

  Args:
    expert: int [choices]; the number of experts for none, with an arbitrary rank.
    num_experts: number of experts.
  """
  padded = jnp.pad(expert, (0, -expert.size % _BLOCK), constant_values=num_experts).reshape(-1, _BLOCK)
  chosen = jax.nn.one_hot(padded, num_experts, dtype=jnp.float32)  # zeros for no expert
  within = jnp.einsum("ij,bje->bie", jnp.tri(_BLOCK, k=-1, dtype=jnp.float32), chosen).astype(jnp.int32)
  chosen = chosen.astype(jnp.int32)
  totals = jnp.cumsum(jnp.sum(chosen, axis=1), axis=0)
  before = jnp.pad(totals[:-1], ((1, 0), (0, 0)))
  rank = jnp.sum((within + before[:, None]) * chosen, axis=-1).reshape(-1)[: expert.size]
  return rank, totals[-1]


def _choice_of_slot(slot: jax.Array, num_slots: int) -> jax.Array:
  """Returns the choice in each slot, int [slots]; the number of choices for empty slots."""
  slot, choices = slot.reshape(-1), jnp.arange(slot.size)
  slot = jnp.where(slot < num_slots, slot, num_slots + choices)  # unique, so that libtpu needs no sort
  return jnp.full(num_slots, slot.size).at[slot].set(choices, mode="drop", unique_indices=True)


def _rows_at(x: jax.Array, index: jax.Array) -> jax.Array:
  return x.at[index].get(mode="fill", fill_value=0)


# Copies to slots and back. Each backward pass is the other copy: JAX's transposes would add rows one by one, in loops
# that libtpu compiles for half a minute each.


@jax.custom_vjp
def _to_slots(x: jax.Array, slot: jax.Array, choice: jax.Array) -> jax.Array:
  """Copies tokens, [tokens, embed], to their slots, [slots, embed]; empty slots are zero.

  Args:
    x: tokens.
    slot: slots of each token, int [choices, tokens]; the number of slots for none.
    choice: choice in each slot, see `_choice_of_slot`.
  """
  return _rows_at(x, jnp.where(choice < slot.size, choice % x.shape[0], x.shape[0]))


@jax.custom_vjp
def _from_slots(y: jax.Array, slot: jax.Array, choice: jax.Array) -> jax.Array:
  """Sums the slots of each token, [slots, embed] -> [tokens, embed]; see `_to_slots`."""
  del choice
  # Rows of one list: libtpu compiles a copy of pairs of rows three times as long.
  rows = _rows_at(y, slot.reshape(-1)).reshape(*slot.shape, y.shape[-1])
  return jnp.sum(rows, axis=0, dtype=jnp.float32).astype(y.dtype)


@jax.custom_vjp
def _in_slot_order(values: jax.Array, slot: jax.Array, choice: jax.Array) -> jax.Array:
  """Copies values of choices, [choices, tokens], to their slots, [slots]; see `_to_slots`."""
  del slot
  return _rows_at(values.reshape(-1), choice)


_to_slots.defvjp(
  lambda x, slot, choice: (_to_slots(x, slot, choice), (slot, choice)),
  lambda places, cotangent: (_from_slots(cotangent, *places), None, None),
)
_from_slots.defvjp(
  lambda y, slot, choice: (_from_slots(y, slot, choice), (slot, choice)),
  lambda places, cotangent: (_to_slots(cotangent, *places), None, None),
)
_in_slot_order.defvjp(
  lambda values, slot, choice: (_in_slot_order(values, slot, choice), slot),
  lambda slot, cotangent: (_rows_at(cotangent, slot), None, None),
)
