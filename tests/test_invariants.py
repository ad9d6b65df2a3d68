"""Rules of the code base: allowed imports, and checks of every shipped config."""

import ast
import dataclasses
import functools
import math
import re

from flax import nnx
import folders
import jax
import jax.numpy as jnp
import pytest
import toy

from t2t import losses, sharding
from t2t.configs import default
from t2t.configuration.loading import config_names, load_config, records
from t2t.configuration.schema import OPTIONAL, SECTIONS, OptimizerConfig, keys
from t2t.contrib.recurrent import skip_thought
from t2t.contrib.static import glove, negative_sampling
from t2t.losses import contrastive, diffusion, head_losses
from t2t.models import architecture
from t2t.models.config import EMBEDDINGS, TransformerConfig
from t2t.training import optimizers, recipe, train_state, train_step

ROOT = folders.ROOT
FILES = sorted((ROOT / "t2t").rglob("*.py"))
NAMES = [str(path.relative_to(ROOT / "t2t")) for path in FILES]


def parsed(name):
  return ast.walk(ast.parse((ROOT / "t2t" / name).read_text()))


def imports(name):
  """Returns the top-level packages that a file imports anywhere."""
  for node in parsed(name):
    if isinstance(node, ast.Import):
      yield from (alias.name.split(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level:
      yield node.module.split(".")[0]


def test_the_rules_look_at_files():
  """A rule over no files would always hold."""
  assert {
    "training/train.py",
    "models/attention.py",
    "data/pipeline.py",
    "losses/cross_entropy.py",
    "inference/decoding.py",
  } <= set(NAMES)
  assert "jax" in imports("losses/cross_entropy.py")
  assert "seqio" in imports("data/pipeline.py")


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(("evaluation/", "commands/"))])
def test_files_are_not_divided_at_unicode_separators(name):
  """`encoding.lines` divides at newlines alone; texts may contain the other separators of `str.splitlines`."""
  calls = [node.attr for node in parsed(name) if isinstance(node, ast.Attribute)]
  assert "splitlines" not in calls


@pytest.mark.parametrize("name", NAMES)
def test_tensorflow_is_imported_where_data_is_read(name):
  """Only under t2t/data, in evaluation/ and in commands that show data."""
  if not name.startswith(("data/", "evaluation/", "commands/tasks.py")):
    assert not set(imports(name)) & {"tensorflow", "seqio", "tensorflow_datasets", "tensorflow_text", "t5"}


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith(("models/", "losses/", "inference/decoding"))])
def test_models_know_no_mesh(name):
  """They name logical axes; only sharding.py assigns devices (rule 4)."""
  words = {node.id for node in parsed(name) if isinstance(node, ast.Name)}
  words |= {node.attr for node in parsed(name) if isinstance(node, ast.Attribute)}
  words |= {node.arg for node in parsed(name) if isinstance(node, ast.arg)}
  for node in parsed(name):
    words |= {alias.name for alias in node.names} if isinstance(node, ast.Import | ast.ImportFrom) else set()
  assert not words & {"PartitionSpec", "NamedSharding", "Mesh", "mesh", "get_abstract_mesh", "set_mesh", "make_mesh"}


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("models/")])
def test_models_know_neither_loss_nor_optimizer_nor_data(name):
  """Each may change without the others (rule 5)."""
  modules = {node.module for node in parsed(name) if isinstance(node, ast.ImportFrom)}
  names = {alias.name for node in parsed(name) if isinstance(node, ast.ImportFrom) for alias in node.names}
  assert not (modules | {f"t2t.{n}" for n in names}) & {
    "t2t.losses",
    "t2t.training.optimizers",
    "t2t.training.train_state",
    "t2t.data",
  }
  assert "optax" not in imports(name)


@pytest.mark.exhaustive_from(233)
@pytest.mark.parametrize("name", NAMES)
def test_no_default_is_hidden_in_a_get(name):
  """Defaults are in configs/default.py: no `config.get(key, default)`, no `getattr` with a default (rule 1)."""
  for node in parsed(name):
    if isinstance(node, ast.Call):
      called, text = node.func, ast.unparse(node)
      if isinstance(called, ast.Attribute) and called.attr == "get":
        owner = ast.unparse(called.value).split(".")
        assert not {"config", "cfg"} & set(owner), text
      if isinstance(called, ast.Name) and called.id == "getattr" and len(node.args) == 3:
        assert ast.unparse(node.args[0]).split(".")[-1] not in ("config", "cfg"), text


