"""`t2t sweep`: the whole command, resumed, halved, launched; rows after any interruption; refused settings."""

import contextlib
import json
import math
import shlex
import types

from etils import epath
import pytest
import trained

from t2t import UserError
from t2t import __main__ as command
from t2t.checkpoints import workdir_lock
from t2t.commands import curve, sweep, sweep_grid
from t2t.configs import default
from t2t.configuration.loading import records
from t2t.reports import history, sweep_table
from t2t.training import run as training_run
from t2t.training.callbacks.stop_at import StopAt

RATES = "--set=optimizer.learning_rate=0.01,1e30,0.03"


def arguments(folder, *options, workdir="sweep"):
  """Returns the command for runs of four steps on random words."""
  _, *of_run, _, _ = trained.arguments("encoder_decoder", trained.workdir("encoder_decoder"))
  of_run = [option for option in of_run if not option.startswith("--config.train.steps")]
  steps = () if any("train.steps" in option for option in options) else ("--config.train.steps=4",)
  return ["sweep", *of_run, *steps, f"--workdir={folder / workdir}", *options]


def rows_of(folder):
  return [json.loads(line) for line in (folder / "sweep.jsonl").read_text().splitlines()]


@contextlib.contextmanager
def interrupted(monkeypatch, number):
  """Ends the sweep as a signal does, when the training with this number is to begin."""
  begun, train = [], sweep.train

  def train_or_stop(*positional, **named):
    begun.append(positional[1])
    if len(begun) == number:
      raise training_run.preemption.Stopped(15)
    return train(*positional, **named)

  with monkeypatch.context() as patch:
    patch.setattr(sweep, "train", train_or_stop)
    yield begun


@pytest.mark.exhaustive
def test_a_halved_sweep_resumes_and_equals_complete_runs(tmp_path, monkeypatch, capsys):
  """Rows of an interrupted sweep equal those of an uninterrupted one, and the winner's loss that of `t2t train`."""
  made = lambda folder: arguments(tmp_path, RATES, "--seeds=1", "--halving=2", workdir=folder)
  assert command.main(made("whole")) == 0
  printed = capsys.readouterr()
  with interrupted(monkeypatch, 3):
    assert command.main(made("parts")) == 143
  with interrupted(monkeypatch, 99) as begun:
    assert command.main(made("parts")) == 0
  assert len(begun) == 2
  rows = rows_of(tmp_path / "whole")
  # An error names the folder of the run.
  assert [json.loads(json.dumps(row).replace("/whole/", "/parts/")) for row in rows] == rows_of(tmp_path / "parts")
  states = {row["values"]["optimizer.learning_rate"]: (row["status"], row["step"]) for row in rows}
  assert states[1e30] == ("diverged", 0) and sorted(states.values()) == sorted(
    [("diverged", 0), ("finished", 4), ("halved", 2)]
  )
  (winner,) = [row for row in rows if row["status"] == "finished"]
  rate = winner["values"]["optimizer.learning_rate"]

  _, *options = [x for x in made("alone") if not x.startswith(("--set", "--seeds", "--halving"))]
  assert command.main(["train", *options, f"--config.optimizer.learning_rate={rate}"]) == 0
  alone = (tmp_path / "alone" / "metrics.jsonl").read_text().splitlines()
  assert [row["eval/loss"] for row in map(json.loads, alone) if "eval/loss" in row] == [winner["score"]]

  table = printed.out[printed.out.rindex("learning_rate  seeds") :]
  assert all(len(line) <= 80 for line in table.splitlines()[:8]) and "1 of 1 diverged" in table
  assert f"* {rate:>15}" in table and f"--config.optimizer.learning_rate={rate}\n" in table
  assert "rung 1 of 2, run 3 of 3" in printed.err and " left\n" in printed.err
  assert not list((tmp_path / "whole").glob("*/*/checkpoints"))
  assert "checkpoints " not in printed.out and "held-out loss " not in printed.out  # one table remains
  assert (tmp_path / "whole" / "sweep.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.exhaustive
def test_launched_runs_make_the_table(tmp_path, capsys):
  """The printed commands are those of the runs; afterwards nothing is trained, and another value adds its runs."""
  made = lambda rates, *options: arguments(
    tmp_path, f"--set=optimizer.learning_rate={rates}", "--seeds=1", "--config.train.steps=1", *options
  )
  assert command.main(made("0.01,0.1", "--launch=-")) == 0
  lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("t2t train ")]
  assert len(lines) == 2 and not list(tmp_path.glob("sweep/*/*"))
  for line in lines:
    assert command.main(shlex.split(line)[1:]) == 0
  capsys.readouterr()
  assert command.main(made("0.01,0.1")) == 0
  printed = capsys.readouterr()
  assert "run 2 of 2: learning_rate=0.1, seed 0: finished, loss" in printed.err and "step 1/1" not in printed.err
  assert (tmp_path / "sweep" / "optimizer.learning_rate=0.1" / "seed-0" / "checkpoints").exists()
  file = tmp_path / "commands.sh"
  assert command.main(made("0.3", f"--launch={file}")) == 0
  assert "optimizer.learning_rate=0.3/seed-0" in file.read_text() and len(file.read_text().splitlines()) == 1
  assert len(rows_of(tmp_path / "sweep")) == 2
  with pytest.raises(UserError, match=r"config.train.batch_size=16: the sweep in .* was made with 8. Give the earlier"):
    sweep.main(made("0.01", "--config.train.batch_size=16")[1:])
  with pytest.raises(UserError, match=r"--set=\['train.z_loss'\]: the sweep in .* was made with \['optimizer.learning"):
    sweep.main(arguments(tmp_path, "--config.train.steps=1", "--set=train.z_loss=0,1e-4")[1:])


