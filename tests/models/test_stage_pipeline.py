import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import UserError, losses, sharding
from t2t.configuration.loading import load_config, override, records
from t2t.losses import AuxiliaryTerms
from t2t.models import adapters as adapters_lib
from t2t.models import config as config_lib
from t2t.models import stage_pipeline, transformer
from t2t.models.auxiliary import CARRIED, Auxiliary, Hidden
from t2t.models.feed_forward import Mlp
from t2t.models.stage_pipeline import Schedule
from t2t.training import optimizers, recipe, train_state, train_step

LENGTHS = (8, 3, 5, 7, 2, 8, 4, 6), (6, 2, 1, 4, 5, 3, 2, 6)


def of_depth(config, depth: int = 4, **fields):
  """Returns the config with stacks of this depth."""
  depths = {f"num_{side}_layers": depth for side in config.kind.sides}
  return dataclasses.replace(config, **depths, **fields)


def loss_and_gradient(config, mesh_sizes: dict[str, int], *, dropout_key=None, adapters=None, features=None, parts=1):
  """Returns the loss of eight rows with the layers' terms, the gradient of every parameter, and new states, on a mesh.

  Args:
    config: of the model.
    mesh_sizes: of the mesh.
    dropout_key: of the model.
    adapters: of the model, with random parameters.
    features: of the batch, besides tokens.
    parts: microbatches whose terms and gradients are summed, as the pipeline's are.
  """

  def build():
    rngs = nnx.Rngs(toy.key())
    return adapters_lib.adapt(transformer.build(config, rngs), adapters or {}, rngs)

  graphdef, params = toy.split(jax.jit(build)())
  # Adapters begin at zero, where gradients of other parameters vanish.
  params = jax.tree.map(lambda x: x + 0.05 * jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape), params)
  batch = toy.batch(*LENGTHS, architecture=config.architecture) | (features or {})
  auxiliary = AuxiliaryTerms(config, config.kind.sides, adapters_lib.positions(adapters or {}, computed=True))
  loss = losses.CrossEntropy(toy.loss_config(), auxiliary)
  devices = jax.devices()[: int(np.prod(list(mesh_sizes.values())))]
  mesh = sharding.make_mesh(mesh_sizes, devices=devices)
  with jax.set_mesh(mesh):
    params = jax.device_put(params, sharding.param_shardings(nnx.split(jax.eval_shape(build), graph=False)[1], mesh))
    batch = jax.device_put(batch, sharding.batch_sharding(mesh))
    weights = {name: jnp.ones(()) for name in loss.weights(batch)}

    def of_rows(params, rows):
      terms, outputs = loss(nnx.merge(graphdef, params), rows, weights, key=dropout_key, train=True)
      return sum(terms.values()), {name: x for name, x in outputs.items() if name.startswith(CARRIED)}

    step = jax.jit(jax.value_and_grad(of_rows, has_aux=True))
    outputs = [step(params, {name: x[part::parts] for name, x in batch.items()}) for part in range(parts)]
    values, gradients = zip(*jax.device_get(outputs), strict=True)
    total = sum(loss for loss, _ in values)
    return total, jax.tree.map(lambda *x: sum(x), *gradients), values[0][1]


def assert_same(actual, expected):
  """Asserts that losses, gradients and states agree."""
  np.testing.assert_allclose(actual[0], expected[0], rtol=1e-5)
  toy.assert_trees_close(actual[1], expected[1], atol=1e-4, rtol=1e-4)
  toy.assert_trees_close(actual[2], expected[2], atol=1e-4, rtol=1e-4)