# Private names of seqio, TensorFlow Datasets and TensorFlow that are used, each with its reason.
PRIVATE = {
  ("t2t/data/offline_cache.py", "files._reader"),
  ("t2t/data/offline_cache.py", "seqio.dataset_providers._CachedDataSource"),
  ("t2t/data/determinism.py", "dataset._as_serialized_graph"),
  ("t2t/data/task_resolution.py", "provider._task_map"),
  ("t2t/data/task_resolution.py", "mixture._sample_fn"),
}


@pytest.mark.exhaustive
def test_private_names_of_seqio_are_counted():
  """In files that import seqio or TFDS: any release may rename them, so a new use is a decision."""
  found = set()
  for path in [*FILES, *sorted((ROOT / "tasks").glob("*.py"))]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    if not {"seqio", "tensorflow_datasets"} & set(imports(path)):
      continue
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    # Names that the file defines, or sets on `self`, are its own, except names of base classes.
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    own |= {node.attr for node in attributes if isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"}
    for node in attributes:
      above = ast.unparse(node.value) == "super()"
      if node.attr.startswith("_") and not node.attr.startswith("__") and (above or node.attr not in own):
        found.add((str(path.relative_to(ROOT)), ast.unparse(node)))
  assert found == PRIVATE


@pytest.mark.exhaustive_from(285)
@pytest.mark.parametrize("name", NAMES)
def test_architectures_are_asked_not_compared(name):
  """Differences are declared in models/architecture.py; a fourth architecture is a row there and a module."""
  names = set(architecture.ARCHITECTURES)
  compared = [
    side.value
    for node in parsed(name)
    if isinstance(node, ast.Compare)
    for side in (node.left, *node.comparators)
    if isinstance(side, ast.Constant)
  ]
  assert not names & set(compared)


# The only module outside t2t/configuration that reads config.data.files, .mixture and .sources. Others call its
# `RunSource`, or read `DataConfig.source_list` and its properties, which do not depend on the key in use.
READS_OF_SOURCE_KEYS = "data/run_sources.py"


def reads_of_source_keys(tree):
  """Lists the expressions `data.files`, `X.data.mixture` and the like."""
  return [
    ast.unparse(node)
    for node in ast.walk(tree)
    if isinstance(node, ast.Attribute)
    and node.attr in ("files", "mixture", "sources")
    and ast.unparse(node.value).split(".")[-1] == "data"
  ]


def test_reads_of_source_keys_are_found():
  tree = ast.parse("if config.data.files or data.mixture or data.sources: print(source.files, data.named)")
  assert sorted(reads_of_source_keys(tree)) == ["config.data.files", "data.mixture", "data.sources"]


@pytest.mark.exhaustive_from(358)
@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("configuration/")])
def test_sources_are_read_from_one_list(name):
  """`DataConfig` decides which of the three keys names the sources; other modules do not repeat this."""
  reads = reads_of_source_keys(ast.parse((ROOT / "t2t" / name).read_text()))
  assert bool(reads) == (name == READS_OF_SOURCE_KEYS), f"call run_sources.of instead of {reads}"


@pytest.mark.parametrize("name", NAMES)
def test_files_stay_small(name):
  """A file over 900 lines probably has two subjects."""
  assert len((ROOT / "t2t" / name).read_text().splitlines()) <= 900


@pytest.mark.parametrize("name", NAMES)
def test_files_are_named_for_what_they_own(name):
  """No utils.py, base.py or core/, and a docstring with the file's purpose."""
  assert not {"utils", "util", "base", "common", "helpers", "core"} & set(name.removesuffix(".py").split("/"))
  assert ast.get_docstring(ast.parse((ROOT / "t2t" / name).read_text()))


