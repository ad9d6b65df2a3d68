import dataclasses
import re

from etils import epath
from flax import nnx, traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
import toy
import trained

from t2t import UserError, sharding
from t2t import __main__ as command
from t2t.checkpoints import pretrained, restore
from t2t.configs import default
from t2t.configuration.loading import override, records
from t2t.models import adapters as adapters_lib
from t2t.models import transformer
from t2t.models.adapters import bitfit, houlsby, ia3, lora, pals, pfeiffer, prefix, prompt
from t2t.param_tree import matches
from t2t.training import optimizers, recipe, train_state, train_step

# Every adapter method, with the options used in these tests.
WAYS = {
  "lora": lora.LoraConfig(rank=3, targets=("attention/", "mlp/")),
  "bitfit": bitfit.BitFitConfig(),
  "ia3": ia3.Ia3Config(),
  "houlsby": houlsby.HoulsbyConfig(bottleneck=3),
  "pfeiffer": pfeiffer.PfeifferConfig(bottleneck=3),
  "prompt": prompt.PromptConfig(length=5),
  "prefix": prefix.PrefixConfig(length=5, hidden=8),
  "pals": pals.PalsConfig(tasks=("reviews",), size=6, heads=2),
}
KINDS = ("t5_1_1", "local_prefix_lm", "bert", "shared_everything")


def pairs(*ways, kinds=KINDS):
  """Returns each method with each kind of model that has its target parameters."""
  has_biases = lambda kind: toy.KINDS[kind].biases
  found = [(way, kind) for way in ways or WAYS for kind in kinds if way != "bitfit" or has_biases(kind)]
  return pytest.mark.parametrize(("way", "kind"), found, ids=["-".join(pair) for pair in found])


def adapted(way, kind, **fields):
  """Returns a model, and the same model with one adapter."""
  settings = dataclasses.replace(toy.KINDS[kind], **fields)
  model = toy.model(settings)
  return model, adapters_lib.adapt(model, {way: WAYS[way]}, nnx.Rngs(toy.key(1)))


def is_trained(way, path):
  return not matches(adapters_lib.frozen({way: WAYS[way]}), path)


def used(way, model):
  """Returns the model with every trained number changed, as after training."""
  graphdef, params = toy.split(model)
  random = np.random.default_rng(0)
  moved = lambda path, x: x + random.normal(size=x.shape).astype(np.float32) / 8 if is_trained(way, path) else x
  flat = {path: moved(path, x) for path, x in traverse_util.flatten_dict(params, sep="/").items()}
  return nnx.merge(graphdef, jax.tree.map(jnp.asarray, traverse_util.unflatten_dict(flat, sep="/")))


@pytest.mark.exhaustive
@pairs(*(way for way in WAYS if not adapters_lib.ADAPTERS[way].positions(WAYS[way])))
def test_an_adapted_model_starts_as_the_model(way, kind):
  """Logits are bit-identical, with and without dropout, and the original model is unchanged."""
  model, new = adapted(way, kind, dropout_rate=0.1)
  before = toy.flat(model).keys()
  batch = toy.batch(architecture=model.config.architecture)
  np.testing.assert_array_equal(toy.logits(new, batch, toy.key()), toy.logits(model, batch, toy.key()))
  assert toy.flat(model).keys() == before


@pytest.mark.exhaustive
@pairs()
def test_what_is_added_counts_and_nothing_else_is_new(way, kind):
  """Changed trained parameters change the logits; without added parameters the paths are the model's."""
  model, new = adapted(way, kind)
  batch = toy.batch(architecture=model.config.architecture)
  changed = toy.logits(used(way, new), batch)
  assert np.max(np.abs(changed - toy.logits(model, batch))) > 1e-2
  shapes = {adapters_lib.base_path(path, {way: WAYS[way]}): x.shape for path, x in toy.flat(toy.split(new)[1]).items()}
  shapes.pop(None, None)
  assert shapes == {path: x.shape for path, x in toy.flat(toy.split(model)[1]).items()}


