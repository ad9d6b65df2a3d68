import dataclasses
import json

from flax import nnx, traverse_util
import foreign
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy
import trained

from t2t import UserError, sharding
from t2t import __main__ as command
from t2t.checkpoints import pretrained, tensor_writer
from t2t.configs import default
from t2t.configuration.loading import override, records
from t2t.models import adapters as adapters_lib
from t2t.models import layers, transformer
from t2t.models.adapters.lora import LoraConfig, LowRank
from t2t.param_tree import split_frozen
from t2t.training import optimizers, train_state, train_step

EVERYTHING = LoraConfig(rank=3, alpha=6.0, targets=("attention/", "mlp/"))
WAYS = {"lora": EVERYTHING, "dora": dataclasses.replace(EVERYTHING, rslora=True, dora=True, dropout=0.3)}
KINDS = pytest.mark.parametrize("kind", ["t5_1_1", "local_prefix_lm", "bert", "shared_everything"])


def adapted(model, config):
  """Returns structure and parameters of a model with an adapter of nonzero values, as after training."""
  graphdef, params = toy.split(adapters_lib.adapt(model, {"lora": config}, nnx.Rngs(toy.key(1))))
  random = np.random.default_rng(0)
  flat = traverse_util.flatten_dict(params, sep="/")
  zero = ("lora_up", "lora_magnitude")
  changed = lambda path, x: jnp.asarray(random.normal(size=x.shape), x.dtype) / 8 if path.endswith(zero) else x
  return graphdef, traverse_util.unflatten_dict({path: changed(path, x) for path, x in flat.items()}, sep="/")


def merged(params, config):
  flat = adapters_lib.merge(traverse_util.flatten_dict(params, sep="/"), {"lora": config})
  return traverse_util.unflatten_dict(flat, sep="/")


@pytest.mark.exhaustive
@KINDS
def test_an_adapted_model_starts_as_the_model(kind):
  """Logits are bitwise equal, dropout included, because one of the two new matrices is zero."""
  config = dataclasses.replace(toy.KINDS[kind], dropout_rate=0.1)
  model, batch = toy.model(config), toy.batch(architecture=config.architecture)
  before = toy.flat(model)
  new = adapters_lib.adapt(model, {"lora": EVERYTHING}, nnx.Rngs(toy.key(1)))
  np.testing.assert_array_equal(toy.logits(new, batch, toy.key()), toy.logits(model, batch, toy.key()))
  assert toy.flat(model).keys() == before.keys()  # the base model is not modified
  added = {path.rpartition("/")[0] for path in toy.flat(toy.split(new)[1]) if path.endswith("lora_down")}
  names = {"query", "key", "value", "out", "up", "down"} | ({"gate"} if config.gated else set())
  assert {path.rpartition("/")[2] for path in added} == names


@pytest.mark.exhaustive
@KINDS
def test_with_dora_it_starts_as_the_model_as_well(kind):
  """Bitwise, operation by operation; XLA may round a fused computation differently in a larger program."""
  config = dataclasses.replace(toy.KINDS[kind], dropout_rate=0.1)
  model, batch = toy.model(config), toy.batch(architecture=config.architecture)
  new = adapters_lib.adapt(model, {"lora": WAYS["dora"]}, nnx.Rngs(toy.key(1)))
  with jax.disable_jit():
    plain, found = (each.logits(each(batch, dropout_key=toy.key())) for each in (model, new))
  np.testing.assert_array_equal(found, plain)


def test_a_merge_is_exact_on_every_device():
  """By default a TPU multiplies float32 in bfloat16, and a merge is permanent."""
  flat = {"up/kernel": (4, 6), "up/lora_down": (4, 3), "up/lora_up": (3, 6)}
  params = {path: jax.ShapeDtypeStruct(shape, jnp.float32) for path, shape in flat.items()}
  with jax.default_matmul_precision("bfloat16"):
    program = jax.make_jaxpr(lambda params: adapters_lib.merge(params, {"lora": EVERYTHING}))(params)
  found = [equation for equation, _ in toy.equations(program.jaxpr) if equation.primitive.name == "dot_general"]
  assert [set(equation.params["precision"]) for equation in found] == [{jax.lax.Precision.HIGHEST}]


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", WAYS)
@KINDS
def test_merged_is_the_same_model_without_an_adapter(kind, way):
  """Paths, shapes and logits equal those without an adapter; the base model's logits differ."""
  config = toy.KINDS[kind]
  plain, batch = toy.model(config), toy.batch(architecture=config.architecture)
  graphdef, params = adapted(plain, WAYS[way])
  plain_graphdef, plain_params = toy.split(plain)
  found = merged(params, WAYS[way])
  assert jax.tree.map(jnp.shape, found) == jax.tree.map(jnp.shape, plain_params)
  logits = toy.logits(nnx.merge(graphdef, params), batch)
  np.testing.assert_allclose(toy.logits(nnx.merge(plain_graphdef, found), batch), logits, atol=1e-3)
  assert np.max(np.abs(logits - toy.logits(plain, batch))) > 0.1