# ---- Any scores and interruptions ------------------------------------------------------------------------------------


def recorded(scores, calls, stop_after=math.inf, fails=()):
  """Returns a `train` that records the evaluations of a run, in place of training it."""

  def train(config, workdir, *, callbacks):
    if len(calls) >= stop_after:
      raise training_run.preemption.Stopped(15)
    size, seed = config.train.batch_size, config.train.seed
    step = min([config.train.steps, *(callback._step for callback in callbacks if isinstance(callback, StopAt))])
    calls.append((size, seed, step))
    if (size, seed) in fails:
      raise RuntimeError("a kernel failed\nwith details")
    score = scores[size] + seed / 10 + step / 100
    if not math.isfinite(score):
      raise training_run.Diverged("loss nan is not finite")
    folder = epath.Path(workdir)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "metrics.jsonl").open("a") as file:
      file.write(json.dumps({"step": step, "eval/loss": score, "eval/x/accuracy": score}) + "\n")
    reason = next((callback._why for callback in callbacks if isinstance(callback, StopAt)), history.FINISHED)
    history.ended(folder, step, reason)

  return train


def made_plan(scores, *, halving=0, metric="loss", lower=True):
  points = sweep_grid.grid(
    sweep_grid.parse_axes([f"train.batch_size={','.join(map(str, scores))}"], ()), lambda _, x: int(x)
  )
  base = records(default.get_config())
  configs = {point: base.with_(train={"batch_size": point.values[0][1], "steps": 36}) for point in points}
  return sweep.SweepPlan(configs, range(2), dict.fromkeys(points, 36), metric, lower, halving)


@pytest.fixture
def no_picture(monkeypatch):
  """Leaves out the picture and the page, which take longer than everything else here."""
  monkeypatch.setattr(sweep.sweep_picture, "draw", lambda *_, **__: b"")
  monkeypatch.setattr(sweep.sweep_page, "write", lambda *_, **__: None)


SCORES = {1: 3.0, 2: 1.0, 3: math.nan, 4: 1.0, 5: 2.0, 6: 0.5, 7: 9.0, 8: 4.0, 9: 5.0}


@pytest.mark.parametrize(("metric", "lower", "best"), [("loss", True, 6), ("x/accuracy", False, 7)])
def test_halving_continues_the_best(metric, lower, best, no_picture, tmp_path, monkeypatch):
  """Three of 9 points and then one continue; equal points by their order, and a diverged point never."""
  calls = []
  monkeypatch.setattr(sweep, "train", recorded(SCORES, calls))
  rows = sweep.Sweep(made_plan(SCORES, halving=3, metric=metric, lower=lower), epath.Path(tmp_path)).train()
  of_step = lambda step: sorted({size for size, _, to in calls if to == step})
  assert (of_step(4), of_step(12), of_step(36)) == ([*SCORES], [2, 4, 6] if lower else [7, 8, 9], [best])
  assert len(calls) == 2 * (9 + 3 + 1) and len(set(calls)) == len(calls)
  states = {(row.values["train.batch_size"], row.status) for row in rows}
  assert (best, "finished") in states and (3, "diverged") in states and len(states) == 9
  assert sum(status == "halved" for _, status in states) == 7


