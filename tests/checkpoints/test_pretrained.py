import dataclasses
import json
import shutil
import sys

from etils import epath
import jax
import numpy as np
import pytest

from t2t import UserError, sharding
from t2t import __main__ as command
from t2t.checkpoints import manifest, pretrained, restore
from t2t.configuration.loading import load_config, records
from t2t.data import vocabularies

pytestmark = pytest.mark.slow

SMALL = (
  "--config.model.vocab_size=384",
  "--config.model.embed_dim=16",
  "--config.model.num_heads=2",
  "--config.model.head_dim=8",
  "--config.model.mlp_dim=32",
  "--config.data.vocabulary=bytes",
  "--config.data.inputs_length=32",
  "--config.data.targets_length=16",
  "--config.data.num_streams=2",
  "--config.train.batch_size=8",
  "--config.train.steps=1",
  "--config.eval.batches=1",
)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
  path = tmp_path_factory.mktemp("text") / "lines.txt"
  path.write_text("\n".join(f"the quick brown fox jumps over {i} lazy dogs" for i in range(300)) + "\n")
  return path


@pytest.fixture(scope="module")
def workdir(text, tmp_path_factory):
  """A workdir with one step of a small T5 on bytes."""
  path = tmp_path_factory.mktemp("pretrained") / "run"
  layers = ("--config.model.num_encoder_layers=1", "--config.model.num_decoder_layers=2")
  assert (
    command.main(["train", "--config=t5_small", *SMALL, *layers, f"--config.data.files={text}", f"--workdir={path}"])
    == 0
  )
  return path


@pytest.mark.exhaustive
def test_a_checkpoint_says_what_it_is(workdir):
  """Model, training config and vocabulary, from the workdir or the step's folder."""
  for path in (workdir, workdir / "checkpoints" / "1"):
    source = pretrained.read_source(str(path))
    assert source.path == epath.Path(workdir) / "checkpoints" / "1"
    assert (source.model.num_encoder_layers, source.model.num_decoder_layers) == (1, 2)
    assert source.run["data"]["inputs_length"] == 32
    vocabulary = pretrained.vocabulary(source)
    assert vocabulary == vocabularies.load("bytes")


def test_the_model_is_the_one_that_was_trained(workdir):
  """Parameters are bit-identical on another mesh, and compute in float32 on a CPU."""
  source = pretrained.read_source(str(workdir))
  loaded = [pretrained.load(source, sharding.make_mesh(shape)) for shape in ({"fsdp": 8}, {"data": 4, "tensor": 2})]
  assert loaded[0].config.dtype == "float32"
  for first, second in zip(*(jax.tree.leaves(model.params) for model in loaded), strict=True):
    np.testing.assert_array_equal(first, second)
  assert len({leaf.sharding.spec for model in loaded for leaf in jax.tree.leaves(model.params)}) > 2


def test_a_kernel_and_a_package_that_are_not_here(workdir, tmp_path, monkeypatch):
  """A TPU kernel or 8-bit training in the config does not prevent reading."""
  monkeypatch.setitem(sys.modules, "qwix", None)
  shutil.copytree(workdir / "checkpoints" / "1", tmp_path / "1", ignore=shutil.ignore_patterns(manifest.NAME))
  (saved,) = (
    path for path in (tmp_path / "1").rglob("*") if path.is_file() and b'"attention_kernel"' in path.read_bytes()
  )
  text = saved.read_bytes().replace(b'"attention_kernel": ""', b'"attention_kernel": "splash"')
  saved.write_bytes(text.replace(b'"quantization": ""', b'"quantization": "int8"'))
  trained = restore.read_config(epath.Path(tmp_path / "1"))["model"]
  assert (trained["attention_kernel"], trained["quantization"]) == ("splash", "int8")
  model = pretrained.read_source(str(tmp_path / "1")).model
  assert (model.attention_kernel, model.quantization) == ("", "")


def test_a_vocabulary_that_was_not_saved_is_found_by_the_config(workdir, tmp_path):
  """The checkpoint was copied without its workdir."""
  shutil.copytree(workdir / "checkpoints" / "1", tmp_path / "alone")
  source = pretrained.read_source(str(tmp_path / "alone"))
  assert source.vocabulary == ""
  assert pretrained.vocabulary(source) == vocabularies.load("bytes")


