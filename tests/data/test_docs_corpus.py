"""Benchmark of pre-training: its arms differ only in their initial parameters, and a table summarizes their curves."""

import json

import pytest
import toy
import trained

from t2t import UserError
from t2t.data import docs_corpus

_SHORT = ("--config.train.batch_size=8", "--config.data.num_streams=1", "--config.eval.batch_size=8")


@pytest.fixture(scope="module")
def finetuning():
  return toy.benchmark("finetuning")


@pytest.fixture
def installed(tmp_path, monkeypatch):
  """Docstrings that differ only in a name."""
  monkeypatch.setenv("T2T_CACHE_DIR", str(tmp_path / "cache"))
  folder = docs_corpus.folder()
  folder.mkdir(parents=True)
  for split in ("train", "validation"):
    text = "Return the value of {0}. What follows is long enough to say what the function is good for: {0}."
    documents = [{"text": text.format(f"{split}{i}"), "package": "a"} for i in range(10, 30)]
    (folder / f"{split}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in documents))


@pytest.mark.parametrize("task", ["docs_summary", "docs_match"])
def test_arms_differ_in_their_parameters_alone(finetuning, task):
  """Both arms have the same model, vocabulary, steps and data order."""
  source = str(trained.workdir("encoder_decoder"))
  make = lambda arm, seed=1: finetuning.run_config(task, source, arm, seed=seed, steps=32, overrides=list(_SHORT))
  started, scratch = (make(arm).to_dict() for arm in finetuning.ARMS)
  assert (started["init"].pop("parameters"), scratch["init"].pop("parameters")) == (True, False)
  assert started == scratch
  assert started["model"]["vocab_size"] == 384 and started["data"]["mixture"] == task
  assert (started["train"]["steps"], started["eval"]["every"], started["train"]["batch_size"]) == (32, 4, 8)
  assert make("pre-trained", seed=2).train.seed == 2


@pytest.mark.exhaustive
def test_runs_and_goes_on(finetuning, installed, tmp_path, capsys):
  """Writes a table and a plot of one seed per arm; a second call trains again only if the config changed."""
  out = tmp_path / "out"
  argv = ["--task=docs_match", f"--checkpoint={trained.workdir('encoder_decoder')}", f"--workdir={out}", *_SHORT]
  finetuning.main([*argv, "--seeds=1", "--steps=2"])
  told = capsys.readouterr().out
  assert "docs_match, 1 seed(s)" in told and "curves " in told
  assert (out / "finetuning.png").read_bytes().startswith(b"\x89PNG")
  curves = json.loads((out / "finetuning.json").read_text())["curves"]
  assert set(curves) == {"pre-trained", "from scratch"}
  assert set(curves["pre-trained"][0]) == {"loss", "accuracy"} and set(curves["pre-trained"][0]["loss"]) == {"1", "2"}
  assert curves["pre-trained"][0]["loss"] != curves["from scratch"][0]["loss"]

  written = lambda: (out / "docs_match" / "from_scratch_0" / "config.json").stat().st_mtime_ns
  first = written()
  finetuning.main([*argv, "--seeds=1", "--steps=2"])
  assert written() == first
  finetuning.main([*argv, "--seeds=1", "--steps=2", "--config.optimizer.learning_rate=0.001"])
  assert written() != first


def test_table(finetuning):
  """Shows mean and deviation of the last and the best value, and when the best loss from scratch is reached."""
  run = lambda *losses: {
    "loss": dict(zip((10, 20, 30), losses, strict=True)),
    "accuracy": {10: 50.0, 20: 70.0, 30: 60.0},
  }
  results = {"pre-trained": [run(3.0, 2.0, 1.0), run(3.0, 2.0, 2.0)], "from scratch": [run(4.0, 3.0, 3.5)] * 2}
  told = finetuning.table(results, "docs_match")
  assert [" ".join(line.split()) for line in told.splitlines()[2:6]] == [
    "held-out loss pre-trained 1.500 ± 0.707 1.500 ± 0.707",
    "held-out loss from scratch 3.500 ± 0.000 3.000 ± 0.000",
    "held-out accuracy pre-trained 60.000 ± 0.000 70.000 ± 0.000",
    "held-out accuracy from scratch 60.000 ± 0.000 70.000 ± 0.000",
  ]
  assert "pre-trained: reaches the best loss from scratch, 3.000, after 10 of 30 steps" in told
  never = {"pre-trained": [run(4.0, 4.0, 4.0)], "from scratch": [run(4.0, 3.0, 3.5)]}
  assert "never reaches the loss from scratch, 3.000" in finetuning.table(never, "docs_match")


@pytest.mark.parametrize(
  ("argument", "message"),
  [
    ("--task=docs_macth", "--task docs_macth: unknown task; known are docs_summary, docs_match"),
    ("--seeds=0", "--seeds 0: must be 1 or more"),
    ("--checkpoint=nowhere", "--checkpoint nowhere: no checkpoint in"),
  ],
)
def test_what_cannot_be_run(finetuning, tmp_path, argument, message):
  """Raises before anything is trained."""
  with pytest.raises(UserError, match=message):
    finetuning.main([argument, f"--workdir={tmp_path}/out"])
  assert not (tmp_path / "out").exists()
