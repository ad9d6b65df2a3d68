import json
import shutil

from etils import epath
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
import toy
import trained

from t2t import __main__ as command
from t2t import sharding
from t2t.checkpoints import adapter_restore, base_model_ref, pretrained, restore
from t2t.convert import safetensors

pytestmark = pytest.mark.slow

LORA = ("--config.lora.rank=2", "--config.optimizer.name=adamw", "--config.optimizer.learning_rate=0.1")


def adapt(start, workdir, *options):
  """Trains an adapter on a checkpoint by the command; returns the exit status."""
  text = trained.workdir("encoder_decoder")
  fixed = ("--config=t5_1_1_small", "--config.init.use_model_config=True", f"--config.init.checkpoint={start}")
  small = (*trained.SMALL[len(trained.MODEL) :], f"--config.data.files={text}.jsonl", "--workdir", str(workdir))
  return command.main(["train", *fixed, *LORA, *small, *options])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """A base, and a workdir with two steps of an adapter on it; copy before changes."""
  folder = tmp_path_factory.mktemp("adapted")
  shutil.copytree(trained.workdir("encoder_decoder"), folder / "base")
  assert adapt(folder / "base", folder / "run") == 0
  return folder


@pytest.fixture
def moved(run, tmp_path):
  """A copy of both; the originals no longer exist."""
  shutil.copytree(run, tmp_path / "there", copy_function=shutil.copy)
  run.rename(run.with_name("away"))
  yield tmp_path / "there"
  run.with_name("away").rename(run)


def saved_arrays(folder):
  """Returns the paths of the arrays in a step."""
  with ocp.PyTreeCheckpointer() as checkpointer:
    return set(restore.shapes(checkpointer.metadata(folder / "state").item_metadata.tree))


def params(path):
  """Returns the parameters of a checkpoint as readers get them."""
  return toy.flat(pretrained.load(pretrained.read_source(str(path)), sharding.make_mesh({"fsdp": 8})).params)


# ---- Digests ---------------------------------------------------------------------------------------------------------

NUMBERS = arrays.arrays(np.float32, arrays.array_shapes(max_dims=3, max_side=6), elements=st.floats(-9, 9, width=32))


@given(NUMBERS, st.data())
def test_a_digest_is_of_bits_and_places(x, data):
  """The digest is independent of the parts, and one flipped bit changes it."""
  digest = base_model_ref.digest_of_parts([x])
  assert base_model_ref.digest_of_parts(list(x.reshape(len(x), -1))) == digest
  turned = x.copy().reshape(-1).view(np.uint32)
  turned[data.draw(st.integers(0, x.size - 1))] ^= np.uint32(1 << data.draw(st.integers(0, 31)))
  assert base_model_ref.digest_of_parts([turned.view(np.float32)]) != digest


@pytest.mark.parametrize("axes", [{"data": 1}, {"fsdp": 8}, {"fsdp": 4, "tensor": 2}])
def test_a_digest_is_the_same_on_every_mesh(axes):
  mesh = sharding.make_mesh(axes, devices=jax.devices()[: 1 if axes == {"data": 1} else 8])
  x = np.random.default_rng(0).normal(size=(3, 16, 8)).astype(np.float32)
  placed = jax.NamedSharding(mesh, jax.P(None, "fsdp", "tensor"))
  assert base_model_ref.digests({"x": jax.device_put(x, placed)}) == {"x": base_model_ref.digest_of_parts(list(x))}


def test_two_numbers_that_change_places_give_another_digest():
  """A plain sum would be equal."""
  assert base_model_ref.digest_of_parts([np.float32([1, 2, 3])]) != base_model_ref.digest_of_parts(
    [np.float32([2, 1, 3])]
  )


# ---- Saving and restoring --------------------------------------------------------------------------------------------