def test_a_checkpoint_runs_no_code(workdir, tmp_path, capsys):
  """A module in the config is imported only if the user names it; the model can be read without it."""
  shutil.copytree(workdir / "checkpoints" / "1", tmp_path / "1", ignore=shutil.ignore_patterns(manifest.NAME))
  ran = tmp_path / "ran.txt"
  code = f"""
import pathlib, seqio
from t2t.data import vocabularies
pathlib.Path({str(ran)!r}).write_text("code")
source = seqio.FunctionDataSource(lambda split, shuffle_files: None, splits=["train"])
seqio.TaskRegistry.add("named_by_a_checkpoint", source=source,
  preprocessors=[], output_features=dict.fromkeys(("inputs", "targets"), seqio.Feature(vocabularies.load("bytes"))))
"""
  (tmp_path / "theirs.py").write_text(code)
  path = tmp_path / "1" / "config" / "metadata"
  saved = json.loads(path.read_text())
  saved["data"] |= {
    "files": "",
    "vocabulary": "",
    "mixture": "named_by_a_checkpoint",
    "task_modules": [str(tmp_path / "theirs.py")],
  }
  path.write_text(json.dumps(saved))
  (tmp_path / "in.txt").write_text("a line\n")
  infer = ["infer", "--checkpoint", str(tmp_path / "1"), "--input", str(tmp_path / "in.txt")]
  infer += ["--output", str(tmp_path / "out.txt"), "--max_length", "2"]
  assert command.main(infer) == 2
  assert (
    f"t2t does not execute code on behalf of a checkpoint. If you trust the code, give --task_modules {tmp_path}"
    in (capsys.readouterr().err)
  )
  assert not ran.exists()
  ends, why = pretrained.ends_prompts(pretrained.read_source(str(tmp_path / "1")))
  assert ends is None and "does not execute code" in why and not ran.exists()
  assert command.main([*infer, "--task_modules", str(tmp_path / "theirs.py")]) == 0
  assert ran.exists() and (tmp_path / "out.txt").exists()


@pytest.mark.parametrize("name", ["../theirs.model", "/etc/hostname", "..", "", 3])
def test_a_saved_vocabulary_is_of_its_own_folder(name, tmp_path):
  """A record must not refer to other files of the reader's machine."""
  (tmp_path / "theirs.model").write_bytes(b"")
  folder = epath.Path(tmp_path / "vocabulary")
  folder.mkdir()
  (folder / "vocabulary.json").write_text(json.dumps({"file": name, "extra_ids": 0}))
  with pytest.raises(UserError, match="to a file of the same folder"):
    vocabularies.load(str(folder))
  with pytest.raises(UserError, match="to a file of the same folder"):
    vocabularies.saved_extra_ids(folder)
  (folder / "vocabulary.json").write_text('{"file": "spiece')
  with pytest.raises(UserError, match="not a vocabulary record of t2t"):
    vocabularies.load(str(folder))


def test_fine_tuning_takes_model_and_vocabulary(workdir):
  """All except dropout and kernel, which fine-tuning sets."""
  config = load_config("finetune_superglue")
  config.model.attention_kernel = "plain"
  source = pretrained.read_source(str(workdir))
  pretrained.adopt(config, source)
  assert config.model.dropout_rate == 0.1
  assert dataclasses.replace(source.model, dropout_rate=0.1, attention_kernel="plain") == records(config).model
  assert (config.data.vocabulary, config.data.extra_ids) == (str(workdir / "vocabulary"), 100)
  assert config.data.inputs_length == 512


@pytest.mark.parametrize(
  ("architecture", "room"), [("encoder_decoder", 96), ("decoder_only", 96 - 63), ("encoder_only", 64)]
)
def test_inputs_are_as_long_as_the_learned_positions_allow(workdir, architecture, room):
  """A decoder-only model reserves positions for the answer, an encoder for special tokens."""
  config = load_config("finetune_superglue")
  source = pretrained.read_source(str(workdir))
  layers = {"encoder_decoder": {}, "decoder_only": {"num_encoder_layers": 0}, "encoder_only": {"num_decoder_layers": 0}}
  fields = layers[architecture] | {"architecture": architecture, "positions": "learned", "max_length": 96}
  pretrained.adopt(config, dataclasses.replace(source, model=dataclasses.replace(source.model, **fields)))
  assert config.data.inputs_length == room


@pytest.fixture(scope="module")
def huggingface(workdir, tmp_path_factory):
  """The same model in Hugging Face format."""
  path = tmp_path_factory.mktemp("huggingface") / "model"
  assert command.main(["convert", "--from", "t2t", str(workdir), "--to", "hf", str(path)]) == 0
  return path


def test_a_checkpoint_of_another_format_is_the_same_model(workdir, huggingface):
  """Converted in memory onto the mesh: shape, vocabulary, and bit-identical parameters."""
  own, other = (pretrained.read_source(str(path)) for path in (workdir, huggingface))
  assert dataclasses.replace(other.model, dtype=own.model.dtype, dropout_rate=own.model.dropout_rate) == own.model
  assert pretrained.vocabulary(other) == pretrained.vocabulary(own)
  mesh = sharding.make_mesh({"fsdp": 4, "tensor": 2})
  first, second = (pretrained.load(source, mesh).params for source in (own, other))
  for one, same in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
    np.testing.assert_array_equal(one, same)
    assert one.sharding == same.sharding


