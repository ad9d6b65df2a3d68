"""Universal Transformer: signals of positions and steps, and adaptive computation time, written out in NumPy."""

import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from configs import default
from t2t import UserError, losses
from t2t.configuration.loading import records
from t2t.models import transformer, universal
from t2t.models.architecture import real_positions
from t2t.models.flops import model_flops
from t2t.models.masks import AttentionMask

GPT, BERT = toy.KINDS["universal_gpt"], toy.KINDS["universal_bert"]


def by_listing(states, probabilities, threshold):
  """Returns output, steps and remainder of one position by the authors' listing; `states` are the layer's outputs."""
  output, total, steps = np.zeros_like(states[0]), 0.0, 0
  for state, p in zip(states, probabilities, strict=True):
    steps += 1
    if total + p > threshold:
      remainder = 1.0 - total
      return remainder * state + (1.0 - remainder) * output, steps, remainder
    output, total = p * state + (1.0 - p) * output, total + p
  return output, steps, 0.0


def test_a_position_halts_by_the_sum_of_its_probabilities():
  """At the first, the second, the last step, or never; the remainder is the last weight, and the state is copied."""
  random = np.random.default_rng(0)
  states = random.normal(size=(3, 1, 4, 2)).astype(np.float32)
  p = np.array([[0.95, 0.3, 0.3, 0.1], [0.5, 0.7, 0.3, 0.1], [0.5, 0.5, 0.9, 0.1]], np.float32)[:, None]
  zeros = jnp.zeros((1, 4))
  progress = universal.HaltingState(states[0], jnp.zeros((1, 4, 2)), zeros, zeros, zeros, zeros == 0)
  for y, each in zip(states, p, strict=True):
    progress = universal.halting_step(progress, y, each, threshold=0.9)
  for place, halted in enumerate((0, 1, 2, 2)):
    output, steps, remainder = by_listing(states[:, 0, place], p[:, 0, place], 0.9)
    np.testing.assert_allclose(progress.output[0, place], output, rtol=1e-6)
    np.testing.assert_allclose(progress.remainder[0, place], remainder, rtol=1e-6, atol=1e-6)
    assert progress.steps[0, place] == steps == halted + 1
    np.testing.assert_array_equal(progress.state[0, place], states[halted, 0, place])
  np.testing.assert_array_equal(progress.is_running, [[False, False, False, True]])


def sines(positions, width):
  angles = np.asarray(positions)[..., None] * 10_000.0 ** -(np.arange(0, width, 2) / width)
  return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)


@pytest.mark.slow
@pytest.mark.parametrize("config", [BERT, GPT], ids=["sinusoidal", "learned"])
def test_a_stack_repeats_one_layer_between_signals(config):
  """Position and step are added before each step, halting reads the sum, and halted positions keep their state."""
  stack = getattr(toy.model(config), config.kind.predicts)
  unit, causal = stack.recurrence, AttentionMask(causal=config.kind.is_decoder_only)
  unit.halting_bias[...] = jnp.array([-0.5])
  x = np.random.default_rng(0).normal(size=(2, 6, 16)).astype(np.float32)
  mask = dataclasses.replace(causal, positions=jnp.array([[0, 1, 2, 0, 1, 2]] * 2))
  state, outputs, probabilities = x, [], []
  running, total = np.ones((2, 6), bool), np.zeros((2, 6))
  for index in range(3):
    step = sines(index + 1, 16) if config is BERT else unit.step_table[...][index]
    entered = (state + sines([0, 1, 2, 0, 1, 2], 16) + step).astype(np.float32)
    logits = entered @ unit.halting[...][:, 0] - 0.5
    probabilities.append(1 / (1 + np.exp(-logits)))
    y = np.asarray(stack.layer(entered, mask=mask)[0])
    outputs.append(y)
    state, total = np.where(running[..., None], y, state), total + np.where(running, probabilities[-1], 0.0)
    running = running & (total <= config.halting_threshold)
  found, _, aux = stack(x, mask=mask, real=jnp.array([[True] * 6, [True] * 4 + [False] * 2]))
  expected, cost, counts = np.zeros_like(x), np.zeros((2, 6)), set()
  for place in np.ndindex(2, 6):
    states = [np.asarray(y[place]) for y in outputs]
    expected[place], steps, remainder = by_listing(states, [p[place] for p in probabilities], 0.9)
    cost[place], counts = steps + remainder, counts | {steps}
  assert len(counts) > 1
  np.testing.assert_allclose(found, stack.norm(expected), atol=1e-4)
  np.testing.assert_allclose(aux.terms["ponder_cost"], cost[0].sum() + cost[1, :4].sum(), rtol=1e-5)