@pytest.mark.exhaustive
def test_what_is_added_is_the_product_times_alpha_over_rank():
  """Layer by layer: W + 6 / 3 * down up."""
  _, params = adapted(toy.model(toy.KINDS["t5_1_1"]), EVERYTHING)
  query = params["encoder"]["layers"]["self_attention"]["query"]
  assert [query[name].shape for name in ("kernel", "lora_down", "lora_up")] == [(2, 16, 24), (2, 16, 3), (2, 3, 24)]
  found = merged(params, EVERYTHING)["encoder"]["layers"]["self_attention"]["query"]
  for layer in range(2):
    expected = query["kernel"][layer] + 2.0 * query["lora_down"][layer] @ query["lora_up"][layer]
    np.testing.assert_allclose(found[layer], expected, atol=1e-5)


@pytest.fixture
def low_rank():
  """Returns an adapted matrix [12, 10] with nonzero values, its config, and input vectors, [5, 12]."""
  config = LoraConfig(rank=4, alpha=3.0, rslora=True, dora=True, dropout=0.5)
  draw = lambda seed, *shape: nnx.Param(jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32))
  kernel, down, up, longer = draw(0, 12, 10), draw(1, 12, 4), draw(2, 4, 10), draw(3, 10)
  made = LowRank(kernel, down, up, config.scale, magnitude=longer, dropout_rate=config.dropout)
  return made, config, draw(4, 5, 12)[...]


def test_with_rslora_what_is_added_counts_by_the_root_of_the_rank():
  """alpha / sqrt(rank) instead of alpha / rank."""
  assert LoraConfig(rank=16, alpha=8.0, rslora=True).scale == 2.0 == 4 * LoraConfig(rank=16, alpha=8.0).scale


