"""State collections: weight averages and parameter transforms, also with rows from other files."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_array_batches
import toy
import trained

import t2t
from t2t import UserError, sharding
from t2t import __main__ as command
from t2t.checkpoints import manager, pretrained, restore, tensor_writer
from t2t.configuration import loading
from t2t.param_tree import path_name
from t2t.training import param_groups, param_transforms, recipe, state_collections, weight_average
from t2t.training.run import Callback

STEPS = 4


class Mean:
  """Mean of the parameters after each update."""

  def __init__(self, config):
    del config

  def update(self, average, params, step):
    return {path: (average[path] * step + x) / (step + 1) for path, x in params.items()}


class FakeQuantize(param_transforms.Mask):
  """Rounds to a number of steps of the largest magnitude, with a straight-through gradient."""

  wanted = "a number of steps"
  mask_key = None

  @staticmethod
  def read(text):
    return int(text)

  @staticmethod
  def init(setting, path, x):
    return jnp.zeros(()), x

  @staticmethod
  def forward(setting, value, x):
    scale = jnp.max(jnp.abs(x)) / setting
    return x + jax.lax.stop_gradient(jnp.round(x / scale) * scale - x)

  @staticmethod
  def update(setting, value, x):
    return value + 1, x


@pytest.fixture
def rows(monkeypatch):
  """Adds rows of both tables from this file."""
  monkeypatch.setitem(weight_average.AVERAGES.rows, "mean", f"{__name__}:Mean")
  monkeypatch.setitem(param_groups.TRANSFORMS.rows, "quantize", f"{__name__}:FakeQuantize")
  param_groups.parse.cache_clear()


class Recorder(Callback):
  """Keeps trained parameters, collections and evaluations of each step."""

  def __init__(self):
    self.params, self.values, self.losses = [], [], []

  def on_step(self, run):
    host = jax.device_get(run.state)
    self.params.append({path_name(p): x for p, x in jax.tree_util.tree_leaves_with_path(host.params)})
    self.values.append(host.collections)

  def on_evaluation(self, run, step, metrics):
    self.losses.append(metrics["loss"])


def config(**changes):
  every = {"train.steps": STEPS, "eval.every": 2, "checkpoint.save_interval_steps": 2, "eval.num_logged_samples": 0}
  # A rate at which four steps change the predictions.
  rate = {"optimizer.name": "adamw", "optimizer.learning_rate": 0.01, "optimizer.scale_by_parameter": False}
  rate |= {"optimizer.schedule": "constant", "optimizer.warmup_steps": 0}
  return test_array_batches.small(**every | rate | changes)


def train(config, workdir, **options):
  options = {"batches": test_array_batches.random_batches, "eval_batches": test_array_batches.held_out()} | options
  recorder = Recorder()
  t2t.train(config, str(workdir), callbacks=[recorder], **options).run()
  return recorder


@pytest.mark.exhaustive
def test_an_average_of_another_file_is_kept_and_resumed(rows, tmp_path):
  """After a stop at any step the average equals an uninterrupted run's, bit for bit."""
  options = {"optimizer.average": "mean", "checkpoint.save_interval_steps": 1}
  whole = train(config(**options), tmp_path / "whole")
  for path, average in whole.values[-1]["average"].items():
    np.testing.assert_allclose(average, np.mean([params[path] for params in whole.params], axis=0), atol=1e-6)
  for row in t2t.train(
    config(**options),
    str(tmp_path / "run"),
    batches=test_array_batches.random_batches,
    eval_batches=test_array_batches.held_out(),
  ):
    if row["step"] == 2:
      break
  resumed = train(config(**options), tmp_path / "run")
  assert 0 < len(resumed.params) < STEPS
  jax.tree.map(np.testing.assert_array_equal, resumed.values[-1], whole.values[-1])


