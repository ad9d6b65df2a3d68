"""Optimizers, from optax where optax has them.

An optimizer sees parameters as a flat dict, "encoder/layers/mlp/up" -> array, so that patterns can select them. Each
layer of a stack counts as its own parameter: Adafactor's factors and norms of updates and parameters are per layer, as
if the layers were not stacked.
"""

from collections.abc import Mapping
import dataclasses
import functools
from typing import Any

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib

from t2t import UserError, did_you_mean
from t2t.configuration import section_keys
from t2t.configuration.schema import OptimizerConfig
from t2t.param_tree import Params, check_pattern, matches, stack_of
from t2t.training import l2_sp, param_groups, schedules


@dataclasses.dataclass(frozen=True)
class _OfModel(OptimizerConfig):
  """The config, with facts about the model that the trained parameters alone do not show."""

  num_layers: int = 0  # see `make_optimizer`


def _adafactor(config: _OfModel) -> list[optax.GradientTransformation]:
  """Adafactor without momentum (Shazeer & Stern 2018), as in Mesh-TensorFlow's T5."""
  per_parameter = [
    optax.scale_by_factored_rms(decay_rate=config.adafactor_decay_rate),
    optax.clip_by_block_rms(config.adafactor_clip),
  ]
  return [_per_layer(optax.chain(*per_parameter, *_parameter_scale(config)), config), *_weight_decay(config)]


def _adamw(config: _OfModel) -> list[optax.GradientTransformation]:
  """AdamW; with updates scaled by the parameter's root mean square it trains T5 (Nawrot 2023, nanoT5)."""
  return [_adam(config), *_parameter_scale_per_layer(config), *_weight_decay(config)]


def _lamb(config: _OfModel) -> list[optax.GradientTransformation]:
  """LAMB (You et al. 2020): `optax.lamb`, applied to each layer separately.

  Parameters without decay get plain Adam updates, as in ALBERT's code (google-research/albert, lamb_optimizer.py:
  exclude_from_layer_adaptation).
  """
  ratio = optax.masked(optax.scale_by_trust_ratio(), functools.partial(_decayed, config))
  return [_adam(config), *_weight_decay(config), _per_layer(ratio, config)]


# Root mean square of Adam's updates. Muon's updates are scaled to it, so AdamW's learning rates and decays suit both
# (Liu et al. 2025, "Muon is scalable for LLM training", section 2.2).
_ADAM_RMS = 0.2


def _muon(config: _OfModel) -> list[optax.GradientTransformation]:
  """Muon (Jordan 2024) on the matrices of layers, Adam on the rest: embeddings, heads, norms, biases.

  Matrices are orthogonalized per layer without unstacking: one product serves all layers.
  """

  def kinds(params: Mapping[str, jax.Array]) -> dict[str, str]:
    return {path: "muon" if _is_matrix_of_layer(path, x) else "adam" for path, x in params.items()}

  def dimensions(updates: optax.Updates) -> optax.Updates:
    return jax.tree.map(lambda _: optax.contrib.MuonDimensionNumbers(reduction_axis=-2, output_axis=-1), updates)

  def orthogonal(updates: Any, params: optax.Params | None) -> optax.Updates:
    from t2t.training import newton_schulz  # few runs use Muon

    del params
    there = {path: x for path, x in updates.items() if jax.tree.leaves(x)}  # Adam has the others
    orthogonalized = newton_schulz.orthogonalize(there, iterations=config.muon_iterations)
    # Scaled to the size of Adam's updates.
    return updates | {path: _ADAM_RMS * max(x.shape[-2:]) ** 0.5 * x for path, x in orthogonalized.items()}

  # ns_steps=0: momentum only. Orthogonalization follows, on whole matrices.
  momentum = optax.contrib.scale_by_muon(ns_steps=0, beta=config.muon_momentum, weight_dimension_numbers=dimensions)
  on_matrices = optax.chain(momentum, optax.stateless(orthogonal))
  updates = optax.partition({"muon": _with_moments(on_matrices, config), "adam": _adam(config)}, kinds)
  return [updates, *_parameter_scale_per_layer(config), *_weight_decay(config)]


def _lion(config: _OfModel) -> list[optax.GradientTransformation]:
  """Lion (Chen et al. 2023): the sign of a momentum; needs a third to a tenth of AdamW's learning rate, and b2=0.99."""
  lion = _with_moments(optax.scale_by_lion(config.b1, config.b2), config)
  return [lion, *_parameter_scale_per_layer(config), *_weight_decay(config)]


