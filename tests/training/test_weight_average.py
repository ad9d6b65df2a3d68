"""Latest-weight averages and schedule-free AdamW: formulas, resuming, and the weights that readers take."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
import test_array_batches
import test_state_collections
import toy
import trained

import t2t
from t2t import UserError, sharding
from t2t import __main__ as command
from t2t.checkpoints import pretrained, restore, tensor_writer
from t2t.configuration import loading
from t2t.param_tree import flatten
from t2t.training import optimizers, recipe, schedule_free, state_collections

FREE = {"optimizer.name": "schedule_free_adamw", "optimizer.warmup_steps": 2, "optimizer.weight_decay": 0.1}


def test_lawa_is_the_mean_of_the_last_multiples():
  """Before the first multiple it is the parameters; afterwards the mean of at most the last ones."""
  last, every = 3, 2
  options = {"optimizer.average": "lawa", "optimizer.average_last": last, "optimizer.average_every": every}
  run = loading.records(test_state_collections.config(**options, **{"eval.average": True}))
  collections = state_collections.of_run(run)
  values, params = state_collections.init(collections, {"a": {"b": jnp.zeros(2)}})
  taken = []
  for step in range(11):
    params = jax.tree.map(lambda x, step=step: x + step + jnp.arange(2.0), params)
    values, params = state_collections.update(collections, values, params, jnp.asarray(step))
    if (step + 1) % every == 0:
      taken.append(params["a"]["b"])
    evaluated = state_collections.evaluated(collections, values, params)
    expected = np.mean(taken[-last:], axis=0) if taken else params["a"]["b"]
    np.testing.assert_allclose(evaluated["a"]["b"], expected, rtol=1e-6)


def test_schedule_free_adamw_equals_optax():
  """With the same warm-up; weight decay on matrices alone is the config's own."""
  params = {"w": np.linspace(-1, 1, 6).reshape(2, 3).astype(np.float32)}
  gradients = [{"w": np.random.default_rng(i).normal(size=(2, 3)).astype(np.float32)} for i in range(5)]
  fields = dict(learning_rate=0.1, schedule="constant", warmup_steps=3, weight_decay=0.1, b1=0.8, b2=0.95)
  config = toy.optimizer_config(name="schedule_free_adamw", scale_by_parameter=False, **fields)
  tx, schedule = optimizers.make_optimizer(config, 10)
  by_optax = optax.contrib.schedule_free(
    optax.chain(
      optax.scale_by_rms(0.95, 1e-8, eps_in_sqrt=False, bias_correction=True),
      optax.add_decayed_weights(0.1),
      optax.scale_by_learning_rate(schedule),
    ),
    schedule,
    b1=0.8,
  )
  found = []
  for each in (tx, by_optax):
    state, current = each.init(params), params
    for gradient in gradients:
      updates, state = each.update(gradient, state, current)
      current = optax.apply_updates(current, updates)
    found.append((state, current))
  np.testing.assert_allclose(found[0][1]["w"], found[1][1]["w"], rtol=1e-6)
  average = schedule_free.evaluated(*found[0])["w"]
  np.testing.assert_allclose(average, optax.contrib.schedule_free_eval_params(*found[1])["w"], rtol=1e-5)
  assert not np.allclose(average, found[0][1]["w"])


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize(
  "options",
  [
    FREE,
    {"optimizer.average": "lawa", "optimizer.average_every": 1, "optimizer.average_last": 2, "eval.average": True},
    {"optimizer.average": "ema", "optimizer.average_decay": 0.5, "eval.average": True},
  ],
  ids=["schedule_free", "lawa", "ema"],
)
def test_averages_resume_and_are_read(options, tmp_path):
  """After a stop the state equals an uninterrupted run's; readers take the evaluated weights, or the others."""
  options = options | {"checkpoint.save_interval_steps": 1, "train.microbatches": 2, "mesh.tensor": 2}
  config, batches = test_state_collections.config(**options), test_array_batches.random_batches
  whole = test_state_collections.train(config, tmp_path / "whole")
  for row in t2t.train(config, str(tmp_path / "run"), batches=batches, eval_batches=test_array_batches.held_out()):
    if row["step"] == 2:
      break
  resumed = test_state_collections.train(config, tmp_path / "run")
  assert 0 < len(resumed.params) < test_state_collections.STEPS
  jax.tree.map(np.testing.assert_array_equal, resumed.values[-1], whole.values[-1])
  jax.tree.map(np.testing.assert_array_equal, resumed.params[-1], whole.params[-1])
  assert resumed.losses[-1] == whole.losses[-1]
  path = "encoder/layers/mlp/up"
  trained = whole.params[-1][path]
  if options.get("optimizer.average") == "ema":
    average = whole.values[-1]["average"][path]
  elif "optimizer.average" in options:
    average = np.mean([params[path] for params in whole.params[-2:]], axis=0)
  else:
    folder = restore.checkpoint_folder(str(tmp_path / "whole"))
    z = restore._read_params(folder, wanted(path, trained), (), restore.ITERATE)[path]
    average = (trained - 0.1 * np.asarray(z)) / 0.9
  assert np.max(np.abs(average - trained)) > 1e-3
  for weights, expected in (("", average), ("average", average), ("trained", trained)):
    source = pretrained.read_source(str(tmp_path / "whole"), weights=weights)
    read = pretrained.read(source, wanted(path, trained))[path]
    np.testing.assert_allclose(read, expected, atol=1e-6)
    tensor = tensor_writer.open_foreign(str(tmp_path / "whole"), weights=weights).tensors[path]
    np.testing.assert_allclose(np.stack([part() for part in tensor.parts]), expected, atol=1e-6)