@pytest.mark.exhaustive
def test_an_exponential_average_is_what_its_formula_says(tmp_path):
  found = train(config(**{"optimizer.average": "ema", "optimizer.average_decay": 0.3}), tmp_path)
  path = "encoder/layers/mlp/up"
  expected = found.values[0]["average"][path]  # includes (1 + 0) / (10 + 0) of the initial value
  for step in range(1, STEPS):
    decay = min(0.3, (1 + step) / (10 + step))
    expected = decay * expected + (1 - decay) * found.params[step][path]
  np.testing.assert_allclose(found.values[-1]["average"][path], expected, rtol=1e-5)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
  """Returns a run without collections, and its workdir."""
  workdir = tmp_path_factory.mktemp("plain")
  return train(config(), workdir), workdir


@pytest.mark.exhaustive
def test_readers_take_what_was_evaluated(plain, tmp_path):
  """Held-out loss, conversion and warm starts use the average, if selected."""
  options = {"optimizer.average": "ema", "optimizer.average_decay": 0.9, "eval.average": True}
  found = train(config(**options), tmp_path)
  jax.tree.map(np.testing.assert_array_equal, found.params[-1], plain[0].params[-1])
  assert found.losses[-1] != plain[0].losses[-1]
  average = found.values[-1]["average"]
  assert found.params[-1].keys() == average.keys()
  for workdir, expected in ((tmp_path, average), (plain[1], plain[0].params[-1])):
    for path, tensor in tensor_writer.open_foreign(str(workdir)).tensors.items():
      parts = [part() for part in tensor.parts]
      array = np.stack(parts) if tensor.stacked else np.concatenate(parts)
      np.testing.assert_array_equal(array.reshape(expected[path].shape), expected[path])
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    wanted = {path: (path, jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place)) for path, x in expected.items()}
    read = restore.read_params(restore.checkpoint_folder(str(workdir)), wanted)
    jax.tree.map(np.testing.assert_array_equal, read, dict(expected))


def test_an_average_lies_as_its_parameters_do(rows):
  """Each copy is sharded as its parameter, not replicated."""
  run = loading.records(config(**{"optimizer.average": "mean", "mesh.fsdp": 2, "mesh.data": 1}))
  run = run.with_(model={"vocab_size": 384})
  mesh = t2t.sharding.make_mesh({"data": 1, "fsdp": 2}, devices=jax.devices()[:2])
  with jax.set_mesh(mesh):
    state = recipe.make(run).state(mesh)[1]
  flat = {path_name(path): x for path, x in jax.tree_util.tree_leaves_with_path(state.params)}
  for path, x in state.collections["average"].items():
    assert (x.shape, x.sharding) == (flat[path].shape, flat[path].sharding)


@pytest.mark.exhaustive
def test_masked_parameters_stay_zero(tmp_path):
  """A fraction of each layer by smallest magnitude, with any optimizer; other parameters are trained."""
  share = 0.75
  options = {"optimizer.param_groups": (f"mlp/(up|down): mask={share}",), "optimizer.weight_decay": 0.1}
  found = train(config(**options), tmp_path)
  masked = found.values[0]["transforms"]["mask"]
  assert masked and all("mlp/" in path for path in masked)
  for path, mask in masked.items():
    for params in found.params:
      for layer, own in zip(params[path], mask, strict=True):
        assert np.sum(own == 0) == round(share * layer.size) and not np.any(layer[own == 0])
    assert np.any(found.params[-1][path] != found.params[0][path])


@pytest.mark.slow
def test_the_average_of_masked_parameters_is_masked():
  """From the first step; parameters that are rounded in training are also rounded in evaluation, as is the average."""
  run = loading.records(config(**{"optimizer.param_groups": ("mlp/up: mask=0.5",), "optimizer.average": "ema"}))
  collections = state_collections.of_run(run.with_(eval={"average": True}))
  up = jax.random.normal(jax.random.key(0), (2, 8, 8))
  values, params = state_collections.init(collections, {"layers": {"mlp": {"up": up, "down": up}}})
  for step in range(3):
    found = state_collections.evaluated(collections, values, params)["layers"]["mlp"]
    assert np.sum(np.asarray(found["up"]) == 0) == 64 and not np.any(np.asarray(found["down"]) == 0)
    assert np.sum(np.asarray(values["average"]["layers/mlp/up"]) == 0) == 64
    params = jax.tree.map(lambda x: x + 0.1, params)
    values, params = state_collections.update(collections, values, params, jnp.asarray(step))
  tiny = param_transforms.Mask.init(0.99, "mlp/up", jnp.arange(8.0))[0]
  assert np.asarray(tiny).tolist() == [0] * 7 + [1]


