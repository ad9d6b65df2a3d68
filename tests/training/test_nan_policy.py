"""NaN policy: of one step, of the watch, and of the whole command."""

import json
import shutil
import subprocess
import sys

from etils import epath
import hypothesis
from hypothesis import strategies
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_train
import test_train_state
import toy

from t2t import UserError
from t2t import __main__ as command
from t2t.checkpoints import restore, rollback
from t2t.configuration.loading import load_config, override, records
from t2t.data import batch_iterator
from t2t.training import grad_stats, recipe
from t2t.training.callbacks import nan_policy

text = test_train.text  # fixture
SHORT = (
  "--config.model.num_encoder_layers=1",
  "--config.model.num_decoder_layers=1",
  "--config.eval.num_logged_samples=0",
  "--config.eval.batches=1",
  "--config.eval.every=100",
)
BATCH = {"decoder_target_tokens": np.arange(6, dtype=np.int32).reshape(2, 3)}


# ---- Step ------------------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_a_step_that_is_left_out_counts_and_changes_nothing_else():
  """Parameters, moments and update counts stay; the schedule advances."""
  mesh, _, fresh, step = test_train_state.made(tuple(test_train_state.ONE_DEVICE.items()), skip=True)
  batch = test_train_state.uneven_batch()
  spoilt = batch | {"decoder_loss_weights": batch["decoder_loss_weights"] * np.float32(np.nan)}
  with jax.set_mesh(mesh):
    state, metrics = step(fresh(), batch, toy.key())
    before = jax.tree.map(np.asarray, state)
    assert float(metrics["skipped"].total) == 0
    after, metrics = step(state, spoilt, toy.key())
  assert float(metrics["skipped"].total) == 1 and int(after.step) == int(before.step) + 1
  jax.tree.map(np.testing.assert_array_equal, after.params, before.params)
  counts = {
    jax.tree_util.keystr(path): (int(old), int(new))
    for (path, old), new in zip(
      jax.tree_util.tree_leaves_with_path(before.opt_state), jax.tree.leaves(after.opt_state), strict=True
    )
    if old.ndim == 0
  }
  assert sorted(counts.values()) == [(1, 1), (1, 2)], counts
  moments = lambda state: [x for x in jax.tree.leaves(state.opt_state) if x.ndim]
  for old, new in zip(moments(before), moments(after), strict=True):
    np.testing.assert_array_equal(old, new)


@pytest.mark.slow
def test_leaving_out_changes_no_step_that_is_finite():
  """Parameters equal those of a step without the policy, bit for bit."""
  shape = tuple(test_train_state.ONE_DEVICE.items())
  found = []
  for skip in (False, True):
    mesh, _, fresh, step = test_train_state.made(shape, skip=skip)
    with jax.set_mesh(mesh):
      found.append(step(fresh(), test_train_state.uneven_batch(), toy.key())[0])
  jax.tree.map(np.testing.assert_array_equal, found[0].params, found[1].params)


@pytest.mark.slow
@hypothesis.given(
  strategies.lists(strategies.floats(-1e3, 1e3, width=32), min_size=14, max_size=14),
  strategies.sets(strategies.integers(0, 3)),
)
def test_the_first_parameter_that_is_not_finite_is_the_first_that_the_model_runs(values, bad):
  """In the order embedding, two layers of an encoder, head; the norm is the root of the sum of all squares."""
  values = np.array(values, np.float32)
  tree = {
    "head": {"kernel": values[:2].copy()},
    "encoder": {"layers": {"up": values[2:10].reshape(2, 2, 2).copy()}},
    "embed": {"table": values[10:].reshape(2, 2).copy()},
  }
  np.testing.assert_allclose(np.sum(np.square(values)), np.sum(grad_stats.squares(tree)), rtol=1e-4)
  where = [tree["embed"]["table"], *tree["encoder"]["layers"]["up"], tree["head"]["kernel"]]
  names = ["embed/table", "encoder/layers/up, layer 0", "encoder/layers/up, layer 1", "head/kernel"]
  for number in bad:
    where[number].flat[-1] = np.inf
  found = grad_stats.first_not_finite(tree, np.asarray(grad_stats.squares(tree)))
  assert found.partition(" (")[0] == (names[min(bad)] if bad else "")


# ---- Watch -----------------------------------------------------------------------------------------------------------


def watch(workdir, *options, saved=None):
  config = override(load_config("tiny"), [f"--config.nan_policy.{option}" for option in options])
  params = {"embed": {"table": jax.ShapeDtypeStruct((4, 2), jnp.float32)}}
  return nan_policy.Watch(records(config), epath.Path(workdir), params, saved or {})


def judged(watch, *losses, norm=1.0):
  """Returns the judgements of several steps."""
  values = [{"loss": loss, "grad_norm": norm} for loss in losses]
  return [watch.judge(number, each, np.array([norm]), BATCH) for number, each in enumerate(values, start=1)]


