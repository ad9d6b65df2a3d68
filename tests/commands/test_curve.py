"""`t2t curve`: runs of several sizes and seeds, resumed; refused settings."""

import functools
import json
import pathlib

import pytest
import trained

from t2t import UserError
from t2t import __main__ as command
from t2t.commands import curve


def arguments(folder, *options, checkpoint="absent"):
  """Returns the command for a table of 60 animals in two classes, with runs of two steps."""
  rows = [f"{('dog', 'fox')[i % 2] * 3} {i}\t{('bark', 'yelp')[i % 2]}" for i in range(60)]
  (folder / "animals.tsv").write_text("\n".join(["sound\tkind", *rows]) + "\n")
  return [
    *("curve", "--config=finetune", f"--config.init.checkpoint={checkpoint}"),
    *(f"--config.data.files={folder / 'animals.tsv'}", "--config.data.labels=auto", "--config.train.steps=2"),
    *("--config.eval.num_logged_samples=0", f"--workdir={folder / 'curve'}", *options),
  ]


def rows_of(folder):
  return [json.loads(line) for line in (folder / "curve" / "curve.jsonl").read_text().splitlines()]


@pytest.mark.exhaustive
def test_a_curve_is_made_and_goes_on(tmp_path, monkeypatch, capsys):
  """Each run has a row and no checkpoints; the same command repeats none, and another size adds its own runs."""
  made = functools.partial(arguments, tmp_path, checkpoint=trained.workdir("encoder_only"))
  assert command.main(made("--sizes=4,16", "--seeds=2")) == 0
  said = capsys.readouterr()
  assert "run 1 of 4: 4 examples, seed 0" in said.err
  assert "config.data.max_train_examples=16: table keeps 16 of" in said.err and "bark 8, yelp 8" in said.err
  assert all(len(line) <= 80 for line in said.out.splitlines()[-4:-1]) and "95 % interval" in said.out
  rows = rows_of(tmp_path)
  assert [(row["examples"], row["seed"]) for row in rows] == [(4, 0), (4, 1), (16, 0), (16, 1)]
  assert {row["metric"] for row in rows} == {"table/score"} and {row["step"] for row in rows} == {2}
  assert (tmp_path / "curve" / "curve.png").read_bytes().startswith(b"\x89PNG")
  run = tmp_path / "curve" / "examples-4" / "seed-1"
  saved = json.loads((run / "config.json").read_text())
  assert (saved["data"]["max_train_examples"], saved["data"]["subset_seed"], saved["train"]["seed"]) == (4, 1, 1)
  assert (run / "metrics.jsonl").exists() and not (run / "checkpoints").exists()
  assert "checkpoints " not in said.out and "held-out loss" not in said.out and (run / "report.html").exists()

  trained_cells = []
  train = curve.train
  monkeypatch.setattr(
    curve,
    "train",
    lambda config, path, **named: trained_cells.append(pathlib.Path(path)) or train(config, path, **named),
  )
  assert command.main(made("--sizes=16,4", "--seeds=2")) == 0 and not trained_cells
  assert "run 4 of 4: 16 examples, seed 1: finished, table/score" in capsys.readouterr().err
  assert command.main(made("--sizes=4,8", "--seeds=1")) == 0
  assert [path.parts[-2:] for path in trained_cells] == [("examples-8", "seed-0")]
  assert len(rows_of(tmp_path)) == 5

  for options, message in (
    (("--sizes=4", "--config.train.batch_size=4"), "config.train.batch_size=4: the curve in .* was made with 8"),
    (("--sizes=4", "--best"), "--best=True: the curve in .* was made with False"),
    (("--sizes=500",), "=500: table has only .* examples with an answer in the split 'train'. Give at most"),
  ):
    with pytest.raises(UserError, match=message):
      curve.main(made(*options)[1:])


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ((), "--sizes is missing. Give the numbers of training examples, such as --sizes 16,64,256"),
    (("--sizes", "16", "64"), "--sizes 16 64: commas separate values, without spaces. Give --sizes 16,64."),
    (("--sizes=16,many",), "--sizes 16,many: must be numbers of at least 1 with commas, such as 16,64,256"),
    (("--sizes=0,4",), "--sizes 0,4: must be numbers of at least 1"),
    (("--sizes=4", "--seeds=0"), "--seeds 0 must be at least 1; an interval needs 2 or more"),
    (("--sizes=4", "--config.data.max_train_examples=8"), "max_train_examples=8: --sizes sets this key. Leave the key"),
    (("--sizes=4", "--config.train.seed=7"), "config.train.seed=7: --seeds sets this key. Leave the key out"),
    (("--sizes=4", "--config.data.subset_seed=9"), "config.data.subset_seed=9: --seeds sets this key"),
  ],
)
def test_what_is_refused(options, message, tmp_path):
  with pytest.raises(UserError, match=message):
    curve.main(arguments(tmp_path, *options)[1:])


def test_the_help_has_examples(capsys):
  with pytest.raises(SystemExit):
    curve.main(["--help"])
  said = capsys.readouterr().out
  assert "t2t curve --config finetune" in said and "--sizes 16,64,256 --seeds 5" in said
  assert all(len(line) <= 80 for line in said.partition("configs shipped")[0].splitlines())