@pytest.mark.slow
def test_with_dora_columns_are_as_long_as_is_said(low_rank):
  """|w| + magnitude for any addition; factored or merged, the result is the same."""
  made, config, x = low_rank
  matrix = merged({"m": toy.split(made)[1]}, config)["m"]
  lengths = jnp.linalg.norm(made.kernel[...], axis=0) + made.lora_magnitude[...]
  np.testing.assert_allclose(jnp.linalg.norm(matrix * jnp.sign(lengths), axis=0), jnp.abs(lengths), rtol=1e-5)
  np.testing.assert_allclose(layers.dense(x, made), x @ matrix, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_the_length_that_dora_divides_by_has_no_gradient(low_rank):
  """Liu et al. 2024, section 4.3: the narrow matrices' gradient treats the factors of the columns as constant."""
  made, _, x = low_rank
  graphdef, params = toy.split(made)
  factors = made.factors()

  def given(params):
    y = x @ params["kernel"] + made.scale * (x @ params["lora_down"]) @ params["lora_up"]
    return jnp.sum(jnp.square(y * factors))

  found = jax.grad(lambda params: jnp.sum(jnp.square(layers.dense(x, nnx.merge(graphdef, params)))))(params)
  expected = jax.grad(given)(params)
  for name in ("lora_down", "lora_up"):
    np.testing.assert_allclose(found[name], expected[name], rtol=1e-4)
  y = layers.dense(x, made)
  lengths = jnp.linalg.norm(made.kernel[...], axis=0) + made.lora_magnitude[...]
  np.testing.assert_allclose(found["lora_magnitude"], 2 * jnp.sum(y * y / lengths, axis=0), rtol=1e-4)


def test_dropout_is_of_what_the_narrow_matrices_read(low_rank):
  """With a key only: the kernel's output is unchanged, dropped inputs are zero, and the others double."""
  made, _, x = low_rank
  made.lora_magnitude = None
  dropped = layers.dropout(x, 0.5, jax.random.fold_in(toy.key(), made.number))
  assert np.any(dropped == 0) and np.any(dropped != 0)
  expected = x @ made.kernel[...] + made.scale * dropped @ made.lora_down[...] @ made.lora_up[...]
  np.testing.assert_allclose(layers.dense(x, made, dropout_key=toy.key()), expected, rtol=1e-4, atol=1e-5)
  assert np.any(layers.dense(x, made) != layers.dense(x, made, dropout_key=toy.key()))


@pytest.mark.exhaustive
@KINDS
def test_every_adapted_matrix_drops_by_a_key_of_its_own(kind, monkeypatch):
  """In every layer; without a key nothing is dropped."""
  config, lora = toy.KINDS[kind], dataclasses.replace(EVERYTHING, dropout=0.1)
  model, batch = toy.model(config), toy.batch(architecture=config.architecture)
  new = adapters_lib.adapt(model, {"lora": lora}, nnx.Rngs(toy.key(1)))
  keys = toy.dropout_keys(monkeypatch)
  jax.block_until_ready(jax.jit(lambda key: new(batch, dropout_key=key))(toy.key()))
  jax.effects_barrier()
  # Each layer has the matrices of its attentions and of its feed-forward layer.
  mlp = 3 if config.gated else 2
  decoder = config.num_decoder_layers * (8 if config.num_encoder_layers else 4)
  branches = config.num_encoder_layers * 4 + decoder + mlp * (config.num_encoder_layers + config.num_decoder_layers)
  assert len(keys) == len(set(keys)) == branches
  jax.block_until_ready(new(batch))
  jax.effects_barrier()
  assert len(keys) == branches


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["t5_1_1", "local_prefix_lm", "shared_everything"])
def test_an_adapted_model_writes_what_the_merged_one_does(kind):
  """Cached decoding gives the same tokens."""
  config = toy.KINDS[kind]
  plain, batch = toy.model(config), toy.batch(architecture=config.architecture)
  graphdef, params = adapted(plain, WAYS["dora"])
  found = foreign.writes(graphdef, params, batch, num_beams=1, eos_id=-1)
  expected = foreign.writes(toy.split(plain)[0], merged(params, WAYS["dora"]), batch, num_beams=1, eos_id=-1)
  np.testing.assert_array_equal(found, expected)


def steps(mesh, *, lora, freeze=(), **fields):
  """Returns the state before and after two steps of AdamW."""
  config = toy.config(**fields)

  def model_fn(key):
    rngs = nnx.Rngs(key)
    return adapters_lib.adapt(transformer.build(config, rngs), {"lora": lora}, rngs)

  tx, _ = optimizers.make_optimizer(toy.optimizer_config(name="adamw", learning_rate=0.01), 10)
  with jax.set_mesh(mesh):
    freeze = (*freeze, *adapters_lib.frozen({"lora": lora}))
    graphdef, state, shardings = train_state.init_train_state(model_fn, tx, toy.key(), mesh, freeze=freeze)
    first = jax.tree.map(np.asarray, state)
    step = train_step.make_train_step(graphdef, toy.loss(), tx, shardings)
    for seed in range(2):
      state, _ = step(state, toy.batch((8,) * 8, (6,) * 8, seed=seed), toy.key())
  return first, state


@pytest.mark.exhaustive
def test_only_what_is_added_is_trained():
  """The base model's parameters are bitwise unchanged and have no optimizer state; `also_train` adds others."""
  lora = LoraConfig(rank=2, also_train=("encoder/.*norm",))
  first, last = steps(sharding.make_mesh({"data": 8}), lora=lora, remat="full")
  trained_paths = toy.flat(last.params).keys()
  added = {path for path in trained_paths if "lora_" in path}
  assert trained_paths - added == {path for path in trained_paths if path.startswith("encoder/") and "norm" in path}
  assert len(added) == 2 * 2 * 3  # down and up, of query and value, of three attentions
  assert toy.flat(first.frozen_params).keys() == toy.flat(last.frozen_params).keys()
  for path, x in toy.flat(first.frozen_params).items():
    np.testing.assert_array_equal(toy.flat(last.frozen_params)[path], x)
  for path, x in toy.flat(first.params).items():
    assert np.any(np.asarray(toy.flat(last.params)[path]) != x), path
  moments = sum(x.size for x in jax.tree.leaves(last.opt_state) if x.ndim)
  assert moments == 2 * sum(x.size for x in jax.tree.leaves(last.params))


