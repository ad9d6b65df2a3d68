"""Optimizers, from optax wherever optax has them.

An optimizer sees parameters as a flat dict, "encoder/layers/mlp/up" -> array, so that a pattern can name them, and
treats each layer of a stack on its own: what is measured per parameter (Adafactor's factors, the size of an update, the
size of a parameter) is measured per layer, as if the layers were not stacked.
"""

import functools
import math

from flax import traverse_util
import jax
import jax.numpy as jnp
import optax
import optax.contrib

from t2t import UserError, did_you_mean
from t2t.params import Params, matches, stack_of
from t2t.sections import OptimizerConfig
from t2t.training import schedules


def _adafactor(config: OptimizerConfig) -> list[optax.GradientTransformation]:
  """Adafactor without momentum (Shazeer & Stern 2018), as Mesh-TensorFlow's T5 ran it."""
  per_parameter = [
    optax.scale_by_factored_rms(decay_rate=config.adafactor_decay_rate),
    optax.clip_by_block_rms(config.adafactor_clip),
  ]
  return [_per_layer(optax.chain(*per_parameter, *_parameter_scale(config))), *_weight_decay(config)]


def _adamw(config: OptimizerConfig) -> list[optax.GradientTransformation]:
  """AdamW; with updates scaled by the parameter's root mean square it trains T5 (Nawrot 2023, nanoT5)."""
  adam = optax.scale_by_adam(config.b1, config.b2, config.epsilon)
  scale = _parameter_scale(config)
  return [adam, *([_per_layer(scale[0])] if scale else []), *_weight_decay(config)]


def _lamb(config: OptimizerConfig) -> list[optax.GradientTransformation]:
  """Adam's updates and the decay, as large as the parameter (You et al. 2020): `optax.lamb`, for each layer by itself.

  What is not decayed has Adam's updates as they are, as in the code that trained ALBERT (google-research/albert,
  lamb_optimizer.py: exclude_from_layer_adaptation).
  """
  ratio = optax.masked(optax.scale_by_trust_ratio(), functools.partial(_decayed, config))
  return [optax.scale_by_adam(config.b1, config.b2, config.epsilon), *_weight_decay(config), _per_layer(ratio)]


# How large Adam's updates are, as a root mean square: where Muon's are as large, AdamW's rates and decays do for both
# (Liu et al. 2025, "Muon is scalable for LLM training", section 2.2).
_ADAM_RMS = 0.2


def _muon(config: OptimizerConfig) -> list[optax.GradientTransformation]:
  """Muon (Jordan 2024) on the matrices of layers, Adam on the rest: embeddings, heads, norms, biases.

  Each layer's matrix is made orthogonal by itself, where it lies in its stack: one product serves all layers.
  """

  def kinds(params: Params) -> dict[str, str]:
    return {path: "muon" if _is_matrix_of_layer(path, x) else "adam" for path, x in params.items()}

  def dimensions(updates: optax.Updates) -> optax.Updates:
    return jax.tree.map(lambda _: optax.contrib.MuonDimensionNumbers(reduction_axis=-2, output_axis=-1), updates)

  def as_large_as_adams(updates: optax.Updates, params: optax.Params | None) -> optax.Updates:
    del params
    return jax.tree.map(lambda x: _ADAM_RMS * max(x.shape[-2:]) ** 0.5 * x, updates)

  orthogonal = optax.contrib.scale_by_muon(
    ns_steps=config.muon_iterations, beta=config.muon_momentum, weight_dimension_numbers=dimensions
  )
  on_matrices = optax.chain(orthogonal, optax.stateless(as_large_as_adams))
  adam = optax.scale_by_adam(config.b1, config.b2, config.epsilon)
  scale = _parameter_scale(config)
  updates = optax.partition({"muon": on_matrices, "adam": adam}, kinds)
  return [updates, *([_per_layer(scale[0])] if scale else []), *_weight_decay(config)]


def _lion(config: OptimizerConfig) -> list[optax.GradientTransformation]:
  """Lion (Chen et al. 2023): the sign of a momentum; wants a third to a tenth of AdamW's rate, and b2=0.99."""
  lion = optax.scale_by_lion(config.b1, config.b2)
  scale = _parameter_scale(config)
  return [lion, *([_per_layer(scale[0])] if scale else []), *_weight_decay(config)]


def _stable_adamw(config: OptimizerConfig) -> list[optax.GradientTransformation]:
  """StableAdamW (Wortsman et al. 2023, algorithm 2): AdamW whose rate falls where gradients outgrow their average.

  By the root mean square of gradient / sqrt(second moment), of each layer's parameter by itself, if it is above 1:
  Adafactor's clipping of updates.  The decay is at the same rate.
  """
  adam = optax.scale_by_adam(config.b1, config.b2, config.epsilon)
  inner = optax.chain(adam, *_parameter_scale(config), *_weight_decay(config))

  def update(updates, state, params=None):
    gradients = updates
    updates, state = inner.update(gradients, state, params)
    # What the update is divided by, with Adam's correction of its bias.
    moments = optax.tree.bias_correction(state[0].nu, config.b2, state[0].count)

    def slowed(update: jax.Array, gradient: jax.Array, moment: jax.Array) -> jax.Array:
      rms = jnp.sqrt(jnp.mean(jnp.square(gradient) / jnp.maximum(moment, config.epsilon**2)))
      return update / jnp.maximum(1.0, rms)

    return jax.tree.map(slowed, updates, gradients, moments), state

  return [_per_layer(optax.GradientTransformation(inner.init, update))]


def _sgd(config: OptimizerConfig) -> list[optax.GradientTransformation]:
  """The gradient itself."""
  return _weight_decay(config)


