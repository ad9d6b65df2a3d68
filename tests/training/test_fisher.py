"""Fisher information, and elastic weight consolidation (EWC)."""

import dataclasses
import functools
import json
import re
import shutil
import types

from flax import nnx, traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
import test_head_losses
import test_hosts
import toy
import trained

from t2t import UserError, sharding
from t2t import __main__ as command
from t2t.checkpoints import fisher_store, pretrained, restore
from t2t.commands import fisher as fisher_command
from t2t.configuration.loading import load_config, override, records
from t2t.training import estimate_fisher, l2_sp, optimizers, recipe
from t2t.training import fisher_information as fisher_lib

pytestmark = pytest.mark.slow

MESHES = {
  "one": {"data": 1},
  "data": {"data": 8},
  "fsdp": {"fsdp": 4, "tensor": 2},
  "all": {"data": 2, "fsdp": 2, "tensor": 2},
}


def mesh_of(name):
  sizes = MESHES[name]
  return sharding.make_mesh(sizes, devices=jax.devices()[: int(np.prod(list(sizes.values())))])


# ---- Estimation ------------------------------------------------------------------------------------------------------


def some_batch(architecture):
  """Returns six examples of uneven lengths, followed by two rows of zeros."""
  batch = toy.batch((8, 5, 3, 7, 6, 4), (6, 2, 5, 3, 4, 1), architecture=architecture)
  if architecture == "encoder_only":  # each has a masked token
    batch["encoder_loss_weights"] = batch["encoder_loss_weights"].at[:, 0].set(1.0)
  return {name: jnp.pad(x, ((0, 2), (0, 0))) for name, x in batch.items()}


def found(kind, mesh, *, counts=(8,)):
  config = toy.KINDS[kind]
  model, batch = toy.model(config), some_batch(config.architecture)
  graphdef, params = toy.split(model)
  with jax.set_mesh(mesh):
    placed = sharding.param_shardings(nnx.split(model, graph=False)[1], mesh)
    params = jax.device_put(params, placed)
    step = fisher_lib.make_step(graphdef, toy.loss(z_loss=0.0), placed)
    sums = fisher_lib.zeros(params, placed)
    for count in counts:
      sums = step(sums, params, jax.device_put(batch, sharding.batch_sharding(mesh)), count)
  return sums


def reference(kind, rows):
  """Returns the mean squared gradient of single examples' log-likelihoods, from plain logits."""
  config = toy.KINDS[kind]
  graphdef, params = toy.split(toy.model(config))
  batch = some_batch(config.architecture)
  side = "encoder" if config.architecture == "encoder_only" else "decoder"

  @jax.jit
  @jax.grad
  def gradient(params, row):
    log_p = jax.nn.log_softmax(toy.logits.__wrapped__(nnx.merge(graphdef, params), row))
    own = jnp.take_along_axis(log_p, row[f"{side}_target_tokens"][..., None], axis=-1)[..., 0]
    return jnp.sum(own * row[f"{side}_loss_weights"])

  squares = [
    jax.tree.map(jnp.square, gradient(params, {name: x[row : row + 1] for name, x in batch.items()})) for row in rows
  ]
  return jax.tree.map(lambda *xs: sum(xs) / len(xs), *squares)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", toy.REPRESENTATIVES)
def test_it_is_the_mean_of_single_examples_squared_gradients(kind):
  """Over all targets of an example; rows of zeros do not count."""
  sums = found(kind, mesh_of("one"))
  assert float(sums.examples) == 6
  toy.assert_trees_close(sums.mean, reference(kind, range(6)), rtol=1e-3, atol=1e-6)
  assert all(np.any(np.asarray(x) > 0) for x in jax.tree.leaves(sums.squares))


