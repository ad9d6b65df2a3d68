"""Universal Transformer: signals before each step of a shared layer, and adaptive computation time.

Source: Dehghani et al. 2019, with the listing of its appendix and tensor2tensor's code; Graves 2016.
"""

from collections.abc import Mapping
from typing import NamedTuple

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import UserError
from t2t.models import layers
from t2t.models.auxiliary import Auxiliary, Hidden, Term
from t2t.models.config import TransformerConfig
from t2t.models.sinusoidal import sinusoids

STEP_SIGNALS = ("sinusoidal", "learned", "none")
_HALTING_BIAS = 1.0  # initial bias of the halting unit, as in tensor2tensor


class HaltingState(NamedTuple):
  """State of the steps at each position.

  state: [batch, length, embed], input of the next step; copied from step to step after a position has halted.
  output: [batch, length, embed], weighted states of the steps so far.
  probability: float32 [batch, length], sum of the halting probabilities; 1 after halting.
  remainder: float32 [batch, length], weight of the step at which the position halted.
  steps: float32 [batch, length], number of steps that changed the position.
  is_running: bool [batch, length].
  """

  state: jax.Array
  output: jax.Array
  probability: jax.Array
  remainder: jax.Array
  steps: jax.Array
  is_running: jax.Array


def halting_step(progress: HaltingState, y: jax.Array, p: jax.Array, *, threshold: float) -> HaltingState:
  """Returns the state after a step.

  A running position halts if the sum of its halting probabilities exceeds the threshold. The step's weight is the
  halting probability, or at the last step the remainder 1 - sum of the earlier ones; the output becomes
  weight * y + (1 - weight) * output, as in the authors' listing.

  Args:
    progress: state before the step.
    y: [batch, length, embed], the layer's output.
    p: float32 [batch, length], halting probabilities of this step.
    threshold: below 1.
  """
  is_running, left = progress.is_running, 1.0 - progress.probability
  halts = is_running & (progress.probability + p > threshold)
  goes_on = is_running & ~halts
  weight = jnp.where(goes_on, p, jnp.where(halts, left, 0.0))
  mixed = weight[..., None] * y + (1.0 - weight[..., None]) * progress.output
  return HaltingState(
    state=jnp.where(is_running[..., None], y, progress.state),
    output=mixed.astype(y.dtype),
    probability=progress.probability + weight,
    remainder=progress.remainder + jnp.where(halts, left, 0.0),
    steps=progress.steps + is_running,
    is_running=goes_on,
  )


class Universal(nnx.Module):
  """A `stack.Recurrence` of one shared layer; with `halting_threshold`, each position has its own number of steps.

  A layer computes all positions at every step, so that halting saves no time.

  Raises:
    UserError: layers are not shared, or a setting is out of range.
  """

  adds_signals = True

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs, *, num_layers: int):
    _check(config)
    self.signals, self.threshold, self.embed_dim = config.step_signal, config.halting_threshold, config.embed_dim
    embed, scale = config.embed_dim, config.init_scale or 1.0
    learned = self.signals == "learned"
    self.step_table = layers.param(rngs, (num_layers, embed), (None, "embed"), scale=scale) if learned else None
    if self.threshold:
      self.halting = layers.param(rngs, (embed, 1), ("embed", None), scale=layers.fan_in_scale(config, embed))
      self.halting_bias = nnx.Param(jnp.full(1, _HALTING_BIAS, jnp.float32), axes=(None,))

  def begin(self, x: jax.Array) -> jax.Array | HaltingState:
    if not self.threshold:
      return x
    zeros = jnp.zeros(x.shape[:-1], jnp.float32)
    return HaltingState(x, jnp.zeros_like(x), zeros, zeros, zeros, jnp.ones(x.shape[:-1], bool))

  def state(self, progress: jax.Array | HaltingState) -> jax.Array:
    return progress.state if isinstance(progress, HaltingState) else progress

  def prepare(self, positions: jax.Array) -> jax.Array | None:
    """Returns the signal of positions, float32 [batch or 1, length, embed], the same in all steps."""
    return None if self.signals == "none" else sinusoids(positions, self.embed_dim)

  def enter(self, progress: jax.Array | HaltingState, index: jax.Array | int, signal: jax.Array | None) -> jax.Array:
    """Returns the layer's input: the state, plus the signals of positions and of the step, counted from 1."""
    x = self.state(progress)
    if signal is None:
      return x
    table = self.step_table
    step = sinusoids(jnp.asarray(index) + 1, x.shape[-1]) if table is None else table[...][index]
    return (x + signal + step).astype(x.dtype)

  def leave(self, progress: jax.Array | HaltingState, x: jax.Array, y: jax.Array) -> jax.Array | HaltingState:
    """Returns the state after a step with the layer's input `x` and output `y`."""
    if not isinstance(progress, HaltingState):
      return y
    kernel = self.halting[...].astype(x.dtype)
    logits = jnp.einsum("ble,eo->blo", x, kernel, preferred_element_type=jnp.float32) + self.halting_bias[...]
    return halting_step(progress, y, jax.nn.sigmoid(logits[..., 0]), threshold=self.threshold)

  def finish(self, progress: jax.Array | HaltingState, real: jax.Array | None) -> Hidden:
    """Returns the output; with halting also the sums of steps, and of steps plus remainder, over real positions."""
    if not isinstance(progress, HaltingState):
      return Hidden(progress)
    of_real = lambda x: jnp.sum(x if real is None else jnp.where(real, x, 0.0))
    terms = {"ponder_cost": of_real(progress.steps + progress.remainder), "ponder_steps": of_real(progress.steps)}
    return Hidden(progress.output, Auxiliary(terms))

  @classmethod
  def terms(cls, config: TransformerConfig) -> Mapping[str, Term]:
    """Returns the auxiliary terms of a stack: means over positions."""
    if not config.halting_threshold:
      return {}
    return {
      "ponder_cost": Term(config.ponder_coefficient, per_layer=False),
      "ponder_steps": Term(0.0, per_layer=False),
    }

  @classmethod
  def multiply_adds(cls, config: TransformerConfig) -> float:
    """Returns multiplications with parameters per position and step, for `model_flops`."""
    return config.embed_dim if config.halting_threshold else 0


def _check(config: TransformerConfig) -> None:
  if not config.share_layers:
    raise UserError(
      f"config.model.share_layers=False: config.model.recurrence={config.recurrence} repeats one layer. Set "
      "config.model.share_layers=True."
    )
  if config.step_signal not in STEP_SIGNALS:
    raise UserError(
      f"config.model.step_signal={config.step_signal!r}: unknown value. Known values: {', '.join(STEP_SIGNALS)}"
    )
  if not 0.0 <= config.halting_threshold < 1.0:
    raise UserError(
      f"config.model.halting_threshold={config.halting_threshold}: must be at least 0 (0: no halting) and below 1"
    )
  if config.ponder_coefficient < 0.0:
    raise UserError(f"config.model.ponder_coefficient={config.ponder_coefficient}: must be at least 0")