def test_what_is_promised_is_shown():
  """Every test that docs/guarantees.md names exists, and each promise names one."""
  text = (ROOT / "docs" / "guarantees.md").read_text()
  named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", text)
  assert len(named) == text.count("::") > 50
  paths = {path.name: path for path in (ROOT / "tests").rglob("test_*.py")}
  for file, name in named:
    tree = ast.parse(paths[file].read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{file}::{name}"
  promises = text.partition("## What is not promised")[0].split("\n- ")[1:]
  assert [each for each in promises if "::" not in each] == []


def test_marks_for_later_parameter_sets_are_on_parametrized_tests():
  """A test with `exhaustive_from(number)` has parameter sets, and `number` is above 0."""
  for path in (ROOT / "tests").rglob("test_*.py"):
    for node in ast.parse(path.read_text()).body:
      marks = [ast.unparse(mark) for mark in getattr(node, "decorator_list", ())]
      numbers = [mark.partition("(")[2] for mark in marks if mark.startswith("pytest.mark.exhaustive_from")]
      # A constant is a `parametrize` that several tests share.
      is_parametrized = any(mark.startswith("pytest.mark.parametrize(") or mark.isupper() for mark in marks)
      assert not numbers or is_parametrized and int(numbers[0].rstrip(")")) > 0, f"{path.name}::{node.name}"


def test_hooks_have_the_versions_of_the_lock():
  """pre-commit and `requirements.lock` install the same version of each tool."""
  hooks = re.findall(r"\[([\w-]+==[\w.]+)\]", (ROOT / ".pre-commit-config.yaml").read_text())
  locked = (ROOT / "requirements.lock").read_text().splitlines()
  names = {line.partition("==")[0] for line in locked}
  assert {pin for pin in hooks if pin.partition("==")[0] in names} == {
    line for line in locked if line.startswith(("codespell==", "ruff=="))
  }


CONFIGS = config_names()
# Published widths that few axes divide: 410 and 1,150.
NARROW = ("transformer_xl_wt103_base", "awd_lstm_ptb", "awd_lstm_wikitext2", "awd_lstm_ulmfit")
NARROW_MESHES = dict.fromkeys(NARROW, {"data": 2, "fsdp": 2, "tensor": 2})


@pytest.mark.exhaustive_from(10)
@pytest.mark.parametrize("name", CONFIGS)
def test_every_config_builds_at_full_size(name):
  """Builds shapes of model and optimizer without a device; a mesh of eight divides them."""
  config = load_config(name)
  if config.train.loss == "heads" and not config.model.heads:
    config.model.heads = ({"name": "classifier", "num_classes": 2},)  # the user's task adds it
  axes = NARROW_MESHES.get(name, {"fsdp": 4, "tensor": 2})
  mesh = sharding.make_mesh(axes)
  _, state, _ = recipe.make(records(config)).state(mesh)
  sizes = [math.prod(leaf.shape) for leaf in jax.tree.leaves(state.params)]
  per_device = [math.prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in jax.tree.leaves(state.params)]
  assert sum(sizes) > 500_000
  assert sum(per_device) < 1.2 * sum(sizes) / (axes["fsdp"] * axes["tensor"])
  assert sum(sizes) < 1e9 or config.model.remat != "none"  # activations would not fit


@functools.cache
def first_losses(model_config, loss, optimizer_config):
  """Returns the losses of three steps on one small batch."""
  tx, _ = optimizers.make_optimizer(optimizer_config, 1_000)
  is_alone = isinstance(loss, losses.CrossEntropy) and not loss.part
  model = toy.model(model_config) if is_alone else loss.build(model_config, nnx.Rngs(0))
  mesh = sharding.make_mesh({"data": 1}, devices=jax.devices()[:1])
  freeze = EMBEDDINGS[model_config.embedding].constants
  graphdef, state, shardings = train_state.init_train_state(lambda _: model, tx, toy.key(), mesh, freeze=freeze)
  step = train_step.make_train_step(graphdef, loss, tx, shardings)
  found = []
  for _ in range(3):
    batch = toy.batch((8,) * 8, (6,) * 8, architecture=model_config.architecture)
    if isinstance(loss, negative_sampling.NegativeSampling):
      batch |= {"encoder_windows": jnp.full((8, 8), 2)}
    if isinstance(loss, glove.GloVe):
      batch |= {"encoder_pair_counts": jax.lax.bitcast_convert_type(jnp.full((8, 8), 9.0), jnp.int32)}
    if isinstance(loss, contrastive.Contrastive | skip_thought.SkipThought):  # two texts in each row
      batch |= {"encoder_segment_ids": jnp.tile(jnp.repeat(jnp.array([1, 2]), 4), (8, 1))}
    if isinstance(loss, diffusion.Diffusion):
      batch |= {f"{architecture.predicted_side(batch)}_noise_levels": jnp.full((8, 8), 2**19)}
    if isinstance(loss, head_losses.HeadLosses):  # labels of the first head at the first position
      first = jnp.zeros((8, 8), jnp.int32).at[:, 0]
      answers = {"heads": first.set(1), "targets": first.set(jnp.arange(8) % 2), "groups": jnp.ones((8, 8), jnp.int32)}
      batch |= {f"encoder_answer_{name}": x for name, x in answers.items()}
    state, metrics = step(state, batch, toy.key())
    found.append(float(metrics["loss"].value()))
  return found


def at_toy_size(config):
  """Returns a small model, loss and optimizer of a config, equal for all sizes of a family, which compile once."""
  fields = config.model.to_dict() | dict(vocab_size=40, embed_dim=16, num_heads=4, head_dim=6, mlp_dim=32)
  # Dropout would decide which loss is lower after few steps; the other values change no program.
  fields |= dict(dropout_rate=0.0, remat="none", dtype="float32", init_scale=0.1, norm_epsilon=1e-6)
  fields |= dict(embedding_dropout=0.0, recurrent_dropout=0.0, recurrent_weight_dropout=0.0)
  fields["moe_every"] = min(fields["moe_every"], 2)  # divides the two layers
  fields["moe_first"] = min(fields["moe_first"], fields["moe_every"] - 1)
  fields |= {key: 10_000.0 for key in ("rotary_base", "local_rotary_base") if fields[key]}
  optimizer = default.get_config().optimizer.to_dict() | dict(name=config.optimizer.name)
  optimizer |= dict(scale_by_parameter=True, warmup_steps=1, learning_rate=0.01)
  config.train.z_loss, config.train.logits_chunk_tokens = 1e-4, 256
  # Features that a family does not have stay off at toy size.
  toys = dict(num_encoder_layers=2, num_decoder_layers=2, num_kv_heads=2, embedding_dim=8, attention_window=2)
  toys |= dict(subword_buckets=50)
  toys |= dict(recurrent_hidden=24, character_cnn="tiny")
  toys |= dict() if config.model.logits_transform else dict(output_embedding_dim=16)  # the model's width
  toys |= dict(encoder_embed_dim=24, encoder_num_heads=2, encoder_num_kv_heads=1, encoder_mlp_dim=20)
  model_config = TransformerConfig(**(fields | {key: value for key, value in toys.items() if fields[key]}))
  if "electra" in config:
    config.electra.update(embed_dim=12, num_heads=2, mlp_dim=16, num_layers=1)
  loss = losses.make(records(config).with_(model=vars(model_config)))
  return model_config, loss, OptimizerConfig(**optimizer)


# One test each, because workers share no programs.
@pytest.mark.exhaustive
@pytest.mark.parametrize("kind_of_model", architecture.ARCHITECTURES)
def test_every_config_trains_at_toy_size(kind_of_model):
  """Its model, optimizer and loss take steps on a small model, and the loss falls."""
  configs = {name: load_config(name) for name in CONFIGS}
  # Fine-tuning takes its heads from the tasks.
  whole = {name: config for name, config in configs.items() if config.train.loss != "heads" or config.model.heads}
  own = {name: config for name, config in whole.items() if config.model.architecture == kind_of_model}
  assert own
  for name, config in own.items():
    first, _, last = first_losses(*at_toy_size(config))
    assert math.isfinite(first) and last < first, name


def test_config_and_records_have_the_same_keys():
  """Every field of a section is a declared key with help, and the config has its default."""
  given = default.get_config()
  made = records(given)
  assert set(given) == {*SECTIONS, "stages"} and made.stages == given.stages == ()
  assert not set(OPTIONAL) & set(given) and not any(getattr(made, name) for name in OPTIONAL)
  for section, record in SECTIONS.items():
    made_by_t2t = {"table"} if section == "data" else set()  # result of resolving a table's columns
    names = {field.name for field in dataclasses.fields(record)} - made_by_t2t
    assert names == set(given[section])
    if section != "model":  # TransformerConfig declares these keys, and a named size sets them
      assert {field.name for field in keys(record) if field.metadata["help"]} == names
      for field in keys(record):
        if field.default is not dataclasses.MISSING:
          assert given[section][field.name] == field.default == getattr(getattr(made, section), field.name)
