"""Gradual pruning: schedules, masks and scores, and runs that prune."""

import functools
import json
import re

from etils import epath
from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
import test_array_batches
import toy

import t2t
from t2t import UserError, sharding
from t2t.checkpoints import earlier_masks, manager, pretrained, restore, tensor_writer
from t2t.configuration import loading
from t2t.convert import lazy_tensors
from t2t.models import transformer
from t2t.param_tree import flatten, is_prunable, unflatten
from t2t.training import param_groups, recipe, schedule_free, sparsity, state_collections, train_state, weight_average

MATRICES = "/layers/.*(attention|mlp)/"


def records(rule, **pruning):
  keys = {f"pruning.{name}": value for name, value in pruning.items()}
  config = test_array_batches.small(**{"optimizer.param_groups": (f"{MATRICES}: {rule}",), "train.steps": 40} | keys)
  return loading.records(config).with_(model={"vocab_size": 384})


def steps_of(rule, gradient, num_steps, **pruning):
  """Yields step, masked parameters and values after each step of gradient descent on two stacked 6 x 10 layers."""
  collections = state_collections.of_run(records(rule, **pruning))
  start = {"encoder": {"layers": {"mlp": {"up": jax.random.normal(jax.random.key(0), (2, 6, 10))}}}}
  values, params = state_collections.init(collections, start)

  @jax.jit
  def update(values, params, step):
    read = state_collections.forward(collections, values, params)
    grads = jax.tree.map(lambda x: gradient(x, step), read)
    values, grads = state_collections.gradients(collections, values, params, grads, step)
    params = jax.tree.map(lambda x, grad: x - 0.1 * grad, params, grads)
    return state_collections.update(collections, values, params, step)

  for step in range(num_steps):
    values, params = update(values, params, step)
    yield step, flatten(jax.device_get(params))["encoder/layers/mlp/up"], jax.device_get(values["transforms"])