OPTIMIZERS = {
  "adafactor": _adafactor,
  "adamw": _adamw,
  "lamb": _lamb,
  "lion": _lion,
  "muon": _muon,
  "sgd": _sgd,
  "stable_adamw": _stable_adamw,
}


def _parameter_scale(config: OptimizerConfig) -> list[optax.GradientTransformation]:
  return [optax.scale_by_param_block_rms(min_scale=1e-3)] if config.scale_by_parameter else []


def _decayed(config: OptimizerConfig, params: Params) -> dict[str, bool]:
  return {path: not matches(config.no_decay, path) for path in params}


def _weight_decay(config: OptimizerConfig) -> list[optax.GradientTransformation]:
  mask = functools.partial(_decayed, config)
  return [optax.add_decayed_weights(config.weight_decay, mask=mask)] if config.weight_decay else []


def _is_matrix_of_layer(path: str, x: jax.Array) -> bool:
  """Whether a parameter is a matrix of each layer of a stack, or of the one layer that is all of its stack."""
  return x.ndim == (3 if stack_of(path) else 2 if "layer" in path.split("/") else -1)


def _per_layer(tx: optax.GradientTransformation) -> optax.GradientTransformation:
  """`tx` on a flat dict, with each layer of a stack as a parameter of its own."""

  def groups(flat):
    names = sorted({stack_of(path) for path in flat})
    return {name: {path: x for path, x in flat.items() if stack_of(path) == name} for name in names}

  def init(params):
    return {name: (jax.vmap(tx.init) if name else tx.init)(group) for name, group in groups(params).items()}

  def update(updates, state, params=None):
    new_updates, new_state = {}, {}
    params = groups(params)
    for name, group in groups(updates).items():
      one = jax.vmap(tx.update) if name else tx.update
      group, new_state[name] = one(group, state[name], params[name])
      new_updates |= group
    return new_updates, new_state

  return optax.GradientTransformation(init, update)


def _scaled_by_layer(decay: float) -> optax.GradientTransformation:
  """Updates times decay for each layer that lies above: what tokens are embedded by changes least.

  A stack's last layer has decay ** 2, its first decay ** (layers + 1), and the embedding one more; heads and what
  stands behind the layers have 1, as in the code of Clark et al. 2020 (google-research/electra, model/optimization.py).
  """

  def update(updates, state, params=None):
    del params
    depths = {stack_of(path): x.shape[0] for path, x in updates.items() if stack_of(path)}
    deepest = max(depths.values(), default=0)

    def scaled(path: str, x: jax.Array) -> jax.Array:
      if stack_of(path):
        exponents = depths[stack_of(path)] + 1 - jnp.arange(x.shape[0])
        return x * (decay**exponents).reshape(-1, *[1] * (x.ndim - 1)).astype(x.dtype)
      below = "embed" in path.split("/") or "position_bias" in path
      return x * decay ** (deepest + 2) if below else x

    return {path: scaled(path, x) for path, x in updates.items()}, state

  return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def _on_flat_dict(tx: optax.GradientTransformation) -> optax.GradientTransformation:
  def flatten(tree):
    return traverse_util.flatten_dict(tree, sep="/")

  def update(updates, state, params=None):
    updates, state = tx.update(flatten(updates), state, flatten(params))
    return traverse_util.unflatten_dict(updates, sep="/"), state

  return optax.GradientTransformation(lambda params: tx.init(flatten(params)), update)


# What a setting may be, both ends included; with anything else training would go astray, and some only after hours.
_RANGES = {
  "learning_rate": (0.0, math.inf),
  "warmup_steps": (0, math.inf),
  "warmup_ratio": (0.0, 1.0),
  "layer_decay": (0.0, 1.0),
  "final_ratio": (0.0, 1.0),
  "decay_share": (0.0, 1.0),
  "rise": (0.0, 1.0),
  "rise_ratio": (1.0, math.inf),
  "clip_norm": (0.0, math.inf),
  "weight_decay": (0.0, math.inf),
  "adafactor_decay_rate": (0.0, math.inf),
  "adafactor_clip": (0.0, math.inf),
  "b1": (0.0, 1.0),
  "b2": (0.0, 1.0),
  "epsilon": (0.0, math.inf),
  "muon_momentum": (0.0, 1.0),
  "muon_iterations": (1, 20),
}


def make_optimizer(config: OptimizerConfig, num_steps: int) -> tuple[optax.GradientTransformation, optax.Schedule]:
  """The optimizer and its schedule.

  Args:
    config: see `OptimizerConfig`.
    num_steps: length of the run; most schedules end there.

  Raises:
    UserError: an unknown name; lists those that are known.  Or a number out of its range, or a schedule that does not
      go with the others.
  """
  if config.name not in OPTIMIZERS:
    near = did_you_mean(config.name, OPTIMIZERS)
    raise UserError(f"config.optimizer.name={config.name!r}: known are {', '.join(OPTIMIZERS)}{near}")
  for key, (low, high) in _RANGES.items():
    value = getattr(config, key)
    if not low <= value <= high or not math.isfinite(value):
      wanted = f"at least {low}" if high == math.inf else f"from {low} to {high}"
      raise UserError(f"config.optimizer.{key}={value}: must be {wanted}")
  schedule = schedules.make_schedule(config, num_steps)
  parts = [optax.clip_by_global_norm(config.clip_norm)] if config.clip_norm else []
  parts += OPTIMIZERS[config.name](config)
  parts += [_scaled_by_layer(config.layer_decay)] if config.layer_decay < 1.0 else []
  return _on_flat_dict(optax.chain(*parts, optax.scale_by_learning_rate(schedule))), schedule
