import functools
import math

from flax import traverse_util
from hypothesis import given, settings, strategies
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
import toy

from t2t import UserError, sharding
from t2t.configuration.loading import load_config, records
from t2t.param_tree import join_frozen, path_name, split_frozen
from t2t.training import newton_schulz, optimizers, recipe, schedules


def rms(x):
  return np.sqrt(np.mean(np.square(x)))


def stacked(random, *, scale):
  """Returns parameters of two stacked layers with sizes that differ a hundredfold, some large enough to be factored."""
  layer_scale = scale * np.array([1.0, 100.0])
  leaf = lambda *shape: (random.normal(size=shape) * layer_scale.reshape(2, *[1] * (len(shape) - 1))).astype(np.float32)
  return {
    "decoder": {"layers": {"mlp": {"up": leaf(2, 128, 130)}, "norm": {"scale": leaf(2, 16)}}, "norm": leaf(2, 3)[0]},
    "embed": {"table": (scale * random.normal(size=(129, 128))).astype(np.float32)},
    "small": (1e-5 * random.normal(size=4)).astype(np.float32),
  }


def unstacked(tree):
  """Returns the same with separate parameters for each layer."""
  one = lambda index: jax.tree.map(lambda x: x[index], tree["decoder"]["layers"])
  decoder = {"first": one(0), "second": one(1), "norm": tree["decoder"]["norm"]}
  return tree | {"decoder": decoder}


def run(tx, params, gradients):
  state, update = tx.init(params), jax.jit(tx.update)
  for gradient in gradients:
    updates, state = update(gradient, state, params)
    params = optax.apply_updates(params, updates)
  return params


def adafactor(param, gradients, learning_rate, *, decay_rate, clip):
  """Algorithm 5 of Shazeer & Stern (2018), for one parameter."""
  row = column = second = 0.0
  param = np.asarray(param, np.float64)
  for t, gradient in enumerate(gradients, start=1):
    decay = 1.0 - t**-decay_rate
    square = np.square(np.asarray(gradient, np.float64)) + 1e-30
    if param.ndim == 2 and min(param.shape) >= 128:
      row = decay * row + (1 - decay) * square.mean(1)
      column = decay * column + (1 - decay) * square.mean(0)
      estimate = np.outer(row, column) / row.mean()
    else:
      estimate = second = decay * second + (1 - decay) * square
    update = gradient / np.sqrt(estimate)
    update = update / max(1.0, rms(update) / clip)
    param = param - learning_rate * max(rms(param), 1e-3) * update
  return param


def three_steps():
  random = np.random.default_rng(0)
  return stacked(random, scale=0.05), [stacked(random, scale=scale) for scale in (1.0, 5.0, 0.1)]


@pytest.mark.slow
@pytest.mark.parametrize(("decay_rate", "clip"), [(0.8, 1.0), (0.6, 0.7)], ids=["t5", "others"])
def test_adafactor_is_the_papers_on_each_layer(decay_rate, clip):
  """Three steps equal the paper's algorithm on each layer of a stack."""
  params, gradients = three_steps()
  fields = dict(learning_rate=0.5, scale_by_parameter=True, adafactor_decay_rate=decay_rate, adafactor_clip=clip)
  config = toy.optimizer_config(name="adafactor", **fields)
  updated = toy.flat(unstacked(run(optimizers.make_optimizer(config, 10)[0], params, gradients)))
  flat_gradients = [toy.flat(unstacked(g)) for g in gradients]
  for name, param in toy.flat(unstacked(params)).items():
    expected = adafactor(param, [g[name] for g in flat_gradients], 0.5, decay_rate=decay_rate, clip=clip)
    np.testing.assert_allclose(updated[name], expected, rtol=2e-4, atol=1e-6, err_msg=name)