def cubic(step, *, start, end, every, initial, final):
  """Zhu & Gupta 2017, equation 1."""
  if step < start:
    return 0.0
  step = min(start + (step - start) // every * every, end) if step < end else end
  return final + (initial - final) * (1 - (step - start) / (end - start)) ** 3


def test_the_sparsity_of_magnitude_is_the_cubic_at_each_step():
  """Zeros of each layer are the schedule's number, and a zero stays zero although its gradient does not vanish."""
  keys = {"start": 3, "end": 17, "every": 4, "initial": 0.2}
  before = np.ones((2, 6, 10), bool)
  for step, weights, _ in steps_of("magnitude=0.87", lambda x, step: jnp.cos(7.0 * x + step), 22, **keys):
    zeros = np.sum(weights == 0, axis=(1, 2))
    assert zeros.tolist() == [round(60 * cubic(step, **keys, final=0.87))] * 2, step
    assert not np.any((weights != 0) & ~before)
    before = weights != 0
  assert zeros.tolist() == [52, 52]


def test_movement_scores_are_those_of_adam_on_gradient_times_weight():
  """The highest scores are kept; a masked weight keeps its value apart and can return."""
  gradient = lambda x, step: jnp.sin(jnp.arange(60.0).reshape(6, 10) * (1 + step)) + 0.1 * x
  keys = {"start": 0, "end": 9, "every": 1, "score_rate": 0.02}
  adam = optax.adam(0.02)
  scores, whole = np.zeros((2, 6, 10)), None
  state, mask, returned = adam.init(scores), np.ones((2, 6, 10), bool), False
  for step, weights, values in steps_of("movement=0.5", gradient, 12, **keys):
    value = {field: x["encoder/layers/mlp/up"] for field, x in values["movement"].items()}
    if whole is None:
      whole = np.asarray(jax.random.normal(jax.random.key(0), (2, 6, 10)))
    grad = np.asarray(gradient(whole * mask, step))
    updates, state = adam.update(grad * whole, state)
    scores = scores + np.asarray(updates)
    np.testing.assert_allclose(value["scores"], scores, atol=2e-5)
    returned |= bool(np.any(value["mask"] & ~mask))
    mask = value["mask"]
    whole = whole - 0.1 * np.where(mask, grad, 0)
    np.testing.assert_allclose(weights, whole * mask, atol=1e-5)
    zeros = round(60 * cubic(step, start=0, end=9, every=1, initial=0.0, final=0.5))
    assert np.sum(~mask, axis=(1, 2)).tolist() == [zeros] * 2
    for layer, kept in zip(scores, mask, strict=True):
      assert not zeros or np.max(layer[~kept]) <= np.min(layer[kept]) + 1e-6
  assert returned


def test_soft_movement_masks_below_its_threshold():
  keys = {"end": 9, "every": 1, "score_rate": 0.3, "penalty": 5.0}
  for _, weights, values in steps_of("soft_movement=0.4", lambda x, step: 0.01 * x, 12, **keys):
    last, value = weights, {field: x["encoder/layers/mlp/up"] for field, x in values["soft_movement"].items()}
  np.testing.assert_array_equal(value["mask"], 1 / (1 + np.exp(-value["scores"])) > 0.4)
  assert np.all(last[~value["mask"]] == 0) and np.any(~value["mask"])


@pytest.mark.parametrize(
  ("rule", "pruning", "message"),
  [
    ("magnitude=1.0", {}, "'magnitude=1.0' is not valid. Give the final fraction of each matrix that is zero"),
    ("movement=0.5", {"start": 9, "end": 9}, "config.pruning.end=9 must be after config.pruning.start=9"),
    ("movement=0.5", {"end": 40}, "the sparsity would be final at step 40, but config.train.steps=40"),
    ("soft_movement=0", {}, "Give the final threshold of sigmoid(score), above 0 and below 1"),
    ("magnitude=0.5", {"every": 0}, "config.pruning.every=0 must be at least 1"),
    ("mask=0.5", {"start": 1}, "no rule prunes. Add config.optimizer.param_groups="),
  ],
)
def test_bad_schedules_are_refused(rule, pruning, message):
  with pytest.raises(UserError) as error:
    recipe.make(records(rule, **pruning))
  assert message in str(error.value)


@pytest.mark.parametrize(
  ("rule", "message"),
  [
    ("norm: magnitude=0.5", "'magnitude' sets .* no trained matrix .*, only embed/norm/scale, encoder/.*norm/scale"),
    ("norm|bias: mask=zeros", "'mask' sets .* no trained matrix .*, only .*encoder/position_bias/table"),
    ("^embed/table: movement=0.5", "'movement' sets .* no trained matrix .*, only embed/table. Give"),
    ("mlp: magnitude=0.5 mask=0.5", "mlp/.* has 'mask' and 'magnitude'. Give it one of them."),
  ],
)
def test_rules_for_other_parameters_are_refused(rule, message):
  config = toy.encoder()
  shapes = {path: x.shape for path, x in lazy_tensors.expected(config).items()}
  run = records("magnitude=0.5").with_(optimizer={"param_groups": (rule,)})
  with pytest.raises(UserError, match=message):
    param_groups.check(run, shapes, never=())


OTHERS = {"encoder/layers/mlp_norm/scale": (2, 6), "encoder/layers/mlp/up_bias": (2, 10), "embed/table": (9, 6)}
OTHERS |= {"encoder/position_bias/table": (4, 2), "encoder/final_norm/scale": (6,)}
RULES = {"mask": 0.5, "magnitude": 0.5, "movement": 0.5, "soft_movement": 0.4}


def saved_run(name, average, folder):
  """Saves a toy state, with a rule for all parameters, after eight steps; returns values and evaluated parameters."""
  keys = {} if name == "mask" else {"end": 5, "every": 1, "score_rate": 0.3, "penalty": 5.0}
  changes = {"average": average, "average_every": 3, "average_last": 2}
  changes["param_groups"] = (f".: {name}={RULES[name]}",)
  run = records("magnitude=0.5", **keys).with_(optimizer=changes, eval={"average": True})
  collections = state_collections.of_run(run)
  # Biases are zero at the start, as in a model.
  start = {path: jnp.zeros(shape) for path, shape in OTHERS.items()}
  start["encoder/layers/mlp/up"] = jax.random.normal(jax.random.key(0), (2, 6, 10))
  values, params = state_collections.init(collections, unflatten(start))

  @jax.jit
  def update(values, params, step):
    grads = jax.tree.map(lambda x: jnp.cos(7.0 * x + step), state_collections.forward(collections, values, params))
    values, grads = state_collections.gradients(collections, values, params, grads, step)
    params = jax.tree.map(lambda x, grad: x - 0.1 * grad, params, grads)
    return state_collections.update(collections, values, params, step)

  for step in range(8):
    values, params = update(values, params, step)
  with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(folder / "state", {"params": params, "collections": values})
  with ocp.Checkpointer(ocp.JsonCheckpointHandler()) as checkpointer:
    checkpointer.save(folder / "config", {"model": {}, "eval": {"average": True}})
  return values, flatten(jax.device_get(state_collections.evaluated(collections, values, params)))


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("average", weight_average.AVERAGES)
def test_readers_take_the_evaluated_average_of_a_pruned_run(average, name, tmp_path):
  """Its matrices have zeros; no rule masks vectors, embeddings or position biases, which begin with zeros here."""
  values, evaluated = saved_run(name, average, tmp_path)
  matrix = "encoder/layers/mlp/up"
  for path, x in evaluated.items():
    assert np.any(x == 0) == (path == matrix), path
  # The average itself is dense, except before nt_asgd starts.
  assert np.any(values["average"][matrix] != evaluated[matrix]) == (name != "mask" and average != "nt_asgd")
  place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  wanted = {path: (path, jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place)) for path, x in evaluated.items()}
  read = restore.read_params(epath.Path(tmp_path), wanted)
  source = pretrained.Source(epath.Path(tmp_path), toy.encoder(), {"eval": {"average": True}}, "")
  tensors = tensor_writer.saved(source, "")[0]
  assert read.keys() == tensors.keys() == evaluated.keys()
  for path, x in evaluated.items():
    np.testing.assert_array_equal(read[path], x)
    np.testing.assert_array_equal(tensors[path].read(), x)