def test_a_step_of_an_adapter_holds_what_is_trained_and_names_its_base(run):
  """A step has neither frozen parameters nor their moments, but a 64-bit digest of each base array."""
  folder = epath.Path(run / "run/checkpoints/2")
  held = saved_arrays(folder)
  assert {path.split("/")[0] for path in held} == {"step", "params", "opt_state"}
  assert all("lora_" in path for path in held if path.startswith("params/"))
  found = restore.read_base(folder)
  assert found.path == str(run / "base/checkpoints/2") and found.beside == "../base/checkpoints/2"
  whole = restore.param_shapes(epath.Path(run / "base/checkpoints/2"))
  assert {entry.name: entry.shape for entry in found.entries.values()} == whole
  own = params(run / "base")
  assert all(entry.digest == base_model_ref.digest_of_parts([own[entry.name]]) for entry in found.entries.values())


def test_a_run_that_goes_on_is_the_run_that_was_not_stopped(run, tmp_path):
  """The states are bit-identical; frozen parameters are read from the base."""
  assert adapt(run / "base", tmp_path / "straight", "--config.train.steps=4") == 0
  shutil.copytree(run / "run", tmp_path / "stopped")
  assert adapt(run / "base", tmp_path / "stopped", "--config.train.steps=4") == 0
  straight, stopped = (params(tmp_path / name) for name in ("straight", "stopped"))
  for path, x in straight.items():
    np.testing.assert_array_equal(stopped[path], x, err_msg=path)
  assert any(np.any(x != params(run / "run")[path]) for path, x in straight.items())


@pytest.mark.exhaustive
def test_what_is_frozen_may_be_held_in_half_of_its_memory(run, tmp_path, capsys):
  """Digests are those of the float32 values, so that a resumed run accepts them."""
  halved = "--config.optimizer.param_groups=^embed: frozen=bfloat16"
  assert adapt(run / "base", tmp_path / "run", halved) == 0
  assert adapt(run / "base", tmp_path / "run", halved, "--config.train.steps=3") == 0
  assert "resuming from step 2" in capsys.readouterr().err
  entries = restore.read_base(epath.Path(tmp_path / "run/checkpoints/3")).entries
  assert entries == restore.read_base(epath.Path(run / "run/checkpoints/2")).entries


@pytest.mark.exhaustive
def test_a_run_that_an_earlier_version_began_goes_on(run, tmp_path, monkeypatch):
  """Its steps contain all parameters, and later steps do, too."""
  monkeypatch.setattr(adapter_restore, "base_of", lambda *_: None)
  assert adapt(run / "base", tmp_path / "run") == 0
  monkeypatch.undo()
  assert adapt(run / "base", tmp_path / "run", "--config.train.steps=3") == 0
  folder = epath.Path(tmp_path / "run/checkpoints/3")
  assert restore.read_base(folder) is None
  assert any(path.startswith("frozen_params/") for path in saved_arrays(folder))
  assert params(folder).keys() == params(run / "run").keys()


def test_both_may_be_moved_together(moved):
  """The relative path of the base is tried; for another place the user gives the path."""
  expected = params(moved / "run")
  (moved / "base").rename(moved / "elsewhere")
  assert adapt(moved / "elsewhere", moved / "run", "--config.train.steps=3") == 0
  found = restore.read_base(epath.Path(moved / "run/checkpoints/3"))
  assert found.path == str(moved / "elsewhere/checkpoints/2")
  assert params(moved / "run").keys() == expected.keys()


@pytest.mark.exhaustive
def test_a_run_that_goes_on_need_not_name_its_base(moved):
  """The config beside its steps refers to the base."""
  layers = [f"--config.model.num_{side}_layers=1" for side in ("encoder", "decoder")]
  own = ("--config.init.use_model_config=False", *trained.MODEL, *layers, "--config.train.steps=3")
  assert adapt("", moved / "run", *own) == 0
  assert (moved / "run/checkpoints/3").exists()