def test_adafactor_keeps_factors_of_matrices():
  """A 128 x 130 matrix of each layer has 128 + 130 second moments, not 16,640."""
  params, _ = three_steps()
  config = toy.optimizer_config(name="adafactor", scale_by_parameter=True)
  shapes = jax.eval_shape(optimizers.make_optimizer(config, 10)[0].init, params)
  sizes = [leaf.size for path, leaf in toy.flat(shapes).items() if path.endswith("decoder/layers/mlp/up")]
  assert sum(sizes) <= 2 * (128 + 130 + 1)


def test_adamw_scales_updates_by_each_layers_size():
  """Adam's update times max(rms(parameter), 1e-3), with each layer's own rms."""
  params, gradients = three_steps()
  config = toy.optimizer_config(name="adamw", learning_rate=0.5, scale_by_parameter=True, epsilon=1e-3, b1=0.8, b2=0.98)
  updated = toy.flat(unstacked(run(optimizers.make_optimizer(config, 10)[0], params, gradients)))
  flat_gradients = [toy.flat(unstacked(g)) for g in gradients]
  for name, param in toy.flat(unstacked(params)).items():
    first = second = 0.0
    for t, gradient in enumerate((g[name].astype(np.float64) for g in flat_gradients), start=1):
      first, second = 0.8 * first + 0.2 * gradient, 0.98 * second + 0.02 * gradient**2
      update = first / (1 - 0.8**t) / (np.sqrt(second / (1 - 0.98**t)) + 1e-3)
      param = param - 0.5 * max(rms(param), 1e-3) * update
    # Adam's bias correction loses digits in float32: 1 - 0.98.
    np.testing.assert_allclose(updated[name], param, rtol=1e-3, atol=1e-3 * rms(param) + 1e-6, err_msg=name)


def test_lamb_is_optax_lamb_on_each_layer():
  """Three steps equal optax's on each layer; norms have plain Adam updates without decay."""
  params, gradients = three_steps()
  fields = dict(learning_rate=0.1, b1=0.8, b2=0.9, epsilon=1e-3, weight_decay=0.3)
  config = toy.optimizer_config(name="lamb", no_decay=("norm",), **fields)
  updated = toy.flat(unstacked(run(optimizers.make_optimizer(config, 10)[0], params, gradients)))
  arguments = dict(b1=0.8, b2=0.9, eps=1e-3)
  plain, lamb = optax.adam(0.1, **arguments), optax.lamb(0.1, **arguments, weight_decay=0.3)
  label = lambda path, _: "plain" if "norm" in path_name(path) else "lamb"
  labels = jax.tree_util.tree_map_with_path(label, unstacked(params))
  expected = optax.multi_transform({"plain": plain, "lamb": lamb}, labels)
  toy.assert_trees_close(
    updated, toy.flat(run(expected, unstacked(params), [unstacked(g) for g in gradients])), rtol=1e-4
  )


def test_muon_is_optax_muon_on_each_layer():
  """Three steps equal optax's on each layer's matrices; other parameters have Adam's updates."""
  params, gradients = three_steps()
  fields = dict(learning_rate=0.1, b1=0.8, b2=0.9, epsilon=1e-8, muon_momentum=0.9, weight_decay=0.3)
  config = toy.optimizer_config(name="muon", **fields)
  updated = toy.flat(unstacked(run(optimizers.make_optimizer(config, 10)[0], params, gradients)))
  adam = optax.adamw(0.1, b1=0.8, b2=0.9, weight_decay=0.3)
  muon = optax.contrib.muon(0.1, beta=0.9, weight_decay=0.3, consistent_rms=0.2)
  is_matrix = lambda path, _: "muon" if "mlp" in path_name(path) else "adam"
  labels = jax.tree_util.tree_map_with_path(is_matrix, unstacked(params))
  assert {"muon", "adam"} == set(jax.tree.leaves(labels))
  expected = optax.multi_transform({"adam": adam, "muon": muon}, labels)
  toy.assert_trees_close(
    updated, toy.flat(run(expected, unstacked(params), [unstacked(g) for g in gradients])), rtol=1e-3
  )


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [{"fsdp": 4, "tensor": 2}, {"data": 8}], ids=str)
def test_orthogonal_matrices_do_not_depend_on_the_mesh(mesh):
  """Three of one size and their transposes, and other sizes, some with fewer rows than devices: equal to optax's."""
  random = np.random.default_rng(0)
  sizes = {"b/layers/up": (3, 16, 24), "a/layers/down": (3, 24, 16), "c/layers/lora": (2, 24, 3), "layer/out": (8, 16)}
  matrices = {path: random.normal(size=size).astype(np.float32) for path, size in sizes.items()}
  with jax.set_mesh(sharding.make_mesh(mesh)):
    found = jax.jit(functools.partial(newton_schulz.orthogonalize, iterations=5))(matrices)
  assert list(found) == sorted(matrices)  # jit's order
  for path, x in matrices.items():
    tx = optax.contrib.scale_by_muon(
      beta=0.0, nesterov=False, weight_dimension_numbers={path: optax.contrib.MuonDimensionNumbers(-2, -1)}
    )
    expected, _ = tx.update({path: x}, tx.init({path: x}))
    np.testing.assert_allclose(found[path], expected[path], atol=1e-4, err_msg=path)