@pytest.mark.exhaustive
@pytest.mark.parametrize("mesh", ["data", "fsdp", "all"])
def test_meshes_give_the_same(mesh):
  """With several rows at a time and sharded parameters, over several batches with a partial last one."""
  sums = found("t5_1_1", mesh_of(mesh), counts=(8, 3))
  assert float(sums.examples) == 9
  expected = reference("t5_1_1", [0, 1, 2, 3, 4, 5, 0, 1, 2])
  toy.assert_trees_close(jax.device_get(sums.mean), expected, rtol=1e-3, atol=1e-6)


@pytest.mark.exhaustive
def test_it_is_of_what_heads_are_asked():
  """Each example has its own head; gradients are not divided by the number of answers in a batch."""
  config, (batch, _) = test_head_losses.with_heads("bert"), test_head_losses.asked("encoder_only", number=1)
  compute, params, loss = test_head_losses.loss_of(config)
  number = len(batch["encoder_input_tokens"])
  mesh, model = mesh_of("one"), toy.model(config)
  with jax.set_mesh(mesh):
    placed = sharding.param_shardings(nnx.split(model, graph=False)[1], mesh)
    step = fisher_lib.make_step(toy.split(model)[0], loss, placed)
    sums = step(fisher_lib.zeros(params, placed), jax.device_put(params, placed), batch, number)
  assert float(sums.examples) == number == len(test_head_losses.HEADS)
  rows = ({name: x[row : row + 1] for name, x in batch.items()} for row in range(number))
  squares = [
    jax.tree.map(jnp.square, compute(params, row, jax.tree.map(jnp.ones_like, loss.weights(row)))[1]) for row in rows
  ]
  toy.assert_trees_close(sums.mean, jax.tree.map(lambda *xs: sum(xs) / number, *squares), rtol=1e-3, atol=1e-6)


def test_only_a_likelihood_has_it():
  """Regularizers are left out, and other losses are an error."""
  config = records(
    override(load_config("tiny_t5"), ["--config.train.z_loss=0.1", "--config.train.label_smoothing=0.1"])
  )
  made = fisher_lib.likelihood(config).config
  assert (made.z_loss, made.label_smoothing) == (0.0, 0.0)
  with pytest.raises(UserError, match="config.train.loss=electra is not a likelihood, .* cross_entropy, heads"):
    fisher_lib.likelihood(config.with_(train={"loss": "electra"}))


# ---- Penalty ---------------------------------------------------------------------------------------------------------

THEN = {"embed": 1.0, "encoder": {"layers": {"up": np.array([1.0, -2.0])}}, "heads": {"sure": 3.0}}
INFORMATION = {"embed": jnp.array(0.5), "encoder/layers/up": jnp.array([4.0, 1e-6])}


def steps(config, number, *, loss, information=None):
  """Returns the parameters after some updates from `THEN`, flat."""
  tx, _ = optimizers.make_optimizer(config, 100)
  params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), THEN)
  state = tx.init(params)
  if information is not None:
    state = l2_sp.with_files(state, state, lambda shapes, x: x._replace(fisher=information))
  for _ in range(number):
    updates, state = jax.jit(tx.update)(jax.grad(loss)(params), state, params)
    params = optax.apply_updates(params, updates)
  return toy.flat(params)


def data_loss(params):
  return sum(jnp.sum(jnp.sin(x) + 0.3 * x) for x in jax.tree.leaves(params))


def penalised(params):
  """Computes lambda / 2 * F * (theta - theta*)**2, summed; heads have no anchor."""
  now, then = toy.flat(params), toy.flat(THEN)
  return data_loss(params) + sum(
    0.7 / 2 * jnp.sum(f * (now[path] - then[path]) ** 2) for path, f in INFORMATION.items()
  )


