"""Parameter groups, and the effect of each setting on a model with a few parameters."""

import dataclasses
import functools
import json

from flax import nnx
from hypothesis import given, settings, strategies
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toy
import trained

from t2t import UserError, sharding
from t2t import __main__ as command
from t2t.configuration.loading import load_config, override, records
from t2t.models import transformer
from t2t.param_tree import split_frozen
from t2t.training import l2_sp, optimizers, param_groups, recipe, schedule_free

ONES = {"embed": 1.0, "encoder": {"layers": {"up": np.ones(2)}}, "heads": {"sure": 1.0}}


def run(*rules, steps, gradient=1.0, ones=ONES, **fields):
  """Returns parameters that start as ones after each step, path -> [steps, ...], and the final optimizer state."""
  config = toy.optimizer_config(**(dict(learning_rate=1.0, param_groups=rules) | fields))
  tx, _ = optimizers.make_optimizer(config, 100, num_layers=2)
  params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), ones)
  state, update, found = tx.init(params), jax.jit(tx.update), []
  for _ in range(steps):
    updates, state = update(jax.tree.map(lambda x: jnp.full_like(x, gradient), params), state, params)
    params = optax.apply_updates(params, updates)
    found.append(toy.flat(params))
  return {path: np.array([step[path] for step in found]) for path in found[0]}, state


def test_rates_are_discriminative():
  """ULMFiT's: each layer has the rate of the layer above divided by 2.6, and heads have their own rule."""
  found, _ = run(".: depth=0.5", "heads: rate=0.25", steps=2)
  np.testing.assert_allclose(found["heads/sure"], [0.75, 0.5])
  np.testing.assert_allclose(found["encoder/layers/up"], [[0.75, 0.5], [0.5, 0.0]])
  np.testing.assert_allclose(found["embed"], [0.875, 0.75])


@pytest.mark.parametrize("name", ["adamw", "lion", "adafactor"])
def test_only_the_last_layers_are_trained(name):
  """`top` changes neither weights below by gradient nor by decay, and combines with other rates."""
  found, _ = run("layers: top=1", name=name, weight_decay=0.5, steps=3)
  np.testing.assert_array_equal(found["encoder/layers/up"][:, 0], [1, 1, 1])
  assert np.all(np.diff(found["encoder/layers/up"][:, 1], prepend=1.0) != 0) and np.all(found["embed"] != 1)
  alike, _ = run("layers: top=2", name=name, weight_decay=0.5, steps=3)
  for path, value in run(name=name, weight_decay=0.5, steps=3)[0].items():
    np.testing.assert_array_equal(alike[path], value)
  halved, _ = run("layers: top=1 depth=0.5", steps=1)
  np.testing.assert_allclose(halved["encoder/layers/up"], [[1.0, 0.5]])


def test_a_rule_of_its_own_takes_the_place_of_layer_decay():
  """`layer_decay` counts one more layer, as ELECTRA's code; it does not apply to parameters with a depth rule."""
  found, _ = run("embed: depth=1.0 rate=0.5", layer_decay=0.5, steps=1)
  np.testing.assert_allclose(found["encoder/layers/up"], [[1 - 0.5**3, 1 - 0.5**2]])
  np.testing.assert_allclose((found["embed"], found["heads/sure"]), [[0.5], [0.0]])


def test_layers_are_unfrozen_from_the_last():
  """Heads first, the last layer two steps later, the first after two more; there is no decay before."""
  found, _ = run(".: unfreeze_every=2", "embed: from_step=1", steps=6, gradient=0.0, weight_decay=0.5)
  np.testing.assert_allclose(found["heads/sure"], 0.5 ** np.arange(1, 7))
  np.testing.assert_allclose(found["encoder/layers/up"][:, 1], [1, 1, 0.5, 0.25, 0.125, 0.0625])
  np.testing.assert_allclose(found["encoder/layers/up"][:, 0], [1, 1, 1, 1, 0.5, 0.25])
  np.testing.assert_allclose(found["embed"], 1.0)  # from step 1 + 3 * 2


def test_layers_settle_from_the_first():
  """The first layer and the embeddings have a tenth of the rate after two steps, the last layer after four."""
  found, _ = run(".: settle_every=2", steps=5, gradient=0.1)
  full = 1 - 0.1 * np.arange(1, 6)
  np.testing.assert_allclose(found["heads/sure"], full, rtol=1e-6)
  first = [0.9, 0.8, 0.79, 0.78, 0.77]
  np.testing.assert_allclose(found["encoder/layers/up"][:, 0], first, rtol=1e-6)
  np.testing.assert_allclose(found["embed"], first, rtol=1e-6)
  np.testing.assert_allclose(found["encoder/layers/up"][:, 1], [*full[:4], 0.59], rtol=1e-6)


