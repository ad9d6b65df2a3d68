import dataclasses
import json

from etils import epath
from flax import nnx
import foreign
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import UserError, sharding
from t2t.checkpoints import manager, pretrained, tensor_writer, warm_start
from t2t.configs import default
from t2t.configuration.loading import load_config, override, records
from t2t.convert import huggingface
from t2t.models import head_config, heads, transformer
from t2t.models.config import TransformerConfig
from t2t.models.head_config import HeadConfig
from t2t.training import optimizers, recipe, train_state

HIDDEN = np.random.default_rng(0).normal(size=(1, 3, 16)).astype(np.float32)


@pytest.mark.exhaustive
@pytest.mark.parametrize("tied", [True, False])
def test_logits_come_from_the_embedding_or_a_projection(tied):
  """Tied: hidden * embed_dim**-0.5 times the embedding, because its entries have standard deviation 1."""
  model = toy.model(toy.KINDS["t5_1_0" if tied else "t5_1_1"])
  kernel = model.embed.table[...].T / 4 if tied else model.head.projection[...]
  np.testing.assert_allclose(model.logits(HIDDEN), HIDDEN @ np.asarray(kernel), atol=1e-5)
  assert (model.head.projection is None) == tied


@pytest.mark.slow
def test_an_embedding_with_small_entries_is_not_scaled():
  """With a configured initial scale (GPT-2, BERT), logits are hidden times embedding."""
  model = toy.model(toy.config(tied_logits=True, init_scale=0.02))
  np.testing.assert_allclose(model.logits(HIDDEN), HIDDEN @ np.asarray(model.embed.table[...]).T, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bert", "albert", "modern_bert"])
def test_a_transform_stands_before_the_logits(kind):
  """norm(gelu(hidden W + b)) times the embedding, with the embedding's width, plus a bias for each token."""
  config = toy.KINDS[kind]
  model, random = toy.model(config), np.random.default_rng(1)
  graphdef, params = toy.split(model)
  params["head"] = jax.tree.map(lambda x: x + jnp.asarray(random.normal(size=x.shape), x.dtype), params["head"])
  head, table = params["head"], params["embed"]["table"]
  assert head["transform"].shape == (16, config.embedding_dim or 16)
  transformed = jax.nn.gelu(HIDDEN @ head["transform"] + head.get("transform_bias", 0.0), approximate=False)
  centered = transformed - transformed.mean(-1, keepdims=True)
  normed = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + config.norm_epsilon) * head["norm"]["scale"]
  normed = normed + head["norm"].get("bias", 0.0)
  # The scale is here only because the toy's embedding starts as T5's.
  expected = normed * 16**-0.5 @ table.T + head["bias"]
  np.testing.assert_allclose(nnx.merge(graphdef, params).logits(HIDDEN), expected, atol=1e-4)
  assert ("transform_bias" in head) == ("bias" in head["norm"]) == config.biases


def test_an_output_embedding_has_a_width_of_its_own():
  """RemBERT's is wider than the model, and its input embedding narrower; it is not tied, and follows the transform."""
  config = toy.KINDS["rembert"]
  shapes = {path: x.shape for path, x in toy.flat(toy.split(toy.model(config))[1]).items()}
  assert shapes["embed/table"] == (40, 12) and shapes["head/transform"] == (16, 24)
  assert shapes["head/norm/scale"] == (24,) and shapes["head/projection"] == (24, 40)
  for fields in ({"tied_logits": True, "embedding_dim": 24}, {"logits_transform": False}):
    with pytest.raises(UserError, match="output_embedding_dim=24 needs config.model.logits_transform=True, and"):
      jax.eval_shape(lambda fields=fields: transformer.build(dataclasses.replace(config, **fields), nnx.Rngs(0)))


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["bert", "gemma", "modern_bert"])
def test_norms_that_multiply_with_one_more_begin_as_the_others(kind):
  """Their scales start at zero, before the logits of tokens and of a class, too."""
  head = dataclasses.replace(NLI, pooler="norm", reads="last")
  first = dataclasses.replace(toy.KINDS[kind], norm_offset=False, heads=(head,))
  batch, found = toy.batch(architecture=first.architecture), {}
  for config in (first, dataclasses.replace(first, norm_offset=True)):
    graphdef, params = toy.split(toy.model(config))
    scales = {path: x for path, x in toy.flat(params).items() if path.endswith("/scale")}
    assert all(np.all(x == (0.0 if config.norm_offset else 1.0)) for x in scales.values())
    moved = jax.tree_util.tree_map_with_path(lambda path, x: x + 0.5 * ("scale" in str(path[-1])), params)
    model = nnx.merge(graphdef, moved)
    hidden = model(batch)
    found[config.norm_offset] = model.logits(hidden), model.head_logits("nli", hidden)
  for one, other in zip(found[True], found[False], strict=True):
    np.testing.assert_allclose(one, other, atol=1e-5)
    assert np.std(one) > 0.1


