"""Initialization from a part of any checkpoint, on a mesh."""

import dataclasses
import json
import pathlib
import re

from etils import epath
from flax import nnx
import foreign
import jax
import jax.numpy as jnp
from ml_collections import ConfigDict
import numpy as np
import pytest
import t5x_files
import toy

from t2t import UserError, convert, sharding
from t2t import __main__ as command
from t2t.checkpoints import from_checkpoint, initialize, manager, pretrained, tensor_writer
from t2t.checkpoints.warm_start import Taken, TransferPlan, plan, warm_start
from t2t.configuration.loading import load_config, records
from t2t.convert import huggingface, lazy_tensors
from t2t.models import transformer
from t2t.models.adapters.lora import LoraConfig
from t2t.models.config import ENCODER_FIELDS
from t2t.param_tree import join_frozen
from t2t.training import optimizers, param_groups, recipe, train_state

# The checkpoints' model, and one that takes a part of it: the decoder is initialized from their encoder, without
# cross-attention, and has more tokens. One shard of its table is beyond all of their rows.
THEIRS = toy.config(num_decoder_layers=4)
OURS = toy.config(vocab_size=96, num_decoder_layers=2)
CHANGES = dict(
  fresh=("cross_attention",),
  parts=("embed", "head", "encoder", "encoder=decoder"),
  rows=("embed/table", "head/projection"),
)


def written_by_t2t(folder: pathlib.Path) -> dict[str, np.ndarray]:
  params = foreign.random_params(THEIRS)
  tensor_writer.save(foreign.in_memory(THEIRS, params), epath.Path(folder))
  return params


def written_for_huggingface(folder: pathlib.Path) -> dict[str, np.ndarray]:
  params = foreign.random_params(THEIRS)
  huggingface.save(foreign.in_memory(THEIRS, params), epath.Path(folder))
  return params


def written_by_t5x(folder: pathlib.Path) -> dict[str, np.ndarray]:
  sizes = dict(VOCAB=40, EMBED=16, HEADS=4, KV=6, MLP=32)  # the model's
  with pytest.MonkeyPatch.context() as patch:
    for name, size in sizes.items():
      patch.setattr(t5x_files, name, size)
    t5x_files.write(folder, t5x_files.parameters())
  return foreign.read(convert.open_foreign(str(folder)))


WRITTEN = {"t2t": written_by_t2t, "hf": written_for_huggingface, "t5x": written_by_t5x}


@pytest.fixture(scope="module", params=WRITTEN)
def checkpoint(request, tmp_path_factory) -> tuple[pretrained.Source, dict[str, np.ndarray]]:
  """A checkpoint of each kind, and its parameters."""
  folder = tmp_path_factory.mktemp("checkpoints") / request.param
  params = WRITTEN[request.param](folder)
  assert convert.kind_of(str(folder)) == request.param
  return pretrained.read_source(str(folder)), params


@pytest.fixture(scope="module")
def program() -> recipe.Program:
  """The model's program on a mesh of eight."""
  tx, _ = optimizers.make_optimizer(toy.optimizer_config(name="adamw"), 10)
  mesh = sharding.make_mesh({"fsdp": 4, "tensor": 2})
  model_fn = lambda key: transformer.build(OURS, nnx.Rngs(key))
  freeze = ("encoder", "cross_attention_norm")
  graphdef, state, make = train_state.abstract_train_state(model_fn, tx, mesh, freeze=freeze)
  shardings = jax.tree.map(lambda x: x.sharding, state)
  return recipe.Program(graphdef, graphdef, state, shardings, make, None, None, freeze)


def whole(state: train_state.TrainState) -> dict:
  return join_frozen(state.params, state.frozen_params)


@pytest.fixture(scope="module")
def begun(program) -> dict[str, np.ndarray]:
  """Initial parameters of a run without a checkpoint."""
  return jax.tree.map(np.asarray, whole(program.init()(toy.key())))