@pytest.mark.slow
def test_muon_treats_a_shared_layer_as_a_stack_of_one():
  """ALBERT's single layer has matrices as usual; vectors and the table of position biases are not matrices."""
  random = np.random.default_rng(0)
  leaf = lambda *shape: random.normal(size=shape).astype(np.float32)
  layer, gradient = ({"mlp": {"up": leaf(8, 4)}, "norm": {"scale": leaf(8)}} for _ in range(2))
  tables = [{"position_bias": {"table": leaf(8, 4)}} for _ in range(2)]
  stack = lambda tree: jax.tree.map(lambda x: x[None], tree)
  tx, _ = optimizers.make_optimizer(toy.optimizer_config(name="muon"), 10)
  shared = run(tx, {"encoder": {"layer": layer, **tables[0]}}, [{"encoder": {"layer": gradient, **tables[1]}}])
  alone = run(
    tx, {"encoder": {"layers": stack(layer), **tables[0]}}, [{"encoder": {"layers": stack(gradient), **tables[1]}}]
  )
  toy.assert_trees_close(stack(shared["encoder"]["layer"]), alone["encoder"]["layers"])
  moved = np.abs(shared["encoder"]["position_bias"]["table"] - tables[0]["position_bias"]["table"])
  np.testing.assert_allclose(moved, 0.1, rtol=1e-4)  # Adam's first update: the sign of the gradient


RISING = ("slanted_triangle", "one_cycle")  # schedules with a rise of their own in place of a warm-up


def schedule_at(steps, *, num_steps=110, **fields):
  schedule = optimizers.make_optimizer(toy.optimizer_config(**fields), num_steps)[1]
  return [float(schedule(step)) for step in steps]


def test_t5_schedule():
  """0.01 for 10,000 steps, then 1/sqrt(step)."""
  values = schedule_at(
    [0, 10_000, 40_000, 1_000_000], schedule="t5_inverse_sqrt", learning_rate=0.01, warmup_steps=10_000
  )
  np.testing.assert_allclose(values, [0.01, 0.01, 0.005, 0.001], rtol=1e-6)


def test_inverse_sqrt_schedule():
  """Linear, then proportional to 1/sqrt(step); the first step is not zero."""
  values = schedule_at([0, 49, 99, 100, 400], schedule="inverse_sqrt", learning_rate=2.0, warmup_steps=100)
  np.testing.assert_allclose(values, [0.02, 1.0, 2.0, 2.0, 1.0], rtol=1e-6)