def test_every_transform_is_tested_here_and_refused_by_schedule_free():
  assert set(RULES) == set(param_groups.TRANSFORMS)
  for name, value in RULES.items():
    config = toy.optimizer_config(name=schedule_free.NAME, param_groups=(f".: {name}={value}",))
    with pytest.raises(UserError, match=f"sets '{name}', which config.optimizer.name=schedule_free_adamw does not"):
      schedule_free.check(config)


def test_zeros_that_a_run_would_lose_are_reported():
  """Matrices that an earlier rule masked are named, unless this run has a mask, or the matrix has no zero."""
  pruned = np.ones((2, 6, 10), np.float32)
  pruned[:, :3] = 0
  params = unflatten({"encoder/layers/mlp/up": pruned, "encoder/layers/mlp/up_bias": np.zeros((2, 10), np.float32)})
  dense = jax.tree.map(np.ones_like, params)
  plain = records("magnitude=0.5").with_(optimizer={"param_groups": ()})
  lost = functools.partial(sparsity.lost_zeros, name="config.init.checkpoint=runs/a")
  line = lost(params, [".: magnitude=0.5"], plain)
  assert line.startswith("config.init.checkpoint=runs/a: 50.0 % of 120 weights are zero, because it was pruned, and")
  assert "--config.optimizer.param_groups='/layers/: mask=zeros'" in line
  for silent in (
    (params, [], plain),
    (params, ["embed: mask=0.5"], plain),
    (params, ["a rule of another version"], plain),
    (dense, [".: magnitude=0.5"], plain),
    (params, [".: magnitude=0.5"], plain.with_(optimizer={"param_groups": (".: mask=zeros",)})),
  ):
    assert lost(*silent) == ""


def test_masks_of_vectors_from_earlier_versions_are_dropped():
  """Their states had a mask for each parameter that a rule matched; the other arrays are restored."""
  matrix, scale = "encoder/layers/mlp/up", "encoder/layers/mlp_norm/scale"
  params = {matrix: jnp.ones((2, 6, 10)), scale: jnp.ones((2, 6))}
  state = lambda *paths: train_state.TrainState(
    jnp.asarray(3), unflatten(params), {}, (), {"transforms": {"mask": {path: params[path] * 0.5 for path in paths}}}
  )
  mesh = sharding.make_mesh({"data": 1}, devices=jax.devices()[:1])
  everywhere = sharding.replicated(mesh)
  placed = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere)
  saved_shapes, now = restore.shapes(state(matrix, scale)), jax.tree.map(placed, state(matrix))
  unread = earlier_masks.of_vectors("runs/a", saved_shapes, restore.shapes(now))
  assert unread == {f"{restore.MASKS}{scale}": (2, 6)}
  whole = manager._with_unread(now, unread)
  assert restore.shapes(whole) == saved_shapes
  assert restore.shapes(manager._without_unread(whole, unread)) == restore.shapes(now)
  # A missing mask of a matrix is another rule.
  assert not earlier_masks.of_vectors("runs/a", saved_shapes, restore.shapes(state(scale)))


