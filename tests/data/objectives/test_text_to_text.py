"""Prompts and answers from files: model features, and loss only on answers."""

import json

import numpy as np
import pytest

from t2t import __main__ as command
from t2t.configuration.loading import load_config, records
from t2t.configuration.schema import DataConfig
from t2t.data import objectives, pipeline
from t2t.training import recipe

pytestmark = pytest.mark.slow

PAIRS = [("what is it?", "a day"), ("who?", "Ann"), ("when is that to be?", "at noon")] * 20


def written(tmp_path, kind):
  path = tmp_path / f"a.{kind}"
  lines = {"tsv": "\t".join, "jsonl": lambda pair: json.dumps(dict(zip(("question", "answer"), pair, strict=True)))}
  path.write_text("".join(lines[kind](pair) + "\n" for pair in PAIRS))
  keys = {"field": "question", "translation": "answer"} if kind == "jsonl" else {}
  return {"files": str(path), "eval_files": str(path), "objective": "text_to_text", "vocabulary": "bytes", **keys}


def of_bytes(tokens):
  return bytes(int(token) - 3 for token in tokens if 3 <= token < 259).decode()


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["tsv", "jsonl"])
@pytest.mark.parametrize("pack", [False, True])
def test_a_decoder_has_a_loss_on_the_answer_alone(tmp_path, kind, pack):
  """The prompt is in the same row; the recipe's features are equal."""
  data = DataConfig(**written(tmp_path, kind), inputs_length=24, targets_length=12, pack=pack)
  (batch,) = pipeline.eval_rows(data, "decoder_only", batch_size=4, max_batches=1)
  weights, targets = batch["decoder_loss_weights"] > 0, batch["decoder_target_tokens"]
  answers, prompts = ({pair[i] for pair in PAIRS} for i in (1, 0))
  if not pack:
    assert {of_bytes(row[counts]) for row, counts in zip(targets, weights, strict=True)} <= answers
    assert {of_bytes(row[~counts]) for row, counts in zip(targets, weights, strict=True)} <= prompts
  assert 0 < weights.sum() < (targets > 0).sum()
  assert np.all(targets[weights] != 0)
  config = records(load_config("tiny_gpt")).with_(data=vars(data) | {"mixture": ""}, train={"batch_size": 4})
  assert {name: x.shape for name, x in batch.items()} == {name: x.shape for name, x in recipe.batch(config).items()}


@pytest.mark.exhaustive
def test_an_encoder_reads_the_prompt(tmp_path):
  data = DataConfig(**written(tmp_path, "tsv"), inputs_length=24, targets_length=12)
  (batch,) = pipeline.eval_rows(data, "encoder_decoder", batch_size=3, max_batches=1)
  both = zip(batch["encoder_input_tokens"], batch["decoder_target_tokens"], strict=True)
  assert {(of_bytes(inputs), of_bytes(targets)) for inputs, targets in both} == set(PAIRS)
  assert objectives.ends_inputs("text_to_text") and objectives.is_parallel("text_to_text")


@pytest.mark.exhaustive
def test_the_command(tmp_path, capsys):
  """Trains on pairs and continues prompts; plain text is refused."""
  keys = written(tmp_path, "jsonl")
  arguments = [
    *("train", "--config=tiny_gpt", "--config.model.vocab_size=384", "--config.model.num_decoder_layers=1"),
    *("--config.train.steps=2", "--config.train.batch_size=8", "--config.eval.batches=1"),
    *("--config.data.inputs_length=24", "--config.data.targets_length=12", f"--workdir={tmp_path / 'run'}"),
    *(f"--config.data.{key}={value}" for key, value in keys.items()),
  ]
  assert command.main(arguments) == 0
  assert "what is it?" in capsys.readouterr().out
  (tmp_path / "a.txt").write_text("a\n")
  assert command.main([*arguments, f"--config.data.files={tmp_path / 'a.txt'}"]) == 2
  assert "a.txt has no translations" in capsys.readouterr().err