def test_layers_of_mobilebert_settle_after_their_stage():
  """Each stage trains one layer at the rate of the run, and the layers below at a tenth of the rate."""
  config = load_config("mobilebert_distilled_transfer")
  shapes = {"student/encoder/layers/up": (24, 1), "student/embed/table": (1, 1), "projections/encoder_hidden": (1, 1)}
  rules = toy.optimizer_config(param_groups=tuple(config.optimizer.param_groups))
  found = param_groups.settling(rules, shapes, 24)
  ends = np.cumsum([stage["steps"] for stage in config.stages])
  assert [stage["distillation.layers"] for stage in config.stages] == [(f"{n}:{n}",) for n in range(24)]
  assert found.keys() == {"student/encoder/layers/up", "student/embed/table"}
  np.testing.assert_array_equal(found["student/encoder/layers/up"], ends)
  assert found["student/embed/table"] == ends[0]


ADAPTIVE = [name for name in optimizers.OPTIMIZERS if name not in ("sgd", schedule_free.NAME)]  # begin late


@pytest.mark.parametrize("name", ADAPTIVE)
def test_what_begins_late_begins_afresh(name):
  """Its first updates equal those at the start of a run: moments and counts start late."""
  fields = dict(name=name, learning_rate=0.1, gradient=0.5, weight_decay=0.1, b2=0.9)
  always, _ = run(steps=3, **fields)
  late, _ = run("layers|embed: from_step=4", steps=7, **fields)
  for path in ("encoder/layers/up", "embed"):
    np.testing.assert_array_equal(late[path][:4], 1.0)
    np.testing.assert_allclose(late[path][4:], always[path], rtol=1e-6, err_msg=path)


@pytest.mark.parametrize("name", ADAPTIVE)
def test_layers_count_where_another_part_of_the_optimizer_has_them(name):
  """Muon has the stack's matrices, and Adam the embeddings, which start after both layers."""
  ones = ONES | {"encoder": {"layers": {"up": np.ones((2, 2, 2))}}}
  fields = dict(name=name, learning_rate=0.1, gradient=0.5, b2=0.9, ones=ones)
  always, _ = run(steps=2, **fields)
  late, _ = run(".: unfreeze_every=2", steps=8, **fields)
  np.testing.assert_array_equal(late["embed"][:6], 1.0)
  np.testing.assert_allclose(late["embed"][6:], always["embed"], rtol=1e-6)


def test_layers_that_are_frozen_count():
  """Parameters below two frozen layers have the third power, although the optimizer sees neither layer."""
  found, _ = run(".: depth=0.5", ones={name: ONES[name] for name in ("embed", "heads")}, steps=1)
  np.testing.assert_allclose((found["embed"], found["heads/sure"]), [[0.875], [0.0]])


@pytest.mark.parametrize("kind", toy.KINDS)
def test_a_model_says_how_deep_it_is(kind):
  """From its parameters; a stack with a single layer has no number."""
  config = toy.KINDS[kind]
  params = nnx.to_pure_dict(nnx.split(jax.eval_shape(lambda: transformer.build(config, nnx.Rngs(0))), graph=False)[1])
  assert config.deepest_stack == param_groups.deepest({path: x.shape for path, x in toy.flat(params).items()})


def test_gradients_of_what_waits_are_not_clipped_with():
  """The global norm excludes the three parameters that wait, so it is 1 instead of 2."""
  found, _ = run("layers|embed: from_step=9", steps=1, clip_norm=1.0)
  np.testing.assert_allclose(found["heads/sure"], [0.0])


def test_decay_of_its_own():
  """Overrides also parameters in `no_decay`, and 0 disables it; other parameters have the config's decay."""
  rules = ("heads: decay=0.25", "layers: decay=0")
  found, _ = run(*rules, steps=1, gradient=0.0, weight_decay=0.5, no_decay=("heads",))
  np.testing.assert_allclose(found["heads/sure"], [0.75])
  np.testing.assert_allclose(found["encoder/layers/up"], [[1.0, 1.0]])
  np.testing.assert_allclose(found["embed"], [0.5])