@pytest.mark.exhaustive_from(3)
@pytest.mark.parametrize("name", ["sgd", "adamw", "adafactor", "muon"])
def test_it_is_the_gradient_of_the_penalty(name):
  """Compared with autodiff of the formula; it precedes the optimizer, so that each step follows the sum of both."""
  rules = (".: anchor=0.7", "heads: anchor=0")
  config = toy.optimizer_config(name=name, clip_norm=1.0)
  held = dataclasses.replace(config, param_groups=rules, fisher="somewhere")
  actual = steps(held, 5, loss=data_loss, information=INFORMATION)
  toy.assert_trees_close(actual, steps(config, 5, loss=penalised), rtol=1e-5)
  if name == "sgd":  # other optimizers' steps do not scale with the gradient
    assert not np.allclose(actual["embed"], steps(config, 5, loss=data_loss)["embed"], rtol=1e-3)


def test_what_is_in_files_is_left_out_and_put_back():
  """With any other state; distances are of anchored parameters, or of those requested."""
  config = toy.optimizer_config(param_groups=("layers: anchor=1",), fisher="somewhere", log_distance=True)
  tx, _ = optimizers.make_optimizer(config, 10)
  params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), THEN)
  state = tx.init(params)
  saved = l2_sp.without_files(state)
  assert l2_sp.consolidated(saved) is None and list(l2_sp.consolidated(state).fisher) == ["encoder/layers/up"]
  kept = {path.rpartition("initial/")[2] for path in toy.flat(saved) if "initial" in path}
  assert kept == {"embed", "heads/sure"}
  again = l2_sp.with_files(saved, state, lambda shapes, x: shapes)
  assert jax.tree.structure(again) == jax.tree.structure(state)
  moved = jax.tree.map(lambda x: x + 1, params)
  told = {name: float(x) for name, x in l2_sp.distances(state, moved).items()}
  assert told == {"distance/encoder/0": 1, "distance/encoder/1": 1, "distance/embed": 1, "distance/heads": 1}


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ((), "config.optimizer.fisher=F: no rule of config.optimizer.param_groups sets 'anchor', .* Add a rule"),
    (
      ("--config.optimizer.param_groups=.: anchor=1", "--config.lora.rank=2"),
      "config.optimizer.fisher=F: config.lora already freezes the checkpoint's parameters",
    ),
  ],
)
def test_what_would_hold_nothing_is_refused(options, message):
  """From the config alone."""
  config = records(override(load_config("tiny_t5"), ["--config.optimizer.fisher=F", *options]))
  with pytest.raises(UserError, match=message):
    recipe.make(config)


# ---- Commands --------------------------------------------------------------------------------------------------------


@functools.cache
def base():
  return trained.workdir("encoder_decoder")


@pytest.fixture(scope="module")
def information(tmp_path_factory):
  """Returns the Fisher information of the shared test model, from the command."""
  base()
  out = tmp_path_factory.mktemp("fisher") / "out"
  assert command.main(["fisher", str(base()), "--output", str(out), "--examples", "12"]) == 0
  return out


def train(workdir, information, *options, steps=2, paths=".: anchor=1000"):
  """Trains a later run, on a mesh of eight."""
  mesh = ("--config.mesh.data=2", "--config.mesh.fsdp=2", "--config.mesh.tensor=2")
  held = (f"--config.optimizer.fisher={information}", f"--config.optimizer.param_groups={paths}")
  start = (f"--config.init.checkpoint={base()}", f"--config.train.steps={steps}", "--config.train.seed=7")
  adamw = ("--config.optimizer.name=adamw", "--config.optimizer.scale_by_parameter=False")
  return command.main([*trained.arguments("encoder_decoder", workdir), *mesh, *held, *start, *adamw, *options])


def metrics(workdir):
  return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def read(opened, mesh):
  """Returns path -> saved array."""
  shape = lambda entry: jax.ShapeDtypeStruct(entry.shape, "float32", sharding=sharding.replicated(mesh))
  return fisher_store._information(opened, {path: shape(entry) for path, entry in opened.base.entries.items()})


