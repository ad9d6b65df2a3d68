"""Translation of names of other frameworks in errors about config keys and options."""

import inspect
import re

import pytest
import trained

import t2t
from t2t import UserError
from t2t.configuration import foreign_names
from t2t.configuration.loading import all_keys, load_config, override, records


def test_every_translation_is_a_key():
  """Every translation is a key or --workdir."""
  keys = all_keys()
  for names in foreign_names._NAMES.values():
    for name, said in names.items():
      assert said.startswith("--workdir") or set(re.findall(r"\b[a-z]+\.[a-z_0-9]+", said)) <= {*keys}, name


@pytest.mark.parametrize(
  ("argument", "message"),
  [
    ("--num_train_epochs=3", "Hugging Face's num_train_epochs is config.train.epochs"),
    ("--per-device-train-batch-size=8", "config.train.batch_size, over all devices"),
    ("--config.train.max_seq_length=128", "Hugging Face's max_seq_length is config.data.inputs_length"),
    ("--config.train.learning_rate=1e-4", "did you mean config.optimizer.learning_rate?"),
    ("--config.warmup_ratio=0.1", "did you mean config.optimizer.warmup_ratio?"),
    ("--config.TRAIN_STEPS=10", "T5X's TRAIN_STEPS is config.train.steps"),
    ("--ici_fsdp_parallelism=4", "MaxText's ici_fsdp_parallelism is config.mesh.fsdp"),
    ("--output_dir=out", "Hugging Face's output_dir is --workdir"),
  ],
)
def test_names_of_other_frameworks_on_the_command_line(argument, message):
  with pytest.raises(UserError, match=re.escape(message)):
    override(load_config("tiny"), [argument])


def test_names_of_other_frameworks_in_python():
  """Foreign names in `t2t.config`, and in attributes of a config."""
  with pytest.raises(UserError, match="Hugging Face's num_train_epochs is config.train.epochs"):
    t2t.config("tiny", train={"num_train_epochs": 3})
  with pytest.raises(UserError, match=re.escape("did you mean optimizer={'learning_rate': 0.1}?")):
    t2t.config("tiny", learning_rate=0.1)
  config = t2t.config("tiny")
  with pytest.raises(UserError, match=r"config.optimizer.lr=0.1: .* is config.optimizer.learning_rate"):
    config.optimizer.lr = 0.1
  with pytest.raises(AttributeError):
    config.batch_size = 3
  with pytest.raises(UserError, match="config.train.steps='10' must be an integer; give 10"):
    config.train.steps = "10"
  config.train.steps = 10
  assert records(config).train.steps == 10


@pytest.mark.slow
def test_options_by_names_of_other_frameworks():
  """Foreign names of options of functions and commands."""
  model = t2t.load(str(trained.workdir("decoder_only")))
  functions = [t2t.load, t2t.train, *(getattr(type(model), name) for name in ("generate", "fill", "embed"))]
  options = {name for each in functions for name in inspect.signature(each).parameters}
  assert {here for names in foreign_names._OPTIONS.values() for each in names.values() for here in each} <= options | {
    "output"
  }
  with pytest.raises(
    UserError, match="num_beams: generate has no such option; Hugging Face's num_beams is beam. Accepted"
  ):
    model.generate(["a"], num_beams=2)
  with pytest.raises(UserError, match="Hugging Face's top_k is top"):
    model.fill(["a"], top_k=2)
  with pytest.raises(UserError, match="device_map: load has no such option. Accepted options: checkpoint, task"):
    t2t.load("x", device_map="auto")
  with pytest.raises(UserError, match="Hugging Face's train_dataset is examples"):
    t2t.train(t2t.config("tiny"), "x", train_dataset=[])
  assert foreign_names.translated_option("--max-new-tokens", ["max_length"], dashes="--") == (
    "; Hugging Face's max_new_tokens is --max_length"
  )
  assert not foreign_names.translated_option("top_k", ["top_k", "beam"])


@pytest.mark.parametrize(
  ("value", "options"),
  [
    ('(r"^.*decoder.*$", None)', "--config.init.reinit=decoder"),
    ('((r"^.*decoder.*$", None), (r"^.*norm.*$", None))', "--config.init.reinit=decoder,norm"),
    ("^.*decoder.*$=None", "--config.init.reinit=decoder"),
    (r'((r"decoder/(.*)", r"encoder/\1"),)', "--config.init.rename=encoder=decoder"),
  ],
)
def test_partial_restores_as_t5x_has_them(value, options):
  with pytest.raises(UserError, match=re.escape(f"has the syntax of T5X; give {options}")):
    records(override(load_config("tiny"), [f"--config.init.rename={value}"]))