def test_an_anchor_is_the_gradient_of_its_penalty():
  """Equal to autodiff of loss + 0.3 / 2 * |parameter - initial|**2; other parameters have no anchor."""
  found, state = run("layers: anchor=0.3", steps=4, gradient=0.25)
  now = first = jnp.ones(2)
  penalised = jax.grad(lambda x: jnp.sum(0.25 * x) + 0.3 / 2 * jnp.sum((x - first) ** 2))
  for step in range(4):
    now = now - penalised(now)
    np.testing.assert_allclose(found["encoder/layers/up"][step], now, rtol=1e-6)
  np.testing.assert_allclose(found["embed"], [0.75, 0.5, 0.25, 0.0])
  kept = [x for x in jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, l2_sp.Anchors)) if isinstance(x, tuple)]
  assert any(isinstance(x, l2_sp.Anchors) and list(x.initial) == ["encoder/layers/up"] for x in kept)


def test_later_rules_win_setting_by_setting():
  """The first rule's decay stays, but not its rate."""
  found, _ = run(".: rate=0.25 decay=0.5", "embed: rate=0.5", steps=1, gradient=0.0)
  np.testing.assert_allclose(found["heads/sure"], [1 - 0.25 * 0.5])
  np.testing.assert_allclose(found["embed"], [1 - 0.5 * 0.5])


@pytest.mark.parametrize("name", optimizers._WITH_FIRST_MOMENT)
def test_first_moments_may_be_halved(name):
  """Only of matching parameters, without second moments; one step of an exact momentum is equal."""
  fields = dict(name=name, steps=1, gradient=0.5, b1=0.5, b2=0.5, learning_rate=0.1)
  plain, _ = run(**fields)
  found, state = run("layers: moments=bfloat16", **fields)
  assert (
    {path for path, x in toy.flat(state).items() if x.dtype == jnp.bfloat16}
    == {path for path in toy.flat(state) if "mu" in path.split("/") and path.endswith("encoder/layers/up")}
    != set()
  )
  toy.assert_trees_close(found, plain)


def test_an_optimizer_without_first_moments_cannot_halve_them():
  with pytest.raises(
    UserError,
    match="'moments', but .*adafactor keeps no first moment. Leave 'moments' out, or use one of adamw, lamb, lion",
  ):
    run(".: moments=bfloat16", name="adafactor", steps=1)


@pytest.mark.parametrize(
  ("rules", "message"),
  [
    (("embed",), "'embed': not a rule. Give PATTERN: SETTING"),
    (("embed:",), "'embed:': not a rule. Give PATTERN: SETTING"),
    (("(: frozen",), r"'\(' is not a valid regular expression"),
    (("(?i)EMBED: frozen",), r"'\(\?i\)EMBED' is not a valid regular expression \(global flags"),
    (("embed: frosen",), "unknown setting 'frosen'. Give one of frozen, .*; did you mean frozen?"),
    (
      ("embed: rate=0",),
      "'rate=0' is not valid. Give a factor on the learning rate, above 0; use frozen to disable training",
    ),
    (("embed: rate=nan",), "'rate=nan' is not valid. Give a factor"),
    (("embed: rate",), "'rate' is not valid. Give a factor"),
    (("embed: depth=1.5",), "'depth=1.5' is not valid. Give a factor on the rate for each layer"),
    (("embed: from_step=1.5",), "'from_step=1.5' is not valid. Give the step, a whole number"),
    (("embed: frozen=",), "'frozen=' is not valid. Give frozen, or frozen=bfloat16"),
    (("embed: moments=float16",), "'moments=float16' is not valid. Give bfloat16 or float32"),
    (("embed: rate=0.1 rate=0.2",), "'rate' is set twice for 'embed'"),
    (("embed: rate=0.1", "embed: rate=0.2"), "'embed: rate=0.2': 'rate' is set twice for 'embed'"),
    (("embed: frozen rate=0.1",), "frozen parameters have no 'rate'"),
  ],
)
def test_what_is_no_rule_is_refused(rules, message):
  """With the line and a valid value."""
  with pytest.raises(UserError, match=f"config.optimizer.param_groups: .*{message}"):
    optimizers.make_optimizer(toy.optimizer_config(param_groups=rules), 10)


def tiny(*rules, **sections):
  config = records(override(load_config("tiny_t5"), ["--config.train.steps=10"]))
  sections["optimizer"] = sections.get("optimizer", {}) | {"param_groups": rules}
  return config.with_(**sections)


