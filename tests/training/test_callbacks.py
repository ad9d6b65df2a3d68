"""Callbacks: the order of their hooks, their effects, and user callbacks."""

import inspect
import json

import pytest
import test_array_batches

import t2t
from t2t.checkpoints import manager
from t2t.training import callbacks
from t2t.training.run import Callback, Rollback

_HOOKS = [name for name, _ in inspect.getmembers(Callback, inspect.isfunction)]


def config(**changes):
  every = {
    "train.steps": 4,
    "eval.every": 2,
    "checkpoint.save_interval_steps": 2,
    "train.log_every": 1,
    "eval.num_logged_samples": 0,
  }
  return test_array_batches.small(**every | changes)


class Recorder(Callback):
  """Records each hook with the step of the call."""

  def __init__(self):
    self.calls = []

  def __getattribute__(self, name):
    hook = super().__getattribute__(name)
    if name not in _HOOKS:
      return hook

    def noted(run, *arguments):
      self.calls.append((name, run.step))
      return hook(run, *arguments)

    return noted


def train(config, workdir, *own):
  options = {"batches": test_array_batches.random_batches, "eval_batches": test_array_batches.held_out()}
  return t2t.train(config, str(workdir), callbacks=own, **options).run()


@pytest.mark.exhaustive
def test_hooks_are_called_in_order(tmp_path):
  """In a run, and in a second call without steps left."""
  recorder = Recorder()
  train(config(), tmp_path, recorder)
  looks = ("on_evaluation", "on_step", "on_save", "on_step_end")
  kinds = (*looks, "on_start", "on_batch", "on_end", "on_close")
  plain = lambda number: [("on_batch", number - 1), ("on_step", number), ("on_step_end", number)]
  looked = lambda number: [("on_batch", number - 1), *((hook, number) for hook in looks)]
  calls = [call for call in recorder.calls if call[0] in kinds]
  assert calls == [("on_start", 0), *plain(1), *looked(2), *plain(3), *looked(4), ("on_end", 4), ("on_close", 4)]
  # The metrics of a step are read one step later, unless something is due after it.
  assert [step for name, step in recorder.calls if name == "on_metrics"] == [2, 2, 4, 4]
  again = Recorder()
  train(config(), tmp_path, again)
  assert [name for name, _ in again.calls if name != "on_log"] == [
    "on_start",
    "on_resume",
    "on_evaluation",
    "on_end",
    "on_close",
  ]


@pytest.mark.exhaustive
def test_a_callback_writes_the_learning_rate(tmp_path):
  """The example of the documents; its rows equal those of metrics.jsonl."""

  class LearningRates(Callback):
    def on_log(self, run, step, row):
      if "train/learning_rate" in row:
        with (tmp_path / "rates.txt").open("a") as file:
          file.write(f"{step} {row['train/learning_rate']}\n")

  train(config(), tmp_path / "run", LearningRates())
  rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
  expected = [f"{row['step']} {row['train/learning_rate']}" for row in rows if "train/learning_rate" in row]
  assert (tmp_path / "rates.txt").read_text().splitlines() == expected and len(expected) == 4


@pytest.mark.exhaustive
def test_a_callback_ends_the_run_with_a_checkpoint(tmp_path):
  class Enough(Callback):
    def on_step(self, run):
      self.end_reason = "enough for today" if run.step == 3 else ""

  last = train(config(), tmp_path, Enough())
  assert last["step"] == 3
  history = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
  assert history[-1]["why"] == "enough for today"


@pytest.mark.slow
@pytest.mark.exhaustive_from(2)
@pytest.mark.parametrize(("hook", "last"), [("on_batch", 3), ("on_step_end", 4), ("on_step", 3), ("on_metrics", 3)])
def test_a_run_that_a_callback_ends_is_saved_and_measured(hook, last, tmp_path):
  """With any hook: the last step has a checkpoint, and each step has its metrics."""

  class Enough(Callback):
    def __init__(self):
      self.measured = []

    def on_metrics(self, run, step, metrics):
      self.measured.append(step.step)
      self.end("on_metrics", step.step)

    def on_batch(self, run, batch):
      self.end("on_batch", run.step + 1)

    def on_step(self, run):
      self.end("on_step", run.step)

    def on_step_end(self, run):
      self.end("on_step_end", run.step)

    def end(self, here, step):
      if here == hook and step == 3 - (here == "on_metrics"):  # read one step late
        self.end_reason = "enough for today"

  enough = Enough()
  steps = {"train.steps": 6, "checkpoint.save_interval_steps": 6, "eval.every": 6}
  train(config(**steps), tmp_path, enough)
  rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
  assert enough.measured == [row["step"] for row in rows if "train/loss" in row] == [*range(1, last + 1)]
  assert [path.name for path in (tmp_path / "checkpoints").iterdir() if path.name.isdigit()] == [str(last)]


@pytest.mark.parametrize("name", ["_mine", "commit_success_mine", "stream-mine", "a/b", "..", ""])
def test_a_file_that_would_not_come_back_is_refused(name):
  assert not manager.Checkpoints.may_contain(name)


@pytest.mark.slow
def test_a_file_of_a_callback_has_a_name_that_is_restored(tmp_path):
  class Saves(Callback):
    def on_save(self, run):
      return {"_mine.json": b"{}"}

  with pytest.raises(t2t.UserError, match=r"Saves.on_save: '_mine.json' is reserved, or is not a valid file name"):
    train(config(), tmp_path, Saves())


@pytest.mark.slow
def test_a_rollback_to_before_the_last_checkpoint_is_refused(tmp_path):
  """The workdir does not change, and the same command resumes from the checkpoint."""

  class Late(Callback):
    def on_step(self, run):
      if run.step == 3:
        raise Rollback(2, "the loss of step 2 was bad")

  with pytest.raises(
    t2t.UserError, match=r"the loss of step 2 was bad; .* of step 2 is possible, because the last checkpoint is of ste"
  ):
    train(config(), tmp_path, Late())
  assert not (tmp_path / "went_back.jsonl").exists()
  assert train(config(), tmp_path)["step"] == 4


@pytest.mark.exhaustive
def test_files_of_a_callback_are_saved_and_come_back(tmp_path):
  """After a resume, and after a rollback."""

  class Remembers(Callback):
    def __init__(self):
      self.steps, self.rolled_back = [], False

    def on_start(self, run):
      self.on_rollback(run)

    def on_rollback(self, run):
      self.steps = json.loads(run.saved.get("own_steps.json", b"[]"))

    def on_step(self, run):
      if run.step == 3 and not self.rolled_back:
        self.rolled_back = True
        raise Rollback(3, "says the test")
      self.steps.append(run.step)

    def on_save(self, run):
      return {"own_steps.json": json.dumps(self.steps).encode()}

  first = Remembers()
  train(config(), tmp_path, first)
  assert first.rolled_back and first.steps == [1, 2, 3, 4]


@pytest.mark.parametrize("given", [Callback, print, None])
def test_what_is_no_callback_is_refused(given, tmp_path):
  with pytest.raises(t2t.UserError, match=r"^callbacks\[0\] is .*, not an instance of t2t.Callback"):
    t2t.train(config(), str(tmp_path), callbacks=[given])


def test_each_row_of_the_table_is_a_callback():
  for table in (callbacks.CALLBACKS, callbacks.LAST):
    for name in table:
      assert issubclass(table[name], Callback), name
  assert set(callbacks.OPTIONAL) <= {*callbacks.CALLBACKS, *callbacks.LAST}
