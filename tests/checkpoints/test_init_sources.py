"""Runs initialized from several checkpoints, with frozen parts saved as references."""

import re
import shutil

import jax
import numpy as np
import pytest
import test_array_batches
from test_state_collections import train

from t2t import UserError
from t2t.checkpoints import restore, tensor_writer
from t2t.configuration.loading import load_config, override, records

ENCODER, TABLE = "encoder/layers/mlp/up", "embed/table"


def config(**changes):
  others = changes.pop("init.others", {})
  changes |= {f"init.others.{name}.{key}": value for name, own in others.items() for key, value in own.items()}
  every = {"train.steps": 2, "eval.every": 2, "checkpoint.save_interval_steps": 2, "eval.num_logged_samples": 0}
  rate = {"optimizer.name": "adamw", "optimizer.learning_rate": 0.01, "optimizer.scale_by_parameter": False}
  return test_array_batches.small(
    **every | rate | {"optimizer.warmup_steps": 0, "optimizer.schedule": "constant"} | changes
  )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
  """Two trained models, their workdirs and last parameters, and a run initialized from both."""
  folder = tmp_path_factory.mktemp("init")
  for seed, name in enumerate(("whole", "part")):
    train(config(**{"train.seed": seed}), folder / name)
  others = {"reader": {"checkpoint": str(folder / "part"), "rename": ("encoder", "embed"), "frozen": True}}
  options = {"init.checkpoint": str(folder / "whole"), "init.others": others}
  found = train(config(**options), folder / "run")
  return folder, options, found


def arrays(workdir):
  tensors = tensor_writer.open_foreign(str(workdir)).tensors
  read = lambda x: np.stack([part() for part in x.parts]) if x.stacked else np.concatenate([p() for p in x.parts])
  return {path: read(tensor).reshape(tensor.shape) for path, tensor in tensors.items()}


@pytest.mark.slow
def test_each_part_begins_as_its_checkpoint_has_it(made):
  """Frozen parts stay unchanged, and readers of the new checkpoint get them from their source."""
  folder, _, found = made
  whole, part, run = (arrays(folder / name) for name in ("whole", "part", "run"))
  assert run.keys() == whole.keys()
  frozen = [path for path in run if path.startswith(("encoder/", "embed/"))]
  assert ENCODER in frozen and TABLE in frozen and not set(frozen) & found.params[0].keys()
  for path in frozen:
    np.testing.assert_array_equal(run[path], part[path])
    assert np.any(part[path] != whole[path]) or np.all(part[path] == part[path].flat[0])
  trained = found.params[0].keys()
  assert trained and all(np.any(run[path] != whole[path]) for path in trained if run[path].ndim > 2)


@pytest.mark.slow
def test_a_frozen_part_is_saved_as_a_reference(made):
  """A step has no arrays of a frozen part, but path and digests."""
  folder, _, _ = made
  step = restore.checkpoint_folder(str(folder / "run"))
  assert not [path for path in restore.param_shapes(step) if path.startswith(("encoder/", "embed/"))]
  base = restore.read_base(step)
  assert (base.name, ENCODER in base.entries) == ("reader", True)
  assert base.path == str(restore.checkpoint_folder(str(folder / "part")))


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("number", [2, 1])
def test_a_run_with_references_resumes_to_the_bit(made, tmp_path, number):
  """Also with two references, and without a first checkpoint."""
  folder, options, found = made
  if number == 2:
    own = {"checkpoint": str(folder / "whole"), "rename": ("decoder",), "frozen": True}
    options = {"init.others": {**options["init.others"], "writer": own}}
    found = train(config(**options, **{"train.steps": 3}), tmp_path / "whole")
  else:
    found = train(config(**options, **{"train.steps": 3}), tmp_path / "whole")
  train(config(**options), tmp_path / "run")
  resumed = train(config(**options, **{"train.steps": 3}), tmp_path / "run")
  assert len(resumed.params) == 1
  jax.tree.map(np.testing.assert_array_equal, resumed.params[-1], found.params[-1])
  base = restore.read_base(restore.checkpoint_folder(str(tmp_path / "run")))
  assert [each.name for each in base.all_bases] == ["reader", "writer"][:number]