@pytest.mark.parametrize(
  ("rules", "message"),
  [
    (("enocder: rate=0.1",), "'enocder' matches no parameter; did you mean encoder?"),
    (("^encoder/layer/mlp: frozen",), "did you mean encoder/layers/mlp?"),
    (
      ("encoder: frozen", "encoder/layers: rate=0.1"),
      "'encoder/layers: rate=0.1': the rule matches no trained .* of .*'encoder: frozen'",
    ),
    (("encoder: frozen", "enc: trained"), "'encoder: frozen': the rule has no effect, because later rules undo"),
    (("^embed: frozen", "embed/table: anchor=0.1"), "'embed/table: anchor=0.1': the rule matches no trained parameter"),
    (("encoder/norm: depth=0.5",), "'depth' counts layers, but .*encoder/norm/scale is in no layer"),
    (("encoder: from_step=10",), "encoder/.* would be trained from step 10, but config.train.steps=10"),
    (("encoder: unfreeze_every=5",), "encoder/.* would be trained from step 15"),
  ],
)
def test_rules_that_do_not_fit_the_model_are_refused(rules, message):
  """Before any computation, with the nearest name or the contradicting rule."""
  with pytest.raises(UserError, match=message):
    _ = recipe.make(tiny(*rules)).freeze


@pytest.mark.parametrize("name", ["settle_every=2", "unfreeze_every=2", "depth=0.5", "top=1"])
def test_rules_that_count_layers_refuse_layers_without_a_number(name):
  """A shared layer has no number; experts that alternate with other layers have no own number from the bottom."""
  config = tiny(f".: {name}")
  check = functools.partial(param_groups.check, config, never=())
  with pytest.raises(UserError, match="encoder/layer/mlp/up is of one layer that is used several times"):
    check({"encoder/layer/mlp/up": (8, 8), "embed/table": (8, 8)})
  alternating = {"encoder/layers/norm": (4, 8), "encoder/layers/mlp/moe/layers/up": (2, 8, 8)}
  if not name.startswith("settle"):
    return check(alternating)
  with pytest.raises(UserError, match=r"encoder/layers/mlp/moe/layers/up is of layers that alternate"):
    check(alternating)
  return param_groups.check(tiny("^(?!.*/mlp/): settle_every=2"), alternating, never=())


def test_the_key_of_old_is_a_rule():
  """`config.train.freeze` freezes as the table does; a rule may contradict it or undo a part."""
  made = recipe.make(tiny("^encoder: frozen"))
  assert made.freeze == recipe.make(tiny(train={"freeze": ("^encoder",)})).freeze
  with pytest.raises(
    UserError, match="'mlp: rate=0.1': the rule matches no trained .* because of config.train.freeze: 'layers'"
  ):
    _ = recipe.make(tiny("mlp: rate=0.1", train={"freeze": ("layers",)})).freeze
  back = recipe.make(tiny("mlp: trained", train={"freeze": ("^encoder",)}))
  params = {"encoder": {"layers": {"mlp": 1, "norm": 2}}, "decoder": 3}
  assert split_frozen(params, back.freeze)[1] == {"encoder": {"layers": {"norm": 2}}}


PARTS = ("embed", "encoder/layers/mlp/up", "encoder/layers/norm", "decoder/layers/mlp/up")
RULES = strategies.tuples(strategies.sampled_from(("^e", "mlp", "layers", ".")), strategies.booleans())


@settings(deadline=None)
@given(strategies.lists(RULES, max_size=5, unique=True))
def test_the_last_rule_that_matches_decides_what_is_frozen(rules):
  """Independent of earlier rules."""
  lines = tuple(f"{pattern}: {'frozen' if frozen else 'trained'}" for pattern, frozen in rules)
  config = dataclasses.replace(TINY(), optimizer=toy.optimizer_config(param_groups=lines))
  patterns = param_groups.frozen_patterns(config)
  for path in PARTS:
    last = [frozen for pattern, frozen in rules if optimizers.matches((pattern,), path)]
    assert optimizers.matches(patterns, path) == bool(last and last[-1]), path


TINY = functools.cache(tiny)


def test_what_is_frozen_may_be_held_in_half_the_memory():
  """In bfloat16, in the run's state and in a plan; trained parameters stay float32."""
  mesh = sharding.make_mesh({"data": 1}, devices=jax.devices()[:1])
  size = lambda tree: sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
  with jax.set_mesh(mesh):
    whole, half = (
      recipe.make(tiny(f"^encoder: {how}", "encoder/norm: trained")).state(mesh)[1]
      for how in ("frozen", "frozen=bfloat16")
    )
  assert size(half.params) == size(whole.params)
  assert 2 * size(half.frozen_params) == size(whole.frozen_params) > 0
  assert "encoder/norm/scale" in toy.flat(half.params)