def train(rule, workdir, *, stop=0, rows=8, **changes):
  """Trains a toy model for six steps on random batches; returns its last parameters by path."""
  every = {"train.steps": 6, "eval.every": 6, "checkpoint.save_interval_steps": 1, "eval.num_logged_samples": 0}
  every |= {"optimizer.learning_rate": 0.01, "optimizer.schedule": "constant", "optimizer.warmup_steps": 0}
  every |= {"pruning.start": 1, "pruning.end": 4, "pruning.every": 1, "optimizer.name": "adamw"}
  every |= {"train.batch_size": rows, "eval.batch_size": 8}
  config = test_array_batches.small(**every | {"optimizer.param_groups": (f"{MATRICES}: {rule}",)} | changes)
  batches = functools.partial(test_array_batches.random_batches, rows=rows)
  data = {"batches": batches, "eval_batches": test_array_batches.held_out()}
  for row in t2t.train(config, str(workdir), **data):
    if stop and row["step"] == stop:
      return {}
  tensors = tensor_writer.open_foreign(str(workdir)).tensors
  return {path: tensor.read() for path, tensor in tensors.items()}


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("rule", ["movement=0.75", "magnitude=0.75", "soft_movement=0.4"])
def test_a_pruned_run_resumes_bit_for_bit_and_saves_zeros(rule, tmp_path, capfd):
  """Scores, masks and weights that wait are in the state; checkpoints contain the model with its zeros.

  The run logs the sparsity, and prints it at the end.
  """
  keys = {"pruning.penalty": 100.0, "pruning.score_rate": 0.3} if rule.startswith("soft") else {}
  whole = train(rule, tmp_path / "whole", **{"train.log_every": 2}, **keys)
  rows = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
  measured = [row["train/sparsity"] for row in rows if "train/sparsity" in row]
  assert len(measured) == 3
  if not keys:
    assert re.search(r"^pruned: 75\.0 % of [\d.]+k weights are zero$", capfd.readouterr().err, re.MULTILINE)
    assert measured == sorted(measured) and measured[-1] == pytest.approx(0.75)
  train(rule, tmp_path / "run", stop=3, **keys)
  zeros = []
  for path, x in train(rule, tmp_path / "run", **keys).items():
    np.testing.assert_array_equal(x, whole[path])
    if is_prunable(path, x.shape) and "/layers/" in path:
      zeros.append(np.mean(x == 0))
  assert zeros and (0.0 < np.mean(zeros) < 1.0 if keys else set(zeros) == {0.75})


@pytest.mark.exhaustive
@pytest.mark.parametrize("rule", ["magnitude=0.75", "movement=0.75"])
def test_microbatches_prune_the_same(rule, tmp_path):
  one = train(rule, tmp_path / "one", rows=16)
  for path, x in train(rule, tmp_path / "two", rows=16, **{"train.microbatches": 2}).items():
    # Adam divides by roots of squares, which enlarges rounding where a gradient is nearly zero.
    assert np.mean(np.isclose(x, one[path], atol=2e-4)) > 0.99, path


@pytest.mark.parametrize("kind", ["xlnet", "transformer_xl", "mobilebert", "universal_gpt", "deberta_v2"])
def test_rules_prune_matrices_alone(kind):
  """Vectors of each head, embeddings and tables stay; all kernels are pruned."""
  build = lambda: transformer.build(toy.KINDS[kind], nnx.Rngs(0))
  state = nnx.to_pure_dict(nnx.split(jax.eval_shape(build), graph=False)[1])
  pruned = {path.rpartition("/")[2] for path, x in flatten(state).items() if is_prunable(path, x.shape)}
  kernels = {"key", "query", "value", "out", "up", "down", "gate", "kernel", "projection", "transform", "widening"}
  assert {"query", "up", "down"} <= pruned <= kernels | {"halting"}
