"""Traces of a run: ranges, requests during a run, and the files that the profiler writes."""

import os
import re
import signal
import threading
import types

from etils import epath
import pytest
import test_train
import trained

from t2t import UserError
from t2t import __main__ as command
from t2t.api import training_run
from t2t.commands.options import config_parser, parse
from t2t.configuration.loading import records
from t2t.reports import profile
from t2t.runtime import early_signals
from t2t.training import profiling
from t2t.training.callbacks import profile_requests
from t2t.training.run import Callback
from t2t.training.train import train

text = test_train.text
SHORT = ("train", "--config=tiny", "--config.train.steps=40")


def test_ranges_are_in_order():
  ranges = profiling.parse("20:25, 1:2,2:3")
  assert ranges == [(1, 2), (2, 3), (20, 25)] and [x.name for x in ranges][0] == "steps_2-2"


@pytest.mark.parametrize(
  ("given", "message"),
  {
    "": "'' is not a range of steps. Give BEGIN:END",
    "5": "'5' is not a range",
    "a:b": "'a:b' is not a range",
    "-1:3": "'-1:3' is not a range",
    "1:2:3": "'1:2:3' is not a range",
    "1.5:3": "'1.5:3' is not a range",
    "5:5": "5:5 has no steps, because its end must be above its begin",
    "9:3": "9:3 has no steps",
    "0:5000": "0:5000 has 5,000 steps, more than 100",
    "1:5,4:6": "1:5 and 4:6 overlap",
    "1:2,3:41": "3:41: the run ends at step 40 (config.train.steps=40)",
  }.items(),
)
def test_a_bad_range_is_one_clear_error(given, message, tmp_path, capsys):
  """Before anything is written."""
  workdir = tmp_path / "run"
  assert command.main([*SHORT, f"--workdir={workdir}", f"--profile={given}"]) == 2
  assert "error: --profile " in (error := capsys.readouterr().err) and message in error
  assert not workdir.exists()


def test_steps_known_late_are_checked_before_the_first_step():
  """config.train.epochs gives the number of steps when the data has been read."""
  with pytest.raises(UserError, match="the run ends at step 7"):
    profiling.check(profiling.parse("5:8"), 7)


# Few operations, because a trace has the events of each on eight devices.
FEW_OPERATIONS = (
  *(trained.ONE_ENCODER, trained.ONE_DECODER, "--config.model.dropout_rate=0.0", "--config.optimizer.name=sgd"),
  "--config.eval.num_logged_samples=0",
)


def traces(workdir) -> dict[str, profile.Trace]:
  return {trace.name: trace for trace in profile.read(epath.Path(workdir))}


@pytest.mark.slow
def test_a_run_writes_traces_on_request(text, tmp_path, capfd):
  """By the option, by a file in the workdir, and by the option of a resumed run that has done a part of the range."""
  short = ("--config.train.log_every=3", "--config.eval.every=4", "--config.checkpoint.save_interval_steps=4")
  arguments = test_train.arguments(text, tmp_path, *FEW_OPERATIONS, *short)
  (tmp_path / profile_requests.NAME).write_text(" 2\n")
  assert command.main([*arguments, "--config.train.steps=6", "--profile", "0:2"]) == 0
  assert not (tmp_path / profile_requests.NAME).exists()
  page = (tmp_path / "report.html").read_text()
  capfd.readouterr()
  assert command.main([*arguments, "--config.train.steps=8", "--profile", "1:3,5:8"]) == 0
  error = capfd.readouterr().err
  assert "--profile 1:3: no trace, because the run resumes after step 6" in error
  assert "--profile 5:8: traces steps 7 to 8, because the run resumes after step 6" in error
  found = traces(tmp_path)
  assert list(found) == ["steps_1-2", "steps_4-5", "steps_7-8"]
  assert found.pop("steps_7-8").num_steps == 2
  for trace in found.values():
    assert not trace.error and trace.num_steps == 2 and trace.seconds > 0
    assert trace.device > 0 and trace.input_wait > 0 and trace.host >= 0
    assert trace.device + trace.input_wait + trace.host == pytest.approx(1.0)
    assert len(trace.operations) > profile.MOST_OPERATIONS
  assert "The 10 longest operations" in page and found["steps_4-5"].operations[0].name in page


class Signal(Callback):
  """Sends the signal after the first step, and ends the run by an error in the trace, if any."""

  def __init__(self, fails_at=None):
    self._fails_at = fails_at

  def on_step(self, run):
    if run.step == 1:
      os.kill(os.getpid(), signal.SIGUSR2)
    if run.step == self._fails_at:
      raise UserError("on purpose")


