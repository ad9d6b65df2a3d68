"""Recipes with stages: one step of each stage, with the published changes, at toy size."""

import json
import math

import pytest
import test_train

from t2t import __main__ as command
from t2t.configuration.loading import load_config

text = test_train.text  # the fixture
LENGTHS = ("data.inputs_length", "data.targets_length")
SOURCES = {"gpt_bert_small": ("causal", "masked")}  # of recipes that read several


def scaled(config):
  """Returns the stages with a step each, at most 32 rows and lengths of at most 64."""
  rows = max(config.train.batch_size, *(stage.get("train.batch_size", 0) for stage in config.stages))
  longest = max(stage.get(key, config.data[key.removeprefix("data.")]) for stage in config.stages for key in LENGTHS)

  def small(key, value):
    if key == "train.batch_size":
      return max(8, value * 32 // rows // 8 * 8)
    return max(1, value * 64 // longest) if key in LENGTHS else value

  defaults = {key: config[key.split(".")[0]][key.split(".")[1]] for key in ("train.batch_size", *LENGTHS)}
  changes = [{key: x for key, x in (defaults | stage).items() if key != "fraction"} for stage in config.stages]
  return [{key: small(key, value) for key, value in stage.items()} | {"steps": 1} for stage in changes]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["eurobert_210m", "gpt_bert_small", "neobert_base", "ettin_encoder_17m"])
def test_every_stage_of_a_recipe_trains(name, text, tmp_path):
  """The whole command; each kind of row has a metric where both are in a batch."""
  stages = scaled(load_config(name))
  sources = [f"sources.{source}." for source in SOURCES.get(name, ())]
  options = [f"--config.data.{source}files={text}/train.jsonl.gz" for source in sources or [""]]
  options += [f"--config.data.{source}share=0.5" for source in sources]
  layers = "encoder" if load_config(name).model.num_encoder_layers else "decoder"
  sizes = [x for x in test_train.SMALL if "length" not in x and "batch_size" not in x and "steps" not in x]
  workdir = tmp_path / "run"
  arguments = [
    *("train", f"--config={name}", *sizes, f"--config.model.num_{layers}_layers=1", "--config.model.num_kv_heads=0"),
    *(f"--config.stages={', '.join(map(repr, stages))}", f"--config.train.steps={len(stages)}"),
    *(*options, "--config.eval.batches=1", f"--workdir={workdir}"),
  ]
  assert command.main(arguments) == 0
  rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
  rows = [row for row in rows if "train/loss" in row]
  assert len(rows) == len(stages) and all(math.isfinite(row["train/loss"]) for row in rows)
  assert not sources or any({"train/causal_loss", "train/masked_loss"} <= row.keys() for row in rows)
