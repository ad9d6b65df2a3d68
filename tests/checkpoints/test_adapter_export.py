import json
import re

from etils import epath
import jax
import numpy as np
import pytest
import toy
import trained

from t2t import __main__ as command
from t2t import sharding
from t2t.checkpoints import pretrained, restore

pytestmark = pytest.mark.slow

LORA = ("--config.lora.rank=2", "--config.lora.targets=attention/,mlp/")


def convert(source, target, out, *options):
  return command.main(["convert", str(source), "--to", target, str(out), *map(str, options)])


def params(path):
  """Returns the parameters of a checkpoint as readers get them."""
  mesh = sharding.make_mesh({"data": 1}, devices=jax.devices()[:1])
  return toy.flat(pretrained.load(pretrained.read_source(str(path)), mesh).params)


def added(path):
  """Returns the trained tensors of an adapter's checkpoint."""
  folder = restore.checkpoint_folder(str(path))
  mesh = sharding.make_mesh({"data": 1}, devices=jax.devices()[:1])
  place = lambda shape: jax.ShapeDtypeStruct(shape, np.float32, sharding=sharding.replicated(mesh))
  shapes = restore.param_shapes(folder)
  return restore.read_params(folder, {name: (name, place(shape)) for name, shape in shapes.items()})


def assert_same(found, expected):
  assert found.keys() == expected.keys()
  for path, x in expected.items():
    np.testing.assert_array_equal(found[path], x, err_msg=path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A run's adapter in PEFT format, with a t2t base."""
  out = tmp_path_factory.mktemp("peft") / "out"
  assert convert(trained.adapter("encoder_decoder", *LORA), "peft", out) == 0
  return out


@pytest.mark.exhaustive
def test_a_run_goes_to_peft_and_comes_back_as_it_was(folder, tmp_path, capsys):
  """The adapter is bit-identical, and the base's arrays have the same digests."""
  run, base = trained.adapter("encoder_decoder", *LORA), trained.workdir("encoder_decoder")
  assert convert(folder, "t2t", tmp_path / "back", "--base", base) == 0
  assert "refers to its base" in capsys.readouterr().out
  assert_same(added(tmp_path / "back"), added(run))
  found, before = (restore.read_base(restore.checkpoint_folder(str(path))) for path in (tmp_path / "back", run))
  assert found.entries == before.entries and found.path == before.path
  assert_same(params(tmp_path / "back"), params(run))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  "options",
  [
    ("--config.ia3.targets=attention/key,attention/value,mlp/down",),
    ("--config.prompt.length=4",),
    ("--config.prefix.length=4", "--config.prefix.hidden=0", "--config.prefix.sides=decoder"),
  ],
  ids=["ia3", "prompt", "prefix"],
)
def test_other_kinds_go_to_peft_and_come_back(options, tmp_path):
  """(IA)3, prompts and prefixes are bit-identical, and predictions are equal."""
  run, base = trained.adapter("encoder_decoder", *options), trained.workdir("encoder_decoder")
  assert convert(run, "peft", tmp_path / "peft") == 0
  assert convert(tmp_path / "peft", "t2t", tmp_path / "back", "--base", base) == 0
  assert_same(params(tmp_path / "back"), params(run))
  (tmp_path / "in.txt").write_text("the quick brown fox\n")
  written = []
  for path in (run, tmp_path / "back"):
    files = ["--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.jsonl"), "--max_length", "4"]
    assert command.main(["infer", "--checkpoint", str(path), *files]) == 0
    written.append((tmp_path / "out.jsonl").read_text())
    (tmp_path / "out.jsonl").unlink()
  assert written[0] == written[1]


@pytest.mark.exhaustive
def test_the_base_may_be_a_folder_of_theirs(folder, tmp_path):
  """The adapter's folder then refers to the base, so that --base is not needed."""
  base = trained.workdir("encoder_decoder")
  assert convert(base, "hf", tmp_path / "hf") == 0
  assert convert(folder, "t2t", tmp_path / "run", "--base", tmp_path / "hf") == 0
  assert convert(tmp_path / "run", "peft", tmp_path / "again") == 0
  assert json.loads((tmp_path / "again/adapter_config.json").read_text())["base_model_name_or_path"] == str(
    tmp_path / "hf"
  )
  assert convert(tmp_path / "again", "t2t", tmp_path / "last") == 0
  assert_same(params(tmp_path / "last"), params(trained.adapter("encoder_decoder", *LORA)))


@pytest.mark.exhaustive
def test_every_command_takes_what_came_from_peft(folder, tmp_path):
  """Merging, inference, and training on the merged model."""
  run, base = tmp_path / "run", trained.workdir("encoder_decoder")
  assert convert(folder, "t2t", run, "--base", base) == 0
  assert command.main(["adapt", "merge", str(run), "--output", str(tmp_path / "merged")]) == 0
  assert_same(params(tmp_path / "merged"), params(run))
  (tmp_path / "in.txt").write_text("the quick brown fox\n")
  lines = ["--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.jsonl"), "--max_length", "4"]
  assert command.main(["infer", "--checkpoint", str(run), *lines]) == 0
  more = (f"--config.init.checkpoint={tmp_path}/merged", f"--config.data.files={base}.jsonl", *trained.SMALL, *LORA)
  train = [
    "train",
    "--config=t5_1_1_small",
    "--config.init.use_model_config=True",
    *more,
    "--workdir",
    str(tmp_path / "more"),
  ]
  assert command.main([*train, "--config.train.steps=1"]) == 0


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (("convert", "FOLDER", "--to", "t2t", "OUT"), "names no base model. Give --base"),
    (
      ("convert", "FOLDER", "--to", "hf", "OUT"),
      "--to hf: .* is a PEFT adapter, and t2t converts adapters only to t2t. Give --to t2t",
    ),
    (
      ("convert", "FOLDER", "--to", "t2t", "OUT", "--base", "OTHER"),
      "The task_type of decoder-only models is CAUSAL_LM",
    ),
    (("convert", "BASE", "--to", "peft", "OUT"), "the model has no adapter"),
    (("convert", "BASE", "--to", "hf", "OUT", "--base", "BASE"), "--base .* applies only to --from peft"),
    (
      ("infer", "--checkpoint", "FOLDER", "--input", "x.txt", "--output", "OUT"),
      "is a PEFT adapter .*--base BASE",
    ),
  ],
)
def test_what_cannot_be_converted_is_refused(arguments, message, folder, tmp_path, capsys):
  """The message contains the remedy, and nothing is written."""
  places = {
    "FOLDER": folder,
    "OUT": tmp_path / "out",
    "BASE": trained.workdir("encoder_decoder"),
    "OTHER": trained.workdir("decoder_only"),
  }
  assert command.main([str(places.get(each, each)) for each in arguments]) == 2
  assert re.search(message, " ".join(capsys.readouterr().err.split()))
  assert not epath.Path(tmp_path / "out").exists()