@pytest.mark.exhaustive
def test_two_processes_write_what_one_does(tmp_path):
  streams = "--config.data.num_streams=2"  # otherwise one per process, each with its own examples
  run = ["fisher", str(base()), "--output", str(tmp_path / "out"), "--examples", "12", streams]
  verify = ["checkpoint", "verify", str(tmp_path / "out")]
  codes, said = test_hosts.Processes(2, 1, [run, verify], cache=tmp_path).wait()
  assert codes == [0, 0], said
  source = pretrained.read_source(str(base()))
  expected = estimate_fisher.compute(records(estimate_fisher.run_config(source, [streams])), source, examples=12)
  found = read(fisher_store.open_fisher(str(tmp_path / "out")), mesh_of("one"))
  flat = traverse_util.flatten_dict(expected.diagonal, sep="/")
  toy.assert_trees_close(found, jax.device_get(flat), rtol=1e-3, atol=1e-8)


@pytest.mark.exhaustive
def test_the_command(information, capsys):
  """The result is the mean over its examples, names its checkpoint, and has the parameters' shapes."""
  source = pretrained.read_source(str(base()))
  mesh = mesh_of("one")
  opened = fisher_store.open_fisher(str(information))
  assert opened.base.path == str(source.path)
  config = records(estimate_fisher.run_config(source, ["--config.mesh.data=1", "--config.mesh.fsdp=8"]))
  again = estimate_fisher.compute(config, source, examples=12)
  assert again.examples == 12
  flat = traverse_util.flatten_dict(again.diagonal, sep="/")
  written = read(opened, mesh)
  toy.assert_trees_close(written, jax.device_get(flat), rtol=1e-3, atol=1e-8)
  assert opened.base.entries.keys() == flat.keys()
  assert command.main(["checkpoint", "verify", str(information)]) == 0
  assert "whole" in capsys.readouterr().out


@pytest.mark.parametrize(("mean", "anchor"), [(1e-3, 300), (2.48e-8, 1e7), (4.0, 0.08)])
def test_the_advised_anchor_follows_from_the_mean(mean, anchor):
  """The product of both is about constant, to one digit."""
  assert fisher_command.anchor(mean) == pytest.approx(anchor, rel=1e-6)


def test_information_that_holds_nothing_is_told():
  """No anchor is suggested."""
  diagonal = {"embed": jnp.zeros((2, 3))}
  config = records(load_config("tiny_t5"))
  found = estimate_fisher.FisherInformation(diagonal, diagonal, 3, config)
  source = types.SimpleNamespace(path="runs/old", name="runs/old")
  lines = list(fisher_command._lines(found, source, "out", packed=False))
  assert "every gradient of these examples is 0, so EWC has no effect" in lines[-1] and not any(
    "anchor" in line for line in lines
  )


@pytest.mark.exhaustive
def test_a_held_run_goes_on_bit_for_bit(information, tmp_path, capsys):
  """Checkpoints leave the Fisher files out, which may have moved; the run stays nearer than one with a weak anchor."""
  moved = tmp_path / "moved"
  for steps_ in (2, 4):
    assert train(tmp_path / "parts", information if steps_ == 2 else moved, steps=steps_) == 0
    shutil.copytree(information, moved, dirs_exist_ok=True)
  assert train(tmp_path / "whole", information, steps=4) == 0
  names = ("train/loss", "train/distance/encoder/0", "train/distance/embed")
  told = lambda run: [[row[name] for name in names] for row in metrics(run) if names[0] in row]
  assert told(tmp_path / "parts") == told(tmp_path / "whole")
  with ocp.PyTreeCheckpointer() as checkpointer:
    saved = checkpointer.metadata(tmp_path / "whole" / "checkpoints" / "4" / "state").item_metadata.tree
  words = {word for path in restore.shapes(saved) for word in path.split("/")}
  assert "mu" in words and not words & {"fisher", "initial"}
  assert train(tmp_path / "loose", information, steps=4, paths=".: anchor=1e-9") == 0
  assert told(tmp_path / "loose")[-1][2] > told(tmp_path / "whole")[-1][2]


