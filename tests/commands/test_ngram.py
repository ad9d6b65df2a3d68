"""`t2t ngram`: the loss of an n-gram model on the held-out targets of a run, in its report and its summary."""

import json
import math

from etils import epath
import numpy as np
import pytest
import trained

from t2t import __main__ as command
from t2t.data import pipeline, train_data
from t2t.evaluation import kneser_ney
from t2t.reports import run as runs
from t2t.reports import single
from t2t.training import replay_step

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """Copy of the files of a run that the command reads and writes."""
  workdir = tmp_path_factory.mktemp("ngram") / "run"
  workdir.mkdir()
  for name in ("config.json", "metrics.jsonl"):
    (workdir / name).write_bytes((trained.workdir("decoder_only") / name).read_bytes())
  return workdir


def test_the_loss_is_that_of_the_model_on_the_run_s_targets(run, capsys):
  """Counted by hand from the same files; the report and the summary of the run show it."""
  assert command.main(["ngram", str(run), "--order", "2"]) == 0
  (row,) = json.loads((run / "ngram.json").read_text())
  config = train_data.resolved(replay_step.config_of(epath.Path(run)))
  task = pipeline.load_task(config.data, "decoder_only")
  examples = pipeline.task_examples(config.data, "decoder_only", task, split="train").as_numpy_iterator()
  model = kneser_ney.KneserNey([x["targets"] for x in examples], order=2, vocab_size=384)
  (batch,) = pipeline.eval_rows(config.data, "decoder_only", batch_size=8, max_batches=1)
  texts = [
    tokens[weights > 0]
    for tokens, weights in zip(*(batch[f"decoder_{x}"] for x in ("target_tokens", "loss_weights")), strict=True)
  ]
  expected = [-math.log(model.distribution(text[:i].tolist())[word]) for text in texts for i, word in enumerate(text)]
  assert row["loss"] == pytest.approx(np.mean(expected)) and row["targets"] == len(expected)
  assert row["tokens"] == model.num_tokens and row["perplexity"] == pytest.approx(math.exp(row["loss"]))
  # Every target but EOS is a byte.
  count = sum(int(np.sum(text > 2)) for text in texts)
  assert row["bits_per_byte"] == pytest.approx(sum(expected) / math.log(2) / count)
  out = capsys.readouterr().out
  assert f"2-gram model   {row['loss']:.4f} nats" in out and "bits per byte" in out
  assert f"of {model.num_tokens:,} tokens of the training text" in out
  assert "2-gram model" in single.html(runs.read(str(run)))


def test_the_number_of_counted_tokens_is_bounded(run, capsys):
  assert command.main(["ngram", str(run), "--tokens", "100"]) == 0
  (row,) = json.loads((run / "ngram.json").read_text())
  assert row["tokens"] == 100 and row["order"] == 3
  assert "100 tokens at the beginning of the training text" in capsys.readouterr().out


def test_a_damaged_file_leaves_the_report_without_the_baseline(run):
  (run / "ngram.json").write_text('[{"name": "3-gram model"}]')
  assert "3-gram model" not in single.html(runs.read(str(run)))


@pytest.mark.parametrize("architecture", ["encoder_decoder", "encoder_only"])
def test_other_objectives_are_refused(architecture, capsys):
  assert command.main(["ngram", str(trained.workdir(architecture))]) == 2
  assert "Give a run with config.data.objective=causal_lm." in " ".join(capsys.readouterr().err.split())
  assert not (trained.workdir(architecture) / "ngram.json").exists()


def test_a_decoder_with_inputs_is_refused(run, tmp_path, capsys):
  """A prefix is read, too, so the targets do not begin their text."""
  config = json.loads((run / "config.json").read_text())
  config["data"]["objective"] = "prefix_lm"
  (tmp_path / "config.json").write_text(json.dumps(config))
  assert command.main(["ngram", str(tmp_path)]) == 2
  assert "config.data.objective=prefix_lm" in capsys.readouterr().err