@pytest.mark.exhaustive
def test_a_transform_of_another_file_is_in_the_forward_pass(rows, plain, tmp_path):
  """Training and evaluation read rounded parameters; the optimizer updates full precision."""
  coarse = train(config(**{"optimizer.param_groups": ("mlp: quantize=2",)}), tmp_path)
  assert coarse.losses[0] != plain[0].losses[0]
  path = "encoder/layers/mlp/up"
  assert len(np.unique(coarse.params[-1][path])) > 100
  assert {int(x) for x in coarse.values[-1]["transforms"]["quantize"].values()} == {STEPS}


@pytest.mark.exhaustive
def test_runs_without_collections_save_none(plain):
  """Their checkpoints have the same content as before collections existed."""
  saved = (plain[1] / manager.CHECKPOINTS / str(STEPS) / "state" / "_METADATA").read_text()
  assert "params" in saved and not [name for name in json.loads(saved)["tree_metadata"] if "collections', " in name]


@pytest.mark.parametrize(
  ("options", "message"),
  [
    (
      {"optimizer.average": "emma"},
      "config.optimizer.average='emma': unknown. Give one of ema, lawa, nt_asgd; did you mean ema?",
    ),
    ({"optimizer.average": "ema", "optimizer.average_decay": 1.5}, "config.optimizer.average_decay=1.5 must be from"),
    ({"eval.average": True}, "config.eval.average=True: the run keeps no average. Give config.optimizer.average=ema"),
    (
      {"optimizer.param_groups": ("mlp: mask=1.5",)},
      "'mask=1.5' is not valid. Give the fraction of each matrix that is zero, at least 0 and below 1",
    ),
    ({"optimizer.param_groups": ("mlp: maks=0.5",)}, "unknown setting 'maks'. Give one of frozen"),
  ],
)
def test_bad_settings_are_refused(options, message):
  with pytest.raises(UserError) as error:
    recipe.make(loading.records(config(**options)).with_(model={"vocab_size": 384}))
  assert message in str(error.value)


@pytest.mark.parametrize(
  "saved", [{"params": {}}, {"params": {}, "collections": None}, {"params": {}, "collections": {}}]
)
def test_readers_take_parameters_where_no_average_was_saved(saved):
  """A merged or converted checkpoint has its run's config but no average."""
  averaged = {"eval": {"average": True}}
  assert restore.trained_keys(saved, averaged) == restore.trained_keys(saved, {}) == ("params",)
  assert restore.trained_keys(saved | {"collections": {"average": {}}}, averaged) == ("collections", "average")


@pytest.mark.exhaustive
def test_a_merged_adapter_of_an_averaged_run_is_read(tmp_path):
  """Its parameters include the average of the adapter."""
  run = trained.adapter(
    "encoder_decoder", "--config.lora.rank=2", "--config.optimizer.average=ema", "--config.eval.average=True"
  )
  assert command.main(["adapt", "merge", str(run), "--output", str(tmp_path / "merged")]) == 0
  mesh = sharding.make_mesh({"data": -1})
  merged, base = (
    toy.flat(pretrained.load(pretrained.read_source(str(path)), mesh).params)
    for path in (tmp_path / "merged", trained.workdir("encoder_decoder"))
  )
  assert merged.keys() == base.keys() and all(np.all(np.isfinite(x)) for x in merged.values())
  assert any(np.any(merged[path] != base[path]) for path in base)