def refused(capsys, *arguments, **named):
  assert train(*arguments, **named) == 2
  said = capsys.readouterr().err
  return next(line for line in said.splitlines() if "error: " in line)


@pytest.mark.exhaustive
def test_information_of_another_model_is_refused(information, tmp_path, capsys):
  """Found by a digest for equal shapes, and by the first difference for others; one line, before any step."""
  other = trained.workdir("encoder_decoder")
  assert command.main([*trained.arguments("encoder_decoder", tmp_path / "other"), "--config.train.seed=3"]) == 0
  told = refused(capsys, tmp_path / "run", information, f"--config.init.checkpoint={tmp_path / 'other'}")
  assert re.search(
    f"config.init.checkpoint=.*other.* is not the model that config.optimizer.fisher={information} was computed for",
    told,
  )
  assert f"which was at {other}" in told and "has the digest" in told
  assert not (tmp_path / "run" / "metrics.jsonl").exists()
  wide = (
    "--config.init.resize=embed/table,head",
    "--config.model.vocab_size=392",
    "--config.init.use_model_config=False",
  )
  told = refused(capsys, tmp_path / "run", information, *wide)
  assert re.search(r"embed/table has shape \[384, 16\] in the Fisher .*, but \[392, 16\] in this run", told)
  told = refused(capsys, tmp_path / "run", information, "--config.init.reinit=decoder/norm")
  assert "anchors decoder/norm/scale, but config.init initializes this parameter with other values. Exclude the" in told
  told = refused(capsys, tmp_path / "run", information, "--config.init.parameters=False")
  assert "anchors a run at a checkpoint, but no checkpoint initializes the run's parameters. Give" in told
  told = refused(capsys, tmp_path / "run", base())
  assert "is a checkpoint, not Fisher information. Compute the Fisher information with `t2t fisher" in told
  told = refused(capsys, tmp_path / "run", information, f"--config.init.checkpoint={information}")
  assert "is Fisher information, not a model. Give a model, or give this path as --config.optimizer.fisher" in told


def test_a_run_whose_checkpoint_is_gone_says_so(information, tmp_path):
  """Unless config.init.checkpoint gives its new path."""
  shutil.copytree(base(), tmp_path / "copy")
  config = records(override(load_config("tiny_t5"), []))
  opened = fisher_store.open_fisher(str(information))
  gone = dataclasses.replace(opened, base=dataclasses.replace(opened.base, path=str(tmp_path / "gone"), beside=""))
  norm = opened.base.entries["decoder/norm/scale"]
  shapes = {
    "decoder/norm/scale": jax.ShapeDtypeStruct(norm.shape, jnp.float32, sharding=sharding.replicated(mesh_of("one")))
  }
  with pytest.raises(
    UserError, match="for .*gone, but that checkpoint no longer exists. Restore the checkpoint, or give its new path"
  ):
    fisher_store._initial(gone, config, shapes)
  found = fisher_store._initial(gone, config.with_(init={"checkpoint": str(tmp_path / "copy")}), shapes)
  assert found["decoder/norm/scale"].shape == norm.shape


@pytest.mark.exhaustive_from(2)
@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (("--config.data.mixtrue=a",), "no such key; nearest: data.mixture"),
    (("--config.data.mixtrue=a b",), "no such key; nearest: data.mixture"),
    (("--config.train.loss=electra",), "config.train.loss=electra is not a likelihood"),
  ],
)
def test_what_cannot_be_asked(arguments, message, tmp_path, capsys):
  """Before any computation."""
  assert command.main(["fisher", *arguments, str(base()), "--output", str(tmp_path / "out")]) == 2
  assert re.search(message, capsys.readouterr().err)
  assert not (tmp_path / "out").exists()