# ---- Schedules -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("rounds", [1, 2, 3])
@pytest.mark.parametrize("microbatches", [1, 2, 3, 4, 8])
def test_every_microbatch_passes_all_stages_in_order(stages, rounds, microbatches):
  """A stage has one microbatch in a tick, and each step of a microbatch follows the one before."""
  plan = Schedule(stages, rounds, microbatches)
  ticks = plan.tick_of
  for stage in range(stages):
    assert len(np.unique(ticks[stage])) == rounds * microbatches
    for turn in range(rounds):
      np.testing.assert_array_equal(plan.round_at[ticks[stage, turn], stage], turn)
      np.testing.assert_array_equal(plan.microbatch_at[ticks[stage, turn], stage], np.arange(microbatches))
  assert (np.diff(ticks, axis=0) == 1).all()  # the results move to the next stage in one tick
  assert (ticks[0, 1:] > ticks[-1, :-1]).all()
  assert ticks.max() == plan.ticks - 1


def test_the_bubble_by_hand():
  """GPipe idles in S - 1 of M + S - 1 ticks; rounds shorten the ticks, so that the bubble shrinks."""
  assert Schedule(4, 1, 8).bubble == pytest.approx(3 / 11)
  assert Schedule(4, 2, 8).bubble == pytest.approx(3 / 19)
  assert Schedule(1, 1, 8).bubble == 0
  assert Schedule(4, 2, 1).ticks == 8  # a microbatch alone passes four stages twice


def test_the_number_of_microbatches():
  """The largest divisor of the rows, up to the config's number or four per stage."""
  choose = lambda number, rows: stage_pipeline.schedule(toy.config(pipeline_microbatches=number), rows, 2).microbatches
  assert [choose(0, rows) for rows in (1, 7, 12, 32)] == [1, 7, 6, 8]
  assert [choose(4, rows) for rows in (1, 6, 12)] == [1, 3, 4]


# ---- Equality --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize(
  ("kind", "mesh", "microbatches", "rounds", "remat"),
  [
    ("llama", {"stage": 2}, 2, 1, "none"),
    ("t5_1_1", {"stage": 2, "data": 2}, 4, 2, "full"),
    ("t5_1_1", {"stage": 4}, 1, 1, "minimal"),
    ("t5_1_1", {"stage": 2, "fsdp": 2, "tensor": 2}, 4, 2, "none"),
    ("t5_1_1", {"stage": 2}, 1, 2, "none"),
    ("t5_1_1", {"stage": 4}, 8, 1, "query,key"),
    ("bert", {"stage": 2, "fsdp": 2, "tensor": 2}, 2, 1, "none"),
    ("bert", {"stage": 4, "tensor": 2}, 8, 1, "none"),
    ("mosaic_bert", {"stage": 2}, 8, 2, "none"),
    ("local_prefix_lm", {"stage": 2, "fsdp": 2, "tensor": 2}, 2, 2, "full"),
    ("local_prefix_lm", {"stage": 4, "data": 2}, 2, 1, "none"),
    ("llama", {"stage": 4, "fsdp": 2}, 4, 1, "none"),
    ("llama", {"stage": 2, "sequence": 2}, 2, 2, "none"),
    ("gemma", {"stage": 2}, 8, 1, "none"),
    ("bart", {"stage": 2}, 4, 2, "none"),
    ("shared_stacks", {"stage": 2}, 2, 2, "none"),
    ("llama", {"stage": 2}, 8, 1, "none"),
    ("t5_1_1", {"stage": 4}, 8, 1, "none"),
  ],
)
def test_a_pipeline_equals_one_device(kind, mesh, microbatches, rounds, remat):
  """Loss and gradients do not depend on stages, rounds and microbatches."""
  config = of_depth(toy.KINDS[kind], pipeline_microbatches=microbatches, pipeline_rounds=rounds, remat=remat, unroll=1)
  assert_same(loss_and_gradient(config, mesh), loss_and_gradient(config, {"data": 1}))