@pytest.mark.parametrize("loss, norm", [(np.nan, 1.0), (1.0, np.inf)])
def test_a_run_that_stops_names_step_and_parameter_and_keeps_the_batch(loss, norm, tmp_path):
  with pytest.raises(UserError) as error:
    judged(watch(tmp_path), 1.0, loss, norm=norm)
  number = 2 if norm == 1.0 else 1
  path = tmp_path / "bad_batches" / f"step_{number}.npz"
  assert str(error.value).startswith(f"step {number}: loss ") and str(path) in str(error.value)
  assert ("embed/table (1 of 1 parameters)" in str(error.value)) == (norm != 1.0)
  assert {name: rows.tolist() for name, rows in np.load(path).items()} == {
    name: rows.tolist() for name, rows in BATCH.items()
  }


def test_updates_are_left_out_until_there_are_too_many(tmp_path):
  """In a row, or in the whole run; the counts are saved with a checkpoint."""
  nan = float("nan")
  few = watch(tmp_path, "on_nonfinite=skip", "max_consecutive_skips=2")
  assert [each.skipped for each in judged(few, nan, nan, 1.0, nan, nan)] == [1, 2, 2, 3, 4]
  again = watch(tmp_path, "on_nonfinite=skip", "max_consecutive_skips=2", saved=few.state())
  with pytest.raises(UserError, match="more than config.nan_policy.max_consecutive_skips=2 consecutive updates"):
    judged(again, nan)
  rare = watch(tmp_path, "on_nonfinite=skip", "max_skipped_fraction=0.002")
  steps = rare._config.train.steps
  with pytest.raises(UserError, match=f"of {steps} steps, more than config.nan_policy.max_skipped_fraction=0.002"):
    judged(rare, *[nan, 1.0] * steps)


@pytest.mark.exhaustive
@hypothesis.given(
  strategies.lists(strategies.floats(1, 2), min_size=12, max_size=30), strategies.floats(2, 5), strategies.data()
)
@hypothesis.settings(deadline=None)
def test_a_spike_is_a_loss_above_the_mean_by_so_many_deviations(tmp_path_factory, losses, deviations, data):
  """Above the mean of the full window; a restored watch judges the same."""
  window = data.draw(strategies.integers(2, 10))
  options = (f"spike_deviations={deviations}", f"spike_window={window}")
  one = watch(tmp_path_factory.getbasetemp(), *options)
  two = watch(tmp_path_factory.getbasetemp(), *options)
  for number, loss in enumerate(losses):
    before = losses[max(0, number - window) : number]
    limit = np.mean(before) + deviations * max(np.std(before), 1e-12) if len(before) == window else np.inf
    hypothesis.assume(abs(loss - limit) > 1e-9)
    (found,), (again,) = judged(one, loss), judged(two, loss)
    assert bool(found.why) == (loss > limit) and found == again
    two = nan_policy.Watch(two._config, two._workdir, two._params, two.state())


def test_a_spike_is_gone_back_from(tmp_path):
  """Its loss does not enter the window."""
  spiked = watch(tmp_path, "spike_deviations=3", "spike_window=4", "on_spike=rollback")
  found = judged(spiked, 1.0, 1.1, 1.0, 1.1, 9.0)
  assert [each.back for each in found] == [False] * 4 + [True]
  assert "step 5: loss 9.0000 is" in found[-1].why
  assert json.loads(spiked.state()[nan_policy.SAVED])["losses"] == [1.0, 1.1, 1.0, 1.1]


@pytest.mark.parametrize(
  "option, wanted",
  [("on_spike=skip", "a spike is known only after"), ("max_rollbacks=-1", "must be at least 0")],
)
def test_what_cannot_be_asked_for_is_refused(option, wanted):
  """Before anything is built."""
  config = override(load_config("tiny"), [f"--config.nan_policy.{option}"])
  with pytest.raises(UserError, match=wanted):
    recipe.make(records(config))


# ---- Command ---------------------------------------------------------------------------------------------------------


def poison(monkeypatch, *numbers: int) -> None:
  """Makes the loss of these batches, counted from 1, NaN in any later run.

  A batch is recognized by its content.
  """
  take, seen = batch_iterator.BatchIterator.next_rows, {}

  def spoiling(self):
    rows = take(self)
    content = tuple(each["encoder_input_tokens"].tobytes() for each in rows.values())
    if seen.setdefault(content, len(seen) + 1) in numbers:
      for each in rows.values():
        each["decoder_loss_weights"] = each["decoder_loss_weights"] * np.float32(np.nan)
    return rows

  monkeypatch.setattr(batch_iterator.BatchIterator, "next_rows", spoiling)


def arguments(text, workdir, *options):
  return test_train.arguments(text, workdir, *SHORT, *options)