@pytest.mark.slow
def test_a_part_of_another_shape_is_refused_with_keys_of_the_source(made, tmp_path):
  """The remedy names no key that only the whole model has."""
  _, options, _ = made
  with pytest.raises(UserError, match=r"give config\.init\.others\.reader\.reinit=") as error:
    train(config(**{"init.others": options["init.others"], "model.mlp_dim": 48}), tmp_path)
  assert "use_model_config" not in str(error.value) and "transfer_vocab" not in str(error.value)


@pytest.mark.slow
def test_another_model_in_its_place_is_refused(made, tmp_path):
  """Digests are compared at every read."""
  folder, options, _ = made
  shutil.copytree(folder / "part", tmp_path / "part")
  others = {"reader": options["init.others"]["reader"] | {"checkpoint": str(tmp_path / "part")}}
  train(config(**options | {"init.others": others}), tmp_path / "run")
  shutil.rmtree(tmp_path / "part")
  shutil.copytree(folder / "whole", tmp_path / "part")
  with pytest.raises(UserError, match="is not the model"):
    train(config(**options | {"init.others": others, "train.steps": 3}), tmp_path / "run")
  shutil.rmtree(tmp_path / "part")
  with pytest.raises(UserError, match=r"others\.reader\.checkpoint=|checkpoint no longer exists"):
    train(config(**options | {"init.others": others, "train.steps": 3}), tmp_path / "run")
  with pytest.raises(
    UserError,
    match=r"frozen parameters of .* the new path of the checkpoint, --config\.init\.others\.reader\.checkpoint=PATH",
  ):
    tensor_writer.open_foreign(str(tmp_path / "run"))


def test_sources_are_typed_by_name():
  options = ["--config.init.others.teacher.checkpoint=runs/a", "--config.init.others.teacher.rename=.=teacher,embed"]
  found = records(override(load_config("tiny_t5"), [*options, "--config.init.others.teacher.frozen=True"])).init
  (name,) = found.source_list
  assert (name, found.others[name].subtrees) == ("teacher", ("teacher", "embed"))
  assert found.frozen_patterns == ("^teacher(/|$)", "^embed(/|$)")
  with pytest.raises(
    UserError, match=r"others\.NAME\.KEY=VALUE, .* checkpoint, rename, reinit, resize, tile, frozen, dtype; nearest: "
  ):
    override(load_config("tiny_t5"), ["--config.init.others.teacher.chekpoint=runs/a"])


@pytest.mark.parametrize(
  ("others", "message"),
  [
    ({"a": {"rename": ("encoder",)}}, "config.init.others.a.checkpoint is empty; give the path of a checkpoint"),
    ({"a": {"checkpoint": "runs/a"}}, "config.init.others.a.rename= must name the parts of the model"),
    ({"a": {"checkpoint": "runs/a", "rename": (".",)}}, "config.init.others.a.rename=. must name the parts"),
    (
      {name: {"checkpoint": "runs/a", "rename": (part,)} for name, part in (("a", "encoder"), ("b", "x=encoder/norm"))},
      "config.init.others.b.rename: encoder/norm is already loaded from config.init.others.a; leave out one entry",
    ),
    (
      {"a": {"checkpoint": "runs/a", "rename": ("encodr",)}},
      "config.init.others.a.rename: no 'encodr' in the model; did",
    ),
    (
      {"a": {"chekpoint": "runs/a"}},
      "config.init.others.a.chekpoint=runs/a: invalid key. Give config.init.others.NAME.KEY=VALUE",
    ),
  ],
)
def test_bad_sources_are_refused(others, message, tmp_path):
  with pytest.raises(UserError, match=re.escape(message)):
    train(config(**{"init.others": others}), tmp_path)


def test_an_adapter_on_such_a_part_is_refused(tmp_path):
  """The error comes before a checkpoint is read, with both keys."""
  others = {"reader": {"checkpoint": "runs/part", "rename": ("encoder",), "frozen": True}}
  with pytest.raises(
    UserError, match=r"^config.lora adds encoder/\S+lora\S+ to a part .* by config.init.others.reader"
  ):
    train(config(**{"init.checkpoint": "runs/whole", "init.others": others, "lora.rank": 2}), tmp_path)