def test_the_schedule_of_the_original_transformer():
  """embed_dim^-0.5 * min(step^-0.5, step * 4,000^-1.5), counted from 1 in the warm-up (Vaswani et al. 2017, (3))."""
  config = load_config("transformer_base")
  steps = np.array([1, 100, 4_000, 50_000])
  expected = 512**-0.5 * np.minimum(steps**-0.5, steps * 4_000**-1.5)
  schedule = optimizers.make_optimizer(records(config).optimizer, 100_000)[1]
  values = [float(schedule(step - (step <= 4_000))) for step in steps]
  np.testing.assert_allclose(values, expected, rtol=1e-6)


@pytest.mark.parametrize(
  ("schedule", "middle", "end"), [("cosine", 0.55, 0.1), ("linear", 0.55, 0.1), ("constant", 1, 1)]
)
def test_schedules_after_a_warmup(schedule, middle, end):
  """Ten steps up to 1, then a hundred down to the final ratio, which stays."""
  values = schedule_at(
    [0, 4, 9, 10, 60, 110, 500], schedule=schedule, learning_rate=1.0, warmup_steps=10, end_lr_fraction=0.1
  )
  np.testing.assert_allclose(values, [0.1, 0.5, 1.0, 1.0, middle, end, end], rtol=1e-5)


def test_cosine_is_a_cosine():
  """A quarter of the way down it has lost (1 - cos(pi/4)) / 2."""
  values = schedule_at([25], schedule="cosine", learning_rate=1.0, num_steps=100)
  np.testing.assert_allclose(values, [(1 + np.cos(np.pi / 4)) / 2], rtol=1e-5)


@pytest.mark.parametrize("schedule", [name for name in schedules.SCHEDULES if name not in RISING])
def test_no_warmup_starts_at_the_top(schedule):
  assert schedule_at([0], schedule=schedule, learning_rate=0.3) == pytest.approx([0.3])


def test_the_slanted_triangle_is_ulmfits():
  """The formula of Howard & Ruder (2018): a tenth of the steps up from 1/32 of the peak, then linear down."""
  values = schedule_at(range(0, 101, 10), num_steps=100, schedule="slanted_triangle", learning_rate=3.2)
  np.testing.assert_allclose(values[:3], [0.1, 3.2, 3.2 * (1 + (8 / 9) * 31) / 32], rtol=1e-5)
  np.testing.assert_allclose(values[5::5], [3.2 * (1 + (5 / 9) * 31) / 32, 0.1], rtol=1e-5)


@pytest.mark.parametrize(("shape", "middle"), [("linear", 0.55), ("1-sqrt", 1 - 0.9 * 0.5**0.5)])
def test_wsd_is_stable_until_it_decays(shape, middle):
  """Up in ten steps, constant until step 80, then down to the final ratio in twenty."""
  fields = dict(schedule="wsd", decay_shape=shape, learning_rate=1.0, warmup_steps=10, end_lr_fraction=0.1)
  values = schedule_at([0, 9, 10, 79, 80, 90, 100, 500], num_steps=100, **fields)
  np.testing.assert_allclose(values, [0.1, 1.0, 1.0, 1.0, 1.0, middle, 0.1, 0.1], rtol=1e-5)


@pytest.mark.slow
def test_one_cycle_goes_up_and_down_by_cosines():
  """From 1/25 of the peak, half of the peak after half of the rise, and a hundredth at the end."""
  fields = dict(
    schedule="one_cycle", warmup_fraction=0.3, init_lr_divisor=25.0, end_lr_fraction=0.01, learning_rate=1.0
  )
  values = schedule_at([0, 15, 30, 65, 100], num_steps=100, **fields)
  np.testing.assert_allclose(values, [0.04, 0.52, 1.0, 0.505, 0.01], rtol=1e-5)


@pytest.mark.parametrize("schedule", RISING)
def test_a_rise_within_a_step_is_one_step(schedule):
  """A run of three steps has no tenth; its rates are still finite."""
  assert schedule_at([1], num_steps=3, schedule=schedule, learning_rate=0.5) == pytest.approx([0.5])