@pytest.mark.exhaustive
def test_one_microbatch_has_the_same_dropout():
  """Keys are the layers' own; with more microbatches each has its own keys."""
  config = of_depth(toy.KINDS["llama"], dropout_rate=0.2, pipeline_microbatches=1, unroll=1)
  one = loss_and_gradient(config, {"data": 1}, dropout_key=jax.random.key(3))
  assert_same(loss_and_gradient(config, {"stage": 2}, dropout_key=jax.random.key(3)), one)
  several = dataclasses.replace(config, pipeline_microbatches=2)
  assert loss_and_gradient(several, {"stage": 2}, dropout_key=jax.random.key(3))[0] != one[0]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  ("kind", "mesh", "fields"),
  [
    ("mixtral", {"stage": 2}, {}),
    ("mixtral", {"stage": 2, "expert": 2}, {}),
    ("mixtral", {"stage": 2, "expert": 2, "tensor": 2}, {"moe_capacity_factor": 1.0}),
    ("switch", {"stage": 2, "expert": 2}, {"moe_capacity_factor": 1.0}),
    ("moe_bert", {"stage": 2, "expert": 2}, {"moe_every": 2}),
  ],
)
def test_experts_in_a_pipeline(kind, mesh, fields):
  """Their balance is that of a pipeline's microbatch, as of an accumulated one; with both kinds of devices."""
  config = of_depth(toy.KINDS[kind], moe_balance_loss=0.1, moe_z_loss=0.01, unroll=1, **fields)
  actual = loss_and_gradient(dataclasses.replace(config, pipeline_microbatches=2), mesh)
  assert_same(actual, loss_and_gradient(config, {"data": 1}, parts=2))
  whole = loss_and_gradient(config, {"data": 1})
  assert abs(actual[0] - whole[0]) > 1e-4 * abs(whole[0])
  assert_same(loss_and_gradient(dataclasses.replace(config, pipeline_microbatches=1), mesh), whole)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["llama", "t5_1_1"])
@pytest.mark.parametrize(
  ("name", "section"),
  [
    ("lora", {"rank": 2}),
    ("houlsby", {"bottleneck": 4}),
    ("prefix", {"length": 2, "hidden": 4}),
    ("prompt", {"length": 2}),
    ("ia3", {}),
  ],
)
def test_adapters_in_a_pipeline(kind, name, section):
  """Their parameters have an axis of layers, or are learned positions before each row."""
  config = of_depth(toy.KINDS[kind], pipeline_microbatches=4, unroll=1)
  adapters = {name: adapters_lib.ADAPTERS[name].config(**section)}
  one = loss_and_gradient(config, {"data": 1}, adapters=adapters)
  assert_same(loss_and_gradient(config, {"stage": 2}, adapters=adapters), one)


@pytest.mark.exhaustive
def test_two_streams_of_blocks_in_a_pipeline():
  """Each row keeps the mask of its own texts, with clean and noisy tokens."""
  config = of_depth(toy.KINDS["mosaic_bert"], block_length=3, unroll=1)
  config = dataclasses.replace(config, pipeline_microbatches=4)
  features = {"encoder_noise_levels": np.full((8, 8), 2**19, np.int32)}
  one = loss_and_gradient(config, {"data": 1}, features=features)
  assert_same(loss_and_gradient(config, {"stage": 2}, features=features), one)


@pytest.mark.exhaustive_from(1)
@pytest.mark.slow
@pytest.mark.parametrize(
  ("kind", "mesh", "microbatches", "rounds"),
  [
    ("transformer_xl", {"stage": 2}, 2, 1),
    ("transformer_xl", {"stage": 4}, 8, 1),
    ("transformer_xl", {"stage": 2, "tensor": 2}, 4, 2),
    ("transformer_xl", {"stage": 2, "sequence": 2}, 2, 1),
    ("xlnet", {"stage": 2}, 4, 1),
  ],
)
def test_a_memory_in_a_pipeline(kind, mesh, microbatches, rounds):
  """Each row reads and returns the memory of its own text, partly empty, or empty if it continues nothing."""
  config = of_depth(toy.KINDS[kind], memory_length=12, unroll=1)
  config = dataclasses.replace(config, pipeline_microbatches=microbatches, pipeline_rounds=rounds)
  random, (side,) = np.random.default_rng(0), config.kind.sides
  states = random.normal(size=(8, 4, 12, config.embed_dim)).astype(np.float32)
  states[:3, :, :5] = 0
  features = {f"{CARRIED}{side}/memory": states, f"{side}_continues": np.array([[1]] * 6 + [[0]] * 2, np.int32)}
  if kind == "xlnet":
    features["encoder_ranks"] = np.stack([random.permutation(8) for _ in range(8)]).astype(np.int32)
  one = loss_and_gradient(config, {"data": 1}, features=features)
  assert one[2][f"{CARRIED}{side}/memory"].shape == states.shape
  assert_same(loss_and_gradient(config, mesh, features=features), one)