def test_the_function_of_logits_is_a_pytree_of_the_same_structure():
  """Two functions from one model compile once; the leaves are the weights."""
  model = toy.model(toy.KINDS["bert"])
  first, again = model.logits_fn(), model.logits_fn()
  assert jax.tree.structure(first) == jax.tree.structure(again)
  assert sorted(x.shape for x in jax.tree.leaves(first)) == [(16,), (16,), (16,), (16, 16), (40,), (40, 16)]


# ---- By name ---------------------------------------------------------------------------------------------------------

NLI, TOPIC = HeadConfig("nli", 3), HeadConfig("topic", 5)
THEIRS = dataclasses.replace(toy.KINDS["bert"], head_dim=4, init_scale=0.02)  # the layout of transformers


def with_heads(kind):
  return dataclasses.replace(toy.KINDS[kind], heads=(NLI, TOPIC))


def test_kinds_of_heads_are_those_that_a_config_may_name():
  """The config's list, which loads no model, equals the table's."""
  assert tuple(heads.HEADS) == head_config.HEADS


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("kind", ["bert", "roberta", "modern_bert", "t5_1_1"])
def test_a_class_head_is_a_pooler_and_a_projection(kind):
  """tanh(first W + b) V + c of each sequence's first position, one vector of logits per sequence."""
  config, random = with_heads(kind), np.random.default_rng(2)
  graphdef, params = toy.split(toy.model(config))
  nonzero = lambda x: x + jnp.asarray(random.normal(size=x.shape), x.dtype)
  params["heads"] = jax.tree.map(nonzero, params["heads"])
  model, hidden = nnx.merge(graphdef, params), random.normal(size=(2, 3, 16)).astype(np.float32)
  for head in config.heads:
    own = params["heads"][head.name]
    assert ("pooler_bias" in own) == config.biases
    pooled = np.tanh(hidden[:, 0] @ own["pooler"] + own.get("pooler_bias", 0.0))
    expected = pooled @ own["projection"] + own["projection_bias"]
    found = model.head_logits(head.name, hidden[:, 0])
    assert (found.shape, found.dtype) == ((2, head.num_classes), jnp.float32)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("kind", ["class", "detector", "vocabulary"])
def test_logits_are_not_rounded_to_the_dtype_of_the_activations(kind):
  """A softmax of bfloat16 logits would be coarse: three digits of a number between -10 and 10."""
  head = HeadConfig("own", 5, kind="detector" if kind == "detector" else "class")
  model = toy.model(dataclasses.replace(toy.KINDS["bert"], heads=(head,), dtype="bfloat16"))
  hidden = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 16)), jnp.bfloat16)
  logits = model.logits(hidden) if kind == "vocabulary" else model.head_logits("own", hidden)
  assert logits.dtype == jnp.float32
  assert np.mean(logits == logits.astype(jnp.bfloat16).astype(jnp.float32)) < 0.5  # biases are zero


@pytest.mark.slow
def test_a_gradient_reaches_every_parameter_of_a_head():
  """And every parameter of the encoder, but none of other heads or the vocabulary head."""
  graphdef, params = toy.split(toy.model(with_heads("bert")))
  batch = toy.batch(architecture="encoder_only")

  def loss(params):
    model = nnx.merge(graphdef, params)
    return jnp.sum(jnp.sin(model.head_logits("nli", model(batch)[:, 0])))

  flat = toy.flat(jax.jit(jax.grad(loss))(params))
  unused = {name for name, x in flat.items() if not np.any(np.abs(x) > 1e-6)}
  assert {name for name in unused if not name.startswith(("head/", "heads/topic/")) and "key_bias" not in name} == set()
  assert {"heads/topic/pooler", "head/transform", "head/bias"} <= unused


def test_a_head_drops_out_what_it_pools():
  """With a key, at the model's rate; without a key there is no dropout."""
  model = toy.model(dataclasses.replace(with_heads("bert"), dropout_rate=0.5))
  hidden = np.random.default_rng(0).normal(size=(2, 3, 16)).astype(np.float32)
  plain, first, again = (model.head_logits("nli", hidden, dropout_key=key) for key in (None, toy.key(), toy.key()))
  np.testing.assert_array_equal(first, again)
  assert np.max(np.abs(plain - first)) > 0.01


def test_a_head_that_is_not_there():
  """The message has the known heads, and the most similar one."""
  with pytest.raises(UserError, match="no head 'topics'. Known heads: nli, topic; did you mean topic?"):
    toy.model(with_heads("bert")).head_logits("topics", HIDDEN)
  with pytest.raises(UserError, match="no head 'nli'. Known heads: none"):
    toy.model(toy.KINDS["bert"]).head_logits("nli", HIDDEN)