@pytest.mark.slow
def test_without_early_halting_the_output_is_a_mean_of_the_plain_steps():
  """With a probability of a quarter at each step nobody halts within three steps."""
  stack = toy.model(BERT).encoder
  stack.recurrence.halting[...] = jnp.zeros((16, 1))
  stack.recurrence.halting_bias[...] = -jnp.log(jnp.array([3.0]))
  plain = toy.model(dataclasses.replace(BERT, halting_threshold=0.0)).encoder
  plain.layer, plain.norm = stack.layer, None
  x = np.random.default_rng(1).normal(size=(1, 5, 16)).astype(np.float32)
  _, *states = plain(x, mask=AttentionMask(), every_layer=True)[0]
  expected = states[2] / 4 + 3 / 4 * (states[1] / 4 + 3 / 4 * states[0] / 4)
  found, _, aux = stack(x, mask=AttentionMask())
  np.testing.assert_allclose(found, stack.norm(expected), atol=1e-5)
  assert float(aux.terms["ponder_steps"]) == float(aux.terms["ponder_cost"]) == 5 * 3


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("kind", ["universal_gpt", "universal"])
def test_the_ponder_cost_is_a_term_and_a_metric(kind):
  """Its value is the mean over all positions of all stacks, and its gradient reaches the halting unit."""
  config = dataclasses.replace(toy.KINDS[kind], ponder_coefficient=0.5)
  given = default.get_config()
  given.model.update(dataclasses.asdict(config))
  given.data.pack, given.train.z_loss = False, 0.0
  loss = losses.make(records(given))
  batch = toy.batch((8, 3), (6, 2), architecture=config.architecture)
  graphdef, params = toy.split(toy.model(config))

  def cost(params):
    model = nnx.merge(graphdef, params)
    terms, metrics = loss(model, batch, loss.weights(batch), key=None, train=False)
    return terms["ponder_cost"], (terms, metrics, model.hidden(batch).aux.terms)

  (value, (terms, metrics, sums)), gradient = jax.jit(jax.value_and_grad(cost, has_aux=True))(params)
  number = sum(np.sum(real_positions(batch, side)) for side in config.kind.sides)
  np.testing.assert_allclose(value, 0.5 * sums["ponder_cost"] / number, rtol=1e-5)
  np.testing.assert_allclose(metrics["ponder_cost"].value(), sums["ponder_cost"] / number, rtol=1e-5)
  assert 1.0 <= metrics["ponder_steps"].value() <= 3.0 and "ponder_steps" not in terms
  flat = toy.flat(gradient)
  for side in config.kind.sides:
    assert np.any(np.abs(flat[f"{side}/recurrence/halting"]) > 1e-6)


def test_products_of_the_halting_unit_are_counted():
  flops = lambda config: model_flops(config, batch_size=2, lengths={"decoder": 8})
  assert flops(GPT) - flops(dataclasses.replace(GPT, halting_threshold=0.0)) == 6 * 2 * 8 * 3 * 16


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"share_layers": False}, "config.model.share_layers=False: config.model.recurrence=universal repeats one layer"),
    ({"recurrence": ""}, "config.model.halting_threshold=0.9 needs config.model.recurrence=universal"),
    ({"halting_threshold": 1.0}, "config.model.halting_threshold=1.0: must be at least 0"),
    ({"step_signal": "sines"}, "config.model.step_signal='sines': unknown value. Known values: sinusoidal, learned"),
    ({"ponder_coefficient": -1.0}, "config.model.ponder_coefficient=-1.0: must be at least 0"),
    ({"recurrence": "universl"}, "did you mean universal?"),
  ],
)
def test_settings_that_do_not_fit_are_refused(fields, message):
  """Before any computation, with the key."""
  with pytest.raises(UserError, match=message):
    jax.eval_shape(lambda: transformer.build(dataclasses.replace(GPT, **fields), nnx.Rngs(0)))