class Counting(Mlp):
  """An MLP that adds a carried state of the row and layer, and returns a term, a state and a new carried state."""

  reads_real = True

  def __call__(self, x, dropout_key=None, *, real=None, carried=None):
    if carried is not None:
      x = x + carried["mean"].astype(x.dtype)[:, None]
    mean = jnp.mean(x.astype(jnp.float32), axis=1)
    terms = {"squares": jnp.sum(jnp.where(real, jnp.sum(jnp.square(x), axis=-1), 0.0))}
    return Hidden(super().__call__(x, dropout_key), Auxiliary(terms, {"mean": mean}))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("microbatches", "rounds"), [(1, 1), (4, 1), (4, 2), (2, 2)])
def test_what_layers_return_besides_states(monkeypatch, microbatches, rounds):
  """Bubbles add nothing to terms; states, carried states and the states of every layer keep rows and layers."""
  monkeypatch.setitem(config_lib.FEED_FORWARD.rows, "counting", f"{__name__}:Counting")
  config = of_depth(toy.KINDS["bert"], 4, feed_forward="counting", dropout_rate=0.0, unroll=1)
  config = dataclasses.replace(config, pipeline_microbatches=microbatches, pipeline_rounds=rounds)
  model, batch = toy.model(config), toy.batch(*LENGTHS, architecture="encoder_only")
  batch["carried/encoder/mean"] = jax.random.normal(toy.key(), (8, 4, config.embed_dim))

  def outputs(mesh_sizes):
    mesh = sharding.make_mesh(mesh_sizes, devices=jax.devices()[:2] if "stage" in mesh_sizes else jax.devices()[:1])
    with jax.set_mesh(mesh):
      return jax.device_get(jax.jit(lambda model, batch: model.hidden_states(batch, every_layer=True))(model, batch))

  toy.assert_trees_close(outputs({"stage": 2}), outputs({"data": 1}), atol=1e-4, rtol=1e-4)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kind", "num_microbatches"), [("llama", 1), ("t5_1_1", 2)])
def test_a_step_with_copies_of_pipelines(kind, num_microbatches):
  """Copies sum their gradients once, and accumulated microbatches each pass the pipeline."""
  config = of_depth(toy.KINDS[kind], unroll=1)
  model, batch = toy.model(config), toy.batch(*LENGTHS, architecture=config.architecture)
  tx, _ = optimizers.make_optimizer(toy.optimizer_config(), 10)

  def step(mesh_sizes, number):
    devices = jax.devices()[: int(np.prod(list(mesh_sizes.values())))]
    mesh = sharding.make_mesh(mesh_sizes, devices=devices)
    graphdef, state, shardings = train_state.init_train_state(lambda _: model, tx, toy.key(), mesh)
    with jax.set_mesh(mesh):
      update = train_step.make_train_step(graphdef, toy.loss(), tx, shardings, num_microbatches=number)
      placed = jax.device_put(batch, sharding.batch_sharding(mesh))
      state, metrics = update(state, placed, toy.key())
    return jax.device_get(state.params), {name: float(metrics[name].value()) for name in ("loss", "grad_norm")}

  (params, metrics), expected = step({"stage": 2, "data": 2}, num_microbatches), step({"data": 1}, 1)
  toy.assert_trees_close(params, expected[0])
  toy.assert_trees_close(metrics, expected[1])