@pytest.mark.parametrize(("name", "idle"), [("tiny_bert", {"nli"}), ("tiny_electra", {"nli"})])
def test_a_head_that_the_loss_makes_nothing_of_is_not_trained(name, idle):
  """It has no gradient, and weight decay would shrink it."""
  config = load_config(name)
  config.model.heads = (*config.model.heads, {"name": "nli", "num_classes": 3})
  made = recipe.make(records(config))
  assert set(made.idle_heads) == idle
  _, state, _ = made.state(sharding.make_mesh({"fsdp": 8}))
  frozen, trained = toy.flat(state.frozen_params), toy.flat(state.params)
  assert frozen and all("heads/nli/" in path for path in frozen)
  assert not any("heads/nli/" in path for path in trained)
  assert any("heads/replaced/" in path for path in trained) == (name == "tiny_electra")


def test_a_config_with_heads_is_the_same_when_it_is_read_again():
  """From JSON, where a head is a dict, and from the command line."""
  config = with_heads("bert")
  assert TransformerConfig(**json.loads(json.dumps(dataclasses.asdict(config)))) == config
  typed = override(default.get_config(), ["--config.model.heads=({'name': 'nli', 'num_classes': 3},)"])
  assert records(typed).model.heads == (NLI,)


def test_a_pooler_of_theirs_is_left_behind_or_taken(tmp_path):
  """Without a class head the model has no pooler, and the converter reports it; a run with the head starts from it."""
  config = THEIRS
  huggingface.save(foreign.in_memory(config, foreign.random_params(config)), epath.Path(tmp_path / "bert"))
  plain = huggingface.open_foreign(str(tmp_path / "bert"))
  assert not plain.pooler and not any("pooler" in note for note in plain.notes)
  path, random = tmp_path / "bert" / "model.safetensors", np.random.default_rng(0)
  kernel, bias = random.normal(size=(16, 16)).astype(np.float32), random.normal(size=16).astype(np.float32)
  theirs = {"bert.pooler.dense.weight": kernel, "bert.pooler.dense.bias": bias}
  foreign.write_safetensors(path, foreign.safetensors(tmp_path / "bert") | theirs)
  found = huggingface.open_foreign(str(tmp_path / "bert"))
  assert found.model == plain.model and found.tensors.keys() == plain.tensors.keys()
  assert [note for note in found.notes if "bert.pooler.dense.weight" in note and "left behind" in note]

  source = pretrained.read_source(str(tmp_path / "bert"))
  model = pretrained.abstract(
    dataclasses.replace(source, model=dataclasses.replace(config, heads=(NLI,))), sharding.make_mesh({"fsdp": 8})
  )
  given = warm_start.warm_start(source, model.params).params
  assert {path for path in toy.flat(given) if path.startswith("heads/")} == {
    "heads/nli/pooler",
    "heads/nli/pooler_bias",
  }
  np.testing.assert_array_equal(given["heads"]["nli"]["pooler"], kernel.T)
  np.testing.assert_array_equal(given["heads"]["nli"]["pooler_bias"], bias)


def test_a_checkpoint_from_before_heads_had_names(tmp_path):
  """A checkpoint with `pooler: true` in its config and an unused pooler, which is skipped."""
  config = toy.KINDS["bert"]
  params = toy.split(toy.model(config))[1]
  old = params | {"pooler": jnp.ones((16, 16)), "pooler_bias": jnp.ones(16)}
  state = train_state.TrainState(jnp.zeros((), jnp.int32), old, {}, ())
  checkpoints = manager.Checkpoints(epath.Path(tmp_path), keep=1)
  checkpoints.save(1, state, {}, {"model": dataclasses.asdict(config) | {"pooler": True}, "data": {}}, metrics=None)
  checkpoints.close()
  source = pretrained.read_source(str(tmp_path))
  assert source.model == config
  toy.assert_trees_close(pretrained.load(source, sharding.make_mesh({"fsdp": 8})).params, params, atol=0.0, rtol=0.0)
  assert tensor_writer.open_foreign(str(tmp_path)).tensors.keys() == toy.flat(params).keys()


def restored(workdir, saved, state, config):
  """Saves a state and restores it in a run with a state like `state`."""
  checkpoints = manager.Checkpoints(epath.Path(workdir), keep=1)
  checkpoints.save(0, saved, {}, config, metrics=None)
  checkpoints.wait()
  abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
  found, _ = checkpoints.restore(0, abstract, ())
  checkpoints.close()
  return found


