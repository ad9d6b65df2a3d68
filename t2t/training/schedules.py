"""Learning-rate schedules, from optax where optax has them."""

from collections.abc import Callable
import dataclasses
from typing import Any

import jax.numpy as jnp
import optax

from t2t import UserError, did_you_mean
from t2t.configuration import section_keys, stages
from t2t.configuration.schema import Config, OptimizerConfig


def t5_inverse_sqrt(config: OptimizerConfig, num_steps: int) -> optax.Schedule:
  """Constant during warm-up, then proportional to 1/sqrt(step); with defaults T5's 1/sqrt(max(step, 10,000))."""
  del num_steps
  warmup = max(config.warmup_steps, 1)
  return lambda step: config.learning_rate * jnp.sqrt(warmup / jnp.maximum(step, warmup))


def inverse_sqrt(config: OptimizerConfig, num_steps: int) -> optax.Schedule:
  """Linear warm-up, then proportional to 1/sqrt(step)."""
  flat = t5_inverse_sqrt(config, num_steps)
  return lambda step: flat(step) * jnp.minimum(1.0, (step + 1) / max(config.warmup_steps, 1))


def _after_warmup(config: OptimizerConfig, schedule: optax.Schedule) -> optax.Schedule:
  warmup = optax.linear_schedule(0.0, config.learning_rate, config.warmup_steps)
  # One step ahead, so that the first update does not have a learning rate of zero.
  return optax.join_schedules([lambda step: warmup(step + 1), schedule], [config.warmup_steps])


def cosine(config: OptimizerConfig, num_steps: int) -> optax.Schedule:
  """Linear warm-up, then half a cosine down to `end_lr_fraction` of the peak at the last step."""
  steps = max(num_steps - config.warmup_steps, 1)
  return _after_warmup(config, optax.cosine_decay_schedule(config.learning_rate, steps, config.end_lr_fraction))


def linear(config: OptimizerConfig, num_steps: int) -> optax.Schedule:
  """Linear warm-up, then linear decay to `end_lr_fraction` of the peak at the last step."""
  steps = max(num_steps - config.warmup_steps, 1)
  final = config.learning_rate * config.end_lr_fraction
  return _after_warmup(config, optax.linear_schedule(config.learning_rate, final, steps))


def constant(config: OptimizerConfig, num_steps: int) -> optax.Schedule:
  """Linear warm-up, then constant."""
  del num_steps
  return _after_warmup(config, optax.constant_schedule(config.learning_rate))


def wsd(config: OptimizerConfig, num_steps: int) -> optax.Schedule:
  """Warmup-stable-decay (Hu et al. 2024, MiniCPM): decays to `end_lr_fraction` in the last `decay_fraction` of steps.

  The decay is linear, or 1 - sqrt of the elapsed fraction (Hägele et al. 2024).
  """
  steps = max(round(config.decay_fraction * num_steps), 1)
  start = num_steps - steps
  if start < config.warmup_steps:
    raise UserError(
      f"config.optimizer.decay_fraction={config.decay_fraction}: the decay would begin at step {start} of "
      f"{num_steps}, within the warm-up of {config.warmup_steps} steps (config.optimizer.warmup_steps, "
      "warmup_ratio). Reduce the decay or the warm-up."
    )
  top, final = config.learning_rate, config.learning_rate * config.end_lr_fraction
  decay = optax.linear_schedule(top, final, steps)
  if config.decay_shape == "1-sqrt":
    decay = lambda step: top - (top - final) * jnp.sqrt(jnp.clip(step / steps, 0.0, 1.0))
  stable = optax.join_schedules([optax.constant_schedule(top), decay], [start - config.warmup_steps])
  return _after_warmup(config, stable)