def test_lion_is_the_sign_of_what_it_remembers():
  """The paper's algorithm: sign(b1 m + (1 - b1) g), and only then m = b2 m + (1 - b2) g."""
  tx, _ = optimizers.make_optimizer(toy.optimizer_config(name="lion", b1=0.5, b2=0.9, weight_decay=0.1), 10)
  # 1 - 0.1 (1 + 0.1), then m is 0.2: 0.1 - 0.05 is above 0, then m is 0.17: 0.085 - 0.5 is below.
  updated = run(tx, {"a": jnp.array(1.0)}, [{"a": jnp.array(x)} for x in (2.0, -0.1, -1.0)])
  np.testing.assert_allclose(updated["a"], ((0.89 * 0.99 - 0.1) * 0.99) + 0.1, rtol=1e-6)


def test_stable_adamw_is_the_papers_on_each_layer():
  """Three steps equal algorithm 2 of Wortsman et al. (2023) on each layer of a stack."""
  params, gradients = three_steps()
  fields = dict(learning_rate=0.1, b1=0.8, b2=0.9, epsilon=1e-6, weight_decay=0.3)
  tx, _ = optimizers.make_optimizer(toy.optimizer_config(name="stable_adamw", **fields), 10)
  updated = toy.flat(unstacked(run(tx, params, gradients)))
  slowest = 1.0
  for name, param in toy.flat(unstacked(params)).items():
    v = u = 0.0
    for t, g in enumerate((toy.flat(unstacked(g))[name].astype(np.float64) for g in gradients), start=1):
      v, u = 0.8 * v + 0.2 * g, 0.9 * u + 0.1 * g**2
      corrected = u / (1 - 0.9**t)
      rate = 0.1 / max(1.0, rms(g / np.sqrt(np.maximum(corrected, 1e-12))))
      slowest = min(slowest, rate)
      param = param - rate * (0.3 * param + v / (1 - 0.8**t) / (np.sqrt(corrected) + 1e-6))
    np.testing.assert_allclose(updated[name], param, rtol=1e-3, atol=1e-4 * rms(param), err_msg=name)
  assert slowest < 0.08  # it was slowed in some step


def test_weight_decay_spares_what_it_is_told_to():
  """A decayed parameter shrinks by learning rate * decay, although its gradient is zero."""
  params = {"mlp": {"up": jnp.ones(3)}, "mlp_norm": {"scale": jnp.ones(3)}}
  tx, _ = optimizers.make_optimizer(toy.optimizer_config(weight_decay=0.5, no_decay=("norm",), learning_rate=0.1), 10)
  updated = run(tx, params, [jax.tree.map(jnp.zeros_like, params)])
  np.testing.assert_allclose(updated["mlp"]["up"], 0.95)
  np.testing.assert_allclose(updated["mlp_norm"]["scale"], 1.0)