@pytest.mark.exhaustive
def test_a_run_from_before_heads_had_names_goes_on(tmp_path):
  """The moments of its pooler are skipped, too; all else is restored."""
  tx, _ = optimizers.make_optimizer(toy.optimizer_config(name="adamw"), 10)
  mesh = sharding.make_mesh({"fsdp": 4, "tensor": 2})
  model = toy.model(toy.KINDS["bert"])
  with jax.set_mesh(mesh):
    _, state, _ = train_state.init_train_state(lambda _: model, tx, toy.key(), mesh)
    old = state.params | {"pooler": jnp.ones((16, 16)), "pooler_bias": jnp.ones(16)}
    saved = train_state.TrainState(state.step, old, {}, tx.init(old))
    found = restored(tmp_path, saved, state, {"model": {"pooler": True}})
  toy.assert_trees_close(found, state, atol=0, rtol=0)


@pytest.mark.exhaustive
def test_a_class_heads_own_pooler_is_resumed(tmp_path):
  """It has the same name as the unused pooler, but is restored."""
  tx, _ = optimizers.make_optimizer(toy.optimizer_config(name="adamw"), 10)
  mesh = sharding.make_mesh({"fsdp": 4, "tensor": 2})
  model = toy.model(with_heads("bert"))
  with jax.set_mesh(mesh):
    _, state, _ = train_state.init_train_state(lambda _: model, tx, toy.key(), mesh)
    assert "pooler" in state.params["heads"]["nli"]
    found = restored(tmp_path, state, state, {})
  toy.assert_trees_close(found, state, atol=0, rtol=0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("loss", ["tokens_and_heads", "heads"])
def test_a_new_head_begins_with_the_pooler_of_pre_training(loss, tmp_path, capsys):
  """The pooler comes from Hugging Face's BERT if shapes match; the pooler of a fine-tuned head stays with that head."""
  nsp = HeadConfig("nsp", 2)
  one = dataclasses.replace(toy.KINDS["bert"], heads=(nsp,))
  params = toy.split(toy.model(one))[1]
  checkpoints = manager.Checkpoints(epath.Path(tmp_path), keep=1)
  state = train_state.TrainState(jnp.zeros((), jnp.int32), params, {}, ())
  config = {"model": dataclasses.asdict(one), "data": {}, "train": {"loss": loss}}
  checkpoints.save(1, state, {}, config, metrics=None)
  checkpoints.close()
  source = pretrained.read_source(str(tmp_path))
  others = (HeadConfig("rate", 3, pooler="relu"), HeadConfig("topic", 4, reads="mean"), HeadConfig("names", 5, "tag"))
  new = dataclasses.replace(one, heads=(NLI, HeadConfig("copa", 1, "choice"), *others))
  wanted = pretrained.abstract(dataclasses.replace(source, model=new), sharding.make_mesh({"fsdp": 8})).params
  capsys.readouterr()

  def taken(**how):
    found = toy.flat(warm_start.warm_start(source, wanted, model=new, **how).params)
    return {path: x for path, x in found.items() if path.startswith("heads/")}

  found = taken()
  said = " ".join("".join(capsys.readouterr()).split())
  names = ("pooler", "pooler_bias") if loss == "tokens_and_heads" else ()
  assert found.keys() == {f"heads/{head}/{name}" for head in ("nli", "copa") for name in names}
  for path, x in found.items():
    np.testing.assert_array_equal(x, params["heads"]["nsp"][path.rpartition("/")[2]])
  for head in ("nli", "copa"):
    assert (f"heads/nsp/pooler as heads/{head}/pooler (272)" in said) == bool(names)
  assert taken(parts=(".",) if names else ("embed", "encoder", "head")).keys() == found.keys()
  assert taken(fresh=("^heads/nli/",)).keys() == {path for path in found if "nli" not in path}
  assert not taken(parts=("embed", "encoder", "head"))


@pytest.mark.slow
def test_a_head_may_be_taken_under_another_name(tmp_path):
  """The rename option of a warm start selects it; other heads are not loaded."""
  one = dataclasses.replace(toy.KINDS["bert"], heads=(NLI,))
  params = toy.split(toy.model(one))[1]
  checkpoints = manager.Checkpoints(epath.Path(tmp_path), keep=1)
  state = train_state.TrainState(jnp.zeros((), jnp.int32), params, {}, ())
  config = {"model": dataclasses.asdict(one), "data": {}}
  checkpoints.save(1, state, {}, config, metrics=None)
  checkpoints.close()
  source = pretrained.read_source(str(tmp_path))
  renamed = dataclasses.replace(toy.KINDS["bert"], heads=(dataclasses.replace(NLI, name="topic"),))
  model = pretrained.abstract(dataclasses.replace(source, model=renamed), sharding.make_mesh({"fsdp": 8}))
  parts = (".", "heads/nli=heads/topic")
  taken = warm_start.warm_start(source, model.params, parts=parts).params
  toy.assert_trees_close(taken["heads"]["topic"], params["heads"]["nli"], atol=0, rtol=0)
  assert "heads" not in warm_start.warm_start(source, model.params).params