def _stable_adamw(config: _OfModel) -> list[optax.GradientTransformation]:
  """StableAdamW (Wortsman et al. 2023, algorithm 2): AdamW with a lower rate when gradients outgrow their average.

  The update is divided by the root mean square of gradient / sqrt(second moment), per layer, if that is above 1. This
  is Adafactor's update clipping. The decay uses the same rate.
  """
  adam = optax.scale_by_adam(config.b1, config.b2, config.epsilon)
  inner = optax.chain(adam, *_parameter_scale(config), *_weight_decay(config))

  def update(updates, state, params=None):
    gradients = updates
    updates, state = inner.update(gradients, state, params)
    adam_state: Any = state
    # The second moments that divide the update, with Adam's bias correction.
    moments = optax.tree.bias_correction(adam_state[0].nu, config.b2, adam_state[0].count)

    def slowed(update: jax.Array, gradient: jax.Array, moment: jax.Array) -> jax.Array:
      rms = jnp.sqrt(jnp.mean(jnp.square(gradient) / jnp.maximum(moment, config.epsilon**2)))
      return update / jnp.maximum(1.0, rms)

    return jax.tree.map(slowed, updates, gradients, moments), state

  slower = optax.GradientTransformation(inner.init, update)
  return [_per_layer(_first_moments_as_set(slower, config), config)]


def _schedule_free_adamw(config: _OfModel) -> list[optax.GradientTransformation]:
  """Schedule-free AdamW (Defazio et al. 2024), as `optax.contrib.schedule_free_adamw`: an average replaces momentum.

  `make_optimizer` wraps the whole chain. The learning rate needs a warmup and no decay: schedule=constant.
  """
  rms = optax.scale_by_rms(decay=config.b2, eps=config.epsilon, eps_in_sqrt=False, bias_correction=True)
  return [rms, *_parameter_scale_per_layer(config), *_weight_decay(config)]


def _sgd(config: _OfModel) -> list[optax.GradientTransformation]:
  """Plain SGD."""
  return _weight_decay(config)


OPTIMIZERS = {
  "adafactor": _adafactor,
  # Duchi et al. 2011. Sums begin at 0, so that an update does not depend on the scale of the loss, a mean over a batch.
  "adagrad": lambda config: [optax.scale_by_rss(0.0, config.epsilon**2), *_weight_decay(config)],
  "adamw": _adamw,
  "lamb": _lamb,
  "lion": _lion,
  "muon": _muon,
  "schedule_free_adamw": _schedule_free_adamw,
  "sgd": _sgd,
  "stable_adamw": _stable_adamw,
}


# Optimizers with a first moment, for which config.optimizer.param_groups may set the dtype.
_WITH_FIRST_MOMENT = ("adamw", "lamb", "lion", "muon", "stable_adamw")


def _adam(config: _OfModel) -> optax.GradientTransformation:
  return _with_moments(optax.scale_by_adam(config.b1, config.b2, config.epsilon), config)


def _with_moments(tx: optax.GradientTransformation, config: _OfModel) -> optax.GradientTransformation:
  """Returns `tx` with moments that have the dtype and first step set in config.optimizer.param_groups."""
  tx = _first_moments_as_set(tx, config)
  # Parameters with a later first update need their own update count for Adam's bias correction.
  return _per_layer(tx, config) if param_groups.sets(config, "from_step", "unfreeze_every") else tx


def _first_moments_as_set(tx: optax.GradientTransformation, config: _OfModel) -> optax.GradientTransformation:
  """Returns `tx` with first moments stored between updates in the dtype set in config.optimizer.param_groups.

  Second moments stay float32: they change by 1 - b2, about 0.1 %, which bfloat16's 8 bits cannot represent.
  """
  if not param_groups.sets(config, "moments"):
    return tx

  def cast(state: optax.OptState, *, waits: bool) -> optax.OptState:
    def cast_moment(path: tuple, x: jax.Array) -> jax.Array:
      is_first = any(getattr(key, "name", "") == "mu" for key in path)
      if not is_first or param_groups.setting(config, path[-1].key, "moments") != "bfloat16":
        return x
      return x.astype(jnp.bfloat16 if waits else jnp.float32)

    return jax.tree_util.tree_map_with_path(cast_moment, state)

  def update(updates, state, params=None):
    updates, state = tx.update(updates, cast(state, waits=False), params)
    return updates, cast(state, waits=True)

  return optax.GradientTransformation(lambda params: cast(tx.init(params), waits=True), update)


def _parameter_scale_per_layer(config: _OfModel) -> list[optax.GradientTransformation]:
  return [_per_layer(scale, config) for scale in _parameter_scale(config)]