@pytest.mark.slow
def test_a_signal_starts_a_trace_that_an_error_ends(text, tmp_path, capfd):
  """The trace has the steps so far, and the profiler and the signal are free again."""
  parser = config_parser("t2t train", "")
  parser.add_argument("--workdir")
  options = (*FEW_OPERATIONS, "--config.train.steps=9", "--config.train.log_every=2")
  _, config = parse(parser, test_train.arguments(text, tmp_path, *options)[1:])
  with pytest.raises(UserError, match="on purpose"):
    train(records(config), str(tmp_path), callbacks=[Signal(fails_at=5)])
  assert re.search(r"trace of steps 3 to 4 \(ended early by an error\)", capfd.readouterr().err)
  assert traces(tmp_path)["steps_3-4"].num_steps >= 2
  assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL and not profiling.Profile._active


def test_a_signal_before_the_first_step_is_remembered(tmp_path, monkeypatch, capfd):
  """From the start of a command that trains; a run takes the signal over, and other commands end as before."""
  run = types.SimpleNamespace(
    step=12, config=types.SimpleNamespace(train=types.SimpleNamespace(log_every=10, steps=90))
  )
  begun = []

  def start(argv):
    os.kill(os.getpid(), signal.SIGUSR2)
    requests = profile_requests.ProfileRequests()
    requests.on_start(run)
    monkeypatch.setattr(profiling, "begin", lambda run, text: begun.append(run.step))
    for run.step in range(13, 32):
      requests.on_step_end(run)
    requests.on_close(run)
    assert signal.getsignal(signal.SIGUSR2) is early_signals.note

  monkeypatch.setattr(profile_requests.ProfileRequests, "_file", lambda *_: None)
  monkeypatch.setattr("t2t.commands.train.main", start)
  assert command.main(["train"]) == 0 and begun == [20]
  assert "SIGUSR2 came before the first step: steps after step 20 are traced" in capfd.readouterr().err
  assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL
  signals = []
  monkeypatch.setattr("t2t.commands.infer.main", lambda argv: signals.append(signal.getsignal(signal.SIGUSR2)))
  assert command.main(["infer"]) == 0 and signals == [signal.SIG_DFL]


def test_a_signal_to_a_run_in_another_thread_is_remembered(monkeypatch):
  """It ends no process that `t2t.train` trains in; a request after the last look is reported."""
  said, begun, looked = [], [], threading.Event()
  config = types.SimpleNamespace(train=types.SimpleNamespace(log_every=10, steps=25))
  run = types.SimpleNamespace(step=0, config=config, logger=types.SimpleNamespace(say=said.append))
  monkeypatch.setattr(profiling, "begin", lambda run, text: begun.append(run.step))
  monkeypatch.setattr(profile_requests.ProfileRequests, "_file", lambda *_: None)

  def send():
    os.kill(os.getpid(), signal.SIGUSR2)
    while not early_signals._received:  # the handler runs in the main thread
      looked.wait(0.001)

  def train_loop(rows):
    requests = profile_requests.ProfileRequests()
    requests.on_start(run)
    send()
    for run.step in range(1, 26):
      requests.on_step_end(run)
    requests.on_end(run)
    assert not said
    send()
    requests.on_end(run)
    requests.on_close(run)

  with pytest.raises(StopIteration):
    training_run._Rows(train_loop).next()
  assert begun == [10] and len(said) == 1 and "a multiple of config.train.log_every=10" in said[0]
  assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL


@pytest.mark.exhaustive
def test_a_bucket_has_traces_and_takes_requests(tmp_path, monkeypatch, capfd):
  import fake_gcs

  from t2t.storage import gcs

  with fake_gcs.Gcs(tmp_path) as bucket, monkeypatch.context() as patch:
    for name, value in bucket.environment().items():
      patch.setenv(name, value)
    gcs._client.cache_clear()
    bucket.write(f"run/{profile_requests.NAME}", b"")
    arguments = trained.arguments("encoder_decoder", "gs://bucket/run")
    trained.workdir("encoder_decoder")  # writes the text
    options = ("--config.train.steps=9", "--config.train.log_every=3", "--profile=0:1")
    assert command.main([*arguments, *options]) == 0
    assert list(traces("gs://bucket/run")) == ["steps_1-1", "steps_4-8"]
    assert bucket.read("run/goodput/sessions.jsonl").splitlines()[-1].count(b'"closed"') == 1
    assert "goodput        " in capfd.readouterr().out
    gcs._client.cache_clear()