@pytest.mark.exhaustive
def test_training_begins_from_what_a_checkpoint_gave():
  """Anchors are the checkpoint's parameters, and distances are logged by layer."""
  config = tiny("decoder: frozen", optimizer={"log_distance": True}, train={"batch_size": 2})
  config = config.with_(data={"inputs_length": 16, "targets_length": 16}, model={"vocab_size": 64})
  made, mesh = recipe.make(config), sharding.make_mesh({"data": 1}, devices=jax.devices()[:1])
  with jax.set_mesh(mesh):
    program = made.build(mesh)
    params = jax.tree.map(lambda x: x + 1, program.init()(jax.random.key(1)))
    taken = recipe.join_frozen(params.params, params.frozen_params)
    expected = toy.flat(jax.tree.map(np.asarray, params.params))
    state = program.init_from_params()(taken, jax.random.key(0))
    found = [x for x in jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, l2_sp.Anchors))]
    (kept,) = (x for x in found if isinstance(x, l2_sp.Anchors))
    assert kept.initial.keys() == expected.keys()
    for path, x in kept.initial.items():
      np.testing.assert_array_equal(x, expected[path])
    batch = {name: jnp.ones(x.shape, x.dtype) for name, x in recipe.batch(config).items()}
    state, metrics = program.train_step(state, batch, jax.random.key(0))
  told = {name: float(x.value()) for name, x in metrics.items() if name.startswith("distance/")}
  layers = [f"distance/encoder/{layer}" for layer in range(config.model.num_encoder_layers)]
  assert {*layers, "distance/encoder", "distance/embed"} <= told.keys()
  assert not any("decoder" in name for name in told)
  now = toy.flat(state.params)["embed/table"]
  assert told["distance/embed"] == pytest.approx(np.linalg.norm(now - expected["embed/table"]), rel=1e-5)
  assert all(value > 0 for name, value in told.items())


def test_rules_are_typed_and_read_again():
  """Rules from the help and from config.json parse alike."""
  typed = "--config.optimizer.param_groups=^embed: frozen,encoder/layers: rate=0.1 depth=0.9 from_step=3,.: anchor=0.01"
  config = records(override(load_config("tiny_t5"), [typed, "--config.train.steps=10"]))
  assert config.optimizer.param_groups == (
    "^embed: frozen",
    "encoder/layers: rate=0.1 depth=0.9 from_step=3",
    ".: anchor=0.01",
  )
  assert recipe.make(config).freeze == ("^embed",)


@pytest.mark.exhaustive
def test_a_run_that_keeps_near_its_start_goes_on(tmp_path):
  """Started from a checkpoint and interrupted: losses and distances equal an uninterrupted run's, bit for bit."""
  rules = "^embed: frozen=bfloat16,layers: anchor=0.5 depth=0.9,decoder/layers: from_step=1 moments=bfloat16"

  def train(workdir, steps):
    options = (
      f"--config.train.steps={steps}",
      "--config.optimizer.name=adamw",
      f"--config.optimizer.param_groups={rules}",
    )
    start = f"--config.init.checkpoint={trained.workdir('encoder_decoder')}"
    assert command.main([*trained.arguments("encoder_decoder", workdir), *options, start]) == 0
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]

  names = [f"train/{name}" for name in ("distance/encoder/0", "distance/decoder/0", "loss")]
  told = lambda rows: [[row[name] for name in names] for row in rows if names[0] in row]
  for steps in (2, 4):
    parts = train(tmp_path / "parts", steps)
  assert told(parts) == told(train(tmp_path / "whole", 4))
  encoder, decoder, _ = zip(*told(parts), strict=True)
  assert all(x > 0 for x in encoder) and [x > 0 for x in decoder] == [False, True, True, True]
  assert "train/distance/embed" not in parts[0]


def test_tables_of_ids_are_not_halved():
  """A table of integers keeps its numbers under frozen=bfloat16."""
  params = {"embed": {"characters": jnp.full((2, 2), 259), "cnn": jnp.ones((2, 2))}, "layer": jnp.ones(2)}
  _, frozen = split_frozen(params, ("embed",), halved=("embed",))
  assert frozen["embed"]["cnn"].dtype == jnp.bfloat16 and frozen["embed"]["characters"].tolist() == [[259] * 2] * 2