# ---- Inference -------------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["t5_1_1", "llama"])
def test_decoding_on_stages(kind):
  """Tokens written one by one do not depend on stages, whose layers each device gathers."""
  config = of_depth(toy.KINDS[kind], 4)
  model, batch = toy.model(config), toy.batch(*LENGTHS, architecture=config.architecture)
  prompts = {"decoder_input_tokens": batch["decoder_input_tokens"][:, :3]}
  prompts["decoder_causal_attention"] = jnp.ones((8, 3), jnp.int32)

  def decode(model, batch):
    tokens, state = model.start_decode(batch if kind == "t5_1_1" else prompts, 2)
    first, state = model.decode_step(tokens, state)
    return first, model.decode_step(jnp.argmax(first, axis=-1).astype(jnp.int32), state)[0]

  expected = jax.jit(decode)(model, batch)
  with jax.set_mesh(sharding.make_mesh({"stage": 4}, devices=jax.devices()[:4])):
    actual = jax.jit(decode)(model, batch)
  toy.assert_trees_close(jax.device_get(actual), jax.device_get(expected), atol=1e-4, rtol=1e-4)


# ---- Shardings and errors --------------------------------------------------------------------------------------------


def test_layers_lie_on_their_stages():
  """A matrix of a layer is split over its stages; the embedding, which all stages share, over stage and fsdp."""
  model = jax.eval_shape(lambda: transformer.build(of_depth(toy.config()), nnx.Rngs(0)))
  mesh = sharding.make_mesh({"stage": 2, "fsdp": 2, "tensor": 2})
  shardings = sharding.param_shardings(nnx.split(model, graph=False)[1], mesh)
  specs = {path: tuple(x.spec) for path, x in toy.flat(shardings).items()}
  assert specs["decoder/layers/mlp/up"] == ("stage", "fsdp", "tensor")
  assert specs["embed/table"] == ("tensor", ("fsdp", "stage"))
  assert sharding.num_shards("batch", mesh) == 4 and sharding.num_shards("microbatch", mesh) == 2


@pytest.mark.parametrize(
  ("overrides", "message"),
  [
    (
      ("model.num_encoder_layers=4", "model.num_decoder_layers=6", "mesh.stage=4"),
      r"config.mesh.stage=4 does not divide config.model.num_decoder_layers=6. Stages that work: \[1, 2\]",
    ),
    (
      ("model.num_encoder_layers=8", "model.num_decoder_layers=4", "mesh.stage=4", "model.pipeline_rounds=2"),
      r"stage=4 x config.model.pipeline_rounds=2 does not divide config.model.num_decoder_layers=4. .* \[1, 2\]",
    ),
    (
      ("model.num_encoder_layers=3", "model.num_decoder_layers=3", "mesh.stage=2", "model.pipeline_rounds=2"),
      "num_encoder_layers=3. Set config.model.pipeline_rounds=1",
    ),
    (("model.share_layers=True", "mesh.stage=2"), "config.mesh.stage=2: all layers share their parameters"),
    (
      ("mesh.stage=2", "model.pipeline_microbatches=3"),
      r"pipeline_microbatches=3 does not divide the 4 rows of config.train.batch_size .*one of \[1, 2, 4\]",
    ),
    (
      ("mesh.stage=2", "model.pipeline_microbatches=4", "eval.batch_size=8"),
      r"pipeline_microbatches=4 does not divide the 2 rows of config.eval.batch_size",
    ),
    (("mesh.stage=2", "train.batch_size=12"), r"8 batch shard\(s\) \(config.mesh.data \* .* \* config.mesh.stage\)"),
  ],
)
def test_a_pipeline_that_does_not_fit_is_refused(overrides, message):
  """Before compilation, with the keys and values that work."""
  base = ("model.num_encoder_layers=4", "model.num_decoder_layers=4", "train.batch_size=16", "eval.batch_size=16")
  config = records(override(load_config("tiny"), [f"--config.{text}" for text in (*base, "mesh.fsdp=4", *overrides)]))
  config = config.with_(mesh={"fsdp": 8 // config.mesh.stage})
  mesh = sharding.make_mesh(config.mesh.sizes)
  with pytest.raises(UserError, match=message):
    recipe.check_sizes(config, mesh)