@pytest.mark.slow
@pairs(*(way for way in WAYS if adapters_lib.ADAPTERS[way].merge is not None))
def test_merged_is_the_same_model_without_an_adapter(way, kind):
  """Paths, shapes and logits are equal."""
  model, new = adapted(way, kind)
  batch = toy.batch(architecture=model.config.architecture)
  changed = used(way, new)
  flat = adapters_lib.merge(traverse_util.flatten_dict(toy.split(changed)[1], sep="/"), {way: WAYS[way]})
  graphdef, params = toy.split(model)
  found = traverse_util.unflatten_dict(flat, sep="/")
  assert jax.tree.map(jnp.shape, found) == jax.tree.map(jnp.shape, params)
  expected = toy.logits(changed, batch)
  np.testing.assert_allclose(toy.logits(nnx.merge(graphdef, found), batch), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.exhaustive
@pairs(kinds=("t5_1_1", "local_prefix_lm", "shared_everything"))
def test_cached_decode_equals_teacher_forcing(way, kind):
  """Decoding is compared token by token, with prompts of different lengths."""
  check_cached_decode(way, kind)


@pairs("prompt", "prefix", kinds=("gpt2", "gemma", "mpt", "prefix_lm", "bart"))
def test_behind_what_is_learned_cached_decode_equals_teacher_forcing(way, kind):
  """With all kinds of positions, the padding of a short prompt has no effect."""
  check_cached_decode(way, kind)


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", ["prompt", "prefix"])
def test_text_begins_behind_what_is_learned(way):
  """Without inputs the prompt is only the first token."""
  model = adapted(way, "local_prefix_lm")[1]
  tokens = jnp.array([[0, 7, 9, 3], [0, 5, 4, 8]])
  first, state = model.start_decode({"decoder_input_tokens": tokens}, 4)
  np.testing.assert_array_equal(first, tokens[:, 0])
  expected = toy.logits(model, {"decoder_input_tokens": tokens})
  for step in range(4):
    found, state = model.decode_step(tokens[:, step], state)
    np.testing.assert_allclose(found, expected[:, step], atol=1e-4)


def check_cached_decode(way, kind):
  model = used(way, adapted(way, kind)[1])
  architecture, lengths = model.config.architecture, (3, 5)
  inputs = (2, 6)
  batch = toy.batch(inputs, lengths, padded_to=(6, 5), architecture=architecture)
  logits, targets = toy.logits(model, batch), batch["decoder_target_tokens"]
  # Positions that predict each row's first target.
  starts = np.array(inputs) if architecture == "decoder_only" else np.zeros(2, int)
  rows = np.arange(2)

  @jax.jit
  def decode(model, batch, written):
    token, state = model.start_decode(batch, 6)
    state = model.ready(state)
    found = []
    for column in written:
      logits, state = model.decode_step(token, state)
      found.append(logits)
      token = column
    return found

  written = [targets[rows, starts + step] for step in range(min(lengths))]
  for step, found in enumerate(decode(model, batch, written)):
    np.testing.assert_allclose(found, logits[rows, starts + step], atol=1e-4, err_msg=f"step {step}")


def steps(mesh, way, kind, **fields):
  """Returns the state before and after two steps of AdamW."""
  settings = dataclasses.replace(toy.KINDS[kind], **fields)

  def model_fn(key):
    rngs = nnx.Rngs(key)
    return adapters_lib.adapt(transformer.build(settings, rngs), {way: WAYS[way]}, rngs)

  tx, _ = optimizers.make_optimizer(toy.optimizer_config(name="adamw", learning_rate=0.01), 10)
  with jax.set_mesh(mesh):
    frozen = adapters_lib.frozen({way: WAYS[way]})
    graphdef, state, shardings = train_state.init_train_state(model_fn, tx, toy.key(), mesh, freeze=frozen)
    first = jax.tree.map(np.asarray, state)
    step = train_step.make_train_step(graphdef, toy.loss(), tx, shardings)
    for seed in range(2):
      batch = toy.batch((8,) * 8, (6,) * 8, seed=seed, architecture=settings.architecture)
      state, _ = step(state, batch, toy.key())
  return first, state


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", WAYS)
def test_on_a_mesh_of_eight_the_same_is_learned_and_nothing_else_changes(way):
  """The mesh is fsdp 4 and tensor 2, with rematerialization; the optimizer contains only trained parameters."""
  kind = "bart" if way == "bitfit" else "t5_1_1"
  meshes = sharding.make_mesh({"data": 1}, devices=jax.devices()[:1]), sharding.make_mesh({"fsdp": 4, "tensor": 2})
  (first, one), (_, split) = steps(meshes[0], way, kind), steps(meshes[1], way, kind, remat="full")
  # A key bias shifts all logits of a query equally: its gradient is zero up to rounding, which AdamW amplifies.
  compared = lambda state: {path: x for path, x in toy.flat(state.params).items() if not path.endswith("key_bias")}
  toy.assert_trees_close(compared(split), compared(one), atol=1e-4)
  for path, x in toy.flat(first.frozen_params).items():
    np.testing.assert_array_equal(toy.flat(one.frozen_params)[path], x)
  assert toy.flat(one.params).keys() == {path for path in toy.flat(first.params) if is_trained(way, path)}
  same = [path for path, x in toy.flat(first.params).items() if np.all(np.asarray(toy.flat(one.params)[path]) == x)]
  assert same == []
  moments = sum(x.size for x in jax.tree.leaves(one.opt_state) if x.ndim)
  assert moments == 2 * sum(x.size for x in jax.tree.leaves(one.params))


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("way", ["prompt", "prefix"])
@pytest.mark.parametrize("kind", ["t5_1_1", "local_prefix_lm"])
def test_in_front_of_a_split_sequence_stands_the_same(way, kind):
  """A prompt's positions are sharded if possible; each device has all keys of a prefix."""
  model = adapted(way, kind)[1]
  batch = toy.batch((7, 4) * 4, (3, 4) * 4, padded_to=(8, 6), architecture=model.config.architecture)
  expected = toy.logits(model, batch)
  mesh = sharding.make_mesh({"data": 2, "sequence": 2, "tensor": 2})
  with jax.set_mesh(mesh):
    found = jax.jit(lambda model, batch: model.logits(model(batch)))(model, batch)
  np.testing.assert_allclose(found, expected, atol=1e-5)


# ---- Command ---------------------------------------------------------------------------------------------------------

COMMANDS = {
  "lora": ("--config.lora.rank=2", "--config.lora.rslora=True", "--config.lora.dora=True", "--config.lora.dropout=0.1"),
  "bitfit": ("--config.bitfit.also_train=pooler|norm",),
  "ia3": ("--config.ia3.targets=attention/key,attention/value,mlp/down",),
  "houlsby": ("--config.houlsby.bottleneck=4",),
  "pfeiffer": ("--config.pfeiffer.bottleneck=4",),
  "prompt": ("--config.prompt.length=4",),
  "prefix": ("--config.prefix.length=4", "--config.prefix.hidden=16"),
  "pals": ("--config.pals.tasks=reviews", "--config.pals.size=8", "--config.pals.heads=2"),
}


def train(way, base, workdir, *options):
  """Trains one adapter method on a checkpoint by the command; returns the exit status."""
  architecture = "encoder_only" if way == "bitfit" else "encoder_decoder"
  name = "tiny_bert" if way == "bitfit" else "t5_1_1_small"
  objective = ("--config.data.objective=masked_lm",) if way == "bitfit" else ()
  fixed = (f"--config={name}", "--config.init.use_model_config=True", f"--config.init.checkpoint={base}", *objective)
  small = (*trained.SMALL[len(trained.MODEL) :], f"--config.data.files={trained.workdir(architecture)}.jsonl")
  optimizer = ("--config.optimizer.name=adamw", "--config.optimizer.learning_rate=0.1")
  return command.main(["train", *fixed, *optimizer, *small, "--workdir", str(workdir), *options])


def read(path):
  """Returns the parameters of a checkpoint as readers get them."""
  return toy.flat(pretrained.load(pretrained.read_source(str(path)), sharding.make_mesh({"fsdp": 8})).params)


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", COMMANDS)
def test_the_command_trains_goes_on_and_is_read_by_all(way, tmp_path, capsys):
  """A stopped and resumed run equals an uninterrupted one; adapters that cannot be merged are not converted."""
  base = trained.workdir("encoder_only" if way == "bitfit" else "encoder_decoder")
  assert train(way, base, tmp_path / "stopped", *COMMANDS[way]) == 0
  early = read(tmp_path / "stopped")
  for name in ("stopped", "straight"):
    assert train(way, base, tmp_path / name, *COMMANDS[way], "--config.train.steps=4") == 0
  own, straight, before = read(tmp_path / "stopped"), read(tmp_path / "straight"), read(base)
  for path, x in straight.items():
    np.testing.assert_array_equal(own[path], x, err_msg=path)
  assert any(np.any(early[path] != x) for path, x in own.items())
  # Steps contain only trained parameters.
  folder = epath.Path(tmp_path / "stopped/checkpoints/4")
  with ocp.PyTreeCheckpointer() as checkpointer:
    held = set(restore.shapes(checkpointer.metadata(folder / "state").item_metadata.tree))
  settings = records(override(default.get_config(), list(COMMANDS[way]))).adapters
  saved = {path.removeprefix("params/") for path in held if path.startswith("params/")}
  assert saved and not any(matches(adapters_lib.frozen(settings), path) for path in saved)
  assert not any(path.startswith("frozen_params/") for path in held)

  merges = adapters_lib.ADAPTERS[way].merge is not None
  added = own.keys() - before.keys()
  assert bool(added) != merges and before.keys() <= own.keys()
  assert all(re.search(adapters_lib.ADAPTERS[way].added, path) for path in added)
  capsys.readouterr()
  out = ["convert", "--from", "t2t", str(tmp_path / "stopped"), "--to", "hf", str(tmp_path / "hf")]
  assert command.main(out) == (0 if merges else 2)
  if merges:
    theirs = read(tmp_path / "hf")
    toy.assert_trees_close(theirs, {path: own[path] for path in theirs}, atol=1e-5)
  else:
    said = " ".join(capsys.readouterr().err.split())
    assert f"the model has the adapter config.{way}, which cannot be merged" in said
    # Training continues from the adapter with the same method; another method is an error.
    assert train(way, tmp_path / "stopped", tmp_path / "again", *COMMANDS[way]) == 0
    assert read(tmp_path / "again").keys() == own.keys()
    capsys.readouterr()
    assert train(way, tmp_path / "stopped", tmp_path / "other", *COMMANDS["ia3"]) == 2
    assert f"Give the same config.{way}" in " ".join(capsys.readouterr().err.split())
  if way != "bitfit":
    (tmp_path / "in.txt").write_text("the quick brown fox\n")
    files = ["--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.txt"), "--max_length", "4"]
    assert command.main(["infer", "--checkpoint", str(tmp_path / "stopped"), *files]) == 0
    assert len((tmp_path / "out.txt").read_text().splitlines()) == 1