def slanted_triangle(config: OptimizerConfig, num_steps: int) -> optax.Schedule:
  """Linear from peak / init_lr_divisor in the first `warmup_fraction`, then linear back.

  Source: Howard & Ruder 2018 (ULMFiT).
  """
  cut, lowest = _rise(config, num_steps), config.learning_rate / config.init_lr_divisor
  up = optax.linear_schedule(lowest, config.learning_rate, cut)
  down = optax.linear_schedule(config.learning_rate, lowest, max(num_steps - cut, 1))
  return optax.join_schedules([up, down], [cut])


def one_cycle(config: OptimizerConfig, num_steps: int) -> optax.Schedule:
  """Half a cosine up from peak / init_lr_divisor in the first `warmup_fraction`, then one down (Smith & Topin 2018).

  It ends at `end_lr_fraction` of the peak; if that is 0, at the first rate / 10,000 as in optax.
  """
  share = (_rise(config, num_steps) + 0.5) / num_steps  # optax rounds down
  final = 1 / (config.init_lr_divisor * config.end_lr_fraction) if config.end_lr_fraction else 1e4
  return optax.cosine_onecycle_schedule(num_steps, config.learning_rate, share, config.init_lr_divisor, final)


def _rise(config: OptimizerConfig, num_steps: int) -> int:
  return min(max(int(config.warmup_fraction * num_steps), 1), max(num_steps - 1, 1))


SCHEDULES: dict[str, Callable[[OptimizerConfig, int], optax.Schedule]] = {
  "t5_inverse_sqrt": t5_inverse_sqrt,
  "inverse_sqrt": inverse_sqrt,
  "cosine": cosine,
  "linear": linear,
  "constant": constant,
  "wsd": wsd,
  "slanted_triangle": slanted_triangle,
  "one_cycle": one_cycle,
}

_SHAPES = ("linear", "1-sqrt")


def warmup(config: OptimizerConfig, num_steps: int) -> int:
  """Returns the warm-up steps in a run of `num_steps`, by `warmup_ratio` or `warmup_steps`."""
  return round(config.warmup_ratio * num_steps) if config.warmup_ratio else config.warmup_steps


def make_schedule(config: OptimizerConfig, num_steps: int) -> optax.Schedule:
  """Returns the learning rate by step.

  Args:
    config: see `OptimizerConfig`.
    num_steps: length of the run; all but the first two and constant end there.

  Raises:
    UserError: an unknown name, a number out of its range, or a decay that would begin within the warm-up.
  """
  section_keys.check_ranges("optimizer", config)
  for key, name, table in (("schedule", config.schedule, SCHEDULES), ("decay_shape", config.decay_shape, _SHAPES)):
    if name not in table:
      raise UserError(
        f"config.optimizer.{key}={name!r}: unknown. Give one of {', '.join(table)}{did_you_mean(name, table) or '.'}"
      )
  config = dataclasses.replace(config, warmup_steps=warmup(config, num_steps))
  return SCHEDULES[config.schedule](config, num_steps)


def of_run(config: Config) -> optax.Schedule:
  """Returns the learning rate of a run by step: one schedule, except for stages with their own rate.

  The schedule of such a stage counts from the stage's first step and ends with the stage.

  Raises:
    UserError: see `make_schedule`.
  """
  run_schedule = make_schedule(config.optimizer, config.train.steps)
  if not any(map(stages.own_rate, config.stages)):
    return run_schedule
  parts, ends = [], []
  for stage, begin, end in stages.bounds(config.stages, config.train.steps):
    rate_settings: dict[str, Any] = stages.own_rate(stage)
    if "warmup_steps" in rate_settings:  # overrides the run's warmup_ratio
      rate_settings = dict[str, Any](warmup_ratio=0.0) | rate_settings
    # Joined schedules count from their own first step.
    goes_on = lambda step, begin=begin: run_schedule(step + begin)
    if begin == end:  # the run has too few steps for this stage
      continue
    try:
      parts.append(
        make_schedule(dataclasses.replace(config.optimizer, **rate_settings), end - begin) if rate_settings else goes_on
      )
    except UserError as error:
      raise UserError(f"config.stages, {stage.name}: {error}") from error
    ends.append(end)
  return optax.join_schedules(parts, ends[:-1])