def _parameter_scale(config: _OfModel) -> list[optax.GradientTransformation]:
  return [optax.scale_by_param_block_rms(min_scale=1e-3)] if config.scale_by_parameter else []


def _decayed(config: OptimizerConfig, params: Params) -> dict[str, bool]:
  decay_settings: dict[str, Any] = {path: param_groups.setting(config, path, "decay") for path in params}
  return {
    path: not matches(config.no_decay, path) if decay_settings[path] is None else decay_settings[path] > 0
    for path in params
  }


def _weight_decay(config: _OfModel) -> list[optax.GradientTransformation]:
  mask = functools.partial(_decayed, config)
  if not param_groups.sets(config, "decay"):
    return [optax.add_decayed_weights(config.weight_decay, mask=mask)] if config.weight_decay else []

  def decayed(updates, params):
    strengths = {path: param_groups.setting(config, path, "decay") or config.weight_decay for path in params}
    is_decayed = mask(params)
    return {path: x + strengths[path] * params[path] if is_decayed[path] else x for path, x in updates.items()}

  return [optax.stateless(decayed)]


def _is_matrix_of_layer(path: str, x: jax.Array) -> bool:
  """Returns True for a matrix in a layer, stacked or not."""
  return x.ndim == (3 if stack_of(path) else 2 if "layer" in path.split("/") else -1)


def _per_layer(tx: optax.GradientTransformation, config: _OfModel) -> optax.GradientTransformation:
  """Returns `tx` on a flat dict, with each layer of a stack as a separate parameter.

  The state of a layer with a later first step (from_step, unfreeze_every) keeps its initial value until then.
  """
  gated = param_groups.sets(config, "from_step", "unfreeze_every")

  def groups(flat):
    """Returns name -> (stack, first step, parameters), without the masked entries of `optax.partition`."""
    there = {path: x for path, x in flat.items() if jax.tree.leaves(x)}
    opened = (
      param_groups.openings(config, {path: x.shape for path, x in there.items()}, config.num_layers) if gated else {}
    )
    by_name = {}
    for path, x in there.items():
      opening = opened.get(path)
      name = stack_of(path)
      if opening is not None:
        name += f" from step {opening.min()}" + (f" to {opening.max()}" if opening.ndim else "")
      by_name.setdefault(name, (stack_of(path), opening, {}))[2][path] = x
    return dict(sorted(by_name.items()))

  def init(params):
    states = {name: (jax.vmap(tx.init) if stack else tx.init)(x) for name, (stack, _, x) in groups(params).items()}
    return (_first_step(), states) if gated else states

  def update(updates, state, params=None):
    step, states = state if gated else (None, state)
    new_updates: Any = dict(updates)
    new_states: dict[str, Any] = {}
    of_params = groups(params)
    for name, (stack, opening, group) in groups(updates).items():
      update_group = jax.vmap(tx.update) if stack else tx.update
      group, new = update_group(group, states[name], of_params[name][2])
      if opening is not None:
        assert step is not None
        new = jax.tree.map(functools.partial(_if_open, step.count >= opening), new, states[name])
      new_states[name] = new
      new_updates |= group
    return new_updates, new_states if step is None else (_next_step(step), new_states)

  return optax.GradientTransformation(init, update)


def _first_step() -> optax.ScaleByScheduleState:
  """Returns a counter of the run's steps, including skipped updates (see `train_state`)."""
  return optax.ScaleByScheduleState(jnp.zeros((), jnp.int32))


def _next_step(state: optax.ScaleByScheduleState) -> optax.ScaleByScheduleState:
  return optax.ScaleByScheduleState(optax.safe_increment(state.count))


def _if_open(is_open: jax.Array, x: jax.Array, otherwise: jax.Array) -> jax.Array:
  """Returns `x` where `is_open`, bool [] or [layers], else `otherwise`."""
  return jnp.where(_beside(is_open, x), x, otherwise)


def _beside(of_layers: jax.Array | np.ndarray, x: jax.Array) -> jax.Array | np.ndarray:
  """Reshapes [] or [layers] to the number of dimensions of `x`, with layers first."""
  return of_layers.reshape((*of_layers.shape, *[1] * (x.ndim - of_layers.ndim)))


def _switched(config: _OfModel, first_steps: Any, before: Any, after: Any) -> optax.GradientTransformation:
  """Applies a function to the updates of each parameter before its step in `first_steps`, and another from it on."""

  def update(updates, state, params=None):
    del params
    shapes = {path: x.shape for path, x in updates.items()}
    for path, first_step in first_steps(config, shapes, config.num_layers).items():
      x = updates[path]
      updates = updates | {path: _if_open(state.count >= first_step, after(x), before(x))}
    return updates, _next_step(state)

  return optax.GradientTransformation(lambda params: _first_step(), update)