def test_gradients_are_clipped_by_their_norm_together():
  """Norm 5 becomes norm 1 in the same direction; a smaller norm stays."""
  tx, _ = optimizers.make_optimizer(toy.optimizer_config(clip_norm=1.0, learning_rate=1.0), 10)
  params = {"a": jnp.zeros(()), "decoder": {"layers": {"b": jnp.zeros(1)}}}
  gradient = lambda a, b: {"a": jnp.array(a), "decoder": {"layers": {"b": jnp.array([b])}}}
  toy.assert_trees_close(run(tx, params, [gradient(3.0, 4.0)]), gradient(-0.6, -0.8))
  toy.assert_trees_close(run(tx, params, [gradient(0.3, 0.4)]), gradient(-0.3, -0.4))


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    (
      {"name": "adafctor"},
      "config.optimizer.name='adafctor': unknown. Give one of adafactor, adagrad, adamw, .*, stable_adamw; did you mean"
      " adafactor?",
    ),
    ({"schedule": "cosin"}, "config.optimizer.schedule='cosin'.*did you mean cosine?"),
    (
      {"name": "?"},
      r"adafactor, adagrad, adamw, lamb, lion, muon, schedule_free_adamw, sgd, stable_adamw\.$",
    ),
    ({"learning_rate": -1.0}, "config.optimizer.learning_rate=-1.0 must be at least 0.0"),
    ({"learning_rate": math.nan}, "config.optimizer.learning_rate=nan must be at least 0.0"),
    ({"clip_norm": math.inf}, "config.optimizer.clip_norm=inf must be at least 0.0"),
    ({"b2": 1.5}, "config.optimizer.b2=1.5 must be from 0.0 to 1.0"),
    ({"init_lr_divisor": 0.5}, "config.optimizer.init_lr_divisor=0.5 must be at least 1.0"),
    (
      {"decay_shape": "sqrt"},
      "config.optimizer.decay_shape='sqrt': unknown. Give one of linear, 1-sqrt; did you mean 1-sqrt?",
    ),
    (
      {"schedule": "wsd", "warmup_steps": 9},
      "decay_fraction=0.2: the decay would begin at step 8 of 10, within the warm",
    ),
    ({"muon_iterations": 0}, "config.optimizer.muon_iterations=0 must be from 1 to 20"),
  ],
)
def test_what_cannot_be_used_is_refused(fields, message):
  """The message lists the known values, and the nearest if one is near, or the valid range."""
  with pytest.raises(UserError, match=message):
    optimizers.make_optimizer(toy.optimizer_config(**fields), 10)


PARAMS = {"encoder": {"layers": {"up": 1, "down": 2}, "norm": 3}, "decoder": {"layers": {"up": 4}}, "embed": 5}
PATHS = sorted(toy.flat(PARAMS))


@settings(deadline=None)
@given(strategies.sets(strategies.sampled_from(PATHS), max_size=len(PATHS) - 1))
def test_frozen_and_trained_join_to_the_whole(frozen_paths):
  """For all frozen patterns, the two parts are disjoint and together are all parameters."""
  trained, frozen = split_frozen(PARAMS, tuple(f"^{path}$" for path in frozen_paths))
  assert set(toy.flat(frozen)) == frozen_paths
  assert set(toy.flat(trained)) == set(PATHS) - frozen_paths
  assert toy.flat(join_frozen(trained, frozen)) == toy.flat(PARAMS)


@pytest.mark.parametrize(
  ("patterns", "message"),
  [
    (("enocder",), "'enocder' matches no parameter. Parameters: decoder/layers/up"),
    (("",), "every parameter is frozen, so nothing is trained"),
  ],
)
def test_freezing_nothing_or_everything_is_refused(patterns, message):
  """A pattern without a match is probably a typing error."""
  with pytest.raises(UserError, match=message):
    split_frozen(PARAMS, patterns)


def test_rates_fall_towards_the_embedding():
  """By one power per layer, as in ELECTRA's code: 2 for the last layer, one more than layers for the first."""
  params = {
    "embed": {"table": np.ones(3, np.float32)},
    "encoder": {"layers": {"mlp": np.ones((4, 2), np.float32)}, "final_norm": np.ones(2, np.float32)},
    "heads": {"sure": np.ones(2, np.float32)},
  }
  config = toy.optimizer_config(learning_rate=1.0, layer_decay=0.5)
  tx, _ = optimizers.make_optimizer(config, 10, num_layers=4)
  updates, _ = tx.update(params, tx.init(params), params)
  found = {path: np.unique(-np.asarray(x)).tolist() for path, x in traverse_util.flatten_dict(updates, sep="/").items()}
  assert found == {
    "embed/table": [0.5**6],
    "encoder/layers/mlp": [0.5**5, 0.5**4, 0.5**3, 0.5**2],
    "encoder/final_norm": [1.0],
    "heads/sure": [1.0],
  }


def test_layers_that_are_one_have_one_rate():
  """ALBERT's layers share their parameters."""
  config = records(load_config("albert_base")).with_(optimizer={"layer_decay": 0.9})
  with pytest.raises(UserError, match=r"config.optimizer.layer_decay=0.9: all layers share their parameters"):
    recipe.make(config)