@pytest.mark.exhaustive
@pytest.mark.parametrize("inherit", [True, False])
def test_training_starts_from_a_checkpoint_of_another_format(inherit, huggingface, text, tmp_path, capsys):
  """With its model and vocabulary, or with equal ones in the config."""
  layers = ("--config.model.num_encoder_layers=1", "--config.model.num_decoder_layers=2")
  own = [option for option in (*SMALL, *layers) if inherit is False or ".model." not in option]
  options = [f"--config.init.checkpoint={huggingface}", f"--config.init.use_model_config={inherit}"]
  options += [f"--config.data.files={text}", f"--workdir={tmp_path}"]
  assert command.main(["train", "--config=t5_small", *own, *options]) == 0
  assert f"starting from the parameters of {huggingface}" in capsys.readouterr().err
  assert json.loads((tmp_path / "config.json").read_text())["model"]["embed_dim"] == 16


@pytest.mark.exhaustive
def test_another_shape_than_the_checkpoint_has_is_refused(huggingface, text, tmp_path, capsys):
  """The message contains the parameter and both shapes."""
  options = [f"--config.init.checkpoint={huggingface}", f"--config.data.files={text}", f"--workdir={tmp_path}"]
  assert command.main(["train", "--config=t5_small", *SMALL, *options]) == 2
  said = capsys.readouterr().err
  assert str(huggingface) in said and "expected [6, " in said and "found [" in said


def test_what_is_no_checkpoint(workdir, tmp_path):
  """The message contains the searched paths; an unknown model key asks for an upgrade."""
  with pytest.raises(UserError, match=r"--checkpoint .*: no checkpoint in .*/state"):
    pretrained.read_source(str(tmp_path))
  shutil.copytree(workdir / "checkpoints" / "1", tmp_path / "1", ignore=shutil.ignore_patterns(manifest.NAME))
  path = tmp_path / "1" / "config" / "metadata"
  record = json.loads(path.read_text())
  record["model"]["hypernetworks"] = 3
  path.write_text(json.dumps(record))
  with pytest.raises(
    UserError, match="the checkpoint's config.model has the key 'hypernetworks', which this t2t does not know"
  ):
    pretrained.read_source(str(tmp_path / "1"))


@pytest.mark.exhaustive
def test_inheriting_a_model(workdir, text, tmp_path):
  """The same model trains on other data; typed keys take precedence; parameters may be fresh."""
  arguments = [
    "train",
    "--config=finetune_superglue",
    f"--config.init.checkpoint={workdir}",
    *SMALL[6:],
    "--config.train.steps=1",
  ]
  arguments += [f"--config.data.files={text}", "--config.data.mixture=", "--config.model.dropout_rate=0.0"]
  arguments += ["--config.model.norm_epsilon=1e-5", "--config.data.inputs_length=48"]  # different from the checkpoint
  kept = ["--config.optimizer.learning_rate=0.0", f"--workdir={tmp_path / 'kept'}"]
  assert command.main([*arguments, *kept]) == 0
  assert command.main([*arguments, "--noconfig.init.parameters", f"--workdir={tmp_path / 'fresh'}"]) == 0
  params = {
    name: jax.tree.leaves(pretrained.load(pretrained.read_source(str(path)), sharding.make_mesh({"data": 8})).params)
    for name, path in (("before", workdir), ("kept", tmp_path / "kept"), ("fresh", tmp_path / "fresh"))
  }
  for before, kept, fresh in zip(params["before"], params["kept"], params["fresh"], strict=True):
    np.testing.assert_array_equal(before, kept)
    assert before.shape == fresh.shape
  assert any(np.any(before != fresh) for before, fresh in zip(params["before"], params["fresh"], strict=True))
  written = json.loads((tmp_path / "kept" / "config.json").read_text())
  assert (written["model"]["dropout_rate"], written["model"]["norm_epsilon"]) == (0.0, 1e-5)
  assert written["data"]["inputs_length"] == 48
  assert restore.read_config(epath.Path(tmp_path / "kept" / "checkpoints" / "1"))["model"]["embed_dim"] == 16


@pytest.mark.parametrize("spec", ["bytes", "spiece"])
def test_vocabularies_survive_being_saved(spec, tmp_path, text):
  """Text gets the same ids."""
  if spec == "spiece":
    arguments = ["vocab", "train", f"--input={text}", "--size=60", f"--output={tmp_path / 'trained'}"]
    assert command.main(arguments) == 0
    spec = str(tmp_path / "trained" / "spiece.model")
  vocabulary = vocabularies.load(spec, extra_ids=7)
  vocabularies.save(vocabulary, epath.Path(tmp_path / "saved"))
  assert vocabularies.saved_extra_ids(epath.Path(tmp_path / "saved")) == 7
  again = vocabularies.load(str(tmp_path / "saved"), extra_ids=7)
  assert again.encode("seven lazy dogs") == vocabulary.encode("seven lazy dogs")
  vocabularies.check_same(vocabulary, again, spec="saved")
  with pytest.raises(UserError, match="was trained with another vocabulary"):
    vocabularies.check_same(vocabulary, vocabularies.load("bytes", extra_ids=8), spec="bytes")