@pytest.mark.exhaustive
def test_a_run_leaves_out_an_update_and_says_so(text, tmp_path, capsys, monkeypatch):
  """The row of that step has no loss, and the run continues with the next batch."""
  poison(monkeypatch, 4)
  assert command.main(arguments(text, tmp_path, "--config.nan_policy.on_nonfinite=skip", "--config.train.steps=5")) == 0
  assert "step 4: loss nan" in (err := capsys.readouterr().err) and "the update is skipped (1 so far)" in err
  assert list(test_train.losses(tmp_path)) == [1, 2, 3, 5]
  assert test_train.losses(tmp_path, "train/skipped") == {1: 0, 2: 0, 3: 0, 4: 1, 5: 1}
  assert "NaN" not in (tmp_path / "metrics.jsonl").read_text()


@pytest.mark.exhaustive
def test_a_run_that_goes_back_is_the_same_run_however_it_is_broken_off(text, tmp_path, capsys, monkeypatch):
  """Bit for bit: uninterrupted, restarted before the bad batch, and interrupted directly after the rollback."""
  back = ("--config.nan_policy.on_nonfinite=rollback", "--config.eval.every=3")
  whole, parts, again = tmp_path / "whole", tmp_path / "parts", tmp_path / "again"
  with monkeypatch.context() as patch:
    poison(patch, 5)
    assert command.main(arguments(text, whole, *back)) == 0
    assert "rolling back to step 3, and skipping the 2 batches after it" in capsys.readouterr().err
    rows = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "train/loss" in row] == [1, 2, 3, 4, 5, 6]
  assert json.loads((whole / "went_back.jsonl").read_text()) == {"checkpoint": 3, "step": 5}
  assert (whole / "bad_batches" / "step_5.npz").exists()
  with monkeypatch.context() as patch:
    poison(patch, 5)
    assert command.main(arguments(text, parts, *back, "--config.train.steps=3")) == 0
    assert command.main(arguments(text, parts, *back)) == 0
  assert test_train.losses(parts) == test_train.losses(whole)
  # The NaN was the machine's fault; the batch is skipped all the same.
  shutil.copytree(whole, again, ignore=lambda folder, names: ["6"] if folder.endswith("checkpoints") else [])
  assert command.main(arguments(text, again, *back)) == 0
  assert test_train.losses(again) == test_train.losses(whole)
  # A run that restarts from scratch has no rollback.
  shutil.rmtree(again / "checkpoints")
  assert command.main(arguments(text, again, *back)) == 0
  assert (again / "went_back.jsonl").read_text() == ""


@pytest.mark.parametrize(
  "line", ['{"checkpoint": "12", "step": 17}', '{"checkpoint": 12, "step": 12}', '{"checkpoint": 12}', "[12, 17]", "x"]
)
def test_a_turn_that_is_none_is_named(line, tmp_path):
  (tmp_path / "went_back.jsonl").write_text('{"checkpoint": 12, "step": 17}\n' + line)
  with pytest.raises(UserError, match=r"went_back.jsonl, line 2 is not a valid rollback"):
    rollback.turns(epath.Path(tmp_path))


@pytest.mark.exhaustive
def test_a_run_goes_back_so_often_and_to_what_is_there(text, tmp_path, capsys, monkeypatch):
  poison(monkeypatch, 2)
  back = ("--config.nan_policy.on_nonfinite=rollback", "--config.checkpoint.save_interval_steps=1")
  assert command.main(arguments(text, tmp_path / "limit", *back, "--config.nan_policy.max_rollbacks=0")) == 2
  assert "has rolled back 0 times, the limit of config.nan_policy.max_rollbacks=0" in capsys.readouterr().err
  assert command.main(arguments(text, tmp_path / "none", back[0])) == 2
  assert "there is no checkpoint for a rollback. Lower config.checkpoint.save_interval_steps" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_the_same_command_gives_the_same_bits(text, tmp_path):
  """In separate processes: losses, gradient norms, and every saved array."""
  found = []
  for name in ("one", "two"):
    run = [sys.executable, "-m", "t2t", *arguments(text, tmp_path / name, "--config.train.steps=3")]
    subprocess.run(run, check=True, capture_output=True)
    folder = tmp_path / name / "checkpoints" / "3"
    shapes = {path: jax.ShapeDtypeStruct(shape, jnp.float32) for path, shape in restore.param_shapes(folder).items()}
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    wanted = {path: (path, jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)) for path, x in shapes.items()}
    found.append(restore.read_params(folder, wanted))
  for metric in ("train/loss", "train/grad_norm", "eval/loss"):
    assert test_train.losses(tmp_path / "one", metric) == test_train.losses(tmp_path / "two", metric) != {}
  jax.tree.map(np.testing.assert_array_equal, *found)
