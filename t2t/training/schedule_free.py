"""Schedule-free optimization: optax's wrapper, and the averaged point that is evaluated.

The trained parameters are y, where gradients are taken. optax keeps z, the iterate of the optimizer. Evaluation and
readers of checkpoints take the average x = (y - (1 - b1) z) / b1.

Source: Defazio et al. 2024, "The Road Less Scheduled".
"""

from collections.abc import Mapping
from typing import Any

import jax
import optax
import optax.contrib

from t2t import UserError
from t2t.configuration.schema import OptimizerConfig
from t2t.param_tree import Params, flatten, unflatten
from t2t.training import param_groups

NAME = "schedule_free_adamw"  # row of `optimizers.OPTIMIZERS`
# Their parameters, which rest or are zero, would leave the line through x, y and z.
_REFUSED = ("from_step", "unfreeze_every", "settle_every", *param_groups.TRANSFORMS)


def check(config: OptimizerConfig) -> None:
  """Checks the keys that contradict a schedule-free optimizer.

  Raises:
    UserError: with the key.
  """
  where = f"config.optimizer.name={NAME}"
  if not 0.0 < config.b1 < 1.0:
    raise UserError(f"config.optimizer.b1={config.b1} must be above 0 and below 1 with {where}")
  if config.average:
    raise UserError(
      f"config.optimizer.average={config.average}: {where} already evaluates an average of its own. Leave "
      "config.optimizer.average out."
    )
  for name in _REFUSED:
    if param_groups.sets(config, name):
      raise UserError(
        f"config.optimizer.param_groups sets {name!r}, which {where} does not support. Leave {name!r} out, or give "
        "--config.optimizer.name=adamw."
      )


def wrap(
  tx: optax.GradientTransformation, schedule: optax.Schedule, config: OptimizerConfig
) -> optax.GradientTransformation:
  """Returns `tx`, whose updates include the learning rate and no momentum, as the optimizer of z.

  Raises:
    UserError: see `check`.
  """
  check(config)
  return optax.contrib.schedule_free(tx, schedule, b1=config.b1)


def evaluated(opt_state: optax.contrib.ScheduleFreeState, params: Params) -> Params:
  """Returns the average x from the state of the optimizer and the trained parameters y, nested dicts."""
  z: Any = opt_state.z
  average: Mapping[str, jax.Array] = optax.contrib.schedule_free_eval_params(
    opt_state._replace(z=jax.tree.map(_on_device, z)), flatten(params)
  )
  return unflatten(average)


def _on_device(x: jax.Array) -> jax.Array:
  # config.train.offload_optimizer keeps z in host memory.
  return jax.device_put(x, jax.memory.Space.Device)
