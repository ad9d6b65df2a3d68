"""Errors of resumed runs contain the settings that change the state's arrays."""

import json

import jax
import pytest

from t2t import sharding
from t2t.checkpoints import changed_settings
from t2t.configuration.loading import load_config, override, records


def run(*options):
  small = ("model.embed_dim=16", "model.mlp_dim=16", "model.num_decoder_layers=1", "train.loss=cross_entropy")
  return records(override(load_config("tiny_t5"), [f"--config.{option}" for option in (*small, *options)]))


@pytest.mark.slow
@pytest.mark.exhaustive_from(3)
@pytest.mark.parametrize(
  ("began", "now", "lines", "again"),
  [
    (
      "",
      "model.embed_dim=32 model.dropout_rate=0.1",
      ["model.embed_dim=32, saved with 16"],
      "--config.model.embed_dim=16",
    ),
    ("", "model.num_heads=2", ["model.num_heads=2, saved with 4"], "--config.model.num_heads=4"),
    ("", "model.tied_logits=True", ["model.tied_logits=True, saved with False"], "--config.model.tied_logits=False"),
    ("", "model.vocab_size=256", ["model.vocab_size=256, saved with 4224"], "--config.model.vocab_size=4224"),
    ("", "optimizer.name=sgd", ["optimizer.name=sgd, saved with adamw"], "--config.optimizer.name=adamw"),
    ("optimizer.weight_decay=0.1", "", ["optimizer.weight_decay=0.0, saved with 0.1"], "weight_decay=0.1"),
    ("train.freeze=encoder", "", ["train.freeze=(), saved with encoder"], "--config.train.freeze=encoder"),
    ("", "optimizer.clip_norm=0", ["optimizer.clip_norm=0.0, saved with 1.0"], "--config.optimizer.clip_norm=1.0"),
    ("lora.rank=4", "lora.rank=2 lora.alpha=3", ["lora.rank=2, saved with 4"], "--config.lora.rank=4"),
    ("lora.rank=4", "", ["lora, saved with it"], "--config.lora.rank=4"),
    ("", "ia3.also_train=head", ["ia3, saved without it"], "without config.ia3"),
    (
      "init.checkpoint=a init.use_model_config=True model.embed_dim=32",
      "init.checkpoint=b init.use_model_config=True model.num_heads=2",
      ["init.checkpoint=b, saved with a and its model"],
      "To resume give --config.init.checkpoint=a; or give another --workdir",
    ),
    (
      "model.num_encoder_layers=2",
      "optimizer.name=lion optimizer.learning_rate=1",
      ["model.num_encoder_layers=3, saved with 2", "optimizer.name=lion, saved with adamw"],
      "--config.model.num_encoder_layers=2 --config.optimizer.name=adamw",
    ),
  ],
)
def test_settings_that_give_other_arrays_are_named(began, now, lines, again):
  """The message contains exactly these settings, both values, and options to type."""
  before, after = run(*began.split()), run(*now.split())
  saved = json.loads(json.dumps(before.to_dict()))
  mesh = sharding.make_mesh({"data": 1}, devices=jax.devices()[:1])
  said = changed_settings.error(saved, after, mesh, workdir="runs/x", step=2)
  assert said.startswith("--workdir runs/x: its step 2 has other arrays in model or optimizer than this run")
  assert [line.strip() for line in said.splitlines()[1:-1]] == [f"config.{line}" for line in lines]
  assert again in said.splitlines()[-1]