def _at_own_rates(config: _OfModel) -> optax.GradientTransformation:
  """Multiplies updates by the factors of `param_groups.rates`."""

  def scaled(updates, params):
    del params
    factors = param_groups.rates(config, {path: x.shape for path, x in updates.items()}, config.num_layers)

    def scale(path: str, x: jax.Array) -> jax.Array:
      return x * _beside(factors[path], x).astype(x.dtype) if path in factors else x

    return {path: scale(path, x) for path, x in updates.items()}

  return optax.stateless(scaled)


def _anchor(config: OptimizerConfig, path: str) -> float:
  strength: Any = param_groups.setting(config, path, "anchor")
  return strength or 0.0


def _consolidating(config: OptimizerConfig) -> list[optax.GradientTransformation]:
  return [l2_sp.consolidating(functools.partial(_anchor, config))] if config.fisher else []


def _towards_initial(config: OptimizerConfig) -> list[optax.GradientTransformation]:
  strength = lambda path: 0.0 if config.fisher else _anchor(config, path)
  # Parameters with an EWC anchor have no distance from the initial values.
  is_measured = lambda path: config.log_distance and not (config.fisher and _anchor(config, path))
  if not config.log_distance and (config.fisher or not param_groups.sets(config, "anchor")):
    return []
  return [l2_sp.towards_initial(strength, is_kept=lambda path: is_measured(path) or strength(path) > 0)]


def _on_flat_dict(tx: optax.GradientTransformation) -> optax.GradientTransformation:
  def flatten(tree):
    return traverse_util.flatten_dict(tree, sep="/")

  def update(updates, state, params=None):
    updates, state = tx.update(flatten(updates), state, flatten(params))
    return traverse_util.unflatten_dict(updates, sep="/"), state

  return optax.GradientTransformation(lambda params: tx.init(flatten(params)), update)


def make_optimizer(
  config: OptimizerConfig, num_steps: int, *, num_layers: int = 0, schedule: optax.Schedule | None = None
) -> tuple[optax.GradientTransformation, optax.Schedule]:
  """Returns the optimizer and its schedule.

  Args:
    config: see `OptimizerConfig`.
    num_steps: length of the run; most schedules end there.
    schedule: learning rate by step, if the config alone does not define it.
    num_layers: of the model's deepest stack, trained or not: settings by depth count from there.

  Raises:
    UserError: an unknown name, a number out of its range, or a schedule that contradicts other settings.
  """
  if config.name not in OPTIMIZERS:
    near = did_you_mean(config.name, OPTIMIZERS)
    raise UserError(f"config.optimizer.name={config.name!r}: unknown. Give one of {', '.join(OPTIMIZERS)}{near or '.'}")
  section_keys.check_ranges("optimizer", config)
  schedule = schedules.make_schedule(config, num_steps) if schedule is None else schedule
  for pattern in config.no_decay:
    check_pattern(pattern, "config.optimizer.no_decay")
  config = _OfModel(**{x.name: getattr(config, x.name) for x in dataclasses.fields(config)}, num_layers=num_layers)
  if param_groups.sets(config, "moments") and config.name not in _WITH_FIRST_MOMENT:
    raise UserError(
      f"config.optimizer.param_groups sets 'moments', but config.optimizer.name={config.name} keeps no first moment. "
      f"Leave 'moments' out, or use one of {', '.join(_WITH_FIRST_MOMENT)}."
    )
  # First so that global norms exclude closed parameters, and last so that decay does not change them.
  as_it_is = lambda x: x
  opened = _switched(config, param_groups.openings, jnp.zeros_like, as_it_is)
  opened = [opened] if param_groups.sets(config, "from_step", "unfreeze_every") else []
  parts = [*opened, *_consolidating(config)]
  parts += [optax.clip_by_global_norm(config.clip_norm)] if config.clip_norm else []
  parts += [*OPTIMIZERS[config.name](config), *_towards_initial(config)]
  parts += [_at_own_rates(config)] * (config.layer_decay < 1.0 or param_groups.sets(config, "rate", "depth", "top"))
  if param_groups.sets(config, "settle_every"):
    parts += [_switched(config, param_groups.settling, as_it_is, lambda x: param_groups.SETTLED_RATE * x)]
  tx = optax.chain(*parts, *opened, optax.scale_by_learning_rate(schedule))
  if config.name == "schedule_free_adamw":
    from t2t.training import schedule_free  # few runs have this optimizer

    tx = schedule_free.wrap(tx, schedule, config)
  return _on_flat_dict(tx), schedule