def test_a_base_that_is_gone_is_named(moved, capsys):
  """The message contains the remedy."""
  shutil.rmtree(moved / "base")
  assert command.main(["convert", "--from", "t2t", str(moved / "run"), "--to", "hf", str(moved / "hf")]) == 2
  said = " ".join(capsys.readouterr().err.split())
  assert "contains an adapter of" in said and "but that checkpoint no longer exists" in said
  assert command.main(["checkpoint", "list", str(moved / "run")]) == 0
  assert "but that checkpoint no longer exists" in " ".join(capsys.readouterr().out.split())
  assert command.main(["checkpoint", "verify", str(moved / "run")]) == 1
  found = capsys.readouterr()
  assert "base/checkpoints/2, without which the step cannot be read" in found.out and "no longer exists" in found.err


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("way", ["resumed", "read", "converted", "verified"])
def test_another_base_is_refused(run, tmp_path, capsys, way):
  """A single changed number is enough; the saved files are unchanged."""
  shutil.copytree(run, tmp_path, dirs_exist_ok=True)
  (tmp_path / "base").rename(tmp_path / "right")
  assert command.main(["convert", "--from", "t2t", str(tmp_path / "right"), "--to", "hf", str(tmp_path / "base")]) == 0
  weights = tmp_path / "base/model.safetensors"
  entry = safetensors.read_header(epath.Path(weights))["encoder.block.0.layer.0.SelfAttention.q.weight"]
  content = bytearray(weights.read_bytes())
  size = int.from_bytes(content[:8], "little") + 8
  begin = size + json.loads(content[8:size])["encoder.block.0.layer.0.SelfAttention.q.weight"]["data_offsets"][0]
  assert entry.shape == (16, 16)
  content[begin] ^= 1
  weights.write_bytes(content)
  record = tmp_path / "run/checkpoints/2/base/metadata"
  record.write_text(record.read_text().replace(str(run), str(tmp_path)).replace("base/checkpoints/2", "base"))
  (tmp_path / "run/checkpoints/2/manifest.json").unlink()
  capsys.readouterr()
  if way == "resumed":
    assert adapt(tmp_path / "base", tmp_path / "run", "--config.train.steps=3") == 2
  elif way == "read":
    (tmp_path / "in.txt").write_text("the quick brown fox\n")
    options = ["--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out")]
    assert command.main(["infer", "--checkpoint", str(tmp_path / "run"), *options]) == 2
  elif way == "verified":
    assert command.main(["checkpoint", "verify", str(tmp_path / "run")]) == 1
  else:
    assert command.main(["convert", "--from", "t2t", str(tmp_path / "run"), "--to", "hf", str(tmp_path / "hf")]) == 2
  said = " ".join(capsys.readouterr().err.split())
  assert "is not the model that the adapter was trained on" in said
  assert "encoder/layers/self_attention/query has the digest" in said.replace("/kernel", "")
  assert (tmp_path / "run/checkpoints/2").exists() and not (tmp_path / "hf").exists()


@pytest.mark.exhaustive
def test_an_adapter_lies_on_an_adapter_when_that_is_merged(run, tmp_path, capsys):
  """A merge at every read depends on the mesh; a merged checkpoint has fixed digests."""
  hf, first, merged, second = (tmp_path / name for name in ("hf", "first", "merged", "second"))
  assert command.main(["convert", "--from", "t2t", str(run / "base"), "--to", "hf", str(hf)]) == 0
  assert adapt(hf, first) == 0 and adapt(first, second) == 2
  assert f"`t2t adapt merge {first}/checkpoints/2 --output FOLDER`" in " ".join(capsys.readouterr().err.split())
  assert command.main(["adapt", "merge", str(first / "checkpoints/2"), "--output", str(merged)]) == 0
  shutil.rmtree(second)
  assert adapt(merged, second) == 0
  assert restore.read_base(epath.Path(second / "checkpoints/2")).path == str(merged / "checkpoints/0")
  below, own = params(merged), params(second)
  toy.assert_trees_close(below, params(first), atol=1e-6)
  changed = {path for path in own if np.any(own[path] != below[path])}
  assert changed and all(path.endswith(("query", "value")) for path in changed)
  assert command.main(["convert", "--from", "t2t", str(second), "--to", "hf", str(tmp_path / "out")]) == 0
  toy.assert_trees_close(params(tmp_path / "out"), own, atol=1e-6)