def wanted(path, x):
  place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  return {path: (path, jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place))}


@pytest.mark.exhaustive
def test_schedule_free_starts_at_given_parameters_on_two_meshes():
  """z equals the checkpoint's parameters, so the average at step 0 does; shards do not change the next step."""
  run = loading.records(test_state_collections.config(**FREE)).with_(model={"vocab_size": 384})
  batch = {name: np.asarray(x) for name, x in next(test_array_batches.random_batches()).items()}
  results = []
  for shape in ({"data": 1}, {"fsdp": 2}):
    mesh = sharding.make_mesh(shape, devices=jax.devices()[: max(shape.values())])
    with jax.set_mesh(mesh):
      program = recipe.make(run).build(mesh)
      given = program.init()(jax.random.key(1))
      host = jax.device_get(given.params)
      state = program.init_from_params()(given.params, jax.random.key(2))
      at_start = program.evaluated(state).params
      jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), at_start, host)
      z = state.opt_state.z["encoder/layers/mlp/up"]
      assert z.sharding == flatten(state.params)["encoder/layers/mlp/up"].sharding
      decoder = {
        "encoder_input_tokens": batch["encoder_input_tokens"],
        "decoder_target_tokens": batch["decoder_target_tokens"],
        "decoder_input_tokens": np.roll(batch["decoder_target_tokens"], 1, axis=1),
        "decoder_loss_weights": np.ones(batch["decoder_target_tokens"].shape, np.float32),
      }
      state, _ = program.train_step(state, jax.tree.map(jnp.asarray, decoder), jax.random.key(0))
      results.append(jax.device_get(program.evaluated(state).params))
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-5), *results)


@pytest.mark.parametrize(
  ("options", "message"),
  [
    (FREE | {"optimizer.average": "ema"}, "config.optimizer.average=ema: config.optimizer.name=schedule_free_adamw"),
    (FREE | {"optimizer.b1": 0.0}, "config.optimizer.b1=0.0 must be above 0"),
    (FREE | {"optimizer.param_groups": ("mlp: from_step=2",)}, "config.optimizer.param_groups sets 'from_step'"),
    ({"optimizer.average": "lawa", "optimizer.average_last": 0}, "config.optimizer.average_last=0 must be at least 1"),
  ],
)
def test_contradictions_are_refused(options, message):
  with pytest.raises(UserError) as error:
    recipe.make(loading.records(test_state_collections.config(**options)).with_(model={"vocab_size": 384}))
  assert message in str(error.value)


@pytest.mark.slow
def test_weights_that_a_run_does_not_have_are_refused(capsys):
  run = str(trained.workdir("encoder_decoder"))
  for argv in (
    ["infer", "--checkpoint", run, "--input", "x.txt", "--output", "y.jsonl", "--weights", "average"],
    ["convert", run, "--to", "hf", "never", "--weights", "average"],
  ):
    assert command.main(argv) == 2
    assert "has no average of the parameters. Leave it out, or train with" in capsys.readouterr().err
  with pytest.raises(UserError, match="weights last: unknown value. Give one of average, trained"):
    t2t.load(run, weights="last")