def with_changes(theirs: dict[str, np.ndarray], fresh: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Applies CHANGES by hand."""
  expected = {path: x.copy() for path, x in toy.flat(fresh).items()}
  for path, x in expected.items():
    if path in ("embed/table", "head/projection"):
      rows = theirs[path].shape[path == "head/projection"]
      place = np.s_[:rows] if path == "embed/table" else np.s_[:, :rows]
      x[place] = theirs[path]
    elif "cross_attention" not in path:
      x[...] = theirs[path.replace("decoder", "encoder")]
  return expected


LONG = dict(
  parts=(".", *(f"encoder/layers/self_attention/{x}=encoder/layers/self_attention/global_{x}" for x in
    ("query", "key", "value", "query_bias", "key_bias", "value_bias"))),
  repeated=("embed/positions",),
)  # fmt: skip


@pytest.mark.slow
def test_a_roberta_begins_a_longformer(tmp_path, capsys):
  """Its positions are repeated behind the unused rows, and global tokens begin with the projections of all tokens."""
  short = toy.KINDS["roberta"]
  theirs = foreign.random_params(short)
  tensor_writer.save(foreign.in_memory(short, theirs), epath.Path(tmp_path / "roberta"))
  model = dataclasses.replace(short, attention="longformer", attention_window=2, global_tokens="first", max_length=100)
  params = toy.split(toy.model(model))[1]
  here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  initial = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), params)
  taken = warm_start(pretrained.read_source(str(tmp_path / "roberta")), initial, **LONG)
  begun = toy.flat(taken.over(params, taken.params))
  table = theirs["embed/positions"]
  np.testing.assert_array_equal(begun["embed/positions"], np.concatenate([table, table[2:], table[2:22]]))
  own = "encoder/layers/self_attention"
  for name in ("query", "key_bias", "value"):
    np.testing.assert_array_equal(begun[f"{own}/global_{name}"], theirs[f"{own}/{name}"])
  assert taken.fresh_in(params) == []
  assert "resized: embed/positions 42 to 102" in capsys.readouterr().err


def test_a_part_of_a_checkpoint(checkpoint, program, begun, capsys):
  """Fresh, renamed, duplicated, dropped and resized parameters: each value, in its shards."""
  source, theirs = checkpoint
  initial = whole(program.state)
  taken = warm_start(source, initial, **CHANGES)
  read, placed = toy.flat(taken.params), toy.flat(initial)
  assert read.keys() == {path for path in placed if "cross_attention" not in path}
  assert all(x.sharding == placed[path].sharding and x.shape == placed[path].shape for path, x in read.items())
  toy.assert_trees_close(taken.over(begun, taken.params), with_changes(theirs, begun), atol=0, rtol=0)
  said = capsys.readouterr().err
  said = re.sub(r"\n    ", " ", said)
  assert re.search(r"taken: \S+ parameters in embed, encoder, head, encoder as decoder \(6\.26k\)\n", said)
  assert "resized: embed/table 40 to 96 (1.54k), head/projection 40 to 96 (1.54k)\n" in said
  fresh = "new rows (1.79k), decoder/layers/cross_attention (3.07k), decoder/layers/cross_attention_norm (32)"
  assert f" in {fresh}\n" in said
  assert re.search(r"left behind: \S+ in decoder\n", said)


@pytest.mark.exhaustive
def test_the_state_that_a_part_becomes(program, begun, tmp_path):
  """Compiled: the parameters read are donated, fresh values use the same key, and moments are new."""
  theirs = written_by_t2t(tmp_path / "run")
  taken = warm_start(pretrained.read_source(str(tmp_path / "run")), whole(program.state), **CHANGES)
  state = program.init_from_params(taken.over)(taken.params, toy.key())
  assert all(x.is_deleted() for x in jax.tree.leaves(taken.params))
  assert jax.tree.map(lambda x: x.sharding, state) == program.shardings
  assert "cross_attention_norm" in state.frozen_params["decoder"]["layers"]
  toy.assert_trees_close(whole(state), with_changes(theirs, begun), atol=0, rtol=0)
  assert int(state.step) == 0 and not any(np.any(x) for x in jax.tree.leaves(state.opt_state))


@pytest.mark.slow
def test_all_of_a_checkpoint(checkpoint, capsys):
  """Without changes it equals `pretrained.load` bit by bit, with a short log."""
  source, theirs = checkpoint
  mesh = sharding.make_mesh({"fsdp": 4, "tensor": 2})
  model = pretrained.load(source, mesh)
  capsys.readouterr()
  taken = warm_start(source, pretrained.abstract(source, mesh).params)
  assert jax.tree.map(lambda x: x.sharding, taken.params) == jax.tree.map(lambda x: x.sharding, model.params)
  toy.assert_trees_close(taken.params, theirs, atol=0, rtol=0)
  toy.assert_trees_close(taken.params, model.params, atol=0, rtol=0)
  assert taken.over(dict(theirs), taken.params).keys() == taken.params.keys()
  assert capsys.readouterr().err.startswith(f"starting from the parameters of {source.path}\n")


@pytest.mark.parametrize("rows", [16, 96])
def test_fewer_and_more_rows(checkpoint, rows):
  """Common rows are copied, others are zero, in any dimension."""
  source, theirs = checkpoint
  mesh = sharding.make_mesh({"fsdp": 4, "tensor": 2})
  spec = lambda *axes: jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
  shapes = {
    "embed/table": ((rows, 16), spec("tensor", "fsdp")),
    "head/projection": ((16, rows), spec("fsdp", "tensor")),
  }
  wanted = {path: (path, jax.ShapeDtypeStruct(shape, np.float32, sharding=at)) for path, (shape, at) in shapes.items()}
  for path, x in pretrained.read(source, wanted).items():
    found, expected = np.asarray(x).reshape(shapes[path][0]), theirs[path]
    found, expected = (y.T if path == "head/projection" else y for y in (found, expected))
    shared = min(rows, 40)
    np.testing.assert_array_equal(found[:shared], expected[:shared])
    assert not found[shared:].any() and len(found) == rows


def test_frozen_parameters_of_a_run_are_taken_too(tmp_path):
  """The run stores them separately; here in part, renamed, and for a run with other frozen parameters."""
  tree = {"encoder": {"a": np.arange(8.0, dtype=np.float32)}, "decoder": {"b": np.ones((2, 4), np.float32)}}
  placed = sharding.replicated(sharding.make_mesh({"data": 8}))
  put = lambda tree: jax.tree.map(lambda x: jax.device_put(x, placed), tree)
  state = train_state.TrainState(
    put(np.int32(3)), put({"decoder": tree["decoder"]}), put({"encoder": tree["encoder"]}), ()
  )
  checkpoints = manager.Checkpoints(epath.Path(tmp_path), keep=1)
  config = {"model": dataclasses.asdict(THEIRS), "data": {}}
  checkpoints.save(3, state, {}, config, metrics=None)
  checkpoints.close()
  shape = lambda *sizes: jax.ShapeDtypeStruct(sizes, np.float32, sharding=placed)
  initial = {"x": {"a": shape(8)}, "y": {"a": shape(6)}, "decoder": {"b": shape(2, 4)}}
  taken = warm_start(
    pretrained.read_source(str(tmp_path)), initial, parts=("encoder=x", "encoder=y", "decoder"), rows=("y/a",)
  )
  expected = {"x": tree["encoder"], "y": {"a": np.arange(6.0)}, "decoder": tree["decoder"]}
  toy.assert_trees_close(taken.params, expected, atol=0, rtol=0)


# ---- Selection -------------------------------------------------------------------------------------------------------

BERT = {
  "embed/table": (30, 8),
  "embed/positions": (16, 8),
  "encoder/layers/mlp/up": (2, 8, 12),
  "encoder/norm/scale": (8,),
  "head/bias": (30,),
  "pooler": (8, 8),
}


def moved(*changes: tuple[str, str], leave=(), **others: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
  """Returns the shapes of BERT with these changes."""
  found = {path: shape for path, shape in BERT.items() if not path.startswith(tuple(leave))}
  for old, new in changes:
    found = {(new + path[len(old) :]) if path.startswith(old) else path: shape for path, shape in found.items()}
  return found | {path.replace("__", "/"): shape for path, shape in others.items()}


def test_the_example_of_plan():
  """The docstring's example."""
  theirs = {"embed/table": (30, 8), "pooler": (8, 8)}
  ours = {"bert/embed/table": (32, 8), "heads/label": (8, 3)}
  found = plan("X", theirs, ours, fresh=("heads",), parts=("embed=bert/embed",), rows=("table",))
  assert found == TransferPlan({"bert/embed/table": "embed/table"}, {"bert/embed/table": (0, 30)})
  assert all(str(part).replace("'", '"') in plan.__doc__ for part in (found, theirs, ours))


FITTING = {
  "all": (moved(), {}, {}),
  "into another model": (
    {f"discriminator/{path}": shape for path, shape in BERT.items()},
    dict(parts=(".=discriminator",)),
    {f"discriminator/{path}": path for path in BERT},
  ),
  "all but one name": (
    moved(("pooler", "first/pooler")),
    dict(parts=(".", "pooler=first/pooler")),
    {"first/pooler": "pooler"},
  ),
  "one in the place of another": (
    moved(leave=["encoder/norm"]) | {"encoder/norm/scale": (8,), "norm/scale": (8,)},
    dict(parts=(".", "encoder/norm=norm")),
    {"norm/scale": "encoder/norm/scale"},
  ),
  "a head that begins fresh and had another shape": (moved(head__bias=(3,)), dict(fresh=("^head",)), {"head/bias": ""}),
  "a head that begins fresh and was made otherwise": (
    moved(leave=["head"], head__label=(8, 3)),
    dict(fresh=("head",)),
    {"head/label": ""},
  ),
  "without what is not named": (moved(leave=["pooler", "head"]), dict(parts=("embed", "encoder/")), {}),
  "fewer layers": (moved(encoder__layers__mlp__up=(1, 8, 12)), dict(rows=("layers",)), {}),
}


@pytest.mark.parametrize("name", FITTING)
def test_what_is_taken(name):
  """Sources of each parameter; "": fresh."""
  ours, changes, moves = FITTING[name]
  expected = {path: moves.get(path, path) for path in ours}
  found = plan("X", BERT, ours, **changes)
  assert found.taken == {path: name for path, name in expected.items() if name}
  assert found.shared == ({"encoder/layers/mlp/up": (0, 1)} if name == "fewer layers" else {})


def test_a_gemma_2_is_taken_for_both_stacks_of_a_t5gemma():
  """Layers and embedding of a decoder go to the encoder, too; only cross-attention is fresh (docs/recipe.md)."""
  sizes = {name: 0 for name in ENCODER_FIELDS} | dict(num_encoder_layers=3)
  both = dataclasses.replace(toy.KINDS["t5gemma"], **sizes)
  alone = dataclasses.replace(both, architecture="decoder_only", num_encoder_layers=0, own_encoder_embedding=False)
  theirs, ours = ({path: x.shape for path, x in lazy_tensors.expected(config).items()} for config in (alone, both))
  parts = ("embed", "embed=encoder/embed", "decoder", "decoder=encoder")
  taken = plan("X", theirs, ours, fresh=("cross_attention",), parts=parts).taken
  assert taken["encoder/embed/table"] == taken["embed/table"] == "embed/table"
  assert taken["encoder/layers/self_attention/key"] == "decoder/layers/self_attention/key"
  assert set(taken.values()) == theirs.keys()
  assert all("cross_attention" in path for path in ours.keys() - taken.keys())


def test_a_t5gemma_of_one_size_also_takes_cross_attention_from_self_attention():
  """Zhang et al. 2025: nothing is fresh; stacks of two sizes have fresh cross-attention, which trains alone first."""
  sizes = {name: 0 for name in ENCODER_FIELDS} | dict(num_encoder_layers=3)
  both = dataclasses.replace(toy.KINDS["t5gemma"], **sizes)
  alone = dataclasses.replace(both, architecture="decoder_only", num_encoder_layers=0, own_encoder_embedding=False)
  theirs, ours = ({path: x.shape for path, x in lazy_tensors.expected(config).items()} for config in (alone, both))
  taken = plan("X", theirs, ours, parts=load_config("t5gemma_adapt_2b_2b_ul2").init.rename).taken
  assert taken.keys() == ours.keys()
  crossed = {path: source for path, source in taken.items() if "cross_attention" in path}
  assert len(crossed) == 6  # four projections and two norms
  assert all(source == path.replace("cross_attention", "self_attention") for path, source in crossed.items())
  unequal = records(load_config("t5gemma_adapt_9b_2b_ul2")).optimizer
  assert {path for path in ours if not param_groups.setting(unequal, path, "from_step")} == set(crossed)


WRONG = {
  "missing": (
    moved(heads__label=(8, 3), heads__scale=(3,)),
    {},
    ["X has no heads/label (and 1 more)", "nearest: head", "config.init.reinit=heads", "THEIRS=OURS"],
  ),
  "missing where it is said to be": (
    moved(("encoder", "decoder"), decoder__cross=(8, 8)),
    dict(parts=("embed", "head", "pooler", "encoder=decoder")),
    ["X has no encoder/cross for decoder/cross;", "config.init.reinit=decoder/cross."],
  ),
  "no part says": (
    moved(),
    dict(parts=("embed", "encoder")),
    [
      "config.init.rename has no source for head/bias (and 1 more). To start",
      "To take the checkpoint's parameters, add head,pooler to conf",
    ],
  ),
  "no place": (
    moved(leave=["pooler"]),
    {},
    ["X has pooler, which the model lacks", "config.init.rename=embed,encoder,head"],
  ),
  "no place under a part": (
    moved(leave=["embed/positions", "pooler"]),
    dict(parts=("embed", "encoder", "head")),
    ["X has embed/positions,", "nearest: ", "select smaller parts in config.init.rename"],
  ),
  "shape": (
    moved(embed__table=(32, 8), head__bias=(32,)),
    {},
    [
      "embed/table: expected [32, 8], found [30, 8] (and 1 more)",
      "init.resize=embed/table. To map rows by their tokens, give config.init.transfer_vocab=True.",
      "reinit=embed/table,head.",
    ],
  ),
  "shape in two dimensions": (
    moved(embed__table=(32, 9)),
    dict(rows=("embed",)),
    ["expected [32, 9], found [30, 8]. config.init.resize allows a difference in one dimension only"],
  ),
  "dimensions": (moved(pooler=(8,)), dict(rows=("pooler",)), ["pooler: expected [8], found [8, 8]", "reinit=pooler."]),
  "shape of another model": (
    moved(pooler=(8,)),
    {},
    ["found [8, 8]. To train a model of the checkpoint's shape, give config.init.use_model_config=True. To start"],
  ),
  "fresh matches nothing": (moved(), dict(fresh=("poolr",)), ["init.reinit: 'poolr' matches no", "nearest: pooler"]),
  "rows match nothing": (
    moved(),
    dict(rows=("zzz",)),
    ["config.init.resize: 'zzz'", "known parts: embed, encoder, head, "],
  ),
  "no pattern": (moved(), dict(fresh=("(head",)), ["config.init.reinit: '(head' is not a regular expression"]),
  "no such part there": (
    moved(),
    dict(parts=("encodr=encoder",)),
    ["rename=encodr=encoder: no 'encodr' in X; nearest: encoder"],
  ),
  "no such part here": (moved(), dict(parts=("encoder=enc",)), ["no 'enc' in the model"]),
  "part of a word": (moved(), dict(parts=("encoder/lay",)), ["no 'encoder/lay' in X", "encoder/layers"]),
  "two to one": (moved(), dict(parts=("embed=head", "head")), ["config.init.rename=embed=head,head: head", "twice"]),
  "two =": (moved(), dict(parts=("a=b=c",)), ["'a=b=c' has more than one '='. Give THEIRS=OURS"]),
  "all fresh": (moved(), dict(fresh=(".",)), ["selects every parameter"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_one_line(name):
  """The message contains the problem, the key, and the remedy."""
  ours, changes, expected = WRONG[name]
  with pytest.raises(UserError) as raised:
    plan("X", BERT, ours, **changes)
  assert "\n" not in str(raised.value)
  for part in expected:
    assert part in str(raised.value)


# ---- Command ---------------------------------------------------------------------------------------------------------


def test_a_config_without_the_keys_is_one_that_takes_all():
  """An old config has no such keys; a resumed run does not report a change."""
  config = load_config("t5_1_1_small")
  with config.unlocked():
    config.init = ConfigDict({"checkpoint": "x", "use_model_config": False, "parameters": True})
  made = records(config)
  assert (made.init.reinit, made.init.rename, made.init.resize) == ((), (), ())
  now = json.loads(json.dumps(made.to_dict()))
  before = {**now, "init": {key: now["init"][key] for key in ("checkpoint", "use_model_config", "parameters")}}
  assert initialize._changes(before, now) == []


@pytest.mark.slow
def test_the_command(tmp_path, capsys):
  """A T5 with more tokens and a fresh decoder, without updates: the saved run has the checkpoint's values."""
  words = "the quick brown fox jumps over the lazy dog while seven wizards box with jugs"
  (tmp_path / "text.txt").write_text("\n".join(f"{i} {words}" for i in range(200)) + "\n")
  params = foreign.random_params(THEIRS)
  huggingface.save(foreign.in_memory(THEIRS, params), epath.Path(tmp_path / "hf"))
  arguments = [
    "train",
    "--config=t5_1_1_small",
    f"--config.init.checkpoint={tmp_path / 'hf'}",
    "--config.init.use_model_config=True",
    "--config.model.vocab_size=384",
    "--config.data.vocabulary=bytes",
    "--config.data.inputs_length=32",
    "--config.data.targets_length=16",
    f"--config.data.files={tmp_path / 'text.txt'}",
    "--config.data.num_streams=1",
    "--config.train.batch_size=8",
    "--config.train.steps=1",
    "--config.eval.batches=1",
    "--config.eval.num_logged_samples=0",
    "--config.mesh.fsdp=4",
    "--config.mesh.tensor=2",
    "--config.optimizer.name=sgd",
    "--config.optimizer.learning_rate=0.0",
    f"--workdir={tmp_path / 'run'}",
  ]
  assert command.main(arguments) == 2
  assert "embed/table: expected [384, 16], found [40, 16] (and 1 more)" in capsys.readouterr().err
  changes = ["--config.init.reinit=decoder/layers", "--config.init.resize=embed/table,head"]
  assert command.main([*arguments, *changes, "--config.init.rename=.,encoder/norm=decoder/norm"]) == 0
  said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("  ")]
  assert any("resized: embed/table 40 to 384 (6.14k), head/projection 40 to 384" in line for line in said)
  assert any(re.search(r"fresh: \S+ in new rows \(11.0k\), decoder/layers \(\S+\)$", line) for line in said)
  assert all(len(line) <= 80 for line in said)
  saved = toy.flat(
    pretrained.load(pretrained.read_source(str(tmp_path / "run")), sharding.make_mesh({"data": 8})).params
  )
  np.testing.assert_array_equal(saved["embed/table"][:40], params["embed/table"])
  np.testing.assert_array_equal(saved["head/projection"][:, :40], params["head/projection"])
  assert np.all(np.std(saved["embed/table"][40:], axis=1) > 0)
  np.testing.assert_array_equal(saved["decoder/norm/scale"], params["encoder/norm/scale"])
  for path in ("encoder/layers/mlp/up", "decoder/position_bias/table"):
    np.testing.assert_array_equal(saved[path], params[path])
  assert not np.any(saved["decoder/layers/mlp/up"] == params["decoder/layers/mlp/up"])
  assert json.loads((tmp_path / "run" / "config.json").read_text())["init"]["resize"] == ["embed/table", "head"]


def test_what_begins_fresh_is_trained():
  """An adapter or a freeze pattern on fresh parameters is an error, except for heads."""
  shape = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
  taken = Taken({"embed": {"table": shape(5, 4)}, "up": shape(2, 4)}, {"embed/table": (0, 3)}, None, {})
  frozen = {"embed": {"table": shape(5, 4)}, "up": shape(2, 4), "down": shape(4, 2)}
  assert taken.fresh_in(frozen) == ["embed/table", "down"]
  assert taken.fresh_in({"embed": {"table": shape(3, 4)}}) == []
  config = records(load_config("tiny"))
  adapted = dataclasses.replace(config, sections={"lora": LoraConfig()})
  with pytest.raises(
    UserError, match=r"embed/table \(and 1 more\) is initialized at random.*, add embed/table to config.lora"
  ):
    from_checkpoint._check_trained(["embed/table", "down", "heads/nli/pooler"], adapted)
  with pytest.raises(UserError, match="down is initialized at random .* exclude down from config.train.freeze"):
    from_checkpoint._check_trained(["down"], config.with_(train={"freeze": ("down",)}))
  from_checkpoint._check_trained(["heads/nli/pooler"], config)