@pytest.mark.exhaustive
def test_on_a_mesh_the_same_is_learned():
  """Parameters split over fsdp 4 and tensor 2; narrow matrices are split like the wide one."""
  meshes = (sharding.make_mesh({"data": 1}, devices=jax.devices()[:1]), sharding.make_mesh({"fsdp": 4, "tensor": 2}))
  (_, one), (_, split) = (steps(mesh, lora=EVERYTHING) for mesh in meshes)
  toy.assert_trees_close(split.params, one.params, atol=1e-4)
  query = split.params["encoder"]["layers"]["self_attention"]["query"]
  assert query["lora_down"].sharding.shard_shape((2, 16, 3)) == (2, 4, 3)
  assert query["lora_up"].sharding.shard_shape((2, 3, 24)) == (2, 3, 12)


@pytest.mark.exhaustive
def test_with_an_adapter_and_frozen_patterns_both_hold():
  """`config.train.freeze` may exclude a part of the adapter."""
  _, last = steps(sharding.make_mesh({"data": 8}), lora=LoraConfig(rank=2), freeze=("^encoder/",))
  assert {path.split("/")[0] for path in toy.flat(last.params)} == {"decoder"}


def test_the_section_is_there_where_it_is_used():
  """A given key adds the section with all its keys; without one it is neither in the config nor in config.json."""
  plain = records(override(default.get_config(), []))
  assert plain.lora is None and not plain.adapters and "lora" not in plain.to_dict()
  typed = override(default.get_config(), ["--config.lora.rank=4", "--config.lora.targets=query,mlp/up"])
  found = records(typed)
  assert found.lora == LoraConfig(rank=4, targets=("query", "mlp/up"))
  again = LoraConfig(**json.loads(json.dumps(found.to_dict()))["lora"])
  assert again == found.lora
  written = default.get_config()
  with written.unlocked():
    written.lora = {"rank": 2}
  assert records(override(written, ["--config.lora.alpha=4"])).lora == LoraConfig(rank=2, alpha=4.0)


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--config.lroa.rank=4"], "config.lroa.rank: no such key; nearest: lora.rank"),
    (["--config.lora.rnak=4"], "config.lora.rnak: no such key; nearest: lora.rank"),
    (["--config.lora.rank=0"], "config.lora.rank=0: must be at least 1"),
    (["--config.lora.alpha=0"], "config.lora.alpha=0.0: must be more than 0"),
    (["--config.lora.alpha=inf"], "config.lora.alpha=inf must be a finite number"),
    (["--config.lora.dropout=1"], "config.lora.dropout=1.0: must be at least 0 and below 1"),
  ],
)
def test_a_key_out_of_range_is_refused(arguments, message):
  """The message names the key, and the most similar one."""
  with pytest.raises(UserError, match=message):
    records(override(default.get_config(), arguments))


