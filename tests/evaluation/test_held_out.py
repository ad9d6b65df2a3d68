"""`t2t eval` with config.eval.method=loss measures what evaluation during training measures, on all of the text."""

import json
import math

import pytest
import test_memory_run
import test_train

from t2t import __main__ as command

pytestmark = pytest.mark.exhaustive

text = test_train.text  # fixture


def test_the_loss_of_a_checkpoint_is_that_of_its_last_evaluation(text, tmp_path, capsys):
  """With the memory of training, another length, and a part of the text; other losses and vocabularies are refused."""
  run, out = tmp_path / "run", tmp_path / "eval"
  training = test_memory_run.run(text, run, 2, "--config.eval.batches=1000", "--config.eval.num_logged_samples=1")
  assert command.main(training) == 0
  (expected,) = test_train.losses(run, "eval/loss").values()
  config = [
    x for x in training[1:] if not x.startswith(("--workdir", "--config.train", "--config.data.files", str(run)))
  ]
  of = lambda *options: [
    "eval",
    *config,
    f"--checkpoint={run}",
    f"--workdir={out}",
    "--config.eval.method=loss",
    *options,
  ]

  def measured(*options):
    assert command.main(of("--config.eval.batch_size=8", *options)) == 0
    return json.loads((out / "results.json").read_text())["held_out"]

  found = measured()
  assert found["metrics"]["loss"] == pytest.approx(expected, rel=1e-5)
  assert found["metrics"]["perplexity"] == pytest.approx(math.exp(expected), rel=1e-5)
  assert found["metrics"]["targets"] > 10_000 and found["memory_length"] == 40
  nats = found["metrics"]["loss"] * found["metrics"]["targets"]
  assert found["metrics"]["bits_per_byte"] == pytest.approx(nats / math.log(2) / found["metrics"]["bytes"])
  longer = measured("--config.model.memory_length=80")
  assert longer["memory_length"] == 80 and longer["metrics"]["loss"] != found["metrics"]["loss"]
  assert 0 < measured("--config.eval.max_examples=8")["metrics"]["targets"] <= 8 * 32
  capsys.readouterr()
  assert command.main(of("--config.train.loss=multi_token", "--config.model.memory_length=0")) != 0
  assert "config.train.loss" in capsys.readouterr().err
  words = tmp_path / "words"
  assert (
    command.main(["vocab", "train", "--type=word", "--size=50", f"--input={text}/*.jsonl", f"--output={words}"]) == 0
  )
  capsys.readouterr()
  assert command.main(of(f"--config.data.vocabulary={words}")) != 0
  assert "the checkpoint was trained with another vocabulary" in capsys.readouterr().err