# ---- Errors ----------------------------------------------------------------------------------------------------------


def made(*arguments, **model):
  """Returns a recipe with the defaults and these options, at toy size."""
  given = override(default.get_config(), list(arguments))
  given.model.update(dataclasses.asdict(toy.config(**model)))
  return recipe.make(records(given))


def test_a_run_has_one_adapter():
  """Two adapter sections are a one-line error."""
  arguments = ["--config.lora.rank=4", "--config.houlsby.bottleneck=8"]
  with pytest.raises(UserError, match="config.lora and config.houlsby are set, but a run uses at most one adapter"):
    records(override(default.get_config(), arguments))


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (
      ["--config.lora.also_train=mlp_norm", "--config.optimizer.param_groups=norm: frozen"],
      "config.lora.also_train: 'mlp_norm' must be trained, but all its parameters are frozen because of"
      " config.optimizer.param_groups: 'norm: frozen'",
    ),
    (
      ["--config.lora.also_train=mlp_norm", "--config.train.freeze=norm"],
      "config.lora.also_train: 'mlp_norm' .* because of config.train.freeze: 'norm'",
    ),
    (
      ["--config.lora.rank=2", "--config.train.freeze=lora"],
      "config.lora must be trained, but all its parameters are frozen",
    ),
  ],
)
def test_rules_that_contradict_are_refused(arguments, message):
  """Adapter targets conflict with frozen paths; the message contains both keys."""
  with pytest.raises(UserError, match=message):
    made(*arguments).freeze  # noqa: B018