@pytest.mark.parametrize(
  ("config", "message"),
  [
    (
      LoraConfig(targets=("qurey",)),
      "config.lora.targets: the pattern 'qurey' matches no path. Paths: .*; did you mean query?",
    ),
    (
      LoraConfig(targets=("embed/table",)),
      "config.lora.targets: the pattern 'embed/table' matches no path. Paths: decoder/layers/",
    ),
    (LoraConfig(targets=()), r"config.lora.targets=\(\): nothing would be adapted"),
    (LoraConfig(targets=("(query",)), r"config.lora.targets: '\(query' is not a valid regular expression \(missing \)"),
    (
      LoraConfig(also_train=("(?i)norm",)),
      r"also_train: '\(\?i\)norm' is not a valid regular expression \(global flags not at",
    ),
    (
      LoraConfig(also_train=("nrom",)),
      "config.lora.also_train: the pattern 'nrom' matches no path. Paths: .*; did you mean norm?",
    ),
  ],
)
def test_patterns_that_match_nothing_are_refused(config, message):
  """The message has the paths, and the most similar one."""
  with pytest.raises(UserError, match=message):
    jax.eval_shape(
      lambda: adapters_lib.adapt(transformer.build(toy.config(), nnx.Rngs(0)), {"lora": config}, nnx.Rngs(0))
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """Returns a checkpoint, a workdir of LoRA training that stopped after two steps and resumed, and its text."""
  base = trained.workdir("encoder_decoder")
  workdir = tmp_path_factory.mktemp("lora") / "run"
  options = (
    *("--config=t5_1_1_small", "--config.init.use_model_config=True", f"--config.init.checkpoint={base}"),
    *("--config.lora.rank=2", "--config.lora.targets=attention/,mlp/", f"--config.data.files={base}.jsonl"),
    *("--config.data.inputs_length=48", "--config.data.targets_length=24", "--config.data.num_streams=1"),
    *(
      "--config.train.batch_size=8",
      "--config.eval.batches=1",
      "--config.eval.num_logged_samples=0",
      "--workdir",
      str(workdir),
    ),
    *("--config.optimizer.learning_rate=0.1", "--config.optimizer.scale_by_parameter=False"),
  )
  for number in (2, 3):
    assert command.main(["train", *options, f"--config.train.steps={number}"]) == 0
  return base, workdir


@pytest.mark.exhaustive
def test_the_command_trains_resumes_and_is_read_by_all(run, tmp_path, capsys):
  """From a checkpoint; evaluation, generation and conversion then read merged plain matrices."""
  base, workdir = run
  assert json.loads((workdir / "config.json").read_text())["lora"]["rank"] == 2
  assert "lora" not in json.loads((base / "config.json").read_text())
  source, mesh = pretrained.read_source(str(workdir)), sharding.make_mesh({"fsdp": 8})
  own, before = (toy.flat(pretrained.load(each, mesh).params) for each in (source, pretrained.read_source(str(base))))
  assert own.keys() == before.keys()
  changed = {path for path in own if np.any(own[path] != before[path])}
  assert changed == {path for path in own if path.rpartition("/")[0].endswith(("attention", "mlp"))}
  for path, tensor in tensor_writer.open_foreign(str(workdir)).tensors.items():
    np.testing.assert_allclose(tensor.read(), own[path], atol=1e-6, err_msg=path)

  (tmp_path / "in.txt").write_text("the quick brown fox\n")
  infer = ["infer", "--checkpoint", str(workdir), "--input", f"{tmp_path}/in.txt", "--output", f"{tmp_path}/out.txt"]
  assert command.main([*infer, "--max_length", "4"]) == 0
  assert len((tmp_path / "out.txt").read_text().splitlines()) == 1
  assert command.main(["convert", "--from", "t2t", str(workdir), "--to", "hf", str(tmp_path / "hf")]) == 0
  theirs = toy.flat(pretrained.load(pretrained.read_source(str(tmp_path / "hf")), mesh).params)
  toy.assert_trees_close(theirs, own, atol=1e-6)


@pytest.mark.slow
def test_heads_are_trained_beside_an_adapter():
  """Frozen heads would keep their random values."""
  heads = ({"name": "nli", "kind": "class", "num_classes": 3},)
  model = toy.model(dataclasses.replace(toy.KINDS["bert"], heads=heads))
  config = LoraConfig(rank=2, also_train=("^embed/norm",))
  _, params = toy.split(adapters_lib.adapt(model, {"lora": config}, nnx.Rngs(toy.key(1))))
  trained, frozen = (toy.flat(part) for part in split_frozen(params, adapters_lib.frozen({"lora": config})))
  assert {path.split("/")[0] for path in trained} == {"heads", "embed", "encoder"}
  assert all(path.startswith(("heads/nli/", "embed/norm/")) or "/lora_" in path for path in trained)
  assert not any(path.startswith("heads/") or "/lora_" in path for path in frozen)


def test_an_adapter_without_a_model_to_adapt_is_refused(tmp_path, capsys):
  """Random matrices that never change would learn nothing."""
  assert command.main(["train", "--config=tiny_t5", "--config.lora.rank=2", "--workdir", str(tmp_path / "run")]) == 2
  assert "config.lora adapts a trained model, but no checkpoint" in capsys.readouterr().err
  assert not (tmp_path / "run").exists()