@pytest.mark.parametrize("halving", [0, 3])
def test_rows_do_not_depend_on_interruptions(halving, no_picture, tmp_path, monkeypatch):
  """Wherever the sweep is interrupted, the next call repeats no run and gives the same rows."""
  monkeypatch.setattr(sweep, "train", recorded(SCORES, calls := []))
  plan = made_plan(SCORES, halving=halving)
  rows = sweep.Sweep(plan, epath.Path(tmp_path / "whole")).train()
  for number in range(1, len(calls), 5):
    folder, parts = epath.Path(tmp_path / str(number)), []
    monkeypatch.setattr(sweep, "train", recorded(SCORES, parts, stop_after=number))
    with pytest.raises(training_run.preemption.Stopped):
      sweep.Sweep(plan, folder).train()
    monkeypatch.setattr(sweep, "train", recorded(SCORES, parts))
    assert str(sweep.Sweep(plan, folder).train()) == str(rows) and parts == calls
    assert (folder / "sweep.jsonl").read_text() == (tmp_path / "whole" / "sweep.jsonl").read_text()


def test_failed_runs_are_listed_and_trained_again(no_picture, tmp_path, monkeypatch, capsys):
  """The other runs continue, the exit code is 1, and the next call repeats only the failed run."""
  plan, folder, calls = made_plan({1: 3.0, 2: 1.0, 3: 2.0}), epath.Path(tmp_path), []
  monkeypatch.setattr(sweep, "train", recorded({1: 3.0, 2: 1.0, 3: 2.0}, calls, fails={(2, 1)}))
  rows = sweep.Sweep(plan, folder).train()
  assert sweep._report(rows, plan, folder) == 1 and len(calls) == 6
  printed = capsys.readouterr()
  assert "failed: train.batch_size=2/seed-1: RuntimeError: a kernel failed\n" in printed.err
  assert "1 of 2 failed" in printed.out and f"\n*{3:>13}" in printed.out
  monkeypatch.setattr(sweep, "train", recorded({1: 3.0, 2: 1.0, 3: 2.0}, calls))
  assert sweep._report(sweep.Sweep(plan, folder).train(), plan, folder) == 0 and calls[6:] == [(2, 1, 36)]
  assert f"\n*{2:>13}" in capsys.readouterr().out


def test_other_seeds_and_values_add_runs(no_picture, tmp_path, monkeypatch):
  """Rows of earlier values stay."""
  folder, calls = epath.Path(tmp_path), []
  monkeypatch.setattr(sweep, "train", recorded(SCORES, calls))
  for numbers in ((1, 2), (2, 5)):
    rows = sweep.Sweep(made_plan({size: SCORES[size] for size in numbers}), folder).train()
  assert calls == [(1, 0, 36), (1, 1, 36), (2, 0, 36), (2, 1, 36), (5, 0, 36), (5, 1, 36)]
  assert [row.values["train.batch_size"] for row in rows] == [1, 1, 2, 2, 5, 5]
  assert sweep_table.read(folder / "sweep.jsonl") == rows


def test_another_metric_of_finished_runs(no_picture, tmp_path, monkeypatch, capsys):
  """A sweep in which all runs have ended is compared anew; a metric that no run has changes no row."""
  scores = {1: math.nan, 2: 1.0, 3: 3.0}
  monkeypatch.setattr(sweep, "train", recorded(scores, calls := []))
  sweep.Sweep(made_plan(scores), epath.Path(tmp_path)).train()
  before, ended = (tmp_path / "sweep.jsonl").read_text(), len(calls)
  with pytest.raises(UserError, match="--metric x/acuracy: the runs have no such metric"):
    sweep.Sweep(made_plan(scores, metric="x/acuracy", lower=False), epath.Path(tmp_path)).train()
  assert (tmp_path / "sweep.jsonl").read_text() == before
  plan = made_plan(scores, metric="x/accuracy", lower=False)
  assert sweep._report(sweep.Sweep(plan, epath.Path(tmp_path)).train(), plan, tmp_path) == 0 and len(calls) == ended
  printed = capsys.readouterr().out
  assert f"\n*{3:>13}" in printed and "metric: x/accuracy, higher is better" in printed