def test_what_is_frozen_in_part_is_no_contradiction():
  """Parameter groups may freeze a part of the adapter's parameters."""
  assert made("--config.lora.also_train=norm", "--config.optimizer.param_groups=encoder.*norm: frozen").freeze


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--config.bitfit.also_train="], "config.bitfit: the model's layers have no biases .* a model with biases: BERT"),
    (["--config.bitfit.also_train=nrom"], "config.bitfit: the model's layers have no biases"),
    (
      ["--config.ia3.targets=attention/queri"],
      "config.ia3.targets: the pattern 'attention/queri' matches no path. Paths: .*attention/query",
    ),
    (["--config.ia3.targets="], r"config.ia3.targets=\(\): nothing would be adapted"),
    (
      ["--config.ia3.also_train=nrom"],
      "config.ia3.also_train: the pattern 'nrom' matches no path. Paths: .*; did you mean norm?",
    ),
    (["--config.houlsby.bottleneck=0"], "config.houlsby.bottleneck=0: must be at least 1"),
    (
      ["--config.houlsby.activation=rleu"],
      "config.houlsby.activation='rleu': unknown activation. Known values: .*; did you mean relu?",
    ),
    (
      ["--config.pfeiffer.also_train=nrom"],
      "config.pfeiffer.also_train: the pattern 'nrom' matches .* mean norm?",
    ),
  ],
)
def test_what_does_not_fit_is_refused(arguments, message):
  """The error comes before device use, with the key and the remedy."""
  with pytest.raises(UserError, match=message):
    found = made(*arguments)
    jax.eval_shape(lambda: found.model_fn(jax.random.key(0)))