@pytest.mark.parametrize(("made", "rows"), [(sweep, "sweep.jsonl"), (curve, "curve.jsonl")])
def test_two_at_once_are_refused(made, rows, tmp_path, monkeypatch):
  """Otherwise each would write only the rows that it knows."""
  monkeypatch.setattr(curve, "_check_available", lambda *_: None)
  monkeypatch.setattr(sweep, "_plan", lambda *_: made_plan({1: 1.0}))
  options = {sweep: ["--set=train.z_loss=0,1"], curve: ["--sizes=4"]}
  (tmp_path / rows).write_text("")
  with workdir_lock.held(epath.Path(tmp_path)), pytest.raises(UserError, match="another run .* is writing there. Wait"):
    made.main(["--config=tiny", f"--workdir={tmp_path}", *options[made]])
  assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", rows]


# ---- Refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  ("options", "message"),
  [
    (
      ("--set=train.z_loss=0", "1e-4"),
      "--set train.z_loss=0 1e-4: commas separate values, .* Give --set train.z_loss=0,1",
    ),
    (
      ("--set", "train.z_loss=0,", "1"),
      "--set train.z_loss=0, 1: commas separate values, .* Give --set train.z_loss=0,1.",
    ),
    (("--set=train.batch_size=8 16",), "Commas separate values: --set train.batch_size=8,16."),
    ((), "--set is missing. Give a key and its values, such as --set optimizer.learning_rate=1e-3,3e-4"),
    (("--set=train.batch_size=8,x",), "--set train.batch_size=8,x: .*batch_size.* must be an integer"),
    (("--set=train.batch_size=8,0",), "point batch_size=0: config.train.batch_size=0 must be at least 1"),
    (("--set=train.steps=9,12", "--halving=2"), r"--halving 2: .* different lengths \(steps=9: 9 steps; steps=12: 12"),
    (("--set=train.z_loss=0,1", "--halving=3"), "--halving 3: 2 points cannot be reduced to 1/3"),
    (("--set=train.z_loss=0,1", "--halving=2", "--launch=-"), "--launch: a rung of --halving needs the results of all"),
    (("--set=train.z_loss=0,1", "--config.train.seed=3"), "--config.train.seed=3: --seeds sets this key. Leave"),
    (("--set=train.z_loss=0,1", "--config.train.z_loss=1"), "--config.train.z_loss sets the same key"),
  ],
)
def test_what_is_refused(options, message, tmp_path):
  with pytest.raises(UserError, match=message):
    sweep.main(["--config=tiny", f"--workdir={tmp_path / 'sweep'}", *options])
  assert not (tmp_path / "sweep").exists()


def test_the_help_has_examples(capsys):
  with pytest.raises(SystemExit):
    sweep.main(["--help"])
  printed = capsys.readouterr().out
  assert "t2t sweep --config tiny" in printed and "--set 'optimizer.no_decay=norm,bias;norm'" in printed
  assert all(len(line) <= 80 for line in printed.partition("configs shipped")[0].splitlines())


@pytest.mark.parametrize(
  ("metric", "bytes_per_target", "accepted"),
  [
    ("loss", 0.0, True),
    ("accuracy", 0.0, True),
    ("bits_per_byte", 3.0, True),
    ("generator_loss", 0.0, True),
    ("loss/en", 0.0, True),
    ("acuracy", 0.0, False),
    ("los", 0.0, False),
    ("perplexty", 3.0, False),
    ("task/f1", 0.0, False),
  ],
)
def test_a_metric_is_checked_before_the_first_step(metric, bytes_per_target, accepted):
  """A name without a task is refused if it is similar to a known one; a loss may have others."""
  run = types.SimpleNamespace(program=types.SimpleNamespace(tasks=None, bytes_per_target=bytes_per_target))
  check = sweep.MetricCheck(metric)
  if accepted:
    check.on_start(run)
    return
  with pytest.raises(UserError, match=f"--metric {metric}: the runs have no such metric"):
    check.on_start(run)
  assert check.error is not None
